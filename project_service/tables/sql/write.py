"""Statements that write or call: INSERT, UPDATE, DELETE, and the SELECT of a function.

PostgreSQL itself reads the values from the payload, which is one parameter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import evolve

from project_service.database.quoting import literal
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.request.syntax import Operand
from project_service.tables.sql.expressions import filter_sql, returned_columns
from project_service.tables.sql.fragment import (
    BODY,
    BYTES,
    NOTHING,
    ROW_COUNT,
    SOURCE,
    TEXT,
    Sql,
    ident,
    joined,
    parameter,
    qualified,
)
from project_service.tables.sql.read import order_sql, range_sql, terms_of_write, where_sql
from project_service.tables.values import SCALAR, Argument, Column

# The setting that counts the rows that ON CONFLICT updated instead of inserting.
UPDATED = "pgrst.updated"
_UPDATED_BEFORE = f"coalesce(nullif(current_setting('{UPDATED}', true), ''), '0')::int"
_COUNTED = f"set_config('{UPDATED}', ({_UPDATED_BEFORE} + 1)::text, true)"
# The name of the query for the rows of a limited write, if they have to be counted.
CHOSEN = "pgrst_chosen"
_BODY = "pgrst_body"
# The column with an object as the client sent it, beside the same object filled up with defaults.
_GIVEN = "pgrst_given"
# The column that carries the value of an argument without a name.
_UNNAMED = "pgrst_unnamed"
# PostgreSQL allows a hundred arguments in a call.
_PAIRS = 50
_MOMENT = re.compile(r"date|timestamp(\(\d\))? with(out)? time zone")


def write_sql(plan: WritePlan) -> Sql:
    """The statement that writes. It returns the columns that the plan needs of the rows written."""
    if plan.verb == "insert":
        return _insert_sql(plan)
    if plan.verb == "update":
        return _update_sql(plan)
    return f"DELETE FROM {qualified(plan.relation.key)}" + _write_where(plan) + _returning(plan)


def _insert_sql(plan: WritePlan) -> Sql:
    assert plan.payload is not None
    if plan.payload.is_empty or (plan.is_put and not plan.columns):
        return _nothing_written(plan)
    source = Sql(" DEFAULT VALUES")
    if plan.columns:
        names = ", ".join(ident(column.name) for column in plan.columns)
        values = ", ".join(_value(plan, column) for column in plan.columns)
        source = f"({names}) SELECT {values}" + _from_payload(plan) + _key_condition(plan)
    elif plan.payload.is_array:
        # A row of defaults for every object.
        source = " SELECT FROM json_array_elements(" + BODY + "::json)"
    return f"INSERT INTO {qualified(plan.relation.key)}" + source + _on_conflict(plan) + _returning(plan)


def _on_conflict(plan: WritePlan) -> str:
    if plan.merges is None:
        return ""
    target = ", ".join(ident(name) for name in plan.conflict)
    if not plan.merges or not plan.columns:
        return f" ON CONFLICT({target}) DO NOTHING"
    # The columns of the conflict target are set too, as PostgREST does: equal values may differ (citext, numeric).
    names = [ident(column.name) for column in plan.columns]
    sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in names)
    return f" ON CONFLICT({target}) DO UPDATE SET {sets} WHERE {_COUNTED} <> ''"


def _key_condition(plan: WritePlan) -> Sql:
    """The condition that a PUT writes its row only if it has the key that the URL names."""
    if not plan.key_filters:
        return NOTHING
    given = {column.name: column for column in plan.columns}
    terms = [
        filter_sql(_value(plan, column), column, condition)
        if (column := given.get(condition.field.name)) is not None
        else Sql("false")
        for condition in plan.key_filters
    ]
    return where_sql(terms) + " LIMIT 1"


def _update_sql(plan: WritePlan) -> Sql:
    assert plan.payload is not None
    if not plan.columns or plan.payload.is_empty:
        return _nothing_written(plan)
    sets = ", ".join(f"{ident(column.name)} = {_value(plan, column)}" for column in plan.columns)
    table = qualified(plan.relation.key)
    return f"UPDATE {table} SET {sets}" + _from_payload(plan) + _write_where(plan) + _returning(plan)


def _returned(plan: WritePlan) -> str:
    return returned_columns(plan.relation.name, plan.relation, plan.everything, plan.returning, plan.computed)


def _returning(plan: WritePlan) -> str:
    return f" RETURNING {_returned(plan)}"


def _nothing_written(plan: WritePlan) -> Sql:
    """A SELECT of no rows, with the columns that the write would have returned."""
    columns = _returned(plan)
    if columns == "1":
        return Sql("SELECT 1 WHERE false")
    return Sql(f"SELECT {columns} FROM {qualified(plan.relation.key)} WHERE false")


# Which rows are updated or deleted.


def _write_where(plan: WritePlan) -> Sql:
    terms = terms_of_write(_on_table(plan), plan.conditions)
    if not plan.limited.whole:
        # The other conditions stay: if two writes want the same row, the second checks them again after its wait, and
        # sees that the row no longer meets them.
        chosen = Sql(f"SELECT * FROM {CHOSEN}") if plan.may_write_more else chosen_sql(plan)
        terms = [*terms, f"({_row_key(plan)}) IN (" + chosen + ")"]
    return where_sql(terms)


def _on_table(plan: WritePlan) -> ReadPlan:
    """The plan of reading, for expressions about the table's rows before they are written."""
    return evolve(plan.read, computed=plan.computed)


def chosen_sql(plan: WritePlan) -> Sql:
    """The SELECT that chooses the rows of a limited write: the first ones in the order given."""
    table = _on_table(plan)
    return (
        f"SELECT {_row_key(plan)} FROM {qualified(plan.relation.key)}"
        + where_sql(terms_of_write(table, plan.conditions))
        + order_sql(table, joins=False)
        + range_sql(plan.limited)
    )


def _row_key(plan: WritePlan) -> str:
    """What a limited write identifies rows by: the primary key, or else where the row is stored in its table."""
    keys = [ident(column) for column in plan.relation.primary_key]
    if plan.relation.inherited or not keys:
        keys = ["tableoid", "ctid"]
    return ", ".join(f"{ident(plan.relation.name)}.{key}" for key in keys)


# The rows of the payload, with the defaults of members that are missing.


def _from_payload(plan: WritePlan) -> Sql:
    """FROM with the payload's rows as ``pgrst_body``, be it one object or an array of them."""
    assert plan.payload is not None
    kind = "jsonb" if plan.fills_defaults else "json"
    several = plan.payload.is_array
    defaults = _defaults(plan, several) if plan.fills_defaults else ""
    source = "pgrst_defaulted.val" if defaults else "pgrst_payload.json_data"
    names = [ident(column.name) for column in plan.columns]
    # A data representation reads the column's JSON.
    types = ["json" if column.representation.from_json else column.type for column in plan.columns]
    shape = [f"{name} {type_}" for name, type_ in zip(names, types, strict=True)]
    if _keeps_given(plan):
        shape, names = [*shape, f"{_GIVEN} jsonb"], [*names, _GIVEN]
    function = f"{kind}_to_{'recordset' if several else 'record'}"
    limit = " LIMIT 1" if several and plan.verb == "update" else ""
    return (
        " FROM (SELECT "
        + BODY
        + f"::{kind} AS json_data) pgrst_payload{defaults}, "
        + f"LATERAL (SELECT {', '.join(names)} FROM {function}({source}) AS _({', '.join(shape)}){limit}) {_BODY}"
    )


def _value(plan: WritePlan, column: Column) -> str:
    """The value that the payload has for a column."""
    given, reader = f"{_BODY}.{ident(column.name)}", column.representation.from_json
    if reader is None:
        return given
    read = f"{qualified(reader)}({given})"
    if not plan.fills_defaults or column.default is None:
        return read
    # The default is a value of the column's type already and not its JSON representation, so it must not be read.
    default = _default(column.default, column.base_type)
    return f"CASE WHEN {_BODY}.{_GIVEN} ? {literal(column.name)} THEN {read} ELSE {default} END"


def _keeps_given(plan: WritePlan) -> bool:
    """Whether, after defaults have been filled in, it still has to be known which members the client sent."""
    return plan.fills_defaults and any(
        column.default is not None and column.representation.from_json for column in plan.columns
    )


def _defaults(plan: WritePlan, several: bool) -> str:
    """Fills in the defaults of missing members: an object with the defaults, overlaid by the one the client sent.

    Columns that are read by a data representation are not filled in here; ``_value`` does it.
    """
    pairs = [
        f"{literal(column.name)}, {_default(column.default, column.base_type)}"
        for column in plan.columns
        if column.default is not None and not column.representation.from_json
    ]
    given = "elem" if several else "pgrst_payload.json_data"
    several_pairs = (pairs[at : at + _PAIRS] for at in range(0, len(pairs), _PAIRS))
    objects = [*(f"jsonb_build_object({', '.join(some)})" for some in several_pairs), given]
    if _keeps_given(plan):
        objects.append(f"jsonb_build_object('{_GIVEN}', {given})")
    if len(objects) == 1:
        return ""
    filled = " || ".join(objects)
    if not several:
        return f", LATERAL (SELECT {filled} AS val) pgrst_defaulted"
    elements = "jsonb_array_elements(pgrst_payload.json_data) elem"
    return f", LATERAL (SELECT jsonb_agg({filled}) AS val FROM {elements}) pgrst_defaulted"


def _default(expression: str, type_: str) -> str:
    """A column's default as a value of the column's type.

    The catalogue has the default without the conversion to that type, from a row to a composite for example, so it is
    cast. Not to ``character`` and ``bit`` types: such a cast would silently cut a value that is too long.
    """
    if expression.startswith("nextval(") or type_.startswith(("character", "bit")):
        return expression
    return f"({expression})::{type_}"


# The Location header.


def location_sql(plan: WritePlan) -> str:
    """The primary key of the row that was inserted, as a JSON array of texts; null if it was not exactly one row."""
    if not plan.location:
        return "null::text"
    values = ", ".join(_as_operand(plan.relation.columns[name]) for name in plan.location)
    return f"CASE WHEN {ROW_COUNT} = 1 THEN (SELECT json_build_array({values})::text FROM {SOURCE}) END"


def _as_operand(column: Column) -> str:
    """The column's value as text, in the form that a filter on it takes: if a data representation reads filters, that
    is the value as clients are shown it."""
    shown = column.representation
    if shown.to_json is not None and shown.from_text is not None:
        return f"{qualified(shown.to_json)}({ident(column.name)}) #>> '{{}}'"
    if _MOMENT.fullmatch(column.base_type):
        # With some settings of DateStyle a time zone is an abbreviation, which may be ambiguous. JSON has the offset.
        return f"to_json({ident(column.name)}) #>> '{{}}'"
    return f"{ident(column.name)}::text"


# Calls of functions, with each argument given by name and cast to its type.


def call_sql(plan: CallPlan) -> Sql:
    """The SELECT that calls the function: with the columns of its rows, or with one column ``pgrst_scalar`` if it
    returns plain values."""
    routine = plan.routine
    from_body, arguments = _arguments(plan)
    call = qualified(routine.key) + "(" + arguments + ")"
    if routine.is_scalar:
        return "SELECT " + call + f" AS {SCALAR}" + from_body
    assert plan.read is not None
    alias, everything, names = ident(routine.name), plan.everything, plan.returning
    if len(set(routine.columns)) < len(routine.columns):
        alias += _distinct_names(routine.columns)
        everything, names = False, tuple(dict.fromkeys(routine.columns))
    columns = returned_columns(routine.name, plan.read.relation, everything, names, plan.computed)
    source = from_body + ", LATERAL " if from_body else Sql(" FROM ")
    return f"SELECT {columns}" + source + call + f" AS {alias}"


def _distinct_names(columns: tuple[str, ...]) -> str:
    """A list of other names for columns of which several have one name: only the last keeps it. PostgreSQL names an
    OUT argument without a name by its number, whatever the others are called."""
    names = [
        f"pgrst_{number}" if name in columns[number:] else name for number, name in enumerate(columns, 1)
    ]
    return f"({', '.join(map(ident, names))})"


def _arguments(plan: CallPlan) -> tuple[Sql, Sql]:
    """The FROM clause that the arguments come from, which may be empty, and the argument list."""
    if plan.whole:
        argument = plan.arguments[0]
        return NOTHING, (BYTES if argument.type == "bytea" else TEXT) + f"::{argument.type}"
    if plan.payload is None:
        return NOTHING, joined(_argument(argument, values) for argument, values in plan.values)
    if not plan.arguments:
        return NOTHING, NOTHING
    columns = (f"{_argument_prefix(one)}pgrst_args.{_argument_column(one)}" for one in plan.arguments)
    return _from_body(plan), Sql(", ".join(columns))


def _argument(argument: Argument, values: tuple[Operand, ...]) -> Sql:
    if not argument.variadic:
        return _argument_prefix(argument) + parameter(values[-1]) + f"::{argument.cast}"
    items = joined(parameter(value) for value in values)
    return f"{_argument_prefix(argument)}ARRAY[" + items + f"]::{argument.cast}"


def _argument_prefix(argument: Argument) -> str:
    """What stands before an argument's value in a call. One without a name is given by its position."""
    name = f"{ident(argument.name)} := " if argument.name else ""
    return f"VARIADIC {name}" if argument.variadic else name


def _argument_column(argument: Argument) -> str:
    return ident(argument.name or _UNNAMED)


def _from_body(plan: CallPlan) -> Sql:
    assert plan.payload is not None
    names = ", ".join(map(_argument_column, plan.arguments))
    sources = []
    named = [argument for argument in plan.arguments if argument.name]
    if named:
        function = "json_to_recordset" if plan.payload.is_array else "json_to_record"
        sources.append(f"{function}(" + BODY + f"::json) AS _({_shape(named)})")
    if len(named) < len(plan.arguments):
        # A column cannot have the empty name.
        member = "::json -> 0 -> ''" if plan.payload.is_array else "::json -> ''"
        record = f"json_to_record(json_build_object('{_UNNAMED}', " + BODY + f"{member}))"
        sources.append(record + f" AS pgrst_first({_shape(plan.arguments[:1])})")
    return f" FROM (SELECT {names} FROM " + joined(sources) + " LIMIT 1) pgrst_args"


def _shape(arguments: Sequence[Argument]) -> str:
    return ", ".join(f"{_argument_column(argument)} {argument.cast}" for argument in arguments)
