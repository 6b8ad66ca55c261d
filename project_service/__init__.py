"""Authentication, object storage and a table REST API for one project, in one daemon."""

__version__ = "0.2.0.dev0"
