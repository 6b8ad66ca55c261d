"""The web edge that all parts share: from bytes to handlers and back."""
