"""What is read of a request: parameters, headers and forms, as values."""
