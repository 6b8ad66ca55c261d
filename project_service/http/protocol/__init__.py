"""HTTP/1.1 on a connection: from bytes to requests by either of two parsers, and responses to bytes (RFC 9112)."""
