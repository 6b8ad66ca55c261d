"""Reads of objects and listings on hot standbys, where the settings name some (``database.readers``).

Who may read is decided as without them: project keys, sessions and the rules of buckets are known from the primary
database, and where the owner or policies decide about single objects, the row is read there too. So a standby only
says which bytes a key names, and what there is to list, for callers who may see all of a bucket.

What a standby does not know is looked up on the primary before it counts as missing; so is an object whose bytes are
gone, because it was replaced or deleted a moment ago.

Rules that let more people read than before hold for what is there now, and not for what was deleted before: so a
bucket is read on standbys that are fresh as of a time after this process got to know the rules that it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

import psycopg2
from attrs import evolve, field, frozen
from cachetools import FIFOCache

from project_service.database.pool import Pool
from project_service.database.readers import (
    ACQUIRE_SECONDS,
    CONSISTENCY,
    SHOWS_WRITE,
    WANTS_WRITE,
    Ask,
    Connect,
    NewConnection,
    Query,
    Readers,
    readers_of,
)
from project_service.database.staleness import NOTHING_WANTED, read_tokens
from project_service.errors import ApiError, Away
from project_service.http.describe import in_header
from project_service.http.request import Request
from project_service.http.response import Reply, StreamReply
from project_service.http.routing import Endpoint, Handler
from project_service.settings.model import Database
from project_service.storage.buckets import MAX_CACHED, Buckets
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.values import ObjectRow, Viewer

R = TypeVar("R")

_TOKEN = CONSISTENCY.lower().encode()
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_STRONG = "consistency=strong"
_APPLIED = ("Preference-Applied", _STRONG)
_OF_READS = {_APPLIED[0]: f"Where reads go to standbys and the request has Prefer: {_STRONG}: the same."}
_OF_WRITES = {CONSISTENCY: SHOWS_WRITE}
_ASKED = (
    in_header(CONSISTENCY, WANTS_WRITE),
    in_header("Prefer", f"{_STRONG}: where reads go to standbys, the primary is to answer this one."),
)


@frozen(eq=False)
class Reading:
    """``rows`` are those of the primary, and ``readers`` the standbys, if there are any."""

    rows: ObjectRows
    buckets: Buckets
    readers: Readers[ObjectRows] | None = None
    # The rules of buckets, and since when they are known.
    _known: FIFOCache[str, tuple[object, float]] = field(factory=lambda: FIFOCache(MAX_CACHED), init=False)

    async def listed(
        self,
        request: Request,
        bucket: str,
        viewer: Viewer | None,
        function: Callable[[ObjectRows], Awaitable[R]],
    ) -> R:
        """What ``function`` returns, which only reads in ``bucket``: of a standby, if ``viewer`` sees everything. It
        may be called twice."""
        if self.readers is None or viewer is not None:
            return await function(self.rows)
        since = await self._since(bucket, self.readers.now)
        return await self.readers.read(_ask(request, since), function)

    async def shown(self, request: Request, bucket: str, key: str, viewer: Viewer | None) -> ObjectRow | None:
        """The object as a standby shows it; None if it is to be looked up on the primary."""
        if self.readers is None or viewer is not None:
            return None
        try:
            since = await self._since(bucket, self.readers.now)
        except ApiError:
            return None  # there is no such bucket any more
        rows = self.readers.choose(_ask(request, since))
        if rows is None:
            return None
        try:
            return await rows.find(bucket, key)
        except (ApiError, Away, psycopg2.Error) as fault:
            if not self.readers.repeats(fault):
                raise
            return None

    async def _since(self, name: str, now: Callable[[], float]) -> float:
        """Since when this process knows the rules that the bucket has. Raises as ``Buckets.get``."""
        bucket = await self.buckets.get(name)
        rules = (bucket.created_at, bucket.open, bucket.rules)
        known = self._known.get(name)
        if known is None or known[0] != rules:
            known = self._known[name] = rules, now()
        return known[1]

    def acknowledged(self, handler: Handler) -> Handler:
        """``handler``, whose caller reads what it has written: by this process in any case, and by others with the
        reply's ``Consistency-Token``. ``described`` has the headers of both."""
        readers = self.readers
        if readers is None:
            return handler

        async def handling(request: Request) -> Reply | StreamReply:
            if request.method in _READING:
                reply = await handler(request)
                return evolve(reply, headers=(*reply.headers, _APPLIED)) if _is_strong(request) else reply
            try:
                reply = await handler(request)
            except BaseException:
                readers.wrote(_caller(request))  # perhaps
                raise
            token = await readers.token()
            readers.wrote(_caller(request))
            return evolve(reply, headers=(*reply.headers, (CONSISTENCY, token)))

        return handling


def described(declared: Endpoint) -> Endpoint:
    """``declared`` with the headers that ``Reading.acknowledged`` adds to its replies, and those that reads are asked
    with."""
    more, asked = (_OF_READS, _ASKED) if declared.method in _READING else (_OF_WRITES, ())
    operation = declared.described
    answers = tuple(evolve(one, headers={**one.headers, **more}) for one in operation.answers)
    operation = evolve(operation, answers=answers, parameters=(*operation.parameters, *asked))
    return evolve(declared, described=operation)


def _ask(request: Request, since: float) -> Ask:
    tokens = _lines(request, _TOKEN)
    wanted = read_tokens(tokens) if tokens else NOTHING_WANTED
    return Ask(_caller(request), wanted, _is_strong(request), since=since)


def _is_strong(request: Request) -> bool:
    """Whether the request asks for the primary."""
    return _STRONG in _lines(request, b"prefer").replace(" ", "")


def _lines(request: Request, name: bytes) -> str:
    """All lines of a header that is a list."""
    return b",".join(request.headers.all(name)).decode("latin-1")


def _caller(request: Request) -> Hashable:
    """Who writes and reads: the user, or else the project key and the address of the client."""
    caller = request.caller
    return caller.user.sub if caller.user is not None else (caller.key, request.client_address)


def reading_of(
    reactor: Any,
    database: Database,
    query: Query,
    new_connection: NewConnection,
    rows: ObjectRows,
    buckets: Buckets,
) -> Reading:
    """How ``rows`` are read with the standbys of the system ``database``. ``query`` asks the primary, on a connection
    that requests do not wait for. What is slow on a standby is reported with what is slow on the primary."""

    def make(connect: Connect) -> tuple[ObjectRows, tuple[Pool, ...]]:
        pool = Pool(connect, database.pool_size, ACQUIRE_SECONDS, reactor)
        pool.slow = rows.database.slow
        return ObjectRows(pool, rows.actor), (pool,)

    readers = readers_of(
        reactor,
        "the system database",
        database.read_dsn,
        database.max_staleness_seconds,
        database.statement_timeout_seconds,
        rows,
        query,
        make,
        timezone="UTC",
        new_connection=new_connection,
    )
    return Reading(rows, buckets, readers)
