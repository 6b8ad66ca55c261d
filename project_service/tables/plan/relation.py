"""Finding the relation that a request names."""

from __future__ import annotations

from project_service.tables import errors
from project_service.tables.model import Relation, SchemaCache
from project_service.tables.parse.request import Head
from project_service.tables.plan.hints import TABLE_SCORE, nearest


def find_relation(cache: SchemaCache, head: Head) -> Relation:
    """Raises PGRST205."""
    found = cache.relations.get((head.schema, head.name))
    if found is None:
        names = [name for schema, name in cache.relations if schema == head.schema]
        raise errors.no_table(head.schema, head.name, nearest(head.name, names, TABLE_SCORE))
    return found
