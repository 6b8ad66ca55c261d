"""``OPTIONS``: which methods a relation, a function or the root has."""

from __future__ import annotations

from project_service.http.outbound import Reply
from project_service.tables.headers import VARY
from project_service.tables.model import Relation, SchemaCache
from project_service.tables.parse.request import READING, WRITING, Head
from project_service.tables.plan.call import unknown_routine
from project_service.tables.plan.relation import find_relation


def options_reply(cache: SchemaCache, head: Head) -> Reply:
    """The reply with ``Allow``. Raises PGRST202 and PGRST205 for what the schema cache does not have."""
    return Reply(200, (_allow(_methods(cache, head)), ("Content-Type", "application/json"), VARY))


def other_methods(cache: SchemaCache, head: Head, only_reads: bool) -> tuple[str, str]:
    """``Allow`` for a 405 that the request's method and path do not deserve by themselves: the target's methods
    without the one that was refused. ``only_reads`` says that it was refused because it writes: if it was not a read,
    no other method may write either.

    Raises as ``options_reply``.
    """
    refused = set(READING if head.method in READING else (head.method,))
    if only_reads and head.method in WRITING:
        refused.update(WRITING if head.kind == "relation" else (*READING, *WRITING))
    return _allow([method for method in _methods(cache, head) if method not in refused])


def _allow(methods: list[str]) -> tuple[str, str]:
    return ("Allow", ",".join(["OPTIONS", *methods]))


def _methods(cache: SchemaCache, head: Head) -> list[str]:
    if head.kind == "root":
        return ["GET", "HEAD"]
    if head.kind == "routine":
        overloads = cache.routines.get((head.schema, head.name))
        if not overloads:
            raise unknown_routine(cache, head.schema, head.name)
        readable = any(routine.volatility != "v" for routine in overloads)
        return ["GET", "HEAD", "POST"] if readable else ["POST"]
    return _of_relation(find_relation(cache, head))


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
