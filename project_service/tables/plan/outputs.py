"""Selected columns, looked up: their names in the result and the functions that represent their types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import evolve

from project_service.tables.model import Column, Key
from project_service.tables.plan.nodes import Embedded, Everything, Output, ReadPlan
from project_service.tables.syntax import Field, SelectColumn


def plan_column(item: SelectColumn, column: Column | None) -> Output:
    """``column`` is the one that ``item`` names; None for a computed column and for one of an unknown type."""
    field = item.field
    return Output(
        _name(item),
        field,
        column,
        item.cast,
        item.aggregate,
        item.aggregate_cast,
        None if field is None or field.path else _format(column),
    )


def everything(columns: Mapping[str, Column | None]) -> Everything:
    """``columns`` by name; None for one of an unknown type."""
    named = tuple(
        Output(name, Field(name), column, format=_format(column)) for name, column in columns.items()
    )
    return Everything(named, any(output.format for output in named))


def _format(column: Column | None) -> Key | None:
    return column.representation.to_json if column is not None else None


def _name(item: SelectColumn) -> str:
    """The alias, else the aggregate, else the last key of the JSON path that is a word, else the column."""
    if item.alias is not None:
        return item.alias
    if item.aggregate is not None:
        return item.aggregate
    assert item.field is not None
    for step in reversed(item.field.path):
        if isinstance(step.key, str):
            return step.key
    return item.field.name


def as_stored(plan: ReadPlan) -> ReadPlan:
    """The plan without the functions that represent values in JSON, for an aggregate that takes the relation's
    rows."""
    return evolve(plan, outputs=tuple(_stored(output) for output in plan.outputs))


def _stored(output: Output | Everything | Embedded) -> Output | Everything | Embedded:
    if isinstance(output, Everything):
        return Everything(tuple(evolve(named, format=None) for named in output.named))
    return evolve(output, format=None) if isinstance(output, Output) else output


def result_names(plan: ReadPlan) -> list[str]:
    """The names of the columns of a plan's result, in order and with carriers."""
    found: list[str] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            found.append(output.name)
        elif isinstance(output, Everything):
            found.extend(named.name for named in output.named)
        elif output.spread:
            found.extend(spread_names(output))
        elif output.plan.shows:
            found.append(output.name)
    return list(dict.fromkeys(found))


def spread_names(embedded: Embedded) -> list[str]:
    """The names that a spread relation adds to its parent's columns."""
    carriers = {hoisted.carrier for hoisted in embedded.hoisted}
    plain = [name for name in result_names(embedded.plan) if name not in carriers]
    return plain + [hoisted.carrier if embedded.carries else hoisted.name for hoisted in embedded.hoisted]


def repeated_names(plan: ReadPlan) -> frozenset[str]:
    """The names that several columns of a plan's result have."""
    found: Counter[str] = Counter()
    for output in plan.outputs:
        if isinstance(output, Everything):
            found.update(named.name for named in output.named)
        elif isinstance(output, Embedded) and output.spread:
            found.update(spread_names(output))
        else:
            found[output.name] += 1
    return frozenset(name for name, times in found.items() if times > 1)


def made_columns(plan: ReadPlan) -> dict[str, bool]:
    """The columns of a plan's result: True for JSON made for it, which has no order and no equality. Of several with
    one name the last counts.

    Computed for all columns at once, because a caller may ask about every selected name on every level.
    """
    made: dict[str, bool] = {}
    for output in plan.outputs:
        if isinstance(output, Embedded) and output.spread:
            inner = made_columns(output.plan) if output.to_one else {}
            known = {**{hoisted.name: False for hoisted in output.hoisted}, **inner}
            for name in spread_names(output):
                made[name] = known.get(name, not output.to_one)
        elif isinstance(output, Embedded):
            if output.plan.shows:
                made[output.name] = True
        else:
            for shown in output.named if isinstance(output, Everything) else (output,):
                made[shown.name] = shown.format is not None
    return made
