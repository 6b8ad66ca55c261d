"""Running statements: in one round trip, in pieces, and batch by batch."""
