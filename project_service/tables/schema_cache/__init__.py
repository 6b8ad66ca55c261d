"""The schema cache: what PostgreSQL's catalogs say of the exposed schemas (``tables.values``)."""
