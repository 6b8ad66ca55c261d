"""How ``/ready`` of one worker answers for all workers: it asks the parent process, which asks every worker.

The messages are lines of one or two words on the pipes between the parent and each worker::

    worker -> parent   all                          are all workers ready?
    parent -> worker   check N                      are you ready? (in round N)
    worker -> parent   works N, fails N             the answer
    parent -> worker   all works, all fails         the verdict, to each worker that asked
    parent -> worker   renew                        read the certificates again
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
from project_service.http.health import Check, NotReady

# A worker that has not checked itself by then is not ready. The parent waits a little longer for the answers.
WORKER_SECONDS = 3.0
ROUND_SECONDS = 4.0

ASK = b"all"
CHECK = b"check"
WORKS = b"works"
FAILS = b"fails"
RENEW = b"renew"


class WorkerPeer(Protocol):
    """A worker, as the parent sees it: ``tell`` sends it a line."""

    def tell(self, line: bytes) -> None: ...


class Readiness:
    """The parent's side. It holds one round at a time; whoever asks meanwhile gets its verdict as well.

    A round succeeds when ``count`` workers are present and each of them says that it works.
    """

    def __init__(self, reactor: Any, count: int, present: Callable[[], Sequence[WorkerPeer]]) -> None:
        self._reactor = reactor
        self._count = count
        self._present = present
        self._round = 0
        self._asking: list[WorkerPeer] = []
        self._unanswered: list[WorkerPeer] = []
        self._late: IDelayedCall | None = None

    def heard(self, peer: WorkerPeer, line: bytes) -> None:
        """To be called with each line that a worker sends. An answer to an earlier round is ignored."""
        word, _, number = line.partition(b" ")
        if word == ASK:
            self._asking.append(peer)
            if self._late is None:
                self._begin()
        elif number == b"%d" % self._round and peer in self._unanswered:
            self._unanswered.remove(peer)
            if word != WORKS:
                self._end(FAILS)
            elif not self._unanswered:
                self._end(WORKS)

    def gone(self, peer: WorkerPeer) -> None:
        """To be called when a worker has ended. The round fails, even if this worker has answered already."""
        self._asking = [one for one in self._asking if one is not peer]
        self._end(FAILS)

    def _begin(self) -> None:
        self._round += 1
        self._unanswered = list(self._present())
        if len(self._unanswered) < self._count:
            self._end(FAILS)
            return
        self._late = self._reactor.callLater(ROUND_SECONDS, self._end, FAILS)
        for peer in list(self._unanswered):
            peer.tell(b"%s %d" % (CHECK, self._round))

    def _end(self, verdict: bytes) -> None:
        cancel(self._late)
        self._late = None
        self._unanswered = []
        asking, self._asking = self._asking, []
        for peer in asking:
            peer.tell(b"%s %s" % (ASK, verdict))


@implementer(IReadDescriptor)
class Parent:
    """A worker's side: the parent, as the worker sees it.

    ``works`` raises while this worker is not ready. ``gone`` is called when the parent has ended, ``renew`` when the
    certificates are to be read again. ``incoming`` and ``outgoing`` are the descriptors of the pipes; ``incoming``
    reaches its end when the parent is gone, however it went.
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
        """Begin to read what the parent says."""
        # A parent that does not read must not block a worker that has requests to answer.
        os.set_blocking(self._outgoing, False)
        self._reactor.addReader(self)

    def tell(self, line: bytes) -> None:
        try:
            os.write(self._outgoing, line + b"\n")
        except OSError:
            return  # the parent is gone, and the other pipe says so

    async def all_work(self) -> None:
        """Raises ``NotReady`` unless every worker is there and ready."""
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
        """Called by the reactor for a pipe that broke before its end could be read."""
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
                    one.errback(NotReady("another one is starting, is away, or does not work"))
