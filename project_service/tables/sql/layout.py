"""Decides how the SELECT of a relation is laid out: where the rows of embedded relations are asked for.

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

from collections.abc import Iterable
from typing import Literal

from project_service.tables.plan.nodes import (
    AllColumns,
    Embedded,
    LogicTree,
    Output,
    ReadPlan,
    spread_columns,
    tested_names,
)
from project_service.tables.request.syntax import Field

Layout = Literal["joined", "tested", "paged"]


def layout_of(plan: ReadPlan, nested: bool) -> Layout:
    """The layout for the plan; ``nested`` says that it is embedded in another one."""
    deciding = list(plan.deciding)
    if plan.grouped:
        return "tested"
    if plan.names_one_row and not nested:
        return "joined"  # a single row needs no page
    pageable = _is_pageable(plan, deciding)
    if plan.order:
        paged = pageable and any(plan.embeddings) and not plan.range.whole
        return "paged" if paged else "joined" if nested else "tested"
    return "joined" if nested or not pageable else _layout_of_unsorted(plan, deciding)


def _layout_of_unsorted(plan: ReadPlan, deciding: list[Embedded]) -> Layout:
    required = _required(plan)
    if any(not embedded.to_one for embedded in required):
        # The rows of a function have an order of their own, which only tests that are not joins leave as it is.
        return "paged" if plan.key is not None and page_key(plan) else "tested"
    if required or plan.range.whole:
        return "tested"
    shown = [embedded for embedded in plan.embeddings if embedded.plan.shows]
    # PostgreSQL may join to-one relations in any order, so that the pages would not fit together.
    if any(embedded.to_one for embedded in shown) or (shown and plan.range.offset):
        return "paged"
    return "tested" if deciding else "joined"


def _required(plan: ReadPlan) -> list[Embedded]:
    """The embedded relations whose tests every row has to pass. Of a test in an ``or`` PostgreSQL makes no join, and
    so it does not change the order of rows."""
    names = set(
        tested_names(
            one
            for one in plan.conditions
            if not (isinstance(one, LogicTree) and one.operator == "or" and not one.negated)
        )
    )
    return [embedded for embedded in plan.embeddings if embedded.join == "inner" or embedded.name in names]


def tested_by_exists(plan: ReadPlan, layout: Layout) -> list[Embedded]:
    """The embedded relations that are tested by EXISTS."""
    if layout == "joined":
        return []
    return [
        embedded
        for embedded in plan.deciding
        # A to-one relation that is shown is joined anyway, and a function would be called once more.
        if layout == "paged"
        or not embedded.plan.shows
        or not (embedded.to_one or _is_made_by_function(embedded))
    ]


def page_key(plan: ReadPlan) -> tuple[str, ...]:
    """The columns to sort an unsorted page by: those that a to-many relation that every row has to have, or not to
    have, refers to. None if there are no such columns."""
    for embedded in _required(plan):
        if not embedded.to_one and (pairs := embedded.relationship.origin_pairs):
            return tuple(ours for ours, _ in pairs)
    return ()


def _is_pageable(plan: ReadPlan, deciding: list[Embedded]) -> bool:
    """Whether a page can be found first. A function that decides and is shown would be called once more for it."""
    called = any(embedded.plan.shows and _is_made_by_function(embedded) for embedded in deciding)
    # Without the relation's columns it is not known what ``*`` means.
    return (
        not called
        and plan.relation is not None
        and all(_is_ordered_plainly(plan, embedded) for embedded in plan.embeddings)
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
    others = {name for output in embedded.plan.outputs for name in _other_names(output)}
    return others.isdisjoint(order.field.name for order in orders)


def _other_names(output: Output | AllColumns | Embedded) -> Iterable[str]:
    """The names under which something else is shown than the relation's column of that name."""
    if isinstance(output, Output):
        own = output.field == Field(output.name) and output.cast is None and output.aggregate is None
        return () if own else (output.name,)
    if isinstance(output, Embedded) and output.spread:
        return (name for name, _ in spread_columns(output))
    return ()


def _is_made_by_function(embedded: Embedded) -> bool:
    """Whether a function makes the relation, or one below it that decides."""
    if embedded.relationship.routine is not None:
        return True
    return any(map(_is_made_by_function, embedded.plan.deciding))
