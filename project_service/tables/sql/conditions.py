"""The conditions of WHERE clauses. Operators come from a fixed list; operands are parameters."""

from __future__ import annotations

from collections.abc import Callable

from project_service.tables.model import Column, Key
from project_service.tables.plan.nodes import Condition, EmbedIsNull, ReadPlan, Tree
from project_service.tables.sql.fields import column_sql, field_sql
from project_service.tables.sql.fragment import Sql, joined, parameter
from project_service.tables.sql.names import ident, qualified, refuse_long_name
from project_service.tables.syntax import Compare, Filter, In, Is, Search

Presence = Callable[[EmbedIsNull], Sql]

_IS = {
    "null": "IS NULL",
    "not_null": "IS NOT NULL",
    "true": "IS TRUE",
    "false": "IS FALSE",
    "unknown": "IS UNKNOWN",
}
_PATTERNS = ("LIKE", "ILIKE")


def condition_sql(plan: ReadPlan, condition: Condition, presence: Presence | None = None) -> Sql:
    """A planned condition as SQL. ``presence`` renders tests whether an embedded relation has rows, where the
    embedded relations are not joined."""
    if isinstance(condition, Tree):
        terms = [condition_sql(plan, term, presence) for term in condition.terms]
        body = "(" + joined(terms, f" {condition.operator.upper()} ") + ")"
        return "NOT " + body if condition.negated else body
    if isinstance(condition, EmbedIsNull):
        return presence(condition) if presence is not None else Sql(presence_sql(plan, condition))
    name = condition.field.name
    column = plan.column(name)
    return filtered_value(field_sql(column_sql(plan, name), condition.field, column), column, condition)


def presence_sql(plan: ReadPlan, condition: EmbedIsNull) -> str:
    """The test whether a joined relation has rows."""
    embedded = plan.embedding(condition.embedded)
    assert embedded is not None
    tested = ident(embedded.alias) + (".*" if embedded.to_one else ".pgrst_rows")
    return f"{tested} IS {'DISTINCT' if condition.negated else 'NOT DISTINCT'} FROM NULL"


def filtered_value(field: str, column: Column | None, found: Filter) -> Sql:
    """The filter applied to ``field``, an SQL expression of the column's type."""
    reader = None if column is None or found.field.path else column.representation.from_text
    body = _operation(field, column, found, reader)
    return "NOT " + body if found.negated else body


def _operation(field: str, column: Column | None, found: Filter, reader: Key | None) -> Sql:
    operation = found.operation
    if isinstance(operation, Is):
        return Sql(f"{field} {_IS[operation.value]}")
    if isinstance(operation, In):
        return _in(field, operation, reader)
    if isinstance(operation, Search):
        return _search(field, column, found, operation)
    return _compare(field, operation, reader)


def _compare(field: str, operation: Compare, reader: Key | None) -> Sql:
    value = parameter(operation.operand)
    if operation.operator in _PATTERNS:
        # A pattern is no value of the column's type, so it is not read as one.
        reader = None
    if operation.quantifier is not None:
        value = value if reader is None else _read(reader, value)
        return f"{field} {operation.operator} {operation.quantifier.upper()} (" + value + ")"
    if reader is not None:
        value = f"{qualified(reader)}(" + value + "::text)"
    return f"{field} {operation.operator} " + value


def _in(field: str, operation: In, reader: Key | None) -> Sql:
    values = parameter(operation.operand)
    return f"{field} = ANY (" + (values if reader is None else _read(reader, values)) + ")"


def _read(reader: Key, values: Sql) -> Sql:
    return f"SELECT {qualified(reader)}(v) FROM unnest(" + values + "::text[]) AS v"


def _search(field: str, column: Column | None, found: Filter, operation: Search) -> Sql:
    language = Sql("")
    if operation.language:
        refuse_long_name(operation.language)
        language = parameter(operation.language) + ", "
    document = Sql(field)
    if column is not None and (found.field.path or column.base_type != "tsvector"):
        document = "to_tsvector(" + language + document + ")"
    return document + f" @@ {operation.function}(" + language + parameter(operation.operand) + ")"
