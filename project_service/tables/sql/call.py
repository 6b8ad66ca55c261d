"""Calls of functions, with each argument given by name and cast to its type."""

from __future__ import annotations

from collections.abc import Sequence

from project_service.tables.model import SCALAR, Argument
from project_service.tables.plan.call import CallPlan
from project_service.tables.sql.fragment import BODY, BYTES, TEXT, Sql, joined, parameter
from project_service.tables.sql.names import ident, qualified
from project_service.tables.sql.returning import returned
from project_service.tables.syntax import Operand

# The column that carries the value of an argument without a name.
_UNNAMED = "pgrst_unnamed"


def call_sql(plan: CallPlan) -> Sql:
    """The SELECT that calls the function: with the columns of its rows, or with one column ``pgrst_scalar`` if it
    returns plain values."""
    routine = plan.routine
    from_body, arguments = _arguments(plan)
    call = qualified(routine.key) + "(" + arguments + ")"
    if routine.is_composite:
        assert plan.read is not None
        alias = ident(routine.name)
        columns = returned(routine.name, plan.read.relation, plan.everything, plan.returning, plan.computed)
        source = from_body + ", LATERAL " if from_body else Sql(" FROM ")
        return f"SELECT {columns}" + source + call + f" AS {alias}"
    return "SELECT " + call + f" AS {SCALAR}" + from_body


def _arguments(plan: CallPlan) -> tuple[Sql, Sql]:
    """The FROM clause that the arguments come from, which may be empty, and the argument list."""
    if plan.whole:
        argument = plan.arguments[0]
        return Sql(""), (BYTES if argument.type == "bytea" else TEXT) + f"::{argument.type}"
    if plan.payload is None:
        return Sql(""), joined(_named(argument, values) for argument, values in plan.values)
    if not plan.arguments:
        return Sql(""), Sql("")
    return _from_body(plan), Sql(", ".join(_from_column(argument) for argument in plan.arguments))


def _named(argument: Argument, values: tuple[Operand, ...]) -> Sql:
    if not argument.variadic:
        return _target(argument) + parameter(values[-1]) + f"::{argument.cast}"
    items = joined(parameter(value) for value in values)
    return f"{_target(argument)}ARRAY[" + items + f"]::{argument.cast}"


def _target(argument: Argument) -> str:
    """What stands before an argument's value in a call. One without a name is given by its position."""
    name = f"{ident(argument.name)} := " if argument.name else ""
    return f"VARIADIC {name}" if argument.variadic else name


def _from_column(argument: Argument) -> str:
    return f"{_target(argument)}pgrst_args.{_column(argument)}"


def _column(argument: Argument) -> str:
    return ident(argument.name or _UNNAMED)


def _from_body(plan: CallPlan) -> Sql:
    assert plan.payload is not None
    names = ", ".join(map(_column, plan.arguments))
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
    return ", ".join(f"{_column(argument)} {argument.cast}" for argument in arguments)
