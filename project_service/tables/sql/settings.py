"""What is set for one transaction only: role, claims and the request. PostgREST's reference: "Transactions"."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from project_service.tables.sql.names import ident, literal, qualified

# The connection's own, which RESET ALL takes away.
_KEPT = (
    "set_config('standard_conforming_strings', 'on', false)",
    "set_config('idle_in_transaction_session_timeout', '60s', false)",
)

# What SQL of an earlier request has set for the session. Some microseconds; DISCARD ALL would take the prepared
# statements along.
RESET = "RESET ALL; "


@lru_cache(maxsize=256)
def settings_text(names: tuple[str, ...]) -> str:
    """One SELECT that sets each name, in psycopg2's form; names are the service's and the database's own."""
    return "SELECT " + ", ".join([*_KEPT, *(f"set_config({_name(name)}, %s, true)" for name in names)])


def _name(name: str) -> str:
    return literal(name).replace("%", "%%")


def pre_request_text(function: str) -> str:
    """A call of the function that runs before each request."""
    schema, _, name = function.rpartition(".")
    called = qualified((schema, name)) if schema else ident(name)
    return f"SELECT {called}()".replace("%", "%%")


def search_path(schema: str, extra: Iterable[str]) -> str:
    return ", ".join(ident(name) for name in (schema, *extra))


def routine_settings(settings: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A function's own settings that must hold for the transaction around it to mean anything."""
    hoisted = ("statement_timeout", "plan_filter.statement_cost_limit", "default_transaction_isolation")
    return [(name, value) for name, value in settings if name in hoisted]
