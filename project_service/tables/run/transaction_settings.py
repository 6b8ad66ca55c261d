"""The preamble of a request: search path, role, claims and the request itself, set for its transaction.

PostgREST's reference: "Transactions".
"""

from __future__ import annotations

from collections.abc import Iterable

from project_service.database.acting import TIMEOUT, Preamble, extra_seconds, is_short
from project_service.database.sharing import limit
from project_service.tables.access import Identity
from project_service.tables.errors import from_sqlstate
from project_service.tables.planner import Planned
from project_service.tables.request.request import Head, RequestHeaders
from project_service.tables.sql.fragment import ident
from project_service.tables.values import SchemaCache, TablesConfig

Pairs = Iterable[tuple[str, str]]

# Queries of requests do not run long enough for compiling them to pay off, and statement_timeout does not interrupt
# the compiler, which may take long if there are many embeddings.
NO_JIT = ("jit", "off")
_READ_ONLY = ("transaction_read_only", "on")
# How many preambles are cached with the header lines that they follow from: for a client's methods and schemas.
_MAX_PREAMBLES = 16


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
    key = (cache.version, cache.trust.version, identity, about)
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
    limits = [value for name, value in pairs if name == TIMEOUT]
    return Preamble(
        tuple(dict(pairs).items()),
        identity.role,
        identity.authenticated,
        extra_seconds(limits[0], limits[-1]) if len(limits) > 1 else 0.0,
        trust=cache.trust,
        prepares=config.prepare and not config.pooled,
        mark=cache.mark if config.pooled else "",
        pre_request=config.pre_request,
        is_short=is_short(limits[-1]),
        shared=frozenset(shared_settings(config)),
    )


def _usual(config: TablesConfig, schema: str) -> list[tuple[str, str]]:
    path = ", ".join(ident(name) for name in (schema, *config.extra_search_path))
    return [NO_JIT, (TIMEOUT, config.statement_timeout), ("search_path", path)]


def _application(config: TablesConfig) -> list[tuple[str, str]]:
    return [(f"app.settings.{name}", value) for name, value in config.app_settings.items()]


def shared_settings(config: TablesConfig) -> tuple[tuple[str, str], ...]:
    """What most reads have in common: set once on the connections that reads share, and not again by each."""
    return (
        *[pair for pair in _usual(config, config.schemas[0]) if pair[0] != TIMEOUT],
        (TIMEOUT, limit()),
        ("request.method", "GET"),
        ("request.cookies", "{}"),
        _READ_ONLY,
        *_application(config),
    )


def session_of_shared(config: TablesConfig) -> Pairs:
    """The same as settings of a session, but for the limit, which ``sharing`` makes."""
    pairs = dict(shared_settings(config))
    del pairs[_READ_ONLY[0]], pairs[TIMEOUT]
    return (*pairs.items(), ("default_transaction_read_only", "on"))


def _reads_alone(settings: Pairs) -> bool:
    """Whether the role's transactions are read-only by default. PostgreSQL applies the default where a transaction
    begins, which is before the role's settings are made, so it has to be set for the transaction itself."""
    value = dict(settings).get("default_transaction_read_only", "").lower()
    return value == "on" or value.startswith(("t", "y", "1"))
