"""One database's table API: from a request to its reply."""

from __future__ import annotations

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
from project_service.tables.execution.execute import Executor, Row
from project_service.tables.execution.large import LargeReplies
from project_service.tables.failures import READ_ONLY
from project_service.tables.headers import VARY
from project_service.tables.incoming import Incoming
from project_service.tables.model import SchemaCache
from project_service.tables.parse.payload import slow_to_read
from project_service.tables.parse.request import WRITING, Head, payload_of
from project_service.tables.planning.planner import Planned, Planner
from project_service.tables.respond.options import options_reply, other_methods
from project_service.tables.respond.replies import deprecated_names, reply_to
from project_service.tables.root import Root, nothing
from project_service.tables.settings import preamble_of, preamble_of_head
from project_service.tables.sql.fragment import Sql
from project_service.tables.timing import Timing

# The errors for something that the schema cache does not have: a handler of a media type, a relationship, a function,
# a column, a relation.
_MISSES = ("PGRST107", "PGRST200", "PGRST202", "PGRST204", "42703", "PGRST205")

# The segments of the path of the root.
_ROOT = ((), ("",))

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

    def finish_error(self, fault: TableError, incoming: Incoming) -> None:
        """Give ``fault``, which ``answer`` raised, the headers and the form that all errors of this database have."""
        fault.terse = self.config.error_verbosity == "minimal"
        # A cache that kept a 404 would hide a table that is created a moment later.
        added = (VARY, NO_STORE, *self._allow(incoming, fault.status, fault.code))
        fault.headers += tuple(one for one in added if not has_header(fault.headers, one[0]))

    def _allow(self, incoming: Incoming, status: int, code: str = "") -> Headers:
        """``Allow`` for a 405 that comes from the plan or from SQL. Without the schema cache's relation or function
        there is none, and the edge has to name the methods."""
        if status != 405:
            return ()
        try:
            head = self.planner.head(incoming)
            return (other_methods(self.holder.current, head, code == READ_ONLY),)
        except TableError:
            return ()

    async def answer(self, incoming: Incoming) -> Reply | StreamReply:  # noqa: PLR0912  # the whole way on one page
        """authenticate -> parse -> plan -> statement -> run -> reply"""
        timing = Timing() if self.config.server_timing else None
        identity = self.identities.identify(incoming.headers, incoming.is_service)
        if timing:
            timing.mark("jwt")
        delegated = None
        if incoming.method == "OPTIONS" or incoming.segments in _ROOT:
            head, cache = self.planner.head(incoming), self.holder.current
            if head.method == "OPTIONS":
                return _timed(options_reply(cache, head), timing)
            delegated = self.root.delegated(head)
            if delegated is None:
                return await self._root(incoming, head, identity, cache, timing)
        shape, operands = self.planner.shape(incoming, delegated)
        cache, payload = self.holder.cache or self.holder.current, None
        if incoming.method in WRITING:
            read = partial(payload_of, shape.head, shape.query, incoming.body)
            slow = slow_to_read(shape.head.content_type, incoming.body)
            payload = await self.in_thread(read) if slow else read()
        if timing:
            timing.mark("parse")
        try:
            planned = self.planner.plan(cache, shape, incoming.pairs, payload, operands)
        except TableError as fault:
            # What the schema cache lacks may have been created since, so a newer one is tried.
            newer = await self.freshness.newer(cache) if fault.code in _MISSES else None
            if newer is None:
                raise
            cache, planned = newer, self.planner.plan(newer, shape, incoming.pairs, payload, operands)
        if timing:
            timing.mark("plan")
        preamble = preamble_of(self.config, cache, incoming.headers, planned, identity)
        reply = None
        if planned.compiled.last.streamed and self.large.expected(planned):
            reply = await self.large.at_once(incoming.path, planned, preamble, incoming.resource)
        if reply is None:
            outcome = await self.executor.execute(planned, preamble, incoming.resource, incoming.place)
            reply = (
                reply_to(planned.request, planned.compiled, outcome, incoming.path)
                if outcome.whole
                else await self.large.after(incoming, planned, outcome, preamble)
            )
        if incoming.method == "HEAD" or planned.compiled.renamed or reply.status == 405:
            reply = self._finished(reply, incoming, planned)
        if timing:
            timing.mark("transaction")
            reply = _timed(reply, timing)
        return reply

    def _finished(
        self, reply: Reply | StreamReply, incoming: Incoming, planned: Planned
    ) -> Reply | StreamReply:
        if incoming.method == "HEAD":
            reply = StreamReply(reply.status, reply.headers, None, nothing)
        if planned.compiled.renamed:
            reply = evolve(reply, headers=(*reply.headers, deprecated_names(planned.compiled.renamed)))
        if reply.status == 405 and not has_header(reply.headers, "Allow"):
            reply = evolve(reply, headers=(*reply.headers, *self._allow(incoming, reply.status)))
        return reply

    async def _root(
        self, incoming: Incoming, head: Head, identity: Identity, cache: SchemaCache, timing: Timing | None
    ) -> Reply | StreamReply:
        preamble = preamble_of_head(self.config, cache, incoming.headers, head, identity)
        leaves_things = cache.leaves_things and self.config.pre_request is not None
        if timing:
            timing.mark("plan")

        async def run(sql: Sql) -> list[Row]:
            return await self.executor.read(preamble, incoming.resource, sql, leaves_things)

        reply = await self.root.answer(cache, incoming, head, run)
        if timing:
            timing.mark("transaction")
        return _timed(reply, timing)


def _timed(reply: R, timing: Timing | None) -> R:
    if timing is None:
        return reply
    timing.mark("response")
    return evolve(reply, headers=(*reply.headers, timing.header()))
