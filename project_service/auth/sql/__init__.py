"""Authentication in PostgreSQL: the ports of ``ports.py``, one module a concern, SQL as named queries."""
