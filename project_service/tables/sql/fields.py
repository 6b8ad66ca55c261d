"""Columns and JSON paths in SQL."""

from __future__ import annotations

from project_service.tables.model import Column
from project_service.tables.plan.nodes import Hoisted, Output
from project_service.tables.plan.outputs import GATHERING
from project_service.tables.sql.names import cast_type, ident, literal, qualified
from project_service.tables.syntax import Field

_JSON_TYPES = ("json", "jsonb")


def field_sql(source: str, field: Field, column: Column | None) -> str:
    """A column, or a JSON path into it. ``source`` is a relation's alias, unquoted.

    A path into anything but JSON goes through ``to_jsonb``: arrays, composites, and columns that the schema cache
    does not have (computed columns, and those of a function that RETURNS TABLE).
    """
    base = ident(field.name)
    if column is not None or field.name not in GATHERING:
        # Without the relation before it PostgreSQL takes a name for a column only, and not for a function of the row.
        base = f"{ident(source)}.{base}"
    if not field.path:
        return base
    if column is None or column.base_type not in _JSON_TYPES:
        base = f"to_jsonb({base})"
    for step in field.path:
        key = str(step.key) if isinstance(step.key, int) else literal(step.key)
        base += ("->>" if step.as_text else "->") + key
    return base


def expression(source: str, output: Output) -> str:
    """The SQL expression of an output, without its aggregate and without its name."""
    if output.field is None:
        return "1"
    found = field_sql(source, output.field, output.column)
    if output.format is not None:
        found = f"{qualified(output.format)}({found})"
    if output.cast is not None:
        found = f"CAST({found} AS {cast_type(output.cast)})"
    return found


def output_sql(source: str, output: Output) -> str:
    found = expression(source, output)
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
