"""SQL expressions about the rows of one relation: columns and JSON paths, outputs, and the conditions of filters."""

from __future__ import annotations

from collections.abc import Mapping

from project_service.database.quoting import literal
from project_service.tables.plan.nodes import (
    EmbedIsNull,
    Hoisted,
    LogicTree,
    Output,
    PlannedCondition,
    ReadPlan,
)
from project_service.tables.request.syntax import OPERATORS, Compare, Field, Filter, In, Is, Search
from project_service.tables.sql.fragment import (
    MAX_BIGINT,
    Sql,
    cast_type,
    ident,
    joined,
    parameter,
    qualified,
    reject_long_name,
)
from project_service.tables.values import Column, Computed, Key, Relation

_JSON_TYPES = ("json", "jsonb")


def column_sql(plan: ReadPlan, name: str) -> str:
    """A column of the relation that the plan reads. The planner has made sure that there is one of that name."""
    computed = plan.computed.get(name)
    return f"{ident(plan.alias)}.{ident(name)}" if computed is None else _computed_sql(plan.alias, computed)


def _computed_sql(alias: str, computed: Computed) -> str:
    """The call that makes a computed column. A name put after the relation's would do as well, but might mean another
    function or an aggregate."""
    row = f"({ident(alias)}.*)"
    return f"{qualified(computed.routine)}({row if computed.row is None else f'{row}::{qualified(computed.row)}'})"


def path_sql(base: str, field: Field, column: Column | None) -> str:
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


def field_sql(plan: ReadPlan, field: Field, column: Column | None) -> str:
    """A field of the relation that the plan reads; ``column`` is its column, where the type of that is known."""
    return path_sql(column_sql(plan, field.name), field, column)


def value_sql(plan: ReadPlan, output: Output) -> str:
    """The SQL expression of an output, without its aggregate and without its name."""
    if output.field is None:
        return "1"
    value = field_sql(plan, output.field, output.column)
    if output.format is not None:
        value = f"{qualified(output.format)}({value})"
    if output.cast is not None:
        value = f"CAST({value} AS {cast_type(output.cast)})"
    return value


def output_sql(plan: ReadPlan, output: Output) -> str:
    value = value_sql(plan, output)
    if output.aggregate is not None:
        value = _aggregate_sql(
            output.aggregate, "*" if output.field is None else value, output.aggregate_cast
        )
    return f"{value} AS {ident(output.name)}"


def hoisted_sql(alias: str, hoisted: Hoisted) -> str:
    carrier = f"{ident(alias)}.{ident(hoisted.carrier)}"
    return f"{_aggregate_sql(hoisted.aggregate, carrier, hoisted.cast)} AS {ident(hoisted.name)}"


def _aggregate_sql(function: str, argument: str, cast: str | None) -> str:
    """``function`` is one of the five aggregates that the grammar allows.

    An application may define the others for types of its own. PostgreSQL's ``count`` takes every type, but a function
    ``count(text)`` would be called instead of it.
    """
    name = "pg_catalog.count" if function == "count" else function.upper()
    value = f"{name}({argument})"
    return f"CAST({value} AS {cast_type(cast)})" if cast is not None else value


def returned_columns(
    alias: str,
    relation: Relation | None,
    everything: bool,
    names: tuple[str, ...],
    computed: Mapping[str, Computed],
) -> str:
    """The list of columns that a write or a call returns. ``everything`` asks for ``*``, beside which ``names`` adds
    computed and system columns, since ``*`` does not contain them. The constant 1 if nothing is needed."""
    source = ident(alias)
    columns = [f"{source}.*"] if everything else []
    for name in names:
        if name in computed:
            columns.append(f"{_computed_sql(alias, computed[name])} AS {ident(name)}")
        elif not everything or (relation is not None and name not in relation.columns):
            columns.append(f"{source}.{ident(name)}")
    return ", ".join(columns) or "1"


# Conditions. Operators come from a fixed table; operands are parameters.


def condition_sql(plan: ReadPlan, condition: PlannedCondition, tests: Mapping[str, Sql]) -> Sql:
    """``tests`` are expressions for the embedded relations that are not joined, by name: true if there are rows."""
    if isinstance(condition, LogicTree):
        terms = [condition_sql(plan, term, tests) for term in condition.terms]
        tree = "(" + joined(terms, f" {condition.operator.upper()} ") + ")"
        return "NOT " + tree if condition.negated else tree
    if isinstance(condition, EmbedIsNull):
        return _test_sql(plan, condition, tests.get(condition.embedded))
    column = plan.column(condition.field.name)
    return filter_sql(field_sql(plan, condition.field, column), column, condition)


def _test_sql(plan: ReadPlan, condition: EmbedIsNull, exists: Sql | None) -> Sql:
    if exists is not None:
        return exists if condition.negated else "NOT " + exists
    embedded = plan.embedding(condition.embedded)
    assert embedded is not None
    joined_row = ident(embedded.alias) + (".*" if embedded.to_one else ".pgrst_rows")
    return Sql(f"{joined_row} IS {'DISTINCT' if condition.negated else 'NOT DISTINCT'} FROM NULL")


def filter_sql(value: str, column: Column | None, condition: Filter) -> Sql:
    """The filter applied to ``value``, an SQL expression of the column's type."""
    operation = condition.operation
    reader = None if column is None or condition.field.path else column.representation.from_text
    if isinstance(operation, Is):
        sql = Sql(f"{value} IS {operation.value.upper().replace('_', ' ')}")
    elif isinstance(operation, In):
        values = parameter(operation.operand)
        sql = f"{value} = ANY (" + (values if reader is None else _read_each(reader, values)) + ")"
    elif isinstance(operation, Search):
        sql = _search_sql(value, column, condition, operation)
    else:
        sql = _comparison_sql(value, operation, reader)
    return "NOT " + sql if condition.negated else sql


def _comparison_sql(value: str, operation: Compare, reader: Key | None) -> Sql:
    operator, operand = OPERATORS[operation.operator], parameter(operation.operand)
    if operator.operand == "pattern":
        # A pattern is no value of the column's type, so it is not read as one.
        reader = None
    if operation.quantifier is not None:
        operands = operand if reader is None else _read_each(reader, operand)
        return f"{value} {operator.quantified_sql} {operation.quantifier.upper()} (" + operands + ")"
    if reader is not None:
        operand = f"{qualified(reader)}(" + operand + "::text)"
    return f"{value} {operator.sql} " + operand


def _read_each(reader: Key, values: Sql) -> Sql:
    return f"SELECT {qualified(reader)}(v) FROM unnest(" + values + "::text[]) AS v"


def _search_sql(value: str, column: Column | None, condition: Filter, operation: Search) -> Sql:
    language = Sql("")
    if operation.language:
        reject_long_name(operation.language, "text search configuration")
        language = parameter(operation.language) + ", "
    document = Sql(value)
    if column is not None and (condition.field.path or column.base_type != "tsvector"):
        document = "to_tsvector(" + language + document + ")"
    function = OPERATORS[operation.operator].sql
    return document + f" @@ {function}(" + language + parameter(operation.operand) + ")"


def without_repetitions(item: str) -> str:
    """A value as JSON in which no object has a key twice, on any level: of several the last one stays, as in parsers
    of JSON. The other values stay as they are written, which ``jsonb`` would change.

    ``pgrst_node`` has all values by their paths; in the order of the paths, each text stands where it belongs, and
    the end of an object or array after all that is in it.
    """
    return f"""(WITH RECURSIVE pgrst_node AS (
SELECT '{{}}'::int8[] AS path, '' AS head, pg_catalog.to_json({item}) AS value
UNION ALL
SELECT path || number, CASE WHEN number > 1 THEN ',' ELSE '' END || key, member.value
FROM pgrst_node CROSS JOIN LATERAL (
  SELECT row_number() OVER (ORDER BY number) AS number, key, value FROM (
    SELECT DISTINCT ON (name) to_json(name)::text || ':' AS key, value, number
    FROM json_each(CASE json_typeof(pgrst_node.value) WHEN 'object' THEN pgrst_node.value END)
      WITH ORDINALITY AS pgrst_each (name, value, number) ORDER BY name, number DESC) AS pgrst_last
  UNION ALL
  SELECT number, '', value
  FROM json_array_elements(CASE json_typeof(pgrst_node.value) WHEN 'array' THEN pgrst_node.value END)
    WITH ORDINALITY AS pgrst_elements (value, number)) AS member)
SELECT string_agg(written, '' ORDER BY path)::json FROM (
  SELECT path, head || CASE json_typeof(value) WHEN 'object' THEN '{{' WHEN 'array' THEN '[' ELSE value::text END
    AS written FROM pgrst_node
  UNION ALL
  SELECT path || {MAX_BIGINT}, CASE json_typeof(value) WHEN 'object' THEN '}}' ELSE ']' END FROM pgrst_node
  WHERE json_typeof(value) IN ('object', 'array')) AS pgrst_written)"""
