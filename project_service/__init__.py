"""Authentication, object storage and a table REST API for one project, in one daemon."""

__version__ = "0.1.0"
