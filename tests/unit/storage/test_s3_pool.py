"""The pool of connections to the store: which one a request uses, and how long one is kept."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from project_service.storage.s3 import client
from project_service.storage.s3.client import store_endpoint
from project_service.storage.s3.connection import IDLE_CONNECTION_SECONDS, ConnectionPool, StoreResponse
from project_service.storage.s3.signing import Address

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@implementer(IStreamClientEndpoint)
class Endpoint:
    """A fake endpoint that connects at once; ``answers`` says what it does otherwise, one after the other."""

    def __init__(self, transport: type[StringTransport] = StringTransport) -> None:
        self.transport = transport
        self.connections: list[Any] = []
        self.answers: list[Deferred[Any]] = []

    def connect(self, factory: Any) -> Deferred[Any]:
        if self.answers:
            return self.answers.pop(0)
        connection = factory.buildProtocol(None)
        connection.makeConnection(self.transport())
        self.connections.append(connection)
        return succeed(connection)


class Pooled(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = Endpoint()
        self.pool = ConnectionPool(self.clock, self.endpoint, 2)

    def ask(self) -> Deferred[StoreResponse]:
        return self.pool.request(b"GET", b"GET / HTTP/1.1\r\n\r\n", None)

    def answer(self, number: int) -> None:
        self.endpoint.connections[number].dataReceived(ANSWER)

    def asked(self) -> list[int]:
        """How many requests were sent on each connection."""
        return [one.transport.value().count(b"GET") for one in self.endpoint.connections]

    def closed(self) -> list[bool]:
        return [one.transport.disconnecting for one in self.endpoint.connections]

    def lose(self, number: int) -> None:
        self.endpoint.connections[number].connectionLost()

    def test_the_most_recently_freed_connection_is_used_first(self) -> None:
        for _ in range(2):
            self.ask()
        self.answer(0)
        self.answer(1)
        for _ in range(2):
            self.ask()
            self.answer(1)
        self.assertEqual(self.asked(), [1, 3])

    def test_any_number_may_be_open_but_only_some_are_kept(self) -> None:
        for _ in range(4):
            self.ask()
        for number in range(4):
            self.answer(number)
        self.assertEqual(self.closed(), [False, False, True, True])

    def test_a_connection_the_store_closed_is_not_reused(self) -> None:
        self.ask()
        self.answer(0)
        self.lose(0)
        self.ask()
        self.assertEqual(self.asked(), [1, 1])

    def test_idle_connections_are_closed_after_a_while(self) -> None:
        self.clock.advance(IDLE_CONNECTION_SECONDS)
        for _ in range(2):
            self.ask()
        self.answer(0)
        self.clock.advance(IDLE_CONNECTION_SECONDS / 2)
        self.answer(1)
        self.clock.advance(IDLE_CONNECTION_SECONDS / 2)
        self.assertEqual(self.closed(), [True, False])
        self.clock.advance(IDLE_CONNECTION_SECONDS / 2)
        self.assertEqual((self.closed(), self.clock.getDelayedCalls()), ([True, True], []))

    def test_closing_waits_for_an_idle_connection_to_close(self) -> None:
        self.successResultOf(self.pool.close())
        for _ in range(2):
            self.ask()
            self.answer(-1)
        self.ask()
        self.answer(0)
        closing = self.pool.close()
        self.assertEqual((self.closed(), self.clock.getDelayedCalls()), ([True], []))
        self.assertNoResult(closing)
        self.lose(0)
        self.successResultOf(closing)

    def test_closing_waits_for_all_connections(self) -> None:
        for _ in range(2):
            self.ask()
        for number in range(2):
            self.answer(number)
        closing = self.pool.close()
        self.assertEqual(self.closed(), [True, True])
        for number in range(2):
            self.assertNoResult(closing)
            self.lose(number)
        self.successResultOf(closing)

    def test_a_refused_connection_fails_the_request(self) -> None:
        waiting: Deferred[Any] = Deferred()
        self.endpoint.answers = [waiting]
        asked = self.ask()
        waiting.errback(Failure(Refused()))
        self.failureResultOf(asked, Refused)

    def test_cancelling_a_request_cancels_its_connecting(self) -> None:
        given_up: list[object] = []
        self.endpoint.answers = [Deferred(given_up.append)]
        asked = self.ask()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(len(given_up), 1)


class Connecting(SynchronousTestCase):
    def test_connecting_may_take_as_long_as_configured(self) -> None:
        made: list[tuple[Any, ...]] = []
        self.patch(client, "HostnameEndpoint", lambda _, *how: made.append(how))
        store_endpoint(None, Address("http://store:9000/base", "b"), 3.0)
        self.assertEqual(made, [(b"store", 9000, 3.0)])
