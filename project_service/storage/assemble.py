"""Storage from its settings: one function for the composition root, the CLI and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from secrets import token_urlsafe
from typing import Any
from uuid import uuid4

from attrs import field, frozen
from twisted.application.service import IService
from twisted.logger import Logger

from project_service.database.acting import Actor
from project_service.database.errors import outage_of
from project_service.database.pool import Pool
from project_service.database.readers import Readers
from project_service.http.health import NotReady
from project_service.http.routing import Handler, Policy, Router
from project_service.lifecycle import Every, start, with_timeout
from project_service.process import cpus
from project_service.settings.model import Images
from project_service.settings.model import Storage as StorageSettings
from project_service.settings.model import Store as StoreSettings
from project_service.storage import errors
from project_service.storage.buckets import Buckets
from project_service.storage.download import Downloads
from project_service.storage.durations import START_TIMEOUT_SECONDS, UNUSED_SECONDS
from project_service.storage.links import NO_REFERRER, Links
from project_service.storage.objects import Objects
from project_service.storage.pictures.pool import ImagePool
from project_service.storage.pictures.renditions import Renditions, is_installed
from project_service.storage.reading import Reading, described
from project_service.storage.receiving import Receiver
from project_service.storage.removal import Removal
from project_service.storage.reservations import Reservations
from project_service.storage.resumables import Resumables
from project_service.storage.routes.admin import BucketRoutes
from project_service.storage.routes.common import translated
from project_service.storage.routes.copies import CopyRoutes
from project_service.storage.routes.links import LinkRoutes, SigningRoutes
from project_service.storage.routes.listing import ListingRoutes
from project_service.storage.routes.objects import ObjectRoutes
from project_service.storage.routes.public import PublicRoutes
from project_service.storage.routes.resumables import ERROR_FORM, ResumableRoutes, with_tus
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.rows.links import LinkRows
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.rows.renditions import RenditionRows
from project_service.storage.rows.resumables import ResumableRows
from project_service.storage.s3.client import S3Store, connect_store
from project_service.storage.s3.errors import (
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
    kind_of,
)
from project_service.storage.s3.reading import SmallObjects, read_all
from project_service.storage.sha256 import MissingDigests, Reader
from project_service.storage.sweeper import Sweeper
from project_service.storage.upload import Uploads, unobserved
from project_service.storage.values import Live

_log = Logger()

# The key of an object that ``check`` reads: a store may answer, and even list, before it can read objects.
ADMISSION = "storage"  # the admission class
PROBE = ".project-service/probe"


@frozen
class Rows:
    """Every table that storage uses."""

    buckets: BucketRows
    objects: ObjectRows
    garbage: GarbageRows
    links: LinkRows
    renditions: RenditionRows
    resumables: ResumableRows


def sql_rows(database: Pool, actor: Actor | None = None) -> Rows:
    """``actor`` runs statements in which SQL of the project decides; without one they run on ``database`` too."""
    actor = actor or Actor(database)
    return Rows(
        BucketRows(database, actor),
        ObjectRows(database, actor),
        GarbageRows(database),
        LinkRows(database),
        RenditionRows(database),
        ResumableRows(database, actor),
    )


@frozen(eq=False)
class Storage:
    """Storage as a ``Component``. ``services`` are its loops, to be started by the caller, and so is ``digesting``,
    which is to be cancelled at the end."""

    buckets: Buckets
    objects: Objects
    links: Links
    resumables: Resumables
    sweeper: Sweeper
    renditions: Renditions
    services: tuple[IService, ...]
    digesting: IService
    live: Live
    downloads: Downloads
    receiver: Receiver = field(repr=False)
    rows: Rows = field(repr=False)
    reservations: Reservations = field(repr=False)
    _store: S3Store = field(repr=False)
    _clock: Any = field(repr=False)
    # The address of the store, for the log.
    _endpoint: str = ""

    def mount(self, router: Router) -> None:
        part = router.of_part(Policy(admission=ADMISSION))
        objects, receiver, downloads = self.rows.objects, self.receiver, self.downloads
        wrap, tus = self.wrapping(translated), self.wrapping(with_tus)
        buckets = self.buckets.named()
        part.mount(ListingRoutes(buckets, downloads.reading), wrap=wrap, place=described)
        part.mount(
            ObjectRoutes(buckets, objects, self.objects, receiver, downloads, self.live),
            wrap=wrap,
            place=described,
        )
        part.mount(CopyRoutes(buckets, self.objects), wrap=wrap, place=described)
        part.mount(
            SigningRoutes(buckets, objects, receiver, self.links, self.live), wrap=wrap, place=described
        )
        opening = LinkRoutes(downloads, self.links, receiver)
        part.mount(opening, wrap=self.wrapping(partial(translated, headers=(NO_REFERRER,))), place=described)
        part.mount(
            BucketRoutes(buckets, self.objects, self.links.now), key="service", wrap=wrap, place=described
        )
        pages = router.of_part(Policy(admission=ADMISSION, any_origin=True))
        pages.mount(PublicRoutes(buckets, downloads, self.live), wrap=wrap, place=described)
        resumable = router.of_part(Policy(admission=ADMISSION, error_form=ERROR_FORM))
        resumable.mount(ResumableRoutes(self.resumables), wrap=tus, place=described)

    def readers_by_name(self, name: str) -> dict[str, Readers[ObjectRows]]:
        """The standbys that reads may go to under this ``name``, if there are any."""
        readers = self.downloads.reading.readers
        return {} if readers is None else {name: readers}

    def wrapping(self, wrap: Callable[[Handler], Handler]) -> Callable[[Handler], Handler]:
        """``wrap``, for handlers whose callers are to read what they have written."""
        acknowledged = self.downloads.reading.acknowledged
        return lambda handler: acknowledged(wrap(handler))

    def reload(self, settings: StorageSettings, store: StoreSettings) -> None:
        """Apply changed limits and lifetimes, and sign with the key pair of ``store``; nothing else of the store
        changes."""
        self.live.settings = settings
        self._store.sign_as(store)

    async def check(self) -> None:
        """Succeeds when an object can be read from the store; makes the store bucket where it is missing."""
        try:
            await self._read_probe()
        except (NoSuchObject, NoSuchBucket):
            await self._store.ensure_bucket()
            await self._store.put(PROBE, PROBE.encode(), "text/plain", {})
            await self._read_probe()

    async def ready(self) -> None:
        """As ``check``, for ``/ready``. Raises ``NotReady`` with the store's address and answer, because there may be
        no request that would show it."""
        try:
            await self.check()
        except StoreError as refused:
            raise NotReady(f"{self._endpoint} refuses: {refused}") from None
        except StoreUnreachable as away:
            raise NotReady(f"{self._endpoint} cannot be reached: {away}") from None

    async def start(self) -> None:
        """Make the store bucket, within ``START_TIMEOUT_SECONDS``. A store that cannot be used yet is logged: the
        other parts of the service start without it."""
        try:
            await with_timeout(self._clock, START_TIMEOUT_SECONDS, start(self.check()), TimeoutError)
        except Exception as problem:
            # The text of a refusal is safe to log, and names the right region where the configured one is wrong.
            kind = str(problem) if isinstance(problem, StoreError) else kind_of(problem)
            _log.warn("the store {endpoint} cannot be used yet: {kind}", endpoint=self._endpoint, kind=kind)

    async def stop(self) -> None:
        """End the processes for pictures, release the reservations that nobody has used, and close the idle
        connections to the store."""
        await self.renditions.pool.stop()
        await self.reservations.release_all()
        await self._store.close()

    async def _read_probe(self) -> None:
        await read_all(await self._store.open(PROBE, 0, len(PROBE), len(PROBE)))


# Calls the function that it is given unless another process holds the lock; False in that case.
Lock = Callable[[Callable[[], Awaitable[None]]], Awaitable[bool]]


async def unlocked(function: Callable[[], Awaitable[None]]) -> bool:
    """A ``Lock`` for rows that no other process uses."""
    await function()
    return True


def build(
    reactor: Any,
    settings: StorageSettings,
    store: S3Store,
    rows: Rows,
    *,
    sweep_lock: Lock = unlocked,
    digest_lock: Lock = unlocked,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    steps: Callable[[str], None] = unobserved,
    endpoint: str = "",
    images: Images | None = None,
    image_pool: Any = None,
    reading: Callable[[ObjectRows, Buckets], Reading] = Reading,
) -> Storage:
    """Storage on the given store and rows. ``endpoint`` is what the log calls the store.

    ``sweep_lock`` keeps the sweeper to one process at a time, ``digest_lock`` what computes missing digests.
    ``steps`` is called with each step of a change, for tests that interrupt one. ``reading`` makes how rows are read.
    """
    live, buckets = Live(settings), Buckets(rows.buckets, reactor)
    made = reading(rows.objects, buckets)
    removal = Removal(store, rows.garbage, live, reactor, steps)
    reservations = Reservations(rows.objects, reactor, uuid4)
    uploads = Uploads(
        rows.objects, rows.garbage, store, removal, reservations, reactor, settings.part_bytes, steps
    )
    objects = Objects(rows.objects, uploads, buckets)
    renditions = _renditions(reactor, rows, uploads, images or Images(), image_pool)
    sweeper = Sweeper(store, rows.garbage, rows.links, rows.resumables, removal, now)
    resumables = Resumables(rows.resumables, uploads, buckets, live, now, uuid4)
    links = Links(rows.links, now, lambda: token_urlsafe(32), uuid4)
    return Storage(
        buckets,
        objects,
        links,
        resumables,
        sweeper,
        renditions,
        (
            _sweeping(reactor, settings, sweeper, sweep_lock),
            Every(UNUSED_SECONDS, reservations.release_unused, reactor, "reservations", outage_of),
            *(() if made.readers is None else (made.readers,)),
        ),
        _digesting(
            reactor, settings, MissingDigests(rows.garbage, Reader(store, reactor), live), digest_lock
        ),
        live,
        Downloads(made, store, SmallObjects(settings.cache_bytes), renditions, now),
        Receiver(buckets, uploads, live),
        rows,
        reservations,
        store,
        reactor,
        endpoint,
    )


def _renditions(reactor: Any, rows: Rows, uploads: Uploads, settings: Images, image_pool: Any) -> Renditions:
    pool = image_pool or ImagePool(reactor, settings, settings.processes or cpus())
    return Renditions(rows.renditions, uploads, pool, settings, is_installed(), reactor)


def _sweeping(reactor: Any, settings: StorageSettings, sweeper: Sweeper, sweep_lock: Lock) -> Every:
    """Sweeps and logs what was removed, unless another process is sweeping."""

    async def sweep() -> None:
        if removed := str(await sweeper.sweep()):
            _log.info("the sweeper removed: {removed}", removed=removed)
        else:
            _log.debug("the sweeper had nothing to remove")

    async def sweep_alone() -> None:
        if not await sweep_lock(sweep):
            _log.debug("another process sweeps")

    return Every(settings.sweep_seconds, sweep_alone, reactor, "storage sweeper", outage_of)


def _digesting(reactor: Any, settings: StorageSettings, missing: MissingDigests, digest_lock: Lock) -> Every:
    """Computes missing digests, unless another process does."""

    async def compute() -> None:
        try:
            count = await missing.compute()
        except errors.STORE_FAILURES as problem:
            _log.warn("the digests of objects have to wait for the store: {kind}", kind=kind_of(problem))
            return
        if count:
            _log.info("computed the SHA-256 of {count} objects", count=count)

    async def compute_alone() -> None:
        if missing.wanted:
            await digest_lock(compute)

    return Every(settings.sweep_seconds, compute_alone, reactor, "storage digests", outage_of)


def assemble(
    reactor: Any,
    storage: StorageSettings,
    store: StoreSettings,
    database: Pool,
    actor: Actor | None = None,
    *,
    sweep_lock: Lock = unlocked,
    digest_lock: Lock = unlocked,
    steps: Callable[[str], None] = unobserved,
    images: Images | None = None,
    reading: Callable[[ObjectRows, Buckets], Reading] = Reading,
    connect: Callable[[Any, StoreSettings], S3Store] = connect_store,
) -> Storage:
    """Storage on PostgreSQL and the store that the settings name. ``database`` is the system database's pool, and
    ``actor`` runs those of its statements in which SQL of the project decides."""
    return build(
        reactor,
        storage,
        connect(reactor, store),
        sql_rows(database, actor),
        sweep_lock=sweep_lock,
        digest_lock=digest_lock,
        steps=steps,
        endpoint=store.endpoint_url or "",
        images=images,
        reading=reading,
    )
