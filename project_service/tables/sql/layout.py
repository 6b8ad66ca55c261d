"""How the statement of a relation is laid out: where the rows of embedded relations are asked for.

An embedded relation decides which rows of its parent are shown if it is inner joined, or if a condition tests it.
There are three layouts:

``joined``
    All embedded relations are joined, and the joined rows decide.
``tested``
    To-many relations that decide, and those that only decide, are tested by EXISTS. What is shown is joined. If the
    order of rows has to stay as it is, PostgreSQL is kept from making joins of these tests.
``paged``
    A subquery finds the rows of the parent that are shown: those that pass all tests, by EXISTS, sorted and cut. Then
    what is shown of embedded relations is joined to these rows alone.

With EXISTS PostgreSQL can begin with the relation that decides, and it gathers no embedded rows for rows of the
parent that are left out or skipped. But rows then come in any order, while without ``order`` they are expected in
that in which the table is read, here as with PostgREST. So an unsorted page is sorted by the columns that an embedded
relation refers to, which are a key with an index: clients see the same order, and the same pages, whatever the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from project_service.tables.plan.nodes import (
    Condition,
    Embedded,
    Everything,
    Output,
    ReadPlan,
    Tree,
    tested_names,
)
from project_service.tables.plan.outputs import spread_names
from project_service.tables.syntax import Field

Layout = Literal["joined", "tested", "paged"]


def layout_of(plan: ReadPlan, nested: bool) -> Layout:
    """The layout for the plan; ``nested`` says that it is embedded in another one."""
    deciding = list(deciding_of(plan))
    if plan.grouped:
        return "tested"
    # A single row needs no page. How many rows a write or a function returns PostgreSQL does not know.
    if (plan.names_one_row and not nested) or (plan.key is None and deciding and not plan.inlined):
        return "joined"
    pageable = _is_pageable(plan, deciding)
    if plan.order:
        paged = pageable and any(plan.embeddings) and not plan.range.whole
        return "paged" if paged else "joined" if nested else "tested"
    return "joined" if nested or not pageable else _unsorted(plan, deciding)


def _unsorted(plan: ReadPlan, deciding: list[Embedded]) -> Layout:
    required = _required(plan)
    if any(not found.to_one for found in required):
        # The rows of a function have an order of their own, which only tests that are not joins leave as it is.
        return "paged" if plan.key is not None and key_of(plan) else "tested"
    if required or plan.range.whole:
        return "tested"
    shown = [found for found in plan.embeddings if found.plan.shows]
    # PostgreSQL may join to-one relations in any order, so that the pages would not fit together.
    if any(found.to_one for found in shown) or (shown and plan.range.offset):
        return "paged"
    return "tested" if deciding else "joined"


def deciding_of(plan: ReadPlan) -> Iterator[Embedded]:
    return (found for found in plan.embeddings if found.needed or found.join == "inner")


def _required(plan: ReadPlan) -> list[Embedded]:
    """The embedded relations whose tests every row has to pass. Of a test in an ``or`` PostgreSQL makes no join, and
    so it does not change the order of rows."""
    conditions = [one for one in plan.conditions if not _is_or(one)]
    names = set(tested_names(conditions))
    return [found for found in plan.embeddings if found.join == "inner" or found.name in names]


def _is_or(condition: Condition) -> bool:
    return isinstance(condition, Tree) and condition.operator == "or" and not condition.negated


def tested_apart(plan: ReadPlan, layout: Layout) -> list[Embedded]:
    """The embedded relations that are tested by EXISTS."""
    deciding = deciding_of(plan)
    if layout != "tested":
        return list(deciding) if layout == "paged" else []
    return [
        found
        for found in deciding
        # A to-one relation that is shown is joined anyway, and a function would be called once more.
        if not found.plan.shows or not (found.to_one or _is_made_by_function(found))
    ]


def key_of(plan: ReadPlan) -> tuple[str, ...]:
    """The columns to sort an unsorted page by: those that a to-many relation that every row has to have, or not to
    have, refers to. None if there are no such columns."""
    for found in _required(plan):
        way = found.relationship
        pairs = way.pairs if way.junction is None else way.junction.origin_pairs
        if not found.to_one and pairs:
            return tuple(ours for ours, _ in pairs)
    return ()


def _is_pageable(plan: ReadPlan, deciding: list[Embedded]) -> bool:
    """Whether a page can be found first. A function that decides and is shown would be called once more for it."""
    called = any(found.plan.shows and _is_made_by_function(found) for found in deciding)
    # Without the relation's columns it is not known what ``*`` means.
    return (
        not called
        and plan.relation is not None
        and all(_is_ordered_plainly(plan, one) for one in plan.embeddings)
    )


def _is_ordered_plainly(plan: ReadPlan, embedded: Embedded) -> bool:
    """Whether the columns of ``embedded`` that are ordered by are the relation's own, and nothing else is shown under
    their names, such as an aggregate: that would be meant."""
    orders = [order for order in plan.order if order.embedded == embedded.name]
    if not orders:
        return True
    if not embedded.plan.range.whole or not all(order.own for order in orders):
        return False
    # Made once for all terms, of which there may be as many as selected columns.
    others = {name for output in embedded.plan.outputs for name in _others(output)}
    return others.isdisjoint(order.field.name for order in orders)


def _others(output: Output | Everything | Embedded) -> Iterable[str]:
    """The names under which something else is shown than the relation's column of that name."""
    if isinstance(output, Output):
        own = output.field == Field(output.name) and output.cast is None and output.aggregate is None
        return () if own else (output.name,)
    return spread_names(output) if isinstance(output, Embedded) and output.spread else ()


def _is_made_by_function(embedded: Embedded) -> bool:
    """Whether a function makes the relation, or one below it that decides."""
    if embedded.relationship.routine is not None:
        return True
    return any(map(_is_made_by_function, deciding_of(embedded.plan)))
