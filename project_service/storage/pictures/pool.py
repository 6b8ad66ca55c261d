"""Processes in which pictures are resized (``process``).

``ImagePool`` has a limited number of them, which are started when they are needed and end when they have not been for
a while. Requests beyond that number wait, clients in turn. A picture that crashes its process, or takes too long in
it, costs that process and no other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service import errors as common
from project_service.lifecycle import cancel
from project_service.settings.model import Images
from project_service.storage.pictures.process import NOT_INSTALLED, Job, Limits
from project_service.storage.s3.connection import ObjectStream
from project_service.storage.s3.errors import ReaderLeft, StoreUnreachable
from project_service.wait_queue import WaitQueue

_log = Logger()

PROGRAM = Path(__file__).with_name("process.py")
# The whole environment of a process. One thread each, as there are as many processes as CPUs.
ENVIRON = {"LANG": "C.UTF-8", "VIPS_CONCURRENCY": "1", "VIPS_BLOCK_UNTRUSTED": "1", "MALLOC_ARENA_MAX": "2"}
# How long a process stays without being used, and how many pictures it resizes at most: what a library leaks, and
# what a picture may have done to it, ends with it.
IDLE_SECONDS = 60.0
MAX_JOBS = 200
# How many requests may wait for a process, in each worker, and for how long. Others get 503 overloaded.
MAX_WAITING = 100
WAIT_SECONDS = 30.0
# How much more than its result a process may write.
OVERHEAD_BYTES = 64 * 1024
# The signals that end a process when its picture, rather than somebody else, has failed.
_CRASHES = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}
# GLib ends a process like this if it gets no memory.
_NO_MEMORY = {signal.SIGABRT, signal.SIGTRAP}

Reason = Literal["invalid", "too_large", "unsupported"]


class PictureRefused(Exception):
    """The picture cannot be read, takes more than the limits allow, or is of a kind that is not supported."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class TookTooLong(PictureRefused):
    """The picture was not made in time. On a busy machine a sound picture may not be, so it is worth another try
    later."""

    def __init__(self) -> None:
        super().__init__("too_large")


class NotInstalled(Exception):
    """pyvips or libvips is missing."""


class ProcessGone(Exception):
    """The process was ended by something else than its picture."""


class ImageProcess(ProcessProtocol):
    """One process. It resizes one picture at a time; ``usable`` is whether it can take another."""

    transport: Any

    def __init__(self, pool: ImagePool) -> None:
        self.free_since = 0.0
        self.usable = True
        self.ended: Deferred[None] = Deferred()
        self._pool = pool
        self._jobs = 0
        self._sending = False
        self._late: Exception | None = None
        self._received = bytearray()
        self._result_size: int | None = None
        self._answer: Deferred[bytes] | None = None

    async def resize(self, job: Job, stream: ObjectStream) -> bytes:
        """The picture in ``stream`` as ``job`` wants it.

        Raises ``PictureRefused``, ``NotInstalled``, ``ProcessGone``, ``StoreUnreachable`` if the store takes too long
        for the picture, and what reading it raises.
        """
        if self.ended.called:
            # While the picture was being opened: nothing would answer any more.
            raise ProcessGone("ended before its picture came")
        self._answer = answer = Deferred[bytes]()
        self._jobs += 1
        self._sending = True
        seconds = self._pool.settings.timeout_seconds
        timer: IDelayedCall = self._pool.reactor.callLater(seconds, self._too_late)
        try:
            try:
                await self._send(json.dumps(job._asdict()).encode() + b"\n", stream)
            except BaseException:
                # It waits for the rest of a picture that does not come.
                answer.addErrback(lambda _: b"")
                self.kill()
                raise
            self._sending = False
            if timer.active():
                timer.reset(seconds)
            return await answer
        finally:
            self.usable = self.usable and self._jobs < MAX_JOBS
            cancel(timer)

    async def _send(self, line: bytes, stream: ObjectStream) -> None:
        self.write(line)
        body = stream.buffered()
        if body is not None:
            self.write(body)
            return
        # If the process has ended, its end is the answer.
        with suppress(ReaderLeft):
            await stream.pipe_to(self)

    def kill(self) -> None:
        self.usable = False
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def close(self) -> None:
        """Let the process end by itself, as soon as it has no picture to resize."""
        self.usable = False
        self.transport.closeStdin()

    def _too_late(self) -> None:
        self._late = StoreUnreachable("slow") if self._sending else TookTooLong()
        self.kill()

    # The ``ByteSink`` that a picture is piped into: its standard input.

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def take(self, source: int, limit: int) -> int:
        return 0

    def register_producer(self, producer: Any) -> None:
        self.transport.registerProducer(producer, True)

    def unregister_producer(self) -> None:
        self.transport.unregisterProducer()

    # Called by Twisted.

    def outReceived(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > self._pool.limits.result_bytes + OVERHEAD_BYTES:
            self.kill()
            return
        if self._result_size is None:
            line, newline, rest = self._received.partition(b"\n")
            if not newline:
                return
            head = json.loads(bytes(line))
            self._received = rest
            if "refused" in head:
                _log.info("A picture was refused: {why}", why=head["why"])
                self._answered(Failure(PictureRefused(head["refused"])))
                return
            self._result_size = head["size"]
        if len(self._received) == self._result_size:
            self._answered(bytes(self._received))
        elif len(self._received) > self._result_size:
            # More than it announced: it is not our program any more.
            self.kill()

    def errReceived(self, data: bytes) -> None:
        _log.debug("image process: {text}", text=data.decode("utf-8", "replace").rstrip())

    def processEnded(self, reason: Failure) -> None:
        self.usable = False
        if self._answer is not None:
            self._answered(Failure(self._why_ended(reason.value)))
        self._pool.gone(self)
        self.ended.callback(None)

    def _answered(self, outcome: bytes | Failure) -> None:
        answer, self._answer = self._answer, None
        self._received, self._result_size = bytearray(), None
        if answer is None:
            # It wrote something that it was not asked for.
            self.kill()
        else:
            answer.callback(outcome)  # a Failure handed to callback() runs the errbacks

    def _why_ended(self, end: BaseException | None) -> Exception:
        if self._late is not None:
            return self._late
        if isinstance(end, ProcessDone):
            return ProcessGone("exit code 0")
        if not isinstance(end, ProcessTerminated):
            return ProcessGone(type(end).__name__)
        if end.exitCode == NOT_INSTALLED:
            return NotInstalled()
        if end.signal in _CRASHES:
            _log.warn("A picture ended its process: {signal}", signal=signal.Signals(end.signal).name)
            return PictureRefused("too_large" if end.signal in _NO_MEMORY else "invalid")
        return ProcessGone(f"signal {end.signal}" if end.signal else f"exit code {end.exitCode}")


class ImagePool:
    """``processes`` is how many there may be at a time."""

    def __init__(self, reactor: Any, settings: Images, processes: int) -> None:
        self.reactor = reactor
        self.settings = settings
        self.limits = Limits(
            settings.memory_bytes, settings.max_pixels, settings.max_source_bytes, os.getpid()
        )
        self._max = processes
        self._alive: set[ImageProcess] = set()
        # The one used last is used next, so that surplus ones end.
        self._idle: list[ImageProcess] = []
        self._closing: IDelayedCall | None = None
        self._stopped = False
        busy = common.overloaded
        self._queue: WaitQueue[ImageProcess] = WaitQueue(reactor, WAIT_SECONDS, busy, busy, MAX_WAITING)

    def acquire(self, client: str) -> Deferred[ImageProcess]:
        """A process for one picture, when it is the client's turn. Give it back to ``release``. Fails with
        ``overloaded``."""
        if self._idle:
            return succeed(self._idle.pop())
        if len(self._alive) < self._max and not self._stopped:
            return succeed(self._started())
        return self._queue.join(client, 1)

    def release(self, process: ImageProcess) -> None:
        if process.usable:
            if self._queue.waiters:
                self._queue.serve(process)
                return
            process.free_since = self.reactor.seconds()
            self._idle.append(process)
            if self._closing is None:
                self._closing = self.reactor.callLater(IDLE_SECONDS, self._close_idle)
        elif process in self._alive:
            # It ends soon; ``gone`` then starts another for those who wait.
            process.close()

    def gone(self, process: ImageProcess) -> None:
        """Called by a process that has ended."""
        self._alive.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        if self._queue.waiters and not self._stopped:
            self._queue.serve(self._started())

    async def stop(self) -> None:
        """End all processes, whatever they do."""
        self._stopped = True
        cancel(self._closing)
        self._queue.close(common.shutting_down)
        alive = list(self._alive)
        for process in alive:
            process.kill()
        await gatherResults([process.ended for process in alive])

    def _started(self) -> ImageProcess:
        process = ImageProcess(self)
        # -I and -B: nothing of the environment or the current directory is imported, and nothing is written.
        argv = [sys.executable, "-I", "-B", str(PROGRAM), json.dumps(self.limits._asdict())]
        self.reactor.spawnProcess(process, argv[0], argv, ENVIRON, "/")
        self._alive.add(process)
        return process

    def _close_idle(self) -> None:
        self._closing = None
        oldest = self.reactor.seconds() - IDLE_SECONDS
        while self._idle and self._idle[0].free_since <= oldest:
            self._idle.pop(0).close()
        if self._idle:
            self._closing = self.reactor.callLater(self._idle[0].free_since - oldest, self._close_idle)
