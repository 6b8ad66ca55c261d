"""The message by which the parent tells a new worker process what to do: one line of JSON on its standard input."""

from __future__ import annotations

import fcntl
import os
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import Any, Protocol

import orjson
from attrs import asdict, evolve, fields, frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from project_service import __version__
from project_service.http.health import Check, NotReady
from project_service.lifecycle import cancel, start, with_timeout
from project_service.process import cpus
from project_service.settings.model import SECTIONS, Settings, Stage, StageDatabase
from project_service.settings.reading import Launch, Source

# How the configured totals (connections to the database and to the store) are divided among several processes.


class TooManyWorkers(Exception):
    """More processes than there are connections to share out; the message names the setting."""


def totals(settings: Settings) -> dict[str, int]:
    """What is divided, by the name of its setting."""
    found = {
        "database.pool_size": settings.database.pool_size,
        "store.max_connections": settings.store.max_connections,
    }
    for stage, name, database in settings.stage_databases():
        found[f"stages.{stage}.databases.{name}.pool_size"] = database.pool_size
    return found


def worker_count(settings: Settings) -> int:
    """How many processes serve. ``auto`` means one for each CPU that this process may use, but no more than the
    smallest of the totals.

    Raises ``TooManyWorkers`` for a configured number above the smallest total: a worker without a connection could do
    nothing, and with one connection too many the total would be exceeded, which may be all that the server has room
    for.
    """
    scarcest, total = min(totals(settings).items(), key=lambda item: item[1])
    if settings.server.workers == "auto":
        return max(1, min(cpus(), total))
    count = int(settings.server.workers)
    if count > max(1, total):
        raise TooManyWorkers(
            f"server.workers is {count} and {scarcest} is {total}: each worker needs a connection of its own"
        )
    return count


def share(settings: Settings, processes: int) -> Settings:
    """``settings`` for one of ``processes``, so that all together stay within the configured totals."""
    if processes == 1:
        return settings
    return evolve(
        settings,
        database=evolve(settings.database, pool_size=settings.database.pool_size // processes),
        store=evolve(settings.store, max_connections=settings.store.max_connections // processes),
        stages={name: _share(stage, processes) for name, stage in settings.stages.items()},
    )


def _share(stage: Stage, processes: int) -> Stage:
    shared = {
        name: evolve(database, pool_size=database.pool_size // processes)
        for name, database in stage.databases.items()
    }
    return evolve(stage, databases=shared)


# How ``/ready`` of one worker answers for all workers: it asks the parent process, which asks every worker.
#
# The messages are lines of one or two words on the pipes between the parent and each worker::
#
#     worker -> parent   all                          are all workers ready?
#     parent -> worker   check N                      are you ready? (in round N)
#     worker -> parent   works N, fails N             the answer
#     parent -> worker   all works, all fails         the verdict, to each worker that asked
#     parent -> worker   renew                        read the certificates again


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


# The temporary folder in which the workers of one service keep their metrics for each other.
#
# Every process that uses the folder holds a shared lock on it. The kernel drops the lock however the process ends,
# so a folder without a lock was left behind by a service that was killed, and may be removed. A process id in the
# folder's name would not do: another container may share the temporary folder and count its processes on its own.
# systemd-tmpfiles, too, leaves a locked folder alone.


log = Logger()

# Versions that took no lock used another prefix, so that their folders are never taken for abandoned ones.
PREFIX = "project-service-numbers-"


@frozen
class MetricsFolder:
    path: str
    _lock: int

    @classmethod
    def made(cls) -> MetricsFolder:
        """A new folder, held by this process. Abandoned ones are removed first."""
        remove_forsaken()
        while True:
            path = mkdtemp(prefix=PREFIX)
            lock = hold(path)
            if lock is not None:
                return cls(path, lock)

    @property
    def there(self) -> bool:
        """Whether the folder still exists. False once somebody who ignores locks has removed it, even if there is
        another folder of that name now."""
        try:
            return os.path.samestat(Path(self.path).lstat(), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the folder and give up the lock."""
        if self.there:
            rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def hold(path: str) -> int | None:
    """Lock the folder so that no other service removes it while this process lives; the lock's descriptor.

    None where another service removed it just before.
    """
    with suppress(FileNotFoundError):
        lock = _opened(path)
        with suppress(OSError):  # a file system without locks: ``remove_forsaken`` does nothing there
            fcntl.flock(lock, fcntl.LOCK_SH)
        if Path(path).exists():
            return lock
        os.close(lock)
    return None


def remove_forsaken() -> None:
    """Remove those folders of this user that no process holds a lock on."""
    for path in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), _closing(_opened(path)) as folder:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(path)
                log.info("removed {path}, which a service that was killed had left behind", path=str(path))


def _opened(path: str | Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# Settings of an embedded store that only the parent knows, because it started the store. The secret key goes with
# them, see ``assignment``.
_REACHED_BY = (
    "endpoint_url",
    "region",
    "access_key_id",
    "addressing_style",
    "session_token",
    "credentials_file",
)


@frozen
class Assignment:
    """Everything a worker has to know.

    ``settings`` are those in force in the parent, which may differ from what the file says by now. They are None
    where the worker's code has another version than its parent's; it then reads them from ``source`` itself, as it
    does after a SIGHUP.
    """

    source: Source
    processes: int
    settings: Settings | None

    def to_json(self) -> bytes:
        told = asdict(self, recurse=False)
        source = {name: _text(value) for name, value in asdict(told.pop("source")).items()}
        pickled = b64encode(pickle.dumps(self.settings)).decode()
        return orjson.dumps({**told, **source, "settings": pickled, "version": version()})

    @classmethod
    def from_json(cls, raw: bytes) -> Assignment:
        told = orjson.loads(raw)
        theirs, pickled = told.pop("version", None), told.pop("settings", None)
        # Unpickling is safe, because the line comes from our own parent through a pipe. The versions can differ when
        # the package was upgraded under a running parent; a pickle of another version must not be loaded.
        found = pickle.loads(b64decode(pickled)) if theirs == version() else None  # noqa: S301  # see above
        config, options, data_dir = (told.pop(one.name) for one in fields(Source))
        source = Source(_path(config), options, _path(data_dir))
        # A parent of another version may tell more.
        return cls(source, told["processes"], found)


def _text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def version() -> list[str]:
    """The package's version and the names of all settings. The number alone does not tell what a pickle of the
    settings has: a checkout that the package was installed from changes without a new number."""
    sections = (*SECTIONS.values(), StageDatabase)
    return [
        __version__,
        *(f"{section.__name__}.{one.name}" for section in sections for one in fields(section)),
    ]


def assignment(launch: Launch, settings: Settings, processes: int) -> Assignment:
    """The assignment of every worker of ``launch``.

    What the parent has embedded is passed on as command line options, since those win over the configuration file
    whenever a worker reads it again.
    """
    options = dict(launch.source.options)
    if launch.embeds_database and settings.database.dsn is not None:
        options["database.dsn"] = settings.database.dsn.reveal()
    if launch.embeds_store and settings.store.secret_access_key is not None:
        store = settings.store
        for name in _REACHED_BY:
            options[f"store.{name}"] = getattr(store, name)
        options["store.secret_access_key"] = settings.store.secret_access_key.reveal()
    return Assignment(evolve(launch.source, options=options), processes, settings)
