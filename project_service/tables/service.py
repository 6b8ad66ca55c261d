"""One database's table API: from a request to its reply."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TypeVar

from attrs import evolve, frozen

from project_service.deferreds import InThread
from project_service.errors import Headers, has_header
from project_service.http.outbound import NO_STORE, Reply, StreamReply
from project_service.tables.access.identity import Identities, Identity
from project_service.tables.catalog.freshness import Freshness
from project_service.tables.catalog.holder import CacheHolder
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError
from project_service.tables.execution.execute import Executor
from project_service.tables.execution.large import LargeReplies
from project_service.tables.execution.preamble import preamble_of
from project_service.tables.execution.work import Row
from project_service.tables.failures import READ_ONLY
from project_service.tables.headers import VARY
from project_service.tables.incoming import Incoming
from project_service.tables.model import SchemaCache
from project_service.tables.parse.payload import slow_to_read
from project_service.tables.parse.request import Head, Request, make_request
from project_service.tables.planning.planner import Planned, Planner
from project_service.tables.respond.options import options_reply, other_methods
from project_service.tables.respond.replies import deprecated_names, reply_to
from project_service.tables.root import Root, nothing
from project_service.tables.sql.fragment import Sql
from project_service.tables.timing import Timing

# The errors for something that the schema cache does not have: a handler of a media type, a relationship, a function,
# a column, a relation.
_MISSES = ("PGRST107", "PGRST200", "PGRST202", "PGRST204", "42703", "PGRST205")

R = TypeVar("R", Reply, StreamReply, Reply | StreamReply)


@frozen
class TableService:
    """Answers requests to one database. Raises ``TableError`` for everything that is not a success."""

    config: TablesConfig
    holder: CacheHolder
    identities: Identities
    planner: Planner
    freshness: Freshness
    executor: Executor
    root: Root
    large: LargeReplies
    in_thread: InThread

    async def answer(self, incoming: Incoming) -> Reply | StreamReply:
        try:
            reply = await self._answer(incoming)
        except TableError as fault:
            fault.terse = self.config.error_verbosity == "minimal"
            # A cache that kept a 404 would hide a table that is created a moment later.
            added = (VARY, NO_STORE, *self._allow(incoming, fault.status, fault.code))
            fault.headers += tuple(one for one in added if not has_header(fault.headers, one[0]))
            raise
        if reply.status == 405 and not has_header(reply.headers, "Allow"):
            return evolve(reply, headers=(*reply.headers, *self._allow(incoming, reply.status)))
        return reply

    def _allow(self, incoming: Incoming, status: int, code: str = "") -> Headers:
        """``Allow`` for a 405 that comes from the plan or from SQL. Without the schema cache's relation or function
        there is none, and the edge has to name the methods."""
        if status != 405:
            return ()
        try:
            head, _ = self.planner.head(incoming)
            return (other_methods(self.holder.current, head, code == READ_ONLY),)
        except TableError:
            return ()

    async def _answer(self, incoming: Incoming) -> Reply | StreamReply:
        timing = Timing(self.config.server_timing)
        identity = self.identities.identify(
            incoming.headers.authorization, incoming.presented_key, incoming.is_service
        )
        timing.mark("jwt")
        head, head_key = self.planner.head(incoming)
        cache = self.holder.current
        if head.method == "OPTIONS":
            return self._timed(options_reply(cache, head), timing)
        if head.kind == "root":
            delegated = self.root.delegated(head)
            if delegated is None:
                return await self._root(incoming, head, identity, cache, timing)
            head_key = head = delegated
        shape, query, operands = self.planner.query(incoming, head)
        made = partial(make_request, head, query, incoming.pairs, incoming.body)
        slow = slow_to_read(head.content_type, incoming.body)
        request = await self.in_thread(made) if slow else made()
        timing.mark("parse")
        cache, planned = await self._planned(cache, head_key, shape, request, operands)
        timing.mark("plan")
        reply = await self._run(incoming, cache, planned, identity)
        timing.mark("transaction")
        if head.method == "HEAD":
            reply = StreamReply(reply.status, reply.headers, None, nothing)
        if planned.compiled.renamed:
            reply = evolve(reply, headers=(*reply.headers, deprecated_names(planned.compiled.renamed)))
        return self._timed(reply, timing)

    async def _planned(
        self, cache: SchemaCache, head_key: Hashable, shape: Hashable, request: Request, operands: list[str]
    ) -> tuple[SchemaCache, Planned]:
        """The plan, and the schema cache that it was made with. If ``cache`` lacks something that the request names,
        it may have been created since, so a newer cache is tried. Raises ``TableError``."""
        try:
            return cache, self.planner.plan(cache, head_key, shape, request, operands)
        except TableError as fault:
            if fault.code not in _MISSES:
                raise
            newer = await self.freshness.newer(cache)
            if newer is None:
                raise
        return newer, self.planner.plan(newer, head_key, shape, request, operands)

    async def _run(
        self, incoming: Incoming, cache: SchemaCache, planned: Planned, identity: Identity
    ) -> Reply | StreamReply:
        compiled, head = planned.compiled, planned.request.head
        explains = compiled.rendering.explain is not None
        preamble = preamble_of(
            self.config, cache, incoming, head, identity, compiled.read_only, compiled.routine, explains
        )
        if self.large.expected(planned):
            reply = await self.large.at_once(incoming.path, planned, preamble)
            if reply is not None:
                return reply
        outcome = await self.executor.execute(planned, preamble)
        if not outcome.whole:
            return await self.large.after(incoming.path, planned, outcome, preamble, incoming.client_awaited)
        return reply_to(planned.request, compiled.plan, compiled.rendering, outcome, incoming.path)

    async def _root(
        self, incoming: Incoming, head: Head, identity: Identity, cache: SchemaCache, timing: Timing
    ) -> Reply | StreamReply:
        preamble = preamble_of(self.config, cache, incoming, head, identity, True, None)
        leaves_things = cache.leaves_things and self.config.pre_request is not None
        timing.mark("plan")

        async def run(sql: Sql) -> list[Row]:
            return await self.executor.read(preamble, sql, leaves_things)

        reply = await self.root.answer(cache, incoming, head, run)
        timing.mark("transaction")
        return self._timed(reply, timing)

    def _timed(self, reply: R, timing: Timing) -> R:
        if not self.config.server_timing:
            return reply
        timing.mark("response")
        return evolve(reply, headers=(*reply.headers, timing.header()))
