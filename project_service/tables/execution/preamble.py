"""What is set for a request's transaction: search path, role, claims and the request itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from attrs import field, frozen

from project_service.tables.access.identity import Identity
from project_service.tables.config import TablesConfig
from project_service.tables.failures import has_nul
from project_service.tables.incoming import Incoming
from project_service.tables.model import Routine, SchemaCache
from project_service.tables.parse.request import Head
from project_service.tables.sql.settings import (
    FORGET_PLANS,
    NO_JIT,
    RESET,
    SetConfig,
    extra_seconds,
    pre_request_text,
    routine_settings,
    search_path,
    settings_of,
)

_LEVELS = ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED")
# Most headers, cookies and claims together have fewer characters; what is longer is not worth caching.
_SHORT = 4096


@frozen
class PreambleSql:
    """The SQL of a preamble, whose middle part, the ``settings``, can be prepared. ``text`` is all of it, for what is
    run as it is."""

    first: str
    settings: SetConfig
    last: str
    text: str = field(init=False, repr=False)

    @text.default
    def _whole(self) -> str:
        return self.first + self.settings.text + self.last

    def executed(self, execution: str) -> str:
        """``execution`` is the EXECUTE of the prepared settings."""
        return f"{self.first}{execution}{self.settings.arguments}{self.last}"


@frozen
class Preamble:
    """What is set for the transaction: ``sql`` with its ``values`` for psycopg2.

    Statements are prepared for its ``role`` alone. ``authenticated`` decides the status for missing rights: 403, or
    401 if not. The transaction may take ``extra_seconds`` longer than the service allows otherwise; None means any
    time. With ``plans_apart`` the plans that PostgreSQL caches for the queries inside functions may not be used for
    another role either (see ``prepared``).
    """

    sql: PreambleSql
    values: Sequence[str]
    role: str
    authenticated: bool
    extra_seconds: float | None = 0.0
    plans_apart: bool = False


def preamble_of(
    config: TablesConfig,
    cache: SchemaCache,
    incoming: Incoming,
    head: Head,
    identity: Identity,
    read_only: bool,
    routine: Routine | None,
    explains: bool = False,
) -> Preamble:
    """Resets what an earlier request may have left, then makes the settings with one SELECT, whose parameter is the
    request's path, and calls the pre-request function if there is one.

    ``routine`` is the function that the request calls, whose own settings may have to hold for the whole transaction.
    With ``explains`` PostgreSQL's settings for planning stay as they are: the plan is to be the server's usual one,
    and EXPLAIN lists settings that differ. Raises ``TableError`` for a value with a NUL.
    """
    own = cache.role_settings.get(identity.role, ())
    pairs = [
        *(() if explains else (NO_JIT,)),
        ("statement_timeout", config.statement_timeout),
        ("search_path", search_path(head.schema, config.extra_search_path)),
        *own,
        ("role", identity.role),
        ("request.jwt.claims", identity.claims),
        ("request.method", head.method),
        ("request.headers", incoming.headers.as_json),
        ("request.cookies", incoming.headers.cookies),
    ]
    if read_only or _reads_alone(own):
        pairs.append(("transaction_read_only", "on"))
    timezone = head.preferences.get("timezone")
    if timezone is not None:
        pairs.append(("timezone", timezone))
    if routine is not None:
        pairs.extend(routine_settings(routine.settings, config.hoisted_tx_settings))
    pairs.extend((f"app.settings.{name}", value) for name, value in config.app_settings.items())
    limits = [value for name, value in pairs if name == "statement_timeout"]
    extra = extra_seconds(limits[0], limits[-1]) if len(limits) > 1 else 0.0
    sent = incoming.headers
    short = len(sent.as_json) + len(sent.cookies) + len(identity.claims) <= _SHORT
    try:
        sql = (_recent_sql if short else _sql)(
            tuple(pairs), config.pre_request, _forgets_plans(config, cache)
        )
    except ValueError:
        raise has_nul() from None
    return Preamble(
        sql, [incoming.resource], identity.role, identity.authenticated, extra, cache.guarded_within
    )


def _forgets_plans(config: TablesConfig, cache: SchemaCache) -> bool:
    """Whether a cached plan may contain what is not the next caller's.

    That may be a value from another caller's claims. Or it is something that another role's rights allowed, where
    ``pass_to_role`` cannot see to it: if requests change their role themselves, or if nothing is prepared, so that
    nobody knows whose connection it was before.
    """
    unknown = cache.guarded_within and not config.prepare
    return bool(cache.false_constants) or unknown or (cache.changes_role and config.pre_request is not None)


def _sql(pairs: tuple[tuple[str, str], ...], pre_request: str | None, forgets_plans: bool) -> PreambleSql:
    """With ``forgets_plans`` no plan of an earlier request is used. Raises ``ValueError`` for a value with a NUL."""
    # The isolation level can only be set before the transaction's first query.
    first = RESET + _isolation(pairs) + (f"{FORGET_PLANS}; " if forgets_plans else "")
    settings = settings_of(pairs, ("request.path",))
    last = "" if pre_request is None else f"; {pre_request_text(pre_request)}"
    return PreambleSql(first, settings, last)


# Clients come again with the same headers and claims.
_recent_sql = lru_cache(maxsize=512)(_sql)


def _reads_alone(settings: Iterable[tuple[str, str]]) -> bool:
    """Whether the role's transactions are read-only by default. PostgreSQL applies the default where a transaction
    begins, which is before the role's settings are made, so it has to be set for the transaction itself."""
    value = dict(settings).get("default_transaction_read_only", "").lower()
    return value == "on" or value.startswith(("t", "y", "1"))


def _isolation(pairs: Iterable[tuple[str, str]]) -> str:
    """Sets the isolation level that a role's or function's own settings ask for, if any. The setting may be written
    in any case."""
    level = dict(pairs).get("default_transaction_isolation", "").upper()
    return f"SET TRANSACTION ISOLATION LEVEL {level}; " if level in _LEVELS else ""
