"""``/openapi.json``: routes describe themselves, and the document is made of that."""
