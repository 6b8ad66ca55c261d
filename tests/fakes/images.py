"""The processes for pictures, without libvips: what each was asked for, and an outcome of the test's choice."""

from __future__ import annotations

from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred, succeed

from project_service.storage.pictures.pool import PictureRefused
from project_service.storage.pictures.process import Job
from project_service.storage.s3.connection import ObjectStream
from tests.fakes.store import Collected

PNG = b"\x89PNG"


def resized(picture: bytes, width: int | None) -> bytes:
    return b"%s, %d wide" % (picture, width or 0)


@define(eq=False)
class FakeImagePool:
    """``jobs`` are those that were begun, and ``sources`` the pictures that they read.

    The outcomes are ``outcomes`` one after the other, of which the last stays: bytes, or an exception. Without any,
    each is what ``resized`` returns of the picture, and what does not begin as a PNG is refused. With ``holds`` a job
    ends when the test fires the Deferred that it appends to ``held``; with ``busy`` a caller waits in ``waiting`` for
    a process.
    """

    jobs: list[Job] = field(factory=list)
    sources: list[bytes] = field(factory=list)
    outcomes: list[bytes | Exception] = field(factory=lambda: [b"small"])
    holds: bool = False
    held: list[Deferred[None]] = field(factory=list)
    busy: bool = False
    waiting: list[Deferred[Any]] = field(factory=list)
    taken: int = 0

    def acquire(self, client: str) -> Deferred[Any]:
        if self.busy:
            self.waiting.append(Deferred(self.waiting.remove))
            return self.waiting[-1]
        self.taken += 1
        return succeed(self)

    def release(self, process: Any) -> None:
        self.taken -= 1

    async def resize(self, job: Job, stream: ObjectStream) -> bytes:
        self.jobs.append(job)
        body = stream.buffered()
        if body is None:
            sink = Collected()
            await stream.pipe_to(sink)
            body = bytes(sink.data)
        self.sources.append(body)
        if self.holds:
            self.held.append(Deferred())
            await self.held[-1]
        if not self.outcomes:
            if not body.startswith(PNG):
                raise PictureRefused("invalid")
            return resized(body, job.width)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def stop(self) -> None:
        """Nothing runs."""
