"""The columns a statement must return so that its result can be read from it: selected, ordered by, embedded on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve

from project_service.tables.plan.nodes import Embedded, Everything, Output, ReadPlan


def needed_columns(plan: ReadPlan) -> tuple[bool, tuple[str, ...]]:
    """Whether all columns are needed, and the names of those that are (computed ones included)."""
    everything = any(isinstance(output, Everything) for output in plan.outputs)
    everything = everything or any(found.relationship.routine is not None for found in plan.embeddings)
    return everything, tuple(dict.fromkeys(_names(plan)))


def spelled_out(plan: ReadPlan, needed: Iterable[str]) -> ReadPlan:
    """The plan with ``*``, and rows passed to functions, spelled out as the relation's own columns.

    That is necessary where computed or system columns are among ``needed``: the statement's source then has more
    columns than the relation.
    """
    relation = plan.relation
    if relation is None:
        return plan
    plan = evolve(plan, computed={})
    if all(name in relation.columns for name in needed):
        return plan
    own = tuple(relation.columns)
    outputs: list[Output | Everything | Embedded] = []
    for output in plan.outputs:
        if isinstance(output, Everything):
            outputs.extend(output.named)
        else:
            outputs.append(evolve(output, row_columns=own) if isinstance(output, Embedded) else output)
    return evolve(plan, outputs=tuple(outputs))


def _names(plan: ReadPlan) -> Iterator[str]:
    for output in plan.outputs:
        if isinstance(output, Output) and output.field is not None:
            yield output.field.name
        elif isinstance(output, Embedded):
            yield from _keys(output)
    for order in plan.order:
        if order.embedded is None and not order.counts:
            yield order.field.name


def _keys(embedded: Embedded) -> Iterator[str]:
    way = embedded.relationship
    pairs = way.pairs if way.junction is None else way.junction.origin_pairs
    return (ours for ours, _ in pairs)
