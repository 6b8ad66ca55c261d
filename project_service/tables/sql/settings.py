"""What is set for one transaction only: role, claims and the request. PostgREST's reference: "Transactions"."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

from attrs import frozen

from project_service.tables.sql.fragment import PLACE, Sql
from project_service.tables.sql.names import ident, literal, qualified

# The connection's own, which RESET ALL takes away.
_KEPT = (
    "set_config('standard_conforming_strings', 'on', false)",
    "set_config('idle_in_transaction_session_timeout', '60s', false)",
)

# What SQL of an earlier request has set for the session. Some microseconds; DISCARD ALL would take the prepared
# statements along.
RESET = "RESET ALL; "
# After which every plan is made anew, those of functions' own queries included.
FORGET_PLANS = "DISCARD PLANS"

# Nothing that is asked for takes long enough to be worth a compiler, and what that does for many embeddings
# statement_timeout does not end.
NO_JIT = ("jit", "off")


@frozen
class Settings:
    """A SELECT that sets names to values in their order, as ``text`` with the values in it, in psycopg2's form, or
    prepared: ``statement`` is the same whatever the values are, and ``arguments`` are those.

    To read and plan it costs PostgreSQL more than to read a row does; prepared it costs a tenth of that.
    """

    text: str
    statement: Sql
    arguments: str


def settings_of(pairs: Iterable[tuple[str, str]], parameters: Iterable[str] = ()) -> Settings:
    """Sets each name to its value, and then each of ``parameters`` to one that psycopg2 is to put in. Raises
    ``ValueError`` for a value with a NUL."""
    found = [(name, _quoted(value)) for name, value in pairs]
    found += [(name, "%s") for name in parameters]
    text = _select([f"set_config({_quoted(name)}, {value}, true)" for name, value in found])
    arguments = ", ".join([value for _, value in found])
    return Settings(text, _statement(tuple([name for name, _ in found])), f"({arguments})")


@lru_cache(maxsize=256)
def _statement(names: Sequence[str]) -> Sql:
    pieces = [f"set_config({literal(name)}, {PLACE}, true)" for name in names]
    return Sql(_select(pieces), (None,) * len(names))


def _select(sets: Iterable[str]) -> str:
    """One number is the answer, not a row with all that was set."""
    return f"SELECT cardinality(ARRAY[{', '.join([*_KEPT, *sets])}])"


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL has no text with NUL")
    return literal(text).replace("%", "%%")


def pre_request_text(function: str) -> str:
    """A call of the function that runs before each request."""
    schema, _, name = function.rpartition(".")
    called = qualified((schema, name)) if schema else ident(name)
    return f"SELECT {called}()".replace("%", "%%")


@lru_cache(maxsize=256)
def search_path(schema: str, extra: tuple[str, ...]) -> str:
    return ", ".join(ident(name) for name in (schema, *extra))


# As PostgreSQL writes a time; milliseconds without a unit.
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d)?\s*\Z")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def extra_seconds(usual: str, own: str) -> float | None:
    """By how much a ``statement_timeout`` of a role's or function's own is longer than the usual one, 0 where it is
    not; None where it ends nothing."""
    usual_seconds, own_seconds = _seconds(usual), _seconds(own)
    if own_seconds == 0:
        return None
    return max(0.0, own_seconds - usual_seconds)


def _seconds(time: str) -> float:
    found = _TIME.match(time)
    # What is no time PostgreSQL refuses.
    return float(found[1]) * _UNITS[found[2] or "ms"] if found is not None else 1.0


def routine_settings(settings: Iterable[tuple[str, str]], hoisted: Container[str]) -> list[tuple[str, str]]:
    """A function's own settings that must hold for the transaction around it to mean anything."""
    return [(name, value) for name, value in settings if name in hoisted]
