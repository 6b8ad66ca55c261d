"""Rendering plans as SQL: identifiers from the schema cache or quoted, values as parameters."""
