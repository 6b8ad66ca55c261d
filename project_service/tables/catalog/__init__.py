"""The schema cache: what the database offers, as frozen values, and how it is read."""
