"""Pictures that fit: what is made of a picture for one size and format, once.

A rendition that has been made is in the store, with a row that says so, until its object is replaced or deleted, or
has so many that one that was not used for longer makes room. One that is not there is made by a process of
``pool``. In this process all who ask for it meanwhile share the result; in others it may be made a second time,
and the first to be stored counts.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from uuid import UUID

from attrs import define, field, frozen
from cachetools import LRUCache, TTLCache
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from project_service.errors import overloaded
from project_service.http.head import address_block
from project_service.http.request import Request
from project_service.lifecycle import start
from project_service.settings.model import Images
from project_service.storage import errors
from project_service.storage.pictures import images
from project_service.storage.pictures.images import Rendition, Wanted
from project_service.storage.pictures.pool import (
    ImagePool,
    ImageProcess,
    NotInstalled,
    PictureRefused,
    ProcessGone,
    TookTooLong,
)
from project_service.storage.pictures.process import Job
from project_service.storage.removal import BATCH
from project_service.storage.rows.renditions import RenditionRows
from project_service.storage.upload import SizeLimit, State, Uploads
from project_service.storage.values import ObjectRow, StoredRendition

_log = Logger()

# How often a picture is tried if its process is ended from outside.
TRIES = 2
# How many renditions are remembered in each process, so that the next request for one takes no query more than one
# for the object, and so that those that are used are not the ones that make room.
REMEMBERED = 10_000
# How many pictures that were refused are remembered: each could take a process for all of its time again and again.
REMEMBERED_REFUSALS = 1000
# How long a picture that took too long is refused without another try, which may take as long again.
TOO_SLOW_SECONDS = 60

_REFUSALS = {
    "invalid": errors.image_invalid,
    "too_large": errors.image_too_large,
    "unsupported": errors.image_type_unsupported_animated,
}

# What is counted: how a rendition came about, and the seconds that it took where it was made.
Observe = Callable[[str, float], None]


def unobserved(outcome: str, seconds: float) -> None:
    """The ``observe`` of a process that shows no metrics."""


def is_installed() -> bool:
    """Whether there is pyvips. Whether it finds libvips shows when it is used."""
    return find_spec("pyvips") is not None


@frozen
class Picture:
    """A rendition as if it were an object: ``row`` is the object's, with the version, size, type, entity tag and file
    name of the rendition. ``body`` is there if it has just been made. ``made_as``: the version of the object, and the
    name of the rendition."""

    row: ObjectRow
    body: bytes | None
    made_as: tuple[UUID, str]


@define(eq=False)
class _Known:
    """A stored rendition, and when this process sent it last, by its clock."""

    stored: StoredRendition
    used: float


@define(eq=False)
class _Run:
    """One rendition that is being made, and those who wait for it."""

    waiting: dict[Deferred[Picture], None] = field(factory=dict)
    making: Deferred[None] | None = None
    # False as long as it waits for a process.
    begun: bool = False

    def join(self) -> Deferred[Picture]:
        one: Deferred[Picture] = Deferred(self._left)
        self.waiting[one] = None
        return one

    def _left(self, one: Deferred[Picture]) -> None:
        self.waiting.pop(one, None)
        # What has begun goes on, because the result will be stored.
        if not self.waiting and not self.begun and self.making is not None:
            self.making.cancel()

    def ended(self, outcome: Picture | Failure) -> None:
        waiting, self.waiting = self.waiting, {}
        for one in waiting:
            one.callback(outcome)  # a Failure handed to callback() runs the errbacks


@define(eq=False)
class Renditions:
    """``observe`` is replaced by that of the metrics."""

    rows: RenditionRows
    uploads: Uploads
    pool: ImagePool
    settings: Images
    installed: bool
    clock: IReactorTime
    observe: Observe = unobserved
    _running: dict[tuple[UUID, str], _Run] = field(factory=dict, init=False)
    # Those that were read lately, by the version of their object and their name. One that has made room for another
    # has no bytes any more, and is forgotten when it is asked for.
    _known: LRUCache[UUID, dict[str, _Known]] = field(factory=lambda: LRUCache(REMEMBERED, len), init=False)
    _refused: LRUCache[tuple[UUID, str], str] = field(
        factory=lambda: LRUCache(REMEMBERED_REFUSALS), init=False
    )
    _too_slow: TTLCache[tuple[UUID, str], str] = field(init=False)

    @_too_slow.default
    def _none_too_slow(self) -> TTLCache[tuple[UUID, str], str]:
        return TTLCache(REMEMBERED_REFUSALS, TOO_SLOW_SECONDS, self.clock.seconds)

    def wanted(self, request: Request) -> Wanted | None:
        """As ``images.wanted``."""
        return images.wanted(request.raw_query, self.settings)

    def rendition(self, request: Request, row: ObjectRow, wanted: Wanted) -> Rendition:
        """The one of ``row`` that the request wants. Raises ``images_not_installed``, ``image_type_unsupported``."""
        if not self.installed:
            raise errors.images_not_installed()
        return images.rendition(wanted, row.content_type, row.key, request.headers, self.settings)

    async def stored(self, row: ObjectRow, rendition: Rendition) -> Picture | None:
        """The rendition, if it has been made."""
        stored = await self._find(row.version, rendition.name)
        if stored is None:
            return None
        self.observe("stored", 0.0)
        return _picture(row, rendition, stored, None)

    async def make(self, request: Request, row: ObjectRow, rendition: Rendition) -> Picture:
        """Raises ``image_type_unsupported``, ``image_invalid``, ``image_too_large`` and ``overloaded``;
        ``NoSuchObject`` if the object has been replaced since its row was read, and what the store raises."""
        if row.size > self.settings.max_source_bytes:
            raise errors.image_too_large()
        # Others are served while this request waits for a process.
        request.slot.release()
        try:
            return await self._made(address_block(request.client_address), row, rendition)
        finally:
            request.slot.retake()

    async def forget(self, picture: Picture) -> None:
        """Forget a rendition whose bytes are not in the store, so that it is made again."""
        version = picture.row.version
        of, name = picture.made_as
        known = self._known.get(of, {})
        if name in known and known[name].stored.version == version:
            del known[name]
        await self.rows.forget(version)

    async def _find(self, of: UUID, name: str) -> StoredRendition | None:
        others = self._known.get(of)
        known = None if others is None else others.get(name)
        now = self.clock.seconds()
        if known is None:
            stored = await self.rows.find(of, name)
            if stored is None:
                return None
            known = _Known(stored, now)
            self._remember(of, {**self._known.get(of, {}), name: known})
        known.used = now
        return known.stored

    def _remember(self, of: UUID, known: dict[str, _Known]) -> None:
        """Remember these of an object; those that were not used for longest only if it may have so many."""
        while len(known) > min(max(1, self.settings.max_per_object), REMEMBERED):
            del known[min(known, key=lambda name: known[name].used)]
        self._known[of] = known

    def _made(self, client: str, row: ObjectRow, rendition: Rendition) -> Deferred[Picture]:
        key = row.version, rendition.name
        run = self._running.get(key)
        if run is None:
            run = self._running[key] = _Run()
            joined = run.join()
            run.making = start(self._run(client, row, rendition, run))
            run.making.addErrback(lambda failure: _log.failure("a picture was not made", failure))
            return joined
        return run.join()

    async def _run(self, client: str, row: ObjectRow, rendition: Rendition, run: _Run) -> None:
        """Make the rendition for all who wait, and hand them the outcome. Does not raise."""
        outcome: Picture | Failure
        key = row.version, rendition.name
        try:
            outcome = await self._resized(client, row, rendition, run)
        except Exception:
            outcome = Failure()
        finally:
            del self._running[key]
        run.ended(outcome)

    async def _resized(self, client: str, row: ObjectRow, rendition: Rendition, run: _Run) -> Picture:
        key = row.version, rendition.name
        refusal = self._refused.get(key) or self._too_slow.get(key)
        if refusal is not None:
            raise _REFUSALS[refusal]()
        for _ in range(TRIES):
            process = await self.pool.acquire(client)
            run.begun = True
            began = self.clock.seconds()
            try:
                body = await self._through(process, row, rendition)
            except ProcessGone as end:
                _log.warn("A process for pictures was ended: {why}", why=str(end))
                continue
            except PictureRefused as refused:
                memory = self._too_slow if isinstance(refused, TookTooLong) else self._refused
                memory[row.version, rendition.name] = refused.reason
                self.observe("refused", self.clock.seconds() - began)
                raise _REFUSALS[refused.reason]() from None
            except NotInstalled:
                raise errors.images_not_installed() from None
            self.observe("made", self.clock.seconds() - began)
            return await self._kept(row, rendition, body)
        raise overloaded()

    async def _through(self, process: ImageProcess, row: ObjectRow, rendition: Rendition) -> bytes:
        """The result of ``process``, which is then free for others."""
        try:
            job = Job(
                row.size,
                rendition.width,
                rendition.height,
                rendition.fit,
                rendition.format,
                rendition.quality,
                self.settings.max_size,
            )
            if not row.size:
                raise PictureRefused("invalid")
            return await process.resize(job, await self.uploads.store.open(row.path, 0, row.size, row.size))
        finally:
            self.pool.release(process)

    async def _kept(self, row: ObjectRow, rendition: Rendition, body: bytes) -> Picture:
        """Store the rendition, in the steps of an upload. Whatever becomes of it, this result is right for those who
        wait: it is of the version that they found."""
        limit = SizeLimit(len(body))
        async with await self.uploads.begin(row.bucket, limit, len(body)) as upload:
            upload.describe(rendition.content_type, None)
            await upload.write(body)
            await upload.store()
            new = StoredRendition(upload.version, len(body), upload.etag)
            now = self.clock.seconds()
            used = {
                known.stored.version: now - known.used for known in self._known.get(row.version, {}).values()
            }
            stored, garbage = await self.rows.keep(
                row.bucket, row.version, rendition.name, new, self.settings.max_per_object, used
            )
            self.uploads.steps(State.COMMITTED.value)
        if stored is None or stored.version != new.version:
            garbage = [new.version, *garbage]
        # At once, whatever storage.keep_removed_seconds says: what a backup lacks of these is made again.
        await self.uploads.removal.discard(garbage[:BATCH], row.bucket)
        if stored is None or stored.etag == new.etag:
            return _picture(row, rendition, stored or new, body)
        # Another process was faster, with other bytes.
        return _picture(row, rendition, stored, None)


def _picture(row: ObjectRow, rendition: Rendition, stored: StoredRendition, body: bytes | None) -> Picture:
    picture = row.as_rendition(stored, rendition.key(row.key), rendition.content_type)
    return Picture(picture, body, (row.version, rendition.name))
