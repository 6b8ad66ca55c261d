"""The primary key of an inserted row, for the Location header."""

from __future__ import annotations

import re

from project_service.tables.model import Column
from project_service.tables.plan.write import WritePlan
from project_service.tables.sql.body import NUMBER
from project_service.tables.sql.names import ident, qualified
from project_service.tables.sql.read import SOURCE

_MOMENT = re.compile(r"date|timestamp(\(\d\))? with(out)? time zone")


def location_sql(plan: WritePlan) -> str:
    """The primary key of the row that was inserted, as a JSON array of texts; null if it was not exactly one row."""
    if not plan.location:
        return "null::text"
    values = ", ".join(_filtered_by(plan.relation.columns[name]) for name in plan.location)
    return f"CASE WHEN {NUMBER} = 1 THEN (SELECT json_build_array({values})::text FROM {SOURCE}) END"


def _filtered_by(column: Column) -> str:
    """The column's value as text, in the form that a filter on it takes: if a data representation reads filters, that
    is the value as clients are shown it."""
    shown = column.representation
    if shown.to_json is not None and shown.from_text is not None:
        return f"{qualified(shown.to_json)}({ident(column.name)}) #>> '{{}}'"
    if _MOMENT.fullmatch(column.base_type):
        # With some settings of DateStyle a time zone is an abbreviation, which may be ambiguous. JSON has the offset.
        return f"to_json({ident(column.name)}) #>> '{{}}'"
    return f"{ident(column.name)}::text"
