"""Running compiled statements on a connection, and reading what comes back."""
