"""The rows of storage in PostgreSQL."""
