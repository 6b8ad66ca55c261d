"""Which embedded relations decide whether a row is there, by filters of their own or by having no rows.

Their rows are gathered for each row of the parent. Asked for with EXISTS as well, PostgreSQL may begin with them: it
gathers for the rows that are left, and has not looked at all the others one by one.

Only of rows that are sorted: others come as the table is read, in PostgREST's statements and so in ours, and clients
have come to count on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.tables.plan.nodes import Embedded, EmbedIsNull, ReadPlan


def decisive(plan: ReadPlan) -> Iterator[tuple[Embedded, bool]]:
    """Those of a relation that is read in some order, each with whether there has to be one. None where one row of
    the relation is meant anyway; what a function makes is made once only."""
    if plan.key is None or not plan.order or plan.names_one_row:
        return
    tested = {found.embedded: found.negated for found in plan.conditions if isinstance(found, EmbedIsNull)}
    for embedded in plan.embeddings:
        if embedded.to_one or any(found.relationship.routine is not None for found in _needing(embedded)):
            continue
        if is_aggregated(embedded):
            continue
        wanted = tested.get(embedded.name, True if embedded.join == "inner" else None)
        if wanted is False or (wanted and any(found.plan.conditions for found in _needing(embedded))):
            yield embedded, wanted


def is_aggregated(embedded: Embedded) -> bool:
    """Whether rows are made of others, here or below: a count is there where none of those is."""
    return embedded.plan.grouped or any(map(is_aggregated, embedded.plan.embeddings))


def _needing(embedded: Embedded) -> Iterator[Embedded]:
    """The embedded relation, and those without which its rows are left out."""
    yield embedded
    for found in embedded.plan.embeddings:
        if found.join == "inner":
            yield from _needing(found)
