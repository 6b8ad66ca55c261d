"""Uploads that begin on a table of reserved versions in memory, which can be slow, away, and swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from project_service.lifecycle import start
from project_service.storage.durations import STALE_AFTER
from project_service.storage.reservations import Reservations
from project_service.storage.upload import SizeLimit, Uploads


class Rows:
    """The table of reserved versions. ``held`` reservations are made, but not answered yet."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.reserved: set[UUID] = set()
        self.times: dict[UUID, float] = {}
        self.sizes: list[int] = []
        self.released: list[UUID] = []
        self.hold = False
        self.fault: Exception | None = None
        self.held: list[Deferred[None]] = []

    async def reserve_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        self.sizes.append(len(versions))
        if self.fault is not None:
            raise self.fault
        self.reserved.update(versions)
        self.times.update(dict.fromkeys(versions, self.clock.seconds()))
        await self.answered()

    async def answered(self) -> None:
        if self.hold:
            waiting: Deferred[None] = Deferred()
            self.held.append(waiting)
            await waiting

    async def release_uploads(self, versions: Sequence[UUID]) -> None:
        if self.fault is not None:
            raise self.fault
        self.released += versions
        self.reserved.difference_update(versions)
        await self.answered()

    def sweep(self) -> None:
        late = self.clock.seconds() - STALE_AFTER.total_seconds()
        self.reserved = {version for version in self.reserved if self.times[version] > late}


class Reserving:
    """Uploads that begin, as requests do, on ``rows``. ``taken`` are their versions."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rows = Rows(self.clock)
        self.count = 0
        self.reservations = Reservations(cast(Any, self.rows), self.clock, self.new)
        nothing = cast(Any, None)
        self.uploads = Uploads(
            nothing, nothing, nothing, nothing, self.reservations, self.clock, 10, lambda step: None
        )
        self.taken: set[UUID] = set()

    def new(self) -> UUID:
        self.count += 1
        return UUID(int=self.count)

    def begin(self, bucket: str = "b") -> Deferred[None]:
        async def begun() -> None:
            version = (await self.uploads.begin(bucket, SizeLimit(1))).version
            assert version in self.rows.reserved, "it was not reserved"
            assert version not in self.taken, "another upload has it"
            self.taken.add(version)

        return start(begun())

    @property
    def unused(self) -> set[UUID]:
        return self.rows.reserved - self.taken
