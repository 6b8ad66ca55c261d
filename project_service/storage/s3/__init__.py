"""A client for any S3-compatible object store, streaming in both directions."""
