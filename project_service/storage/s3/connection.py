"""One keep-alive HTTP/1.1 connection to the store: one request at a time, no pipelining."""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IBodyProducer

from project_service.network.sockets import read_widely, tune
from project_service.network.splicing import ask_first, ask_no_more
from project_service.storage.s3.errors import BrokenAnswer, kind_of
from project_service.storage.s3.response import DONE, StoreResponse
from project_service.storage.s3.response_parser import ResponseParser

# Eight times what Twisted usually reads at a time. A buffer of 1 MiB would be mapped anew by the system for each read
# (see process.LARGE_BLOCK_BYTES).
READ_BYTES = 512 * 1024


class Owner(Protocol):
    """What keeps the connections: the pool."""

    def free(self, connection: Connection) -> None:
        """The connection can take another request."""

    def gone(self, connection: Connection) -> None:
        """The connection is closed."""


class Connection(TwistedProtocol):
    """``send`` may be called once, and again each time ``owner.free`` was."""

    transport: Any

    def __init__(self, owner: Owner) -> None:
        self.free_since = 0.0
        self._owner = owner
        self._incoming: ResponseParser | None = None
        self._answer: Deferred[StoreResponse] | None = None
        self._response: StoreResponse | None = None
        self._sending = False

    def connectionMade(self) -> None:
        tune(self.transport)
        read_widely(self.transport, READ_BYTES)
        ask_first(self.transport, self.passed_on)

    def send(self, method: bytes, head: bytes, body: IBodyProducer | None) -> Deferred[StoreResponse]:
        """Send a request; fires with the answer once its head is there. Cancelling closes the connection.

        Fails with ``BrokenAnswer`` where no answer comes, or something that is not one.
        """
        self._incoming = ResponseParser(bodiless=method == b"HEAD")
        answer: Deferred[StoreResponse] = Deferred(self._cancelled)
        self._answer = answer
        self.transport.write(head)
        if body is not None:
            self._sending = True
            body.startProducing(self.transport).addCallbacks(self._sent, lambda _: self.abort())
        return answer

    def abort(self) -> None:
        """Close at once. Whoever waits for something gets a failure when the connection is closed."""
        self.transport.abortConnection()

    def close(self) -> None:
        """Close an idle connection."""
        self.transport.loseConnection()

    def pause(self) -> None:
        self.transport.pauseProducing()

    def resume(self) -> None:
        self.transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            # The store sent something that nobody asked for.
            self.abort()
            return
        try:
            body = incoming.feed(data)
        except BrokenAnswer as fault:
            self._fail(fault)
            self.abort()
            return
        if self._response is not None:
            self._received(self._response, incoming, body)
        elif incoming.begun:
            self._begin(incoming, body)

    def passed_on(self, source: int) -> bool:
        """Whether the body's reader took what has come. It counts those bytes: they never become bytes of ours."""
        incoming, response = self._incoming, self._response
        # The end of a body comes as data: a store that sends more than it announced is noticed there.
        if incoming is None or response is None or incoming.left <= READ_BYTES:
            return False
        taken = response.take(source, READ_BYTES)
        incoming.skip(taken)
        return taken > 0

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        ask_no_more(self.transport)
        incoming = self._incoming
        if incoming is not None:
            try:
                incoming.end()
            except BrokenAnswer:
                self._fail(BrokenAnswer(kind_of(reason.value)))
            else:
                response, self._response, self._incoming = self._response, None, None
                assert response is not None
                # A body without a length ends with the connection (RFC 9112 section 6.3). It counts as complete where
                # the connection was closed in order; beyond that only the document, or the object's size, can tell.
                response.ended(DONE if reason.check(ConnectionDone) else Failure(PotentialDataLoss()))
        self._owner.gone(self)

    def _begin(self, incoming: ResponseParser, body: bytes) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        response = self._response = StoreResponse(self, incoming)
        # A small answer comes whole with its head, so that the connection is free before anybody reads the answer.
        self._received(response, incoming, body)
        answer.callback(response)
        if self._response is response and not response.has_reader:
            self.pause()

    def _received(self, response: StoreResponse, incoming: ResponseParser, body: bytes) -> None:
        if incoming.complete:
            response.detach()
            self._release(incoming)
        if body:
            response.received(body)
        if incoming.complete:
            response.ended()

    def _release(self, incoming: ResponseParser) -> None:
        self._incoming = self._response = None
        self.resume()
        if self._sending:
            # The store answered before it had the whole request, so it will not read the rest of it.
            self.abort()
        elif incoming.keep_alive:
            self._owner.free(self)
        else:
            self.close()

    def _fail(self, fault: BrokenAnswer) -> None:
        self._incoming = None
        answer, self._answer = self._answer, None
        response, self._response = self._response, None
        if answer is not None:
            answer.errback(fault)
        if response is not None:
            response.ended(Failure(fault))

    def _cancelled(self, _: object) -> None:
        self._answer = self._incoming = None
        self.abort()

    def _sent(self, _: object) -> None:
        self._sending = False
