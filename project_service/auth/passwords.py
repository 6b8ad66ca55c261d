"""The rules for passwords, and bcrypt. Hashing is slow, so call it in a thread."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import bcrypt
from attrs import frozen

from project_service.auth.errors import weak_password
from project_service.auth.model import Email, folded
from project_service.errors import require_text, validation_failed

# bcrypt ignores all further bytes. A longer password is refused, never truncated.
MAX_BYTES = 72
# Only two bits of the salt's last character count. bcrypt refuses a hash in which others are set, so it would never
# match.
_HASH = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}\Z")


@cache
def common_passwords() -> frozenset[str]:
    """The list of common passwords, case-folded."""
    text = files("project_service.auth").joinpath("data/common-passwords.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def acceptable(password: object, email: Email, min_bytes: int) -> bytes:
    """The bytes of a new password. Raises ``validation_failed`` if it is not text, and ``weak_password``."""
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
    """The bytes of a password that is to be checked; None if no stored password can equal it.

    Raises ``validation_failed`` if it is not text. ``name`` is the field's name for that.
    """
    text = require_text(name, password)
    # No stored password has more characters. Checked first, so that a huge one is not encoded.
    if len(text) > MAX_BYTES:
        return None
    raw = text.encode("utf-8", "surrogatepass")
    return raw if 0 < len(raw) <= MAX_BYTES and b"\0" not in raw else None


def cost_of(stored: bytes) -> int | None:
    """The cost of a bcrypt hash (``$2a$``, ``$2b$`` or ``$2y$``); None for anything else."""
    found = _HASH.match(stored)
    if found is None or not 4 <= int(found[1]) <= 31:
        return None
    return int(found[1])


@frozen
class Bcrypt:
    """bcrypt with a ``cost`` for new hashes. A failed check always takes as long as making one hash of that cost."""

    cost: int

    def hash(self, password: bytes) -> bytes:
        return bcrypt.hashpw(password, bcrypt.gensalt(self.cost))

    def matches(self, password: bytes | None, stored: bytes | None) -> bool:
        """Whether ``stored`` is the hash of ``password``. False if one is None: an unknown user, or a password that
        cannot be right."""
        cost = None if stored is None else cost_of(stored)
        if password is None or stored is None or cost is None:
            self._spend(self.cost)
            return False
        if bcrypt.checkpw(password, stored):
            return True
        # With an older, cheaper hash the check was faster, which would tell that the account exists. So it is made up
        # for: 2^c + (2^c + 2^(c+1) + ... + 2^(cost-1)) = 2^cost.
        for cheaper in range(cost, self.cost):
            self._spend(cheaper)
        return False

    def outdated(self, stored: bytes) -> bool:
        """Whether the hash is cheaper than new ones, so that the next login should replace it."""
        cost = cost_of(stored)
        return cost is not None and cost < self.cost

    def _spend(self, cost: int) -> None:
        bcrypt.hashpw(b"the time of one hash", bcrypt.gensalt(cost))
