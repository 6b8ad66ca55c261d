"""What is streamed and what is not, once the statement has answered."""

from __future__ import annotations

from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from project_service.http.outbound import Reply, StreamReply
from project_service.tables.call import Call
from project_service.tables.identity import Identity
from project_service.tables.respond.outcome import Outcome
from project_service.tables.run import Preamble
from project_service.tables.service import TableService
from tests.unit.tables.test_tables_plan import CONFIG, planned


class Streamed(SynchronousTestCase):
    def reply(self, status: bytes | None) -> Reply | StreamReply:
        """To a request for more rows than are answered at once."""
        missing = cast(Any, None)
        executor = cast(Any, type("Executor", (), {"pool": None}))
        service = TableService(CONFIG, missing, missing, missing, missing, executor, missing, missing)
        return service._streamed(
            Call("GET", ("works",), (), (), b""),
            planned("GET", "works"),
            Outcome(rows=2000, status=status),
            Preamble("", []),
            Identity("anon", "{}", False),
        )

    def test_rows_are(self) -> None:
        for status in (None, b"201"):
            self.assertIsInstance(self.reply(status), StreamReply)

    def test_a_status_without_a_body_takes_no_connection(self) -> None:
        for status in (b"204", b"304"):
            reply = self.reply(status)
            assert isinstance(reply, Reply)
            self.assertEqual((reply.status, reply.body), (int(status), b""))
