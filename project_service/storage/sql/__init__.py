"""The rows of storage in PostgreSQL. The rules that must hold under concurrency are functions of the schema."""
