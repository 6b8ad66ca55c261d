"""What a password may be, and bcrypt. Pure: whoever calls the slow functions does so in a thread."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import bcrypt
from attrs import field, frozen

from project_service.auth.errors import weak_password
from project_service.auth.model import Email, folded
from project_service.errors import require_text, validation_failed

# bcrypt reads no more than this; a longer password is refused and never cut.
MAX_BYTES = 72
# Of the salt's last character two bits count: bcrypt takes none that has others, and no password would match.
_HASH = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}\Z")


@cache
def common_passwords() -> frozenset[str]:
    """The shipped list, in the form in which passwords are compared with it."""
    text = files("project_service.auth").joinpath("data/common-passwords.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def acceptable(password: object, email: Email, min_bytes: int) -> bytes:
    """The bytes of a new password; raises ``validation_failed`` (not text) or ``weak_password``."""
    text = require_text("password", password)
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError:
        raise validation_failed({"password": "is not valid Unicode"}) from None
    if len(raw) < min_bytes:
        raise weak_password(f"must be at least {min_bytes} bytes long")
    if len(raw) > MAX_BYTES:
        raise weak_password(f"must be at most {MAX_BYTES} bytes long")
    if b"\0" in raw:
        raise weak_password("must not contain NUL")
    if folded(text) == email.key:
        raise weak_password("must not be the email address")
    if text.casefold() in common_passwords():
        raise weak_password("is one of the most common passwords")
    return raw


def candidate(password: object, name: str = "password") -> bytes | None:
    """The bytes of a password that is to be checked, or None where no stored password can be equal to it.

    Raises ``validation_failed`` where it is not text at all.
    """
    text = require_text(name, password)
    # No stored password is longer, so a huge one needs no copy.
    if len(text) > MAX_BYTES:
        return None
    raw = text.encode("utf-8", "surrogatepass")
    return raw if 0 < len(raw) <= MAX_BYTES and b"\0" not in raw else None


def cost_of(stored: bytes) -> int | None:
    """The cost of a bcrypt hash of the kinds ``$2a$``, ``$2b$`` and ``$2y$``; None for anything else."""
    found = _HASH.match(stored)
    if found is None or not 4 <= int(found[1]) <= 31:
        return None
    return int(found[1])


@frozen
class Bcrypt:
    """Hashes at ``cost`` and checks so that every failure takes the time of one hash at ``cost``."""

    cost: int = 12
    salt: Callable[[int], bytes] = field(default=bcrypt.gensalt, repr=False)

    def hash(self, password: bytes) -> bytes:
        return bcrypt.hashpw(password, self.salt(self.cost))

    def matches(self, password: bytes | None, stored: bytes | None) -> bool:
        """Whether ``stored`` is the hash of ``password``; None: unknown user, impossible password."""
        cost = None if stored is None else cost_of(stored)
        if password is None or stored is None or cost is None:
            self._spend(self.cost)
            return False
        if bcrypt.checkpw(password, stored):
            return True
        # An older, cheaper hash would otherwise tell that the account exists:
        # 2^c + (2^c + 2^(c+1) + ... + 2^(cost-1)) = 2^cost.
        for cheaper in range(cost, self.cost):
            self._spend(cheaper)
        return False

    def outdated(self, stored: bytes) -> bool:
        """Whether the hash is to be made again at the next login."""
        cost = cost_of(stored)
        return cost is not None and cost < self.cost

    def _spend(self, cost: int) -> None:
        bcrypt.hashpw(b"the time of one hash", self.salt(cost))
