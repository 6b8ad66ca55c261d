"""Which embedded relations decide by filters of their own whether a row is there.

Their rows are gathered for each row of the parent. Asked for with EXISTS as well, PostgreSQL may begin with them: it
gathers for the rows that are left, and has not looked at all the others one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from project_service.tables.plan.nodes import Embedded, EmbedIsNull, ReadPlan
from project_service.tables.syntax import Compare, Filter


def decisive(plan: ReadPlan) -> Iterator[Embedded]:
    """Those of a relation that is read; none where one row of it is meant anyway. What a function makes is made
    once only."""
    if plan.key is None or _names_its_key(plan):
        return
    present = {
        found.embedded for found in plan.conditions if isinstance(found, EmbedIsNull) and found.negated
    }
    for embedded in plan.embeddings:
        if embedded.join != "inner" and embedded.name not in present:
            continue
        if not embedded.to_one and _is_narrowed(embedded):
            yield embedded


def _is_narrowed(embedded: Embedded) -> bool:
    if embedded.relationship.routine is not None:
        return False
    inner = (found for found in embedded.plan.embeddings if found.join == "inner")
    return bool(embedded.plan.conditions) or any(_is_narrowed(found) for found in inner)


def _names_its_key(plan: ReadPlan) -> bool:
    named = {
        found.field.name for found in plan.conditions if isinstance(found, Filter) and _is_equality(found)
    }
    return (
        plan.relation is not None
        and bool(plan.relation.primary_key)
        and named >= {*plan.relation.primary_key}
    )


def _is_equality(found: Filter) -> bool:
    operation = found.operation
    plain = isinstance(operation, Compare) and operation.operator == "=" and operation.quantifier is None
    return plain and not found.negated and not found.field.path
