"""What a statement returned, as a response."""
