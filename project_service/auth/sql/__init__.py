"""The protocols of ``ports.py`` implemented in PostgreSQL, one module for each, with SQL in named queries."""
