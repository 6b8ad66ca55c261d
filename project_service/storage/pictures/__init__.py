"""Pictures in other sizes and formats."""
