"""Buckets and objects: rows in PostgreSQL, bytes in an S3-compatible store, streamed both ways. docs/architecture.rst
lists the modules."""
