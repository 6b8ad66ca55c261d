"""``/ready`` of one worker speaks for all: it asks the parent, and the parent asks every worker.

Both ways these are lines on the pipes that the workers were born with, one word or two each. On the same pipe the
parent has the certificates renewed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service.deferreds import cancel, start, with_timeout
from project_service.http.health import Check

# A worker that has not found out by then is not ready; whoever asked for all waits a little longer than that.
WORKER_SECONDS = 3.0
ROUND_SECONDS = 4.0

ASK = b"all"
CHECK = b"check"
WORKS = b"works"
FAILS = b"fails"
RENEW = b"renew"


class Peer(Protocol):
    """A worker, as the parent sees it."""

    def tell(self, line: bytes) -> None: ...


class RollCall:
    """The parent's side: one round at a time, good when ``count`` workers are there and each says it works."""

    def __init__(self, reactor: Any, count: int, present: Callable[[], Sequence[Peer]]) -> None:
        self._reactor = reactor
        self._count = count
        self._present = present
        self._round = 0
        self._curious: list[Peer] = []
        self._silent: list[Peer] = []
        self._late: IDelayedCall | None = None

    def heard(self, peer: Peer, line: bytes) -> None:
        word, _, number = line.partition(b" ")
        if word == ASK:
            self._curious.append(peer)
            if self._late is None:
                self._begin()
        elif number == b"%d" % self._round and peer in self._silent:
            self._silent.remove(peer)
            if word != WORKS:
                self._end(FAILS)
            elif not self._silent:
                self._end(WORKS)

    def gone(self, peer: Peer) -> None:
        """No round is good with one who is not there any more, whatever he has said before."""
        self._curious = [one for one in self._curious if one is not peer]
        self._end(FAILS)

    def _begin(self) -> None:
        self._round += 1
        self._silent = list(self._present())
        if len(self._silent) < self._count:
            self._end(FAILS)
            return
        self._late = self._reactor.callLater(ROUND_SECONDS, self._end, FAILS)
        for peer in list(self._silent):
            peer.tell(b"%s %d" % (CHECK, self._round))

    def _end(self, verdict: bytes) -> None:
        cancel(self._late)
        self._late = None
        self._silent = []
        curious, self._curious = self._curious, []
        for peer in curious:
            peer.tell(b"%s %s" % (ASK, verdict))


@implementer(IReadDescriptor)
class Parent:
    """A worker's side. ``works`` raises while this worker is not ready; ``gone`` is called when the parent has ended,
    ``renew`` when the certificates are to be read again.

    ``incoming`` and ``outgoing`` are descriptors; the first one ends when the parent is gone, however it went.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        works: Check,
        gone: Callable[[], None],
        renew: Callable[[], object],
        incoming: int,
        outgoing: int,
    ) -> None:
        self._reactor = reactor
        self._works = works
        self._gone = gone
        self._renew = renew
        self._incoming = incoming
        self._outgoing = outgoing
        self._rest = b""
        self._waiting: list[Deferred[None]] = []

    def watch(self) -> None:
        # A parent that reads nothing must not hold up who answers requests.
        os.set_blocking(self._outgoing, False)
        self._reactor.addReader(self)

    def tell(self, line: bytes) -> None:
        try:
            os.write(self._outgoing, line + b"\n")
        except OSError:
            return  # the parent is gone, and the other pipe says so

    async def all_work(self) -> None:
        """Raises ``RuntimeError`` unless every worker is there and ready."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self.tell(ASK)
        await waiting

    def fileno(self) -> int:
        return self._incoming

    def logPrefix(self) -> str:
        return "parent"

    def doRead(self) -> None:
        data = os.read(self._incoming, 4096)
        if not data:
            self._reactor.removeReader(self)
            self._gone()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(line)

    def connectionLost(self, reason: Failure) -> None:
        """How the reactor tells of a pipe that ended without a last byte."""
        self._gone()

    def _hear(self, line: bytes) -> None:
        word, _, said = line.partition(b" ")
        if word == CHECK:
            checked = with_timeout(self._reactor, WORKER_SECONDS, start(self._works()), TimeoutError)
            checked.addCallbacks(
                lambda _: self.tell(WORKS + b" " + said), lambda _: self.tell(FAILS + b" " + said)
            )
        elif word == RENEW:
            self._renew()
        elif word == ASK:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if said == WORKS:
                    one.callback(None)
                else:
                    one.errback(RuntimeError("a worker is not ready"))
