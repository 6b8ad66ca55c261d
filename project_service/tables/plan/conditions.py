"""Plans conditions: tells filters on columns from tests whether an embedded relation has rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from project_service.tables import errors
from project_service.tables.model import Relation
from project_service.tables.plan.nodes import Condition, EmbedIsNull, Tree
from project_service.tables.syntax import Filter, Is, Logic


def plan_conditions(
    filters: Iterable[Filter | Logic], relation: Relation | None, embedded: Mapping[str, str]
) -> tuple[tuple[Condition, ...], dict[str, str]]:
    """The planned conditions, and that part of ``embedded`` whose presence they test.

    ``embedded`` maps the names that a filter may use for an embedded relation to its name. Raises PGRST120.
    """
    tested: dict[str, str] = {}
    return tuple(_plan(found, relation, embedded, tested) for found in filters), tested


def _plan(
    found: Filter | Logic, relation: Relation | None, embedded: Mapping[str, str], tested: dict[str, str]
) -> Condition:
    if isinstance(found, Logic):
        terms = tuple(_plan(term, relation, embedded, tested) for term in found.terms)
        return Tree(found.operator, terms, found.negated)
    name = found.field.name
    if found.field.path or name not in embedded:
        return found
    if isinstance(found.operation, Is) and found.operation.value in ("null", "not_null"):
        tested[name] = embedded[name]
        return EmbedIsNull(embedded[name], found.negated != (found.operation.value == "not_null"))
    if relation is None or name in relation.columns:
        return found
    raise errors.not_a_null_filter(name)
