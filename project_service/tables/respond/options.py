"""``OPTIONS``: which methods a relation, a function or the root has."""

from __future__ import annotations

from project_service.http.outbound import Reply
from project_service.tables.headers import VARY
from project_service.tables.model import Relation, SchemaCache
from project_service.tables.parse.request import Head
from project_service.tables.plan.call import unknown_routine
from project_service.tables.plan.relation import find_relation


def options_reply(cache: SchemaCache, head: Head) -> Reply:
    """The reply with ``Allow``. Raises PGRST202 and PGRST205 for what the schema cache does not have."""
    if head.kind == "root":
        allowed = ["GET", "HEAD"]
    elif head.kind == "routine":
        overloads = cache.routines.get((head.schema, head.name))
        if not overloads:
            raise unknown_routine(cache, head.schema, head.name)
        readable = any(routine.volatility != "v" for routine in overloads)
        allowed = ["GET", "HEAD", "POST"] if readable else ["POST"]
    else:
        allowed = _of_relation(find_relation(cache, head))
    allow = ("Allow", ",".join(["OPTIONS", *allowed]))
    return Reply(200, (allow, ("Content-Type", "application/json"), VARY))


def _of_relation(relation: Relation) -> list[str]:
    found = ["GET", "HEAD"]
    if relation.insertable:
        found.append("POST")
    if relation.insertable and relation.updatable and relation.primary_key:
        found.append("PUT")
    if relation.updatable:
        found.append("PATCH")
    if relation.deletable:
        found.append("DELETE")
    return found
