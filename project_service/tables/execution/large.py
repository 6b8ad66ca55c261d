"""Replies that are too large to be sent in one piece.

The first time, the ordinary statement shows that its result is too large, and a cursor then runs the query once more.
The next request of the same shape opens a cursor at once, so that results which are always large are computed once.
If the cursor's first rows turn out to be all, the reply is sent in one piece, and so are the next ones.
"""

from __future__ import annotations

from attrs import evolve, frozen

from project_service.http.inbound import HasPlace, NoPlace
from project_service.http.outbound import Reply, StreamReply
from project_service.http.protocol.wire import fault_of
from project_service.tables.config import TablesConfig
from project_service.tables.execution.streaming import RowStream, Streams
from project_service.tables.incoming import Incoming
from project_service.tables.planning.planner import Planned
from project_service.tables.respond.outcome import Outcome
from project_service.tables.respond.replies import head_of_stream, reply_to
from project_service.tables.settings import Preamble

# Statuses without a body, which SQL may set however many rows there are.
_BODILESS = (204, 304)


@frozen
class LargeReplies:
    """Decides when to stream, and opens the streams."""

    config: TablesConfig
    streams: Streams

    def expected(self, planned: Planned) -> bool:
        """Whether to open a cursor at once. Not where a stream would have to wait for a connection, nor where the
        number of rows has to be known first."""
        preferences = planned.request.head.preferences
        return (
            planned.compiled.last.streamed
            and self.streams.places.tokens > 0
            and preferences.get("count") in (None, "exact")
            and preferences.max_affected is None
        )

    async def at_once(
        self, path: str, planned: Planned, preamble: Preamble, resource: str
    ) -> Reply | StreamReply | None:
        """The reply by a cursor, to be called where it is ``expected``. None where the ordinary statement has to be
        run after all, for the total. Raises what ``Streams.open`` raises."""
        probe = planned.compiled.probe
        assert probe is not None
        likely = Outcome(rows=probe.rows, size=probe.threshold_bytes)
        stream = await self._open(
            planned, preamble, resource, likely, NoPlace()
        )  # it does not wait where it is expected
        try:
            outcome = await stream.outcome(_counts(planned), self.config.stream_threshold_bytes)
            if outcome.whole:
                await stream.finish()
                planned.compiled.last.streamed = False
                if not _has_total(planned, outcome):
                    return None
                return reply_to(planned.request, planned.compiled, outcome, path)
            return self._reply(self._head(path, planned, outcome), stream)
        except BaseException:
            stream.close()
            raise

    async def after(
        self, incoming: Incoming, planned: Planned, outcome: Outcome, preamble: Preamble
    ) -> Reply | StreamReply:
        """The reply by a cursor, after ``outcome`` has shown that the result is too large for one piece.

        Raises what ``Streams.open`` raises.
        """
        path = incoming.path
        head = self._head(path, planned, outcome)
        if not _has_body(head):
            return head
        planned.compiled.last.streamed = True
        stream = await self._open(planned, preamble, incoming.resource, outcome, incoming.place)
        try:
            streamed = evolve(outcome, rows=len(stream.fetched), total=stream.total)
            if _counts(planned) and _has_total(planned, streamed):
                head = self._head(path, planned, streamed)
            return self._reply(head, stream)
        except BaseException:
            stream.close()
            raise

    async def _open(
        self,
        planned: Planned,
        preamble: Preamble,
        resource: str,
        likely: Outcome,
        place: HasPlace,
    ) -> RowStream:
        compiled = planned.compiled
        rows = compiled.statement.stream
        assert rows is not None
        given = planned.operands, planned.body, planned.raw
        header = compiled.statement.header
        return await self.streams.open(
            preamble,
            resource,
            rows,
            rows.values(*given),
            compiled.rendering,
            likely,
            place,
            compiled.leaves_things,
            None if header is None else (header, header.values(*given)),
        )

    def _head(self, path: str, planned: Planned, outcome: Outcome) -> Reply:
        request = evolve(planned.request, range=planned.request.range.capped(self.config.max_rows))
        return head_of_stream(request, planned.compiled, outcome, path)

    def _reply(self, head: Reply, stream: RowStream) -> Reply | StreamReply:
        if _has_body(head):
            return StreamReply(head.status, head.headers, None, stream)
        stream.close()
        return head


def _has_body(head: Reply) -> bool:
    """Whether the edge will write the body. If it does not, nobody closes the stream, which keeps its connection.

    The edge refuses heads that it cannot write. SQL's headers have been checked by now, but the schema's name in
    Content-Profile comes from the configuration and may be anything.
    """
    return head.status not in _BODILESS and fault_of(head.status, head.headers) is None


def _has_total(planned: Planned, outcome: Outcome) -> bool:
    """Whether the total is known where it was asked for. It comes with each row, so there has to be a row, unless
    there are none at all."""
    return outcome.rows > 0 or planned.request.range.offset == 0 or not _counts(planned)


def _counts(planned: Planned) -> bool:
    return planned.request.head.preferences.get("count") == "exact"
