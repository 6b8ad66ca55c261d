"""One database's table API: from a request to its reply."""

from __future__ import annotations

from typing import TypeVar

from attrs import evolve, frozen

from project_service.http.outbound import Reply, StreamReply
from project_service.http.wire import fault_of
from project_service.tables.call import Call, Timing
from project_service.tables.catalog.freshness import Freshness
from project_service.tables.catalog.holder import CacheHolder
from project_service.tables.catalog.model import SchemaCache
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError
from project_service.tables.execute import Executor
from project_service.tables.identity import Identities, Identity
from project_service.tables.parse.request import Head
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Planned, Planner
from project_service.tables.respond.options import options_reply
from project_service.tables.respond.outcome import Outcome
from project_service.tables.respond.replies import (
    call_reply,
    deprecated_names,
    explained,
    head_of_stream,
    read_reply,
    write_reply,
)
from project_service.tables.root import Root, nothing
from project_service.tables.run import Preamble, Row
from project_service.tables.session_settings import preamble
from project_service.tables.sql.fragment import Sql
from project_service.tables.streaming import Streams

# What is not in the schema cache: a relationship, a function, a column, a relation.
_MISSES = ("PGRST200", "PGRST202", "PGRST204", "PGRST205")

# SQL may have said so, however many rows there are.
_BODILESS = (204, 304)

R = TypeVar("R", Reply, StreamReply, Reply | StreamReply)


@frozen
class TableService:
    """Answers for one database. Raises ``TableError`` for everything that is not a success."""

    config: TablesConfig
    holder: CacheHolder
    identities: Identities
    planner: Planner
    freshness: Freshness
    executor: Executor
    root: Root
    streams: Streams

    async def answer(self, call: Call) -> Reply | StreamReply:
        try:
            return await self._answer(call)
        except TableError as fault:
            fault.terse = self.config.error_verbosity == "minimal"
            raise

    async def _answer(self, call: Call) -> Reply | StreamReply:
        timing = Timing(self.config.server_timing)
        identity = self.identities.identify(call.headers.authorization, call.presented_key, call.is_service)
        timing.mark("jwt")
        head, head_key = self.planner.head(call)
        cache = self.holder.current
        if head.method == "OPTIONS":
            allowed = options_reply(cache, head)
            for stage in ("parse", "plan", "transaction"):
                timing.mark(stage)
            return self._timed(allowed, timing)
        if head.kind == "root":
            delegated = self.root.delegated(call, head)
            if delegated is None:
                return await self._root(call, head, identity, cache, timing)
            call, head = delegated
            head_key = None
        asked = self.planner.request(call, head)
        timing.mark("parse")
        try:
            planned = self.planner.plan(cache, head_key or head, *asked)
        except TableError as fault:
            if fault.code not in _MISSES:
                raise
            newer = await self.freshness.newer(cache)
            if newer is None:
                raise
            cache, planned = newer, self.planner.plan(newer, head_key or head, *asked)
        timing.mark("plan")
        prepared = planned.prepared
        told = preamble(self.config, cache, call, head, identity, prepared.read_only, prepared.routine)
        outcome = await self.executor.execute(planned, told, identity.authenticated)
        timing.mark("transaction")
        reply: Reply | StreamReply = self._reply(call, planned, outcome)
        if not outcome.whole:
            reply = await self._streamed(call, planned, outcome, told, identity)
        elif head.method == "HEAD":
            reply = StreamReply(reply.status, reply.headers, None, nothing)
        if prepared.renamed:
            reply = evolve(reply, headers=(*reply.headers, deprecated_names(prepared.renamed)))
        return self._timed(reply, timing)

    async def _root(
        self, call: Call, head: Head, identity: Identity, cache: SchemaCache, timing: Timing
    ) -> Reply | StreamReply:
        told = preamble(self.config, cache, call, head, identity, True, None)
        timing.mark("parse")
        timing.mark("plan")

        async def run(sql: Sql) -> list[Row]:
            return await self.executor.read(told, sql, identity.authenticated)

        reply = await self.root.answer(cache, call, head, run)
        timing.mark("transaction")
        return self._timed(reply, timing)

    def _timed(self, reply: R, timing: Timing) -> R:
        if not self.config.server_timing:
            return reply
        timing.mark("response")
        return evolve(reply, headers=(*reply.headers, timing.header()))

    async def _streamed(
        self, call: Call, planned: Planned, outcome: Outcome, told: Preamble, identity: Identity
    ) -> Reply | StreamReply:
        head = self._head(call, planned, outcome)
        rows = planned.prepared.statement.stream
        # What the edge would not write, or not with a body, takes no connection.
        if rows is None or head.status in _BODILESS or fault_of(head.status, head.headers) is not None:
            return head
        values = rows.values(planned.operands, planned.body, planned.raw)
        rendering = planned.prepared.rendering
        stream = await self.streams.open(told, rows, values, rendering, outcome, identity.authenticated)
        if planned.request.head.preferences.get("count") == "exact":
            try:
                head = self._head(call, planned, evolve(outcome, total=stream.total))
            except BaseException:
                stream.close()
                raise
        return StreamReply(head.status, head.headers, None, stream)

    def _head(self, call: Call, planned: Planned, outcome: Outcome) -> Reply:
        allow_tx = self.config.tx_end.endswith("allow-override")
        request = evolve(planned.request, range=planned.request.range.capped(self.config.max_rows))
        return head_of_stream(request, planned.prepared.rendering, outcome, call.path, allow_tx)

    def _reply(self, call: Call, planned: Planned, outcome: Outcome) -> Reply:
        request, prepared = planned.request, planned.prepared
        allow_tx = self.config.tx_end.endswith("allow-override")
        if prepared.rendering.explain is not None:
            return explained(outcome.body, prepared.rendering)
        if isinstance(prepared.plan, WritePlan):
            return write_reply(request, prepared.plan, prepared.rendering, outcome, call.path, allow_tx)
        if isinstance(prepared.plan, CallPlan):
            return call_reply(request, prepared.plan, prepared.rendering, outcome, allow_tx)
        return read_reply(request, prepared.rendering, outcome, call.path, allow_tx)
