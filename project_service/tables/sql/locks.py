"""What runs before a prepared statement, or a cursor, in its transaction, so that it has its locks before it looks.

EXECUTE and DECLARE see the database as it was before they waited for a lock: a table that was emptied and filled
again meanwhile, or written anew for a column's new type, has no rows for them (PostgreSQL's manual, "Caveats" of
concurrency control). What waits in a statement before them is there for them. Writes need none of it: PostgreSQL has
them look when they begin.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.tables.catalog.model import Relation, SchemaCache
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.sql.embed import is_joined
from project_service.tables.sql.fragment import Sql, joined
from project_service.tables.sql.names import qualified


def locks_of_reading(cache: SchemaCache, plan: ReadPlan, statement: Sql) -> Sql:
    """Of what ``statement`` reads by ``plan``, and what the policies of that read."""
    found = list(_read_by(cache, plan))
    if any(one is None or one.expands for one in found):
        return locks_by_planning(statement)
    return joined(dict.fromkeys(_nothing_of(one) for one in found if one is not None), " UNION ALL ")


def locks_by_planning(statement: Sql) -> Sql:
    """Of all that ``statement``, a SELECT, reads, such as partitions: it is planned, and does not run."""
    return "SELECT * FROM (" + statement + ") AS pgrst_planned LIMIT 0"


def _nothing_of(relation: Relation) -> str:
    """A view is planned as it is: a false condition would leave none of its own, by which its tables are joined, and
    PostgreSQL would try every order of them, for seconds. For the same reason nothing is joined here."""
    name = qualified(relation.key)
    return f"(SELECT FROM {name} LIMIT 0)" if relation.is_view else f"SELECT FROM {name} WHERE false"


def _read_by(cache: SchemaCache, plan: ReadPlan) -> Iterator[Relation | None]:
    """None for functions, and for what the schema cache does not know."""
    if plan.key is not None:
        yield plan.relation
    ordering = {order.embedded for order in plan.order}
    for way in plan.embeddings:
        # What the statement does not name need not be allowed either.
        if not is_joined(way) and way.name not in ordering:
            continue
        junction = way.relationship.junction
        if junction is not None:
            yield cache.relations.get(junction.key)
        if way.relationship.routine is not None:
            yield None
        yield from _read_by(cache, way.plan)
