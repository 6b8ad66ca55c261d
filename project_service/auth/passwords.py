"""The rules for passwords, and bcrypt. Hashing is slow, so call it in a thread."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeVar

import bcrypt
from attrs import frozen
from precis_i18n import get_profile
from twisted.application.service import Service
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from project_service import errors
from project_service.auth.errors import weak_password
from project_service.auth.values import Email, folded
from project_service.errors import validation_failed
from project_service.lifecycle import shield
from project_service.process import let_threads_yield
from project_service.settings.model import Auth

# bcrypt ignores all further bytes. A longer password is rejected, never truncated.
MAX_BYTES = 72
# Longer texts are not looked at. Composed, they have more bytes than that: three characters become two bytes at best.
MAX_CHARACTERS = 2 * MAX_BYTES
_TOO_LONG = f"must have at most {MAX_BYTES} bytes in UTF-8"
_OPAQUE = get_profile("OpaqueString")

# The bytes of a password that is to be checked, in each form in which it may have been hashed.
Candidates = tuple[bytes, ...]
# Only two bits of the salt's last character count. bcrypt refuses a hash in which others are set, so it would never
# match.
_HASH = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}\Z")


@cache
def common_passwords() -> frozenset[str]:
    """The list of common passwords, case-folded."""
    text = files("project_service.auth").joinpath("data/common-passwords.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


@frozen
class Rules:
    """What an operator asks of new passwords, beside what is asked of all."""

    min_characters: int = 8
    refuse_common: bool = True

    @classmethod
    def of(cls, settings: Auth) -> Rules:
        return cls(settings.password_min_bytes, settings.refuse_common_passwords)


def check_new(password: str, email: Email, rules: Rules) -> bytes:
    """The bytes of a new password, to be hashed. Raises ``weak_password``, and ``validation_failed`` if it is not
    valid Unicode."""
    if _encoded(password) is None:
        raise validation_failed({"password": "is not valid Unicode"})
    if len(password) > MAX_CHARACTERS:
        raise weak_password(_TOO_LONG, "length")
    prepared = _prepared(password)
    if prepared is None:
        raise weak_password("contains a character that no password may contain, such as a control character")
    if len(prepared) < rules.min_characters:
        raise weak_password(f"must have at least {rules.min_characters} characters", "length")
    raw = prepared.encode("utf-8")
    if len(raw) > MAX_BYTES:
        raise weak_password(_TOO_LONG, "length")
    if folded(prepared) == email.key:
        raise weak_password("must not be the e-mail address")
    if rules.refuse_common and prepared.casefold() in common_passwords():
        raise weak_password("is one of the most common passwords", "pwned")
    return raw


def candidates(password: str) -> Candidates:
    """The forms of a password that is to be checked; none if no stored password can equal it.

    First as it would be hashed now, then as it came, if that is different: hashes that were imported, or made by an
    earlier version, are of the text as it came.
    """
    if len(password) > MAX_CHARACTERS:
        return ()
    forms = (_encoded(form) for form in (_prepared(password), password) if form is not None)
    return tuple(dict.fromkeys(raw for raw in forms if raw and len(raw) <= MAX_BYTES and b"\0" not in raw))


def _prepared(text: str) -> str | None:
    """``text`` in the form in which equal passwords are equal (the profile OpaqueString of RFC 8265): composed (NFC),
    with every kind of space as U+0020. None if it contains a character that the profile does not allow."""
    try:
        return _OPAQUE.enforce(text) if text else ""
    except UnicodeEncodeError:
        return None


def _encoded(text: str) -> bytes | None:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


def cost_of(stored: bytes) -> int | None:
    """The cost of a bcrypt hash (``$2a$``, ``$2b$`` or ``$2y$``); None for anything else."""
    match = _HASH.match(stored)
    return int(match[1]) if match is not None and 4 <= int(match[1]) <= 31 else None


@frozen
class Bcrypt:
    """bcrypt with a ``cost`` for new hashes. A failed check always takes as long as making one hash of that cost."""

    cost: int

    def hash(self, password: bytes) -> bytes:
        return bcrypt.hashpw(password, bcrypt.gensalt(self.cost))

    def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        """Whether ``stored`` is the hash of one of ``passwords``. False if it is None, for an unknown user, and if
        there are none, for a password that cannot be right."""
        return any(self._is_of(one, stored) for one in passwords or (None,))

    def _is_of(self, password: bytes | None, stored: bytes | None) -> bool:
        cost = None if stored is None else cost_of(stored)
        if password is None or stored is None or cost is None:
            self._spend(self.cost)
            return False
        if bcrypt.checkpw(password, stored):
            return True
        # With an older, cheaper hash the check was faster, which would reveal that the account exists. So it is
        # made up for: 2^c + (2^c + 2^(c+1) + ... + 2^(cost-1)) = 2^cost.
        for cheaper in range(cost, self.cost):
            self._spend(cheaper)
        return False

    def outdated(self, stored: bytes) -> bool:
        """Whether the hash is cheaper than new ones, so that the next login should replace it."""
        cost = cost_of(stored)
        return cost is not None and cost < self.cost

    def _spend(self, cost: int) -> None:
        bcrypt.hashpw(b"the time of one hash", bcrypt.gensalt(cost))


T = TypeVar("T")

# At cost 12 a core makes about four hashes a second, so the last one waits for eight seconds. Beyond that it is 503.
QUEUE_PER_THREAD = 32


class Hashes(Protocol):
    """Hashes and checks passwords. The asynchronous methods raise ``overloaded`` if too many hashes are waiting."""

    async def hash(self, password: bytes) -> bytes: ...

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool: ...

    def outdated(self, stored: bytes) -> bool: ...


class Hashing(Service):
    """Implements ``Hashes``, in threads of its own, one for each CPU, with a bounded queue. The reactor's threads are
    left to others, such as the resolver of names. The threads exist from ``startService`` to ``stopService``."""

    def __init__(
        self, reactor: Any, bcrypt: Bcrypt, threads: int, queue_per_thread: int = QUEUE_PER_THREAD
    ) -> None:
        self.setName("bcrypt")
        self._reactor = reactor
        self._bcrypt = bcrypt
        self._max_pending = threads * (1 + queue_per_thread)
        # Hashes that are being made or are waiting.
        self._pending = 0
        self._pool = ThreadPool(minthreads=0, maxthreads=threads, name="bcrypt")
        # Hashing uses all the CPU time that it gets, so the reactor and the database go first.
        let_threads_yield(self._pool)

    def startService(self) -> None:
        super().startService()
        self._pool.start()

    def stopService(self) -> None:
        super().stopService()
        self._pool.stop()

    async def hash(self, password: bytes) -> bytes:
        return await self._run(self._bcrypt.hash, password)

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        return await self._run(self._bcrypt.matches, passwords, stored)

    def outdated(self, stored: bytes) -> bool:
        return self._bcrypt.outdated(stored)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        if self._pending >= self._max_pending:
            raise errors.overloaded()
        # Shielded, so that it is counted until the thread is done with it and not only until the caller gives up.
        return await shield(self._in_thread(function, *args))

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        self._pending += 1
        try:
            return await deferToThreadPool(self._reactor, self._pool, function, *args)
        finally:
            self._pending -= 1
