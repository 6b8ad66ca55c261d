"""What the service logs, without secrets, and where it goes."""
