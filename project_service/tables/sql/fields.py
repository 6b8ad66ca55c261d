"""Columns and JSON paths in SQL."""

from __future__ import annotations

from project_service.tables.model import Column, Computed
from project_service.tables.plan.nodes import Hoisted, Output, ReadPlan
from project_service.tables.sql.names import cast_type, ident, literal, qualified
from project_service.tables.syntax import Field

_JSON_TYPES = ("json", "jsonb")


def column_sql(plan: ReadPlan, name: str) -> str:
    """A column of the relation that the plan reads. The planner has made sure that there is one of that name."""
    computed = plan.computed.get(name)
    return f"{ident(plan.alias)}.{ident(name)}" if computed is None else computed_sql(plan.alias, computed)


def computed_sql(alias: str, computed: Computed) -> str:
    """The call that makes a computed column. A name put after the relation's would do as well, but might mean another
    function or an aggregate."""
    row = f"({ident(alias)}.*)"
    return f"{qualified(computed.routine)}({row if computed.row is None else f'{row}::{qualified(computed.row)}'})"


def field_sql(base: str, field: Field, column: Column | None) -> str:
    """The column ``base``, an SQL expression, or a JSON path into it.

    A path into anything but JSON goes through ``to_jsonb``: arrays, composites, and columns of unknown types
    (computed columns, and those of a function that RETURNS TABLE).
    """
    if not field.path:
        return base
    if column is None or column.base_type not in _JSON_TYPES:
        base = f"to_jsonb({base})"
    for step in field.path:
        key = str(step.key) if isinstance(step.key, int) else literal(step.key)
        base += ("->>" if step.as_text else "->") + key
    return base


def expression(plan: ReadPlan, output: Output) -> str:
    """The SQL expression of an output, without its aggregate and without its name."""
    if output.field is None:
        return "1"
    found = field_sql(column_sql(plan, output.field.name), output.field, output.column)
    if output.format is not None:
        found = f"{qualified(output.format)}({found})"
    if output.cast is not None:
        found = f"CAST({found} AS {cast_type(output.cast)})"
    return found


def output_sql(plan: ReadPlan, output: Output) -> str:
    found = expression(plan, output)
    if output.aggregate is not None:
        found = aggregated(output.aggregate, "*" if output.field is None else found, output.aggregate_cast)
    return f"{found} AS {ident(output.name)}"


def hoisted_sql(alias: str, hoisted: Hoisted) -> str:
    carrier = f"{ident(alias)}.{ident(hoisted.carrier)}"
    return f"{aggregated(hoisted.aggregate, carrier, hoisted.cast)} AS {ident(hoisted.name)}"


def aggregated(function: str, argument: str, cast: str | None) -> str:
    """``function`` is one of the five aggregates that the grammar allows.

    An application may define the others for types of its own. PostgreSQL's ``count`` takes every type, but a function
    ``count(text)`` would be called instead of it.
    """
    name = "pg_catalog.count" if function == "count" else function.upper()
    found = f"{name}({argument})"
    return f"CAST({found} AS {cast_type(cast)})" if cast is not None else found
