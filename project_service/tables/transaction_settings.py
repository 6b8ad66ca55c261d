"""What is set for a request's transaction: search path, role, claims and the request itself.

PostgREST's reference: "Transactions". The settings are local to the transaction, so they end with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from attrs import field, frozen

from project_service.database.pipeline import Step, Values
from project_service.tables.access import Identity
from project_service.tables.errors import from_sqlstate
from project_service.tables.planner import Planned
from project_service.tables.request.request import Head, RequestHeaders
from project_service.tables.sql.fragment import ident, literal, qualified
from project_service.tables.values import SchemaCache, TablesConfig

Pairs = Iterable[tuple[str, str]]

# The connection's own settings, which RESET ALL has removed.
_CONNECTIONS_OWN = (
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
_READ_ONLY = ("transaction_read_only", "on")
_PATH = "request.path"
_LEVELS = ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED")
# How many preambles are cached with the header lines that they follow from: for a client's methods and schemas.
_MAX_PREAMBLES = 16


# Steps before the settings, the statement that makes them with its values but for the path, and steps after it.
_Steps = tuple[tuple[Step, ...], str, Values, tuple[Step, ...]]


@frozen(slots=False)
class Preamble:
    """What is set for the transaction: ``pairs`` and the request's path, then the pre-request function is called.

    Statements are prepared for its ``role`` alone. ``authenticated`` decides the status for missing rights: 403, or
    401 if not. The transaction may take ``extra_seconds`` longer than the service allows otherwise; None means any
    time. With ``plans_apart`` the plans that PostgreSQL caches for the queries inside functions may not be used for
    another role either (see ``execution.pass_to_role``), with ``forgets_plans`` not for another request.
    ``resets``: SQL of an earlier request may have left settings on the connection.
    """

    pairs: tuple[tuple[str, str], ...]
    role: str
    authenticated: bool
    extra_seconds: float | None = 0.0
    plans_apart: bool = False
    forgets_plans: bool = False
    resets: bool = True
    pre_request: str | None = None
    # What the settings already are on the connections that reads share.
    shared: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)

    @cached_property
    def text(self) -> str:
        """All of it as SQL for psycopg2, with one parameter: the request's path. It resets in any case."""
        # The isolation level can only be set before the transaction's first query.
        forgets = f"{FORGET_PLANS}; " if self.forgets_plans else ""
        sets = [f"set_config({literal(name)}, {_quoted(value)}, true)" for name, value in self.pairs]
        select = _select([*_CONNECTIONS_OWN, *sets, f"set_config({literal(_PATH)}, %s, true)"])
        called = (
            "" if self.pre_request is None else "; " + _pre_request_text(self.pre_request).replace("%", "%%")
        )
        return f"{RESET}{self._isolation}{forgets}{select}{called}"

    @cached_property
    def alone(self) -> bool:
        """Whether the transaction needs a connection of its own, however quick its statement is."""
        kept_apart = self.plans_apart or self.forgets_plans or self.sets_isolation
        return self.extra_seconds != 0 or kept_apart or self.pre_request is not None

    @property
    def sets_isolation(self) -> bool:
        """Whether the transaction has an isolation level of its own, which prepared statements cannot set."""
        return bool(self._isolation)

    def steps(self, path: str, shared: bool = False) -> list[Step]:
        """All of it for a pipeline: with ``shared`` for the connections that reads share."""
        before, text, values, after = self._shared_steps if shared else self._own_steps
        return [*before, Step(text, (*values, path.encode())), *after]

    @cached_property
    def _own_steps(self) -> _Steps:
        return self._steps(self.pairs)

    @cached_property
    def _shared_steps(self) -> _Steps:
        return self._steps([pair for pair in self.pairs if self.resets or pair not in self.shared])

    def _steps(self, pairs: Pairs) -> _Steps:
        before = [RESET.rstrip("; ")] if self.resets else []
        before += [FORGET_PLANS] if self.forgets_plans else []
        after = [] if self.pre_request is None else [_pre_request_text(self.pre_request)]
        names, values = zip(*pairs, strict=True)
        return (
            tuple([Step(text, once=True) for text in before]),
            _settings_statement((*names, _PATH), self.resets),
            [value.encode() for value in values],
            tuple([Step(text, once=True) for text in after]),
        )

    @property
    def _isolation(self) -> str:
        """Sets the isolation level that a role's or function's own settings ask for, if any. The setting may be
        written in any case."""
        level = dict(self.pairs).get("default_transaction_isolation", "").upper()
        return f"SET TRANSACTION ISOLATION LEVEL {level}; " if level in _LEVELS else ""


def preamble_of(
    config: TablesConfig, cache: SchemaCache, headers: RequestHeaders, planned: Planned, identity: Identity
) -> Preamble:
    """The preamble of a request with these ``headers``, cached with them. Raises ``TableError`` for a value with a
    NUL."""
    compiled, head = planned.compiled, planned.request.head
    # A function's own settings may have to hold for the whole transaction.
    of_routine = () if compiled.routine is None else compiled.routine.settings
    # PostgreSQL's settings for planning stay as they are for EXPLAIN: the plan is to be the server's usual one, and
    # EXPLAIN lists settings that differ.
    explains = compiled.rendering.explain is not None
    timezone = head.preferences.get("timezone") if head.preferences.values else None
    about = (head.method, head.schema, timezone, compiled.read_only, of_routine, explains)
    key = (cache.version, identity, about)
    preamble: Preamble | None = headers.preambles.get(key)
    if preamble is None:
        preamble = _preamble(config, cache, headers, identity, about)
        if len(headers.preambles) >= _MAX_PREAMBLES:
            headers.preambles.clear()
        headers.preambles[key] = preamble
    return preamble


def preamble_of_head(
    config: TablesConfig, cache: SchemaCache, headers: RequestHeaders, head: Head, identity: Identity
) -> Preamble:
    """As ``preamble_of``, for a request that only reads and has no statement of its own. It is not cached."""
    about = (head.method, head.schema, head.preferences.get("timezone"), True, (), False)
    return _preamble(config, cache, headers, identity, about)


def _preamble(
    config: TablesConfig,
    cache: SchemaCache,
    headers: RequestHeaders,
    identity: Identity,
    about: tuple[str, str, str | None, bool, tuple[tuple[str, str], ...], bool],
) -> Preamble:
    method, schema, timezone, read_only, of_routine, explains = about
    own = cache.role_settings.get(identity.role, ())
    usual = _usual(config, schema)
    pairs = [
        *([pair for pair in usual if pair != NO_JIT] if explains else usual),
        *own,
        ("role", identity.role),
        ("request.jwt.claims", identity.claims),
        ("request.method", method),
        ("request.headers", headers.as_json),
        ("request.cookies", headers.cookies),
    ]
    if read_only or _reads_alone(own):
        pairs.append(_READ_ONLY)
    if timezone is not None:
        pairs.append(("timezone", timezone))
    pairs.extend(pair for pair in of_routine if pair[0] in config.hoisted_tx_settings)
    pairs.extend(_application(config))
    if any("\0" in value for _, value in pairs):
        # The error that PostgreSQL gives for it; psycopg2 refuses to send it in the first place.
        raise from_sqlstate("22021", 'invalid byte sequence for encoding "UTF8": 0x00')
    limits = [value for name, value in pairs if name == "statement_timeout"]
    return Preamble(
        tuple(dict(pairs).items()),
        identity.role,
        identity.authenticated,
        extra_seconds(limits[0], limits[-1]) if len(limits) > 1 else 0.0,
        plans_apart=cache.guarded_within,
        forgets_plans=_forgets_plans(config, cache),
        resets=cache.sets_for_session,
        pre_request=config.pre_request,
        shared=frozenset(shared_settings(config)),
    )


def _usual(config: TablesConfig, schema: str) -> list[tuple[str, str]]:
    path = ", ".join(ident(name) for name in (schema, *config.extra_search_path))
    return [NO_JIT, ("statement_timeout", config.statement_timeout), ("search_path", path)]


def _application(config: TablesConfig) -> list[tuple[str, str]]:
    return [(f"app.settings.{name}", value) for name, value in config.app_settings.items()]


def shared_settings(config: TablesConfig) -> tuple[tuple[str, str], ...]:
    """What most reads have in common: set once on the connections that reads share, and not again by each."""
    return (
        *_usual(config, config.schemas[0]),
        ("request.method", "GET"),
        ("request.cookies", "{}"),
        _READ_ONLY,
        *_application(config),
    )


def opening_of_shared(config: TablesConfig) -> list[Step]:
    """The statement that makes ``shared_settings`` for the session."""
    pairs = dict(shared_settings(config))
    del pairs[_READ_ONLY[0]]
    pairs["default_transaction_read_only"] = "on"
    sets = [f"set_config({literal(name)}, {literal(value)}, false)" for name, value in pairs.items()]
    return [Step(_select(sets), once=True)]


def _forgets_plans(config: TablesConfig, cache: SchemaCache) -> bool:
    """Whether a cached plan may contain what is not the next caller's.

    That may be a value from another caller's claims. Or it is something that another role's rights allowed, where
    ``pass_to_role`` cannot see to it: if requests change their role themselves, or if nothing is prepared, so that
    nobody knows whose connection it was before.
    """
    unknown = cache.guarded_within and not config.prepare
    return bool(cache.false_constants) or unknown or (cache.changes_role and config.pre_request is not None)


def _reads_alone(settings: Pairs) -> bool:
    """Whether the role's transactions are read-only by default. PostgreSQL applies the default where a transaction
    begins, which is before the role's settings are made, so it has to be set for the transaction itself."""
    value = dict(settings).get("default_transaction_read_only", "").lower()
    return value == "on" or value.startswith(("t", "y", "1"))


def settings_text(pairs: Pairs) -> str:
    """The SELECT that sets each name of ``pairs`` to its value until the transaction ends, for psycopg2.

    Raises ``ValueError`` for a value with a NUL.
    """
    sets = [f"set_config({_quoted(name)}, {_quoted(value)}, true)" for name, value in pairs]
    return _select([*_CONNECTIONS_OWN, *sets])


def _settings_statement(names: Sequence[str], after_reset: bool) -> str:
    """The SELECT that sets each of ``names`` to a parameter of its own. For PostgreSQL, parsing and planning it costs
    more than reading a row; prepared it costs a tenth of that."""
    sets = [f"set_config({literal(name)}, ${number}, true)" for number, name in enumerate(names, 1)]
    return _select([*(_CONNECTIONS_OWN if after_reset else ()), *sets])


def _select(sets: Iterable[str]) -> str:
    """The array and its length make the result one number instead of a row with all values.

    The function's schema is named because RESET ALL has brought back the server's own search path, where others may
    have made a ``cardinality(text[])``.
    """
    return f"SELECT pg_catalog.cardinality(ARRAY[{', '.join(sets)}])"


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL has no text with NUL")
    return literal(text).replace("%", "%%")


def _pre_request_text(function: str) -> str:
    """The SELECT that calls the pre-request function."""
    schema, _, name = function.rpartition(".")
    called = qualified((schema, name)) if schema else ident(name)
    return f"SELECT {called}()"


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
    match = _TIME.match(time)
    # PostgreSQL rejects any other text, so the number does not matter.
    return float(match[1]) * _UNITS[match[2] or "ms"] if match is not None else 1.0
