"""Finds the embedded relations that decide which rows of the parent are shown, so that EXISTS can be asked for as
well.

The joined subquery of such a relation gathers its rows for each row of the parent. With an EXISTS beside it
PostgreSQL can begin with the embedded relation, and gathers only for the rows of the parent that are left.

This is done only for rows that are sorted. Others come in the order in which the table is read, here as with
PostgREST, and clients have come to rely on that.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.tables.plan.nodes import Embedded, EmbedIsNull, ReadPlan


def decisive(plan: ReadPlan) -> Iterator[tuple[Embedded, bool]]:
    """The deciding embedded relations of a plan, each with True if it must have rows, or False if it must have none.

    There are none if the plan names a single row anyway. A relation that a function makes is left out: the EXISTS
    would call it once more.
    """
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
    """Whether its rows, or those of a relation embedded in it, are aggregates. A count is there even if there is
    nothing to count."""
    return embedded.plan.grouped or any(map(is_aggregated, embedded.plan.embeddings))


def _needing(embedded: Embedded) -> Iterator[Embedded]:
    """The embedded relation, and all that are inner joined below it: without rows of theirs it shows none."""
    yield embedded
    for found in embedded.plan.embeddings:
        if found.join == "inner":
            yield from _needing(found)
