"""Replies that are too large for one piece.

That one is, its statement shows; then the cursor runs the query once more. The next request of the same shape opens
its cursor at once, so that what is always large is run once, and if all its rows are there with the first, it is
answered in one piece again.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from project_service.http.outbound import Reply, StreamReply
from project_service.http.wire import fault_of
from project_service.tables.config import TablesConfig
from project_service.tables.identity import Identity
from project_service.tables.incoming import Incoming
from project_service.tables.planner import Planned
from project_service.tables.respond.outcome import Outcome
from project_service.tables.respond.replies import head_of_stream
from project_service.tables.run import Preamble
from project_service.tables.streaming import RowStream, Streams

# SQL may have said so, however many rows there are.
_BODILESS = (204, 304)


@frozen
class LargeReplies:
    config: TablesConfig
    streams: Streams

    def expected(self, planned: Planned) -> bool:
        """Whether the cursor is to be opened at once: not where the reply would have to wait for its turn, nor where
        more than the rows has to be looked at."""
        preferences = planned.request.head.preferences
        return (
            planned.compiled.last.streamed
            and self.streams.places.tokens > 0
            and preferences.get("count") in (None, "exact")
            and preferences.max_affected is None
        )

    async def at_once(
        self,
        incoming: Incoming,
        planned: Planned,
        told: Preamble,
        identity: Identity,
        in_one_piece: Callable[[Outcome], Reply],
    ) -> Reply | StreamReply | None:
        """Where it was ``expected``; None where the statement has to tell more. Raises as ``Streams.open`` does."""
        probe = planned.compiled.probe
        assert probe is not None
        likely = Outcome(rows=probe.rows, size=probe.threshold_bytes)
        stream = await self._open(planned, told, identity, likely)
        try:
            outcome = await stream.outcome(_counts(planned), self.config.stream_threshold_bytes)
            if outcome.whole:
                await stream.finish()
                planned.compiled.last.streamed = False
                return in_one_piece(outcome) if _has_total(planned, outcome) else None
            return self._reply(self._head(incoming, planned, outcome), stream)
        except BaseException:
            stream.close()
            raise

    async def after(
        self, incoming: Incoming, planned: Planned, outcome: Outcome, told: Preamble, identity: Identity
    ) -> Reply | StreamReply:
        """Where ``outcome`` shows that it does not fit. Raises as ``Streams.open`` does."""
        head = self._head(incoming, planned, outcome)
        if not _has_body(head):
            return head
        planned.compiled.last.streamed = True
        stream = await self._open(planned, told, identity, outcome)
        try:
            streamed = evolve(outcome, rows=len(stream.fetched), total=stream.total)
            if _counts(planned) and _has_total(planned, streamed):
                head = self._head(incoming, planned, streamed)
            return self._reply(head, stream)
        except BaseException:
            stream.close()
            raise

    async def _open(self, planned: Planned, told: Preamble, identity: Identity, likely: Outcome) -> RowStream:
        compiled = planned.compiled
        rows = compiled.statement.stream
        assert rows is not None
        values = rows.values(planned.operands, planned.body, planned.raw)
        return await self.streams.open(
            told, rows, values, compiled.rendering, likely, identity.authenticated, compiled.leaves_things
        )

    def _head(self, incoming: Incoming, planned: Planned, outcome: Outcome) -> Reply:
        request = evolve(planned.request, range=planned.request.range.capped(self.config.max_rows))
        return head_of_stream(
            request, planned.compiled.rendering, outcome, incoming.path, self.config.tx_override
        )

    def _reply(self, head: Reply, stream: RowStream) -> Reply | StreamReply:
        if _has_body(head):
            return StreamReply(head.status, head.headers, None, stream)
        stream.close()
        return head


def _has_body(head: Reply) -> bool:
    """A stream that the edge does not write never lets go of its connection. What SQL and clients say is looked at
    before; a schema of the configuration may have any name, and stands in Content-Profile."""
    return head.status not in _BODILESS and fault_of(head.status, head.headers) is None


def _has_total(planned: Planned, outcome: Outcome) -> bool:
    """It comes with the rows: where none are past an offset nothing says how many are before it."""
    return outcome.rows > 0 or planned.request.range.offset == 0 or not _counts(planned)


def _counts(planned: Planned) -> bool:
    return planned.request.head.preferences.get("count") == "exact"
