"""Selected columns, looked up: their names in the result and the functions that represent their types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.tables.model import Column, Key, Relation
from project_service.tables.plan.nodes import Embedded, Everything, Output, ReadPlan
from project_service.tables.syntax import Field, SelectColumn

# PostgreSQL's own that gather rows of any table into one value. It has them for the asking, as columns of the row:
# one row for all there are, whatever the limit, and all in memory at once.
GATHERING = frozenset({"array_agg", "json_agg", "json_agg_strict", "jsonb_agg", "jsonb_agg_strict"})


def plan_column(relation: Relation | None, item: SelectColumn) -> Output | Everything:
    """Raises PGRST204 for what would be all rows in one."""
    if item.field is not None and item.field.name == "*" and not item.field.path:
        return everything(relation)
    field = item.field
    column = relation.columns.get(field.name) if relation is not None and field is not None else None
    if relation is not None and field is not None and column is None and field.name in GATHERING:
        raise errors.no_column(field.name, relation.name)
    return Output(
        _name(item),
        field,
        column,
        item.cast,
        item.aggregate,
        item.aggregate_cast,
        None if field is None or field.path else _format(column),
    )


def everything(relation: Relation | None) -> Everything:
    if relation is None:
        return Everything()
    named = tuple(
        Output(name, Field(name), column, format=_format(column)) for name, column in relation.columns.items()
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


def result_names(plan: ReadPlan) -> list[str] | None:
    """The names of the columns of a plan's result, in order and with carriers. None where they are not known."""
    found: list[str] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            found.append(output.name)
        elif isinstance(output, Everything):
            if not output.named:
                return None
            found.extend(named.name for named in output.named)
        elif not output.spread:
            if output.plan.shows:
                found.append(output.name)
        else:
            names = spread_names(output)
            if names is None:
                return None
            found.extend(names)
    return list(dict.fromkeys(found))


def spread_names(embedded: Embedded) -> list[str] | None:
    """The names that a spread relation adds to its parent's columns; None where they are not known."""
    names = result_names(embedded.plan)
    if names is None:
        return None
    carriers = {hoisted.carrier for hoisted in embedded.hoisted}
    plain = [name for name in names if name not in carriers]
    return plain + [hoisted.carrier if embedded.carries else hoisted.name for hoisted in embedded.hoisted]


def repeated_names(plan: ReadPlan) -> frozenset[str]:
    """The names that several columns of a plan's result have."""
    found: Counter[str] = Counter()
    for output in plan.outputs:
        if isinstance(output, Everything):
            found.update(named.name for named in output.named)
        elif isinstance(output, Embedded) and output.spread:
            found.update(spread_names(output) or ())
        else:
            found[output.name] += 1
    return frozenset(name for name, times in found.items() if times > 1)


@frozen
class Made:
    """Which columns of a result are JSON made for it, which has no order and no equality. ``others`` holds for the
    names that are not in ``columns``."""

    columns: Mapping[str, bool | None]
    others: bool | None

    def of(self, name: str) -> bool | None:
        """True for JSON made for the result, False for another column, None for no column."""
        return self.columns.get(name, self.others)


NOTHING_MADE = Made({}, None)


def made_columns(plan: ReadPlan) -> Made:
    """Computed for all columns at once, because a caller may ask about every selected name on every level."""
    found: dict[str, bool | None] = {}
    for output in plan.outputs:
        if isinstance(output, Everything) and not output.named:
            return Made(found, False)
        if isinstance(output, Embedded) and output.spread:
            inner = made_columns(output.plan) if output.to_one else Made({}, True)
            names = spread_names(output)
            known = {**{hoisted.name: False for hoisted in output.hoisted}, **inner.columns}
            for name in inner.columns if names is None else names:
                found.setdefault(name, known.get(name, inner.others))
            if names is None:
                return Made(found, inner.others)
        elif isinstance(output, Embedded):
            found.setdefault(output.name, True)
        else:
            for shown in output.named if isinstance(output, Everything) else (output,):
                found.setdefault(shown.name, shown.format is not None)
    return Made(found, None)
