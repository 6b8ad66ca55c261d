"""What is refused, slowed down or closed when there is more to do than can be done."""
