"""Statements that take the locks of a query, to be run before it in its transaction if it is prepared or a cursor.

EXECUTE and DECLARE take their snapshot before they wait for a lock. A table that was meanwhile truncated and filled
again, or rewritten for a column's new type, looks empty to them (PostgreSQL's manual, "Caveats" of concurrency
control). If the statement before them waits for the lock, their snapshot is taken afterwards. Writes do not need
this: PostgreSQL takes a new snapshot when they begin.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.tables.model import Relation, SchemaCache
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.sql.embed import is_read
from project_service.tables.sql.fragment import Sql, joined
from project_service.tables.sql.names import qualified


def locks_of_reading(cache: SchemaCache, plan: ReadPlan, statement: Sql) -> Sql:
    """The statement that locks what ``statement`` reads, whose plan is ``plan``, and what its tables' policies
    read."""
    found = list(_read_by(cache, plan))
    if any(one is None or one.expands for one in found):
        return locks_by_planning(statement)
    return joined(dict.fromkeys(_nothing_of(one) for one in found if one is not None), " UNION ALL ")


def locks_by_planning(statement: Sql) -> Sql:
    """The statement that locks all that ``statement``, a SELECT, reads, including partitions: PostgreSQL locks them
    to plan it, and it reads nothing."""
    return "SELECT * FROM (" + statement + ") AS pgrst_planned LIMIT 0"


def _nothing_of(relation: Relation) -> str:
    """A SELECT of no rows from the relation.

    A view gets a LIMIT instead of a false condition. The condition would remove the view's own, by which its tables
    are joined, and for many tables PostgreSQL would spend seconds trying every order of them. For the same reason the
    relations are not joined with each other here.
    """
    name = qualified(relation.key)
    return f"(SELECT FROM {name} LIMIT 0)" if relation.is_view else f"SELECT FROM {name} WHERE false"


def _read_by(cache: SchemaCache, plan: ReadPlan) -> Iterator[Relation | None]:
    """The relations that the plan reads; None for a function and for a relation that the schema cache does not
    have."""
    if plan.key is not None:
        yield plan.relation
    ordering = {order.embedded for order in plan.order}
    for way in plan.embeddings:
        # The statement does not name it, so the caller may have no right to it.
        if not is_read(way) and way.name not in ordering:
            continue
        junction = way.relationship.junction
        if junction is not None:
            yield cache.relations.get(junction.key)
        if way.relationship.routine is not None:
            yield None
        yield from _read_by(cache, way.plan)
