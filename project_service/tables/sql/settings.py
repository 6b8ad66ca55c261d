"""SQL that makes the settings of one transaction: role, claims and the request. PostgREST's reference:
"Transactions"."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

from attrs import frozen

from project_service.tables.sql.fragment import PLACE, Sql
from project_service.tables.sql.names import ident, literal, qualified

# The connection's own settings, which RESET ALL has removed.
_KEPT = (
    "set_config('standard_conforming_strings', 'on', false)",
    "set_config('idle_in_transaction_session_timeout', '60s', false)",
)

# Removes what SQL of an earlier request has set for the session, in a few microseconds. DISCARD ALL would remove the
# prepared statements too.
RESET = "RESET ALL; "
# Drops all cached plans, including those of the queries inside functions.
FORGET_PLANS = "DISCARD PLANS"

# Queries of requests do not run long enough for compiling them to pay off, and statement_timeout does not interrupt
# the compiler, which may take long if there are many embeddings.
NO_JIT = ("jit", "off")


@frozen
class SetConfig:
    """A SELECT that sets names to values, one after the other, in two forms. ``text`` has the values in it, quoted
    for psycopg2. ``statement`` is the same whatever the values are; prepared, it is executed with ``arguments``.

    For PostgreSQL parsing and planning it costs more than reading a row; prepared it costs a tenth of that.
    """

    text: str
    statement: Sql
    arguments: str


def settings_of(pairs: Iterable[tuple[str, str]], parameters: Iterable[str] = ()) -> SetConfig:
    """The SELECT that sets each name of ``pairs`` to its value, and then each of ``parameters`` to a value that
    psycopg2 is to insert. Raises ``ValueError`` for a value with a NUL."""
    found = [(name, _quoted(value)) for name, value in pairs]
    found += [(name, "%s") for name in parameters]
    text = _select([f"set_config({_quoted(name)}, {value}, true)" for name, value in found])
    arguments = ", ".join([value for _, value in found])
    return SetConfig(text, _statement(tuple([name for name, _ in found])), f"({arguments})")


@lru_cache(maxsize=256)
def _statement(names: Sequence[str]) -> Sql:
    pieces = [f"set_config({literal(name)}, {PLACE}, true)" for name in names]
    return Sql(_select(pieces), (None,) * len(names))


def _select(sets: Iterable[str]) -> str:
    """The array and its length make the result one number instead of a row with all values.

    The function's schema is named because RESET ALL has brought back the server's own search path, where others may
    have made a ``cardinality(text[])``.
    """
    return f"SELECT pg_catalog.cardinality(ARRAY[{', '.join([*_KEPT, *sets])}])"


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL has no text with NUL")
    return literal(text).replace("%", "%%")


def pre_request_text(function: str) -> str:
    """The SELECT that calls the pre-request function."""
    schema, _, name = function.rpartition(".")
    called = qualified((schema, name)) if schema else ident(name)
    return f"SELECT {called}()".replace("%", "%%")


@lru_cache(maxsize=256)
def search_path(schema: str, extra: tuple[str, ...]) -> str:
    return ", ".join(ident(name) for name in (schema, *extra))


# How PostgreSQL writes a time; without a unit it is in milliseconds.
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d)?\s*\Z")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def extra_seconds(usual: str, own: str) -> float | None:
    """How many seconds a role's or function's own ``statement_timeout`` is longer than the usual one; 0 if it is not
    longer, None if it sets no limit."""
    usual_seconds, own_seconds = _seconds(usual), _seconds(own)
    if own_seconds == 0:
        return None
    return max(0.0, own_seconds - usual_seconds)


def _seconds(time: str) -> float:
    found = _TIME.match(time)
    # PostgreSQL refuses any other text, so the number does not matter.
    return float(found[1]) * _UNITS[found[2] or "ms"] if found is not None else 1.0


def routine_settings(settings: Iterable[tuple[str, str]], hoisted: Container[str]) -> list[tuple[str, str]]:
    """Those of a function's own settings that have to be made for the whole transaction to have any effect."""
    return [(name, value) for name, value in settings if name in hoisted]
