"""Conversations with a mail server, played line by line: ``check`` logs in and leaves, and says what is wrong."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, DNSLookupError, NoRouteError
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.auth.mail import MailServer, MailServerError
from project_service.lifecycle import start
from project_service.settings.model import Secret, Smtp

SETTINGS = Smtp(
    host="mail.example.test",
    sender="noreply@example.test",
    username="mailer",
    password=Secret("hush"),
    tls="none",
)
ENHANCED = (b"220 here", b"250-here\r\n250 AUTH PLAIN")


class Conversations(TestCase):
    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.transport = StringTransport()

    def reach(self) -> Deferred[None]:
        return start(MailServer(self.reactor, SETTINGS).reach())

    def connected(self, *lines: bytes) -> Any:
        """The client's connection, after the server has sent these lines."""
        client = self.reactor.tcpClients[0][2].buildProtocol(None)
        client.makeConnection(self.transport)
        # Twisted's own timer for an answer, which runs on the real reactor, ends with the connection.
        self.addCleanup(client.connectionLost, Failure(ConnectionDone()))
        for line in lines:
            client.dataReceived(line + b"\r\n")
        return client

    def why_not(self, reached: Deferred[None]) -> str:
        return str(self.failureResultOf(reached, MailServerError).value)

    def test_it_logs_in_and_quits_without_sending_mail(self) -> None:
        reached = self.reach()
        client = self.connected(*ENHANCED, b"235 welcome")
        self.assertNoResult(reached)
        self.assertTrue(self.transport.value().endswith(b"\r\nQUIT\r\n"))
        self.assertNotIn(b"MAIL", self.transport.value())
        client.dataReceived(b"221 bye\r\n")
        self.successResultOf(reached)
        self.assertTrue(self.transport.disconnecting)
        # Twisted would log two lines for each mail otherwise.
        self.assertFalse(self.reactor.tcpClients[0][2].noisy)

    def test_starttls_is_not_used_if_tls_is_none_even_if_offered(self) -> None:
        """A relay on the same machine may offer it with a certificate that nobody trusts."""
        reached = self.reach()
        offering = b"250-here\r\n250-STARTTLS\r\n250 AUTH PLAIN"
        self.connected(b"220 here", offering, b"235 welcome", b"221 bye")
        self.assertNotIn(b"STARTTLS", self.transport.value())
        self.successResultOf(reached)

    def test_the_reply_to_quit_does_not_matter(self) -> None:
        for ending in (b"500 what?", b"nonsense"):
            self.setUp()
            reached = self.reach()
            self.connected(*ENHANCED, b"235 welcome", ending)
            self.successResultOf(reached)
        self.setUp()
        reached = self.reach()
        self.connected(*ENHANCED, b"235 welcome").connectionLost(Failure(ConnectionDone()))
        self.successResultOf(reached)

    def test_a_refusal_is_reported_by_its_code_without_the_servers_words(self) -> None:
        told = {
            (b"554 hush, go away",): "refuses (554)",
            (b"220 here", b"502 hush"): "does not know EHLO",
            (*ENHANCED, b"334 ", b"535 hush"): "refuses the user name or the password (535)",
            (b"SSH-2.0-hush",): "what answers is not a mail server",
        }
        for lines, words in told.items():
            self.setUp()
            reached = self.reach()
            self.connected(*lines)
            why = self.why_not(reached)
            self.assertIn(words, why)
            self.assertNotIn("hush", why)

    def test_a_silent_server_times_out(self) -> None:
        reached = self.reach()
        client = self.connected(b"220-slow")
        for _ in range(29):
            self.reactor.advance(1)
        self.assertNoResult(reached)
        with patch.object(self.reactor.connectors[0], "disconnect") as left:
            self.reactor.advance(1)
        left.assert_called_once_with()
        self.assertIn("does not answer in time", self.why_not(reached))
        # It is no error either if such a connection does not end by itself.
        client.timeoutConnection()
        self.assertTrue(self.transport.disconnected)

    def test_single_lines_do_not_extend_the_timeout(self) -> None:
        reached = self.reach()
        client = self.connected()
        for _ in range(3):
            client.dataReceived(b"220-slow\r\n")
            self.reactor.advance(10)
        self.assertIn("does not answer in time", self.why_not(reached))

    def test_an_unreachable_host_is_reported_without_its_address(self) -> None:
        for fault, words in (
            (DNSLookupError("hush"), "smtp.host has no address"),
            (NoRouteError("hush"), "cannot be reached: NoRouteError"),
        ):
            self.setUp()
            reached = self.reach()
            self.reactor.tcpClients[0][2].clientConnectionFailed(None, Failure(fault))
            why = self.why_not(reached)
            self.assertIn(words, why)
            self.assertNotIn("hush", why)
