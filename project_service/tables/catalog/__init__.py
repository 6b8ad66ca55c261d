"""How the schema cache is read, kept and found out of date. Its values are in ``tables/model``."""
