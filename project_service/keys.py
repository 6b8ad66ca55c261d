"""Project keys: their form, their table, and the active ones in memory (``KeyRing``).

``psk_anon_`` or ``psk_service_``, 43 characters of base64url (256 random bits), 6 characters of checksum. The
checksum distinguishes a mistyped key from a wrong one and lets secret scanners be sure. It is not secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from attrs import frozen

from project_service import base64url
from project_service.http.caller import KeyKind

CHANNEL = "project_service_keys"
RANDOM_BYTES = 32
# The maximum length of a label, so that a line of ``keys list`` stays readable.
LABEL_MAX = 100

_SHAPE = re.compile(r"psk_(anon|service)_[A-Za-z0-9_-]{49}\Z")


class Rows(Protocol):
    """What this module needs of the database pool."""

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]: ...


@frozen
class KeyRecord:
    """Everything about a key except the key itself. Times are RFC 3339 in UTC."""

    id: str
    kind: KeyKind
    label: str
    created_at: str
    revoked_at: str | None


def make(kind: KeyKind, random: Callable[[int], bytes]) -> str:
    """A new key from ``random(32)``."""
    secret = f"psk_{kind}_{base64url.encode(random(RANDOM_BYTES))}"
    return secret + _checksum(secret)


def well_formed(key: str) -> bool:
    """Whether the checksum is right. If not, the key is mistyped or cut short, whatever keys there are."""
    return _SHAPE.match(key) is not None and _checksum(key[:-6]) == key[-6:]


def digest(key: str) -> bytes:
    """The SHA-256 of ``key``, which is stored in its place."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _checksum(text: str) -> str:
    return base64url.encode(hashlib.sha256(text.encode()).digest()[:4])


class KeyRing:
    """The active keys, in memory. Implements ``http.caller.KeyRing``; ``Revocations`` keeps it current."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.active: Mapping[bytes, KeyKind] = {}

    def kind_of(self, presented: str) -> KeyKind | None:
        """The kind of an active key, or None. Takes the same time for every key of the ring."""
        presented_digest = digest(presented)
        active: KeyKind | None = None
        for known, kind in self.active.items():
            if hmac.compare_digest(known, presented_digest):
                active = kind
        return active

    def mistyped(self, presented: str) -> bool:
        return not well_formed(presented)

    async def reload(self) -> None:
        """Read the active keys again. Raises what the query raises, and then keeps the ones it had."""
        rows = await self._rows.query("select sha256, kind from auth.project_keys where revoked_at is null")
        active = {bytes(sha256): kind for sha256, kind in rows}
        if active != self.active:
            self.active = active


_COLUMNS = """
  id::text, kind, label,
  to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
  to_char(revoked_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
"""


async def store(rows: Rows, kind: KeyKind, key: str, label: str = "") -> KeyRecord:
    """Insert a key that ``make`` made. Every process knows it within a second."""
    inserted = await rows.query(
        f"insert into auth.project_keys (kind, sha256, label) values (%s, %s, %s) returning {_COLUMNS}",  # noqa: S608  # constant text
        (kind, digest(key), label),
    )
    return KeyRecord(*inserted[0])


async def listed(rows: Rows) -> list[KeyRecord]:
    """All keys, revoked ones too, oldest first."""
    records = await rows.query(f"select {_COLUMNS} from auth.project_keys order by created_at, id")  # noqa: S608  # constant text
    return [KeyRecord(*row) for row in records]


async def revoke(rows: Rows, key_id: str) -> bool:
    """True if there was such an active key. It stops working everywhere within a second."""
    revoked = await rows.query(
        "update auth.project_keys set revoked_at = now() where id::text = %s and revoked_at is null returning id",
        (key_id,),
    )
    return bool(revoked)
