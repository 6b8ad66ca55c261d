"""Calls of functions, with each argument given by name and cast to its type."""

from __future__ import annotations

from project_service.tables.model import SCALAR, Argument
from project_service.tables.plan.call import CallPlan
from project_service.tables.sql.fragment import BODY, BYTES, TEXT, Sql, joined, parameter
from project_service.tables.sql.names import ident, qualified
from project_service.tables.sql.returning import returned
from project_service.tables.syntax import Operand


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
        return f"{ident(argument.name)} := " + parameter(values[-1]) + f"::{argument.cast}"
    items = joined(parameter(value) for value in values)
    return f"VARIADIC {ident(argument.name)} := ARRAY[" + items + f"]::{argument.cast}"


def _from_column(argument: Argument) -> str:
    prefix = "VARIADIC " if argument.variadic else ""
    return f"{prefix}{ident(argument.name)} := pgrst_args.{ident(argument.name)}"


def _from_body(plan: CallPlan) -> Sql:
    assert plan.payload is not None
    function = "json_to_recordset" if plan.payload.is_array else "json_to_record"
    names = ", ".join(ident(argument.name) for argument in plan.arguments)
    shape = ", ".join(f"{ident(argument.name)} {argument.cast}" for argument in plan.arguments)
    return f" FROM (SELECT {names} FROM {function}(" + BODY + f"::json) AS _({shape}) LIMIT 1) pgrst_args"
