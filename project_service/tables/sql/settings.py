"""What is set for one transaction only: role, claims and the request, as PostgREST's reference says under "Transactions"."""

from __future__ import annotations

from collections.abc import Iterable

from project_service.tables.sql.fragment import Sql, joined, parameter
from project_service.tables.sql.names import ident, qualified


def settings_sql(pairs: Iterable[tuple[str, str]]) -> Sql:
    """One SELECT that sets them all; names are the service's and the database's own."""
    return "SELECT " + joined(
        "set_config(" + parameter(name) + ", " + parameter(value) + ", true)" for name, value in pairs
    )


def pre_request_sql(function: str) -> Sql:
    """A call of the function that runs before each request."""
    schema, _, name = function.rpartition(".")
    called = qualified((schema, name)) if schema else ident(name)
    return Sql(f"SELECT {called}()")


def search_path(schema: str, extra: Iterable[str]) -> str:
    return ", ".join(ident(name) for name in (schema, *extra))


def routine_settings(settings: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A function's own settings that must hold for the transaction around it to mean anything."""
    hoisted = ("statement_timeout", "plan_filter.statement_cost_limit", "default_transaction_isolation")
    return [(name, value) for name, value in settings if name in hoisted]
