"""What a database offers: its description in two forms, and types for clients."""
