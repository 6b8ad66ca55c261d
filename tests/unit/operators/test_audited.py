"""Entries about what was done on a database."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred

from project_service.http.caller import Caller
from project_service.http.head import HeaderView
from project_service.http.request import Request
from project_service.lifecycle import start
from project_service.operators.sql import Audited


@define(eq=False)
class SlowRows:
    """Answers when it is told to."""

    answer: Deferred[list[tuple[Any, ...]]] = field(factory=Deferred)

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        return await self.answer


def test_an_entry_is_written_also_if_who_did_it_leaves_at_once() -> None:
    rows = SlowRows()
    request = cast(
        Request,
        SimpleNamespace(
            headers=HeaderView([(b"x-service-key", b"its key")]),
            caller=Caller("service"),
            client_address="192.0.2.1",
            request_id="r",
        ),
    )

    async def serve() -> None:
        await Audited(rows, lambda: 0.0).record(request, "dev/main", action="run_sql")

    serving = start(serve())
    serving.addErrback(lambda failure: failure.trap(CancelledError))
    serving.cancel()
    assert not rows.answer.called
