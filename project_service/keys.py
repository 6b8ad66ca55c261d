"""Project keys: their form, their table, and the active ones in memory (``KeyRing``).

Those made here have a form: ``psk_anon_`` or ``psk_service_``, 43 characters of base64url (256 random bits), 6 of
checksum. The checksum is not secret: it distinguishes a mistyped key from a wrong one, also for secret scanners.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from project_service import audit, base64url
from project_service.audit import Event, Rows
from project_service.http.caller import KeyKind, KeyUse, digest

CHANNEL = "project_service_keys"
RANDOM_BYTES = 32
# The maximum length of a label, so that a line of ``keys list`` stays readable.
LABEL_MAX = 100

# How long a key may be that was made elsewhere: long enough not to be guessed, and a header of any request.
MIN_IMPORTED, MAX_IMPORTED = 20, 1000

_SHAPE = re.compile(r"psk_(anon|service)_[A-Za-z0-9_-]{49}\Z")


@frozen
class KeyRecord:
    """Everything about a key except the key itself. Times are RFC 3339 in UTC. ``used_at`` is to the minute, and None
    for a key that was not used since that is noted."""

    id: str
    kind: KeyKind
    label: str
    created_at: str
    revoked_at: str | None
    used_at: str | None = None


def make(kind: KeyKind, random: Callable[[int], bytes]) -> str:
    """A new key from ``random(32)``."""
    secret = f"psk_{kind}_{base64url.encode(random(RANDOM_BYTES))}"
    return secret + _checksum(secret)


def well_formed(key: str) -> bool:
    """Whether the checksum is right. If not, the key is mistyped or cut short, whatever keys there are."""
    return _SHAPE.match(key) is not None and _checksum(key[:-6]) == key[-6:]


def _checksum(text: str) -> str:
    return base64url.encode(hashlib.sha256(text.encode()).digest()[:4])


class KeyRing:
    """The active keys, in memory. Implements ``http.caller.KeyRing``; ``Revocations`` keeps it current."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.active: Mapping[bytes, KeyKind] = {}
        self._uses: dict[bytes, KeyUse] = {}

    def kind_of(self, presented: str) -> KeyKind | None:
        """The kind of an active key, or None. Takes the same time for every key of the ring."""
        presented_digest = digest(presented)
        active: KeyKind | None = None
        for known, kind in self.active.items():
            if hmac.compare_digest(known, presented_digest):
                active = kind
        return active

    def use_of(self, presented: str) -> KeyUse:
        return self._uses.setdefault(digest(presented), KeyUse())

    async def store_uses(self, rows: Rows) -> None:
        """Store when the keys were last used that have been used since the last call: now, to the minute. Raises what
        the query raises; the next call stores them then."""
        used = {sha256: use for sha256, use in self._uses.items() if use.used}
        if not used:
            return
        for use in used.values():
            use.used = False
        try:
            await rows.query(_USED, (list(used),))
        except BaseException:
            for use in used.values():
                use.used = True
            raise

    def mistyped(self, presented: str) -> bool:
        # Keys that were made elsewhere have any form.
        made_here = presented.startswith("psk_") or not importable(presented)
        return made_here and not well_formed(presented)

    async def reload(self) -> None:
        """Read the active keys again. Raises what the query raises, and then keeps the ones it had."""
        rows = await self._rows.query("select sha256, kind from auth.project_keys where revoked_at is null")
        active = {bytes(sha256): kind for sha256, kind in rows}
        if active != self.active:
            self.active = active


_COLUMNS = """
  id::text, kind, label,
  to_char(created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
  to_char(revoked_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
  (select to_char(used_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
   from auth.project_key_uses where key_id = project_keys.id)
"""
# Of several processes that write in one minute, only the first has something to change.
_USED = """
insert into auth.project_key_uses (key_id, used_at)
select id, date_trunc('minute', now()) from auth.project_keys where sha256 = any(%s::bytea[]) order by id
on conflict (key_id) do update set used_at = excluded.used_at where project_key_uses.used_at < excluded.used_at
"""
_STORE = f"""
with project_keys as (
    insert into auth.project_keys (kind, sha256, label) values (%(kind)s, %(sha256)s, %(label)s)
    on conflict (sha256) do nothing returning *)
    {{entry}}
select {_COLUMNS} from project_keys
"""  # noqa: S608  # constant text
_REVOKE = """
with project_keys as (
    update auth.project_keys set revoked_at = now() where id::text = %(id)s and revoked_at is null returning id)
    {entry}
select id from project_keys
"""
_ENTRY = f", a as ({audit.AUDIT.format(user_id='null', result='%(result)s')} from project_keys)"


async def _change(rows: Rows, sql: str, event: Event | None, **params: Any) -> list[tuple[Any, ...]]:
    """Run ``sql`` and record the ``event``, if there is one, as about the id of the key that is made or changed."""
    if event is None:
        return await rows.query(sql.format(entry=""), params)
    entry = _ENTRY.replace("%(audit_subject)s", "id::text")
    return await rows.query(sql.format(entry=entry), {**params, **audit.params(event)})


async def store(
    rows: Rows, kind: KeyKind, key: str, label: str = "", event: Event | None = None
) -> KeyRecord:
    """Insert a key that ``make`` made, and with it the ``event``, which is about its id. Every process knows the key
    within a second."""
    record = await take_over(rows, kind, key, label, event)
    assert record is not None  # it is random
    return record


def importable(key: str) -> bool:
    """Whether a key that was made elsewhere can be used here: visible ASCII of a fitting length."""
    return MIN_IMPORTED <= len(key) <= MAX_IMPORTED and key.isascii() and key.isprintable() and " " not in key


async def take_over(
    rows: Rows, kind: KeyKind, key: str, label: str = "", event: Event | None = None
) -> KeyRecord | None:
    """As ``store``, for a key that was made elsewhere. None if it is there already, also revoked: a key that has been
    revoked stays so."""
    inserted = await _change(rows, _STORE, event, kind=kind, sha256=digest(key), label=label)
    return KeyRecord(*inserted[0]) if inserted else None


async def listed(rows: Rows) -> list[KeyRecord]:
    """All keys, revoked ones too, oldest first."""
    records = await rows.query(f"select {_COLUMNS} from auth.project_keys order by created_at, id")  # noqa: S608  # constant text
    return [KeyRecord(*row) for row in records]


async def revoke(rows: Rows, key_id: str, event: Event | None = None) -> bool:
    """True if there was such an active key; the ``event`` is about its id. It stops working everywhere within a
    second."""
    return bool(await _change(rows, _REVOKE, event, id=key_id))


async def id_of(rows: Rows, key: str) -> str | None:
    """The id of an active key, or None."""
    found = await rows.query(
        "select id::text from auth.project_keys where sha256 = %s and revoked_at is null", (digest(key),)
    )
    return found[0][0] if found else None
