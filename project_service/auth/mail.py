"""How mails are sent: by an ``Outbox``, through the ``MailServer`` (``mail_server.py``) or into a ``MailFolder``.
``mail_templates.py`` writes them."""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import define, field, frozen
from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from project_service import files
from project_service.auth.mail_message import message
from project_service.auth.mail_server import MAX_CONCURRENT, NOBODY, MailServerError
from project_service.auth.mail_templates import Mail, TemplateFault
from project_service.errors import ApiError
from project_service.lifecycle import start

T = TypeVar("T")

# A mail that was not accepted is tried again after these pauses, in seconds. They are long enough for a mail server
# to be restarted, or to accept a sender whom it rejected at first (greylisting, RFC 6647), and end before the tokens
# in mails do, after an hour.
PAUSES = (5.0, 60.0, 300.0, 1500.0)
# Mails that wait to be sent, and as many that pause between two tries.
MAX_WAITING = 1000

# A folder of mails keeps this many. They are small, and a run of tests may want to see all of its own.
MAX_STORED = 1000
# The names of their files, without ".eml".
STORED_ID = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{8}")


def _nobody(outcome: str) -> None:
    """Nobody observes."""


@define
class Outbox(Generic[T]):
    """Sends up to ``MAX_CONCURRENT`` mails at a time. One that is not accepted is tried again after each of
    ``PAUSES``, unless it was rejected for good; while it waits for that, it neither delays others nor takes their
    room in the queue.

    Mails are in memory only. If one is lost to a restart, its recipient has to ask for another. ``observe`` is called
    with what became of each try: "sent", "refused" if it is tried again, or "given_up".
    """

    log = Logger()

    send: Callable[[T], Awaitable[None]]
    clock: IReactorTime
    # Each with the pauses after which it may be tried again.
    _waiting: deque[tuple[Callable[[], T], tuple[float, ...]]] = field(factory=deque, init=False)
    observe: Callable[[str], None] = field(default=_nobody, init=False)
    _sending: int = field(default=0, init=False)
    _pausing: int = field(default=0, init=False)

    def send_later(self, write: Callable[[], T]) -> None:
        """Have a mail composed and sent after this turn of the reactor. Failures are logged, not raised."""
        if len(self._waiting) >= MAX_WAITING:
            self.log.error("too many e-mails are waiting; one was dropped")
            self.observe("given_up")
            return
        self._waiting.append((write, PAUSES))
        # Later, so that the response to the request takes no longer than one that causes no mail.
        self.clock.callLater(0, self._begin)

    def _begin(self) -> None:
        if self._waiting and self._sending < MAX_CONCURRENT:
            self._sending += 1
            start(self._empty()).addErrback(lambda failure: self.log.failure("the outbox failed", failure))

    async def _empty(self) -> None:
        try:
            while self._waiting:
                await self._deliver(*self._waiting.popleft())
        finally:
            self._sending -= 1

    async def _deliver(self, write: Callable[[], T], pauses: tuple[float, ...]) -> None:
        try:
            await self.deliver(write)
        except Exception as fault:
            self.log.warn("an e-mail was not accepted: {why}", why=why(fault))
            if pauses and self._pausing < MAX_WAITING and not is_final(fault):
                self._pausing += 1
                self.clock.callLater(pauses[0], self._again, write, pauses[1:])
                self.observe("refused")
            else:
                self.log.error("an e-mail was given up")
                self.observe("given_up")
        else:
            self.observe("sent")

    async def deliver(self, write: Callable[[], T]) -> None:
        """Compose a mail and send it. Raises what ``send`` raises, and ``write``, since a template may fail too."""
        await self.send(write())

    def _again(self, write: Callable[[], T], pauses: tuple[float, ...]) -> None:
        self._pausing -= 1
        self._waiting.append((write, pauses))
        self._begin()


@frozen
class MailFolder:
    """In place of a mail server, for development and tests: mails become files, which mail programs can open. Their
    names sort by time. Several processes may use one folder."""

    log = Logger()

    reactor: Any
    path: Path
    sender: str | None
    clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    async def send(self, mail: Mail) -> None:
        """Returns when ``mail`` is on the disk. Raises ``OSError``."""
        file = await deferToThreadPool(self.reactor, self.reactor.getThreadPool(), self.write, mail)
        # Mails have tokens in them, so the log names the file only.
        self.log.info("an e-mail was written to {file}", file=str(file))

    def write(self, mail: Mail) -> Path:
        """Write ``mail`` to a new file, which only we can read, and remove the oldest beyond ``MAX_STORED``."""
        now, message_id = self.clock(), self.new_id()
        stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        file = self.path / f"{stamp}-{message_id[:8]}.eml"
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(file, message(mail, self.sender or NOBODY, now, message_id))
        for one in self._mails()[:-MAX_STORED]:
            one.unlink(missing_ok=True)
        return file

    def newest(self, count: int, before: str | None = None) -> list[Path]:
        """The files of so many mails, the newest first, or of those before the one with the id ``before``."""
        files = self._mails()
        return [one for one in reversed(files) if before is None or one.stem < before][:count]

    def stored(self, mail_id: str) -> Path | None:
        """The file that a mail with that id would have; None for what is no id."""
        return self.path / f"{mail_id}.eml" if STORED_ID.fullmatch(mail_id) else None

    def empty(self) -> None:
        """Remove all mails. Other files stay. Raises ``OSError``."""
        for one in self._mails():
            one.unlink(missing_ok=True)

    def check(self) -> None:
        """Raises ``OSError`` if mails cannot be written here. The folder is not made: it would belong to whoever
        checks, and only its owner can write to it."""
        nearest = next(one for one in (self.path, *self.path.parents) if one.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))

    def _mails(self) -> list[Path]:
        """The files that are ours, the oldest first."""
        if not self.path.exists():
            return []
        return sorted(one for one in self.path.iterdir() if _is_ours(one))


def _is_ours(path: Path) -> bool:
    return path.suffix == ".eml" and STORED_ID.fullmatch(path.stem) is not None and path.is_file()


def why(fault: BaseException) -> str:
    """What went wrong, for the operator's log: without an address, a credential, or anything of the mail."""
    if isinstance(fault, MailServerError):
        return str(fault)
    if isinstance(fault, TemplateFault):
        return f"its template fails: {fault.where}"
    if isinstance(fault, OSError) and fault.filename is not None:
        return f"{fault.strerror}: {fault.filename}"
    return type(fault).__name__


def is_final(fault: BaseException) -> bool:
    """Whether it is of no use to try again: the mail server has rejected the mail for good (RFC 5321 section 4.2.1),
    its template fails, or a hook refuses it."""
    if isinstance(fault, ApiError):
        return fault.code == "hook_refused"
    return isinstance(fault, TemplateFault) or (isinstance(fault, MailServerError) and fault.is_final)
