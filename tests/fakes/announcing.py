"""Uploads that begin on a table of announced versions in memory, which can be slow, away, and swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from project_service.lifecycle import start
from project_service.storage.sweeper import STALE_AFTER
from project_service.storage.upload import Announcer, SizeLimit, Uploads


class Rows:
    """The table of announced versions. ``held`` announcements are there, but not answered yet."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.announced: set[UUID] = set()
        self.times: dict[UUID, float] = {}
        self.sizes: list[int] = []
        self.withdrawn: list[UUID] = []
        self.hold = False
        self.fault: Exception | None = None
        self.held: list[Deferred[None]] = []

    async def begin_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        self.sizes.append(len(versions))
        if self.fault is not None:
            raise self.fault
        self.announced.update(versions)
        self.times.update(dict.fromkeys(versions, self.clock.seconds()))
        await self.answered()

    async def answered(self) -> None:
        if self.hold:
            waiting: Deferred[None] = Deferred()
            self.held.append(waiting)
            await waiting

    async def withdraw_uploads(self, versions: Sequence[UUID]) -> None:
        if self.fault is not None:
            raise self.fault
        self.withdrawn += versions
        self.announced.difference_update(versions)
        await self.answered()

    def sweep(self) -> None:
        late = self.clock.seconds() - STALE_AFTER.total_seconds()
        self.announced = {version for version in self.announced if self.times[version] > late}


class Announced:
    """Uploads that begin, as requests do, on ``rows``. ``taken`` are their versions."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rows = Rows(self.clock)
        self.count = 0
        self.announcer = Announcer(cast(Any, self.rows), self.clock, self.new)
        nothing = cast(Any, None)
        self.uploads = Uploads(
            nothing, nothing, nothing, nothing, self.announcer, self.clock, 10, lambda step: None
        )
        self.taken: set[UUID] = set()

    def new(self) -> UUID:
        self.count += 1
        return UUID(int=self.count)

    def begin(self, bucket: str = "b") -> Deferred[None]:
        async def begun() -> None:
            version = (await self.uploads.begin(bucket, SizeLimit(1))).version
            assert version in self.rows.announced, "it was not announced"
            assert version not in self.taken, "another upload has it"
            self.taken.add(version)

        return start(begun())

    @property
    def unused(self) -> set[UUID]:
        return self.rows.announced - self.taken
