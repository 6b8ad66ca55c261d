"""From a parsed request to a compiled statement, and the work kept for later requests of the same shape."""
