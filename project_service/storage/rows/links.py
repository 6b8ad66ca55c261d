"""The rows of links."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from attrs import asdict, frozen
from orjson import dumps

from project_service.database.connection import Row
from project_service.database.pool import Pool
from project_service.storage import errors
from project_service.storage.rows.columns import plain_text, role_and_claims, uuid_of
from project_service.storage.values import Identity, Link, UploadTerms

_LINK_TYPES = {
    "bucket": "text",
    "key": "text",
    "expires_at": "timestamptz",
    "uses_left": "integer",
    "id": "uuid",
    "created_at": "timestamptz",
    "created_by": "uuid",
    "used_at": "timestamptz",
    "owner": "uuid",
    "method": "text",
    "by_prefix": "boolean",
    "max_bytes": "bigint",
    "content_types": "text[]",
    "overwrite": "boolean",
    "as_service": "boolean",
    "role": "text",
    "claims": "text",
}
_LINK_COLUMNS = ", ".join(_LINK_TYPES)
# A thousand links are one parameter and one statement.
_ADD_LINKS = (
    f"insert into storage.links (token_hash, {_LINK_COLUMNS})"
    f" select decode(l.token_hash, 'hex'), {', '.join(f'l.{column}' for column in _LINK_TYPES)}"
    " from jsonb_to_recordset(%s::jsonb) as l (token_hash text,"
    f" {', '.join(f'{column} {kind}' for column, kind in _LINK_TYPES.items())})"
    " join storage.buckets b on b.name = l.bucket for key share of b returning 1"
)


def _link(row: Row) -> Link:
    bucket, key, expires_at, uses_left, link_id, created_at, created_by, used_at, owner, *terms = row
    method, by_prefix, max_bytes, content_types, overwrite, as_service, role, claims = terms
    types = None if content_types is None else tuple(content_types)
    return Link(
        bucket,
        key,
        expires_at,
        uses_left,
        UUID(link_id),
        created_at,
        uuid_of(created_by),
        used_at,
        uuid_of(owner),
        UploadTerms(by_prefix, max_bytes, types, overwrite, as_service) if method == "PUT" else None,
        None if role is None else Identity(role, claims),
    )


def _link_as_json(token_hash: bytes, link: Link) -> dict[str, Any]:
    values = asdict(link, recurse=False)
    terms = values.pop("upload") or UploadTerms()
    role, claims = role_and_claims(values.pop("identity"))
    known = {"token_hash": token_hash.hex(), "method": link.method, "role": role, "claims": claims}
    return {**known, **values, **asdict(terms)}


@frozen(eq=False)
class LinkRows:
    """Links by the SHA-256 of their token."""

    database: Pool

    async def add(self, links: Mapping[bytes, Link]) -> None:
        """Add links of one bucket, all or none. Raises ``bucket_not_found`` if it has been deleted."""
        rows = await self.database.prepared(
            _ADD_LINKS, (dumps([_link_as_json(*one) for one in links.items()]).decode(),)
        )
        if len(rows) < len(links):
            raise errors.bucket_not_found()

    async def find(self, token_hash: bytes) -> Link | None:
        rows = await self.database.read(
            f"select {_LINK_COLUMNS} from storage.links where token_hash = %s", (token_hash,)
        )
        return _link(rows[0]) if rows else None

    async def page(
        self,
        bucket: str,
        now: datetime,
        creator: UUID | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> list[Link]:
        """Up to ``limit`` links that have not expired, the newest first, beginning after the one that was made at
        ``after`` and has that id. With ``creator`` only those that this user made."""
        conditions, values = ["bucket = %s", "expires_at > %s"], [bucket, now]
        if creator is not None:
            conditions.append("created_by = %s")
            values.append(str(creator))
        if after is not None:
            conditions.append("(created_at, id) < (%s, %s)")
            values += [after[0], str(after[1])]
        rows = await self.database.query(
            f"select {_LINK_COLUMNS} from storage.links where {' and '.join(conditions)}"
            " order by created_at desc, id desc limit %s",
            (*values, limit),
        )
        return [_link(row) for row in rows]

    async def revoke(self, bucket: str, link_id: UUID, creator: UUID | None) -> bool:
        """Delete a link; with ``creator`` only if this user made it. False if there is none."""
        rows = await self.database.query(
            "delete from storage.links where bucket = %s and id = %s"
            " and (%s::uuid is null or created_by = %s::uuid) returning 1",
            (bucket, str(link_id), plain_text(creator), plain_text(creator)),
        )
        return bool(rows)

    async def use(self, token_hash: bytes, now: datetime) -> bool:
        """Take one use, atomically. False when none is left or the link has expired."""
        rows = await self.database.prepared(
            "update storage.links set uses_left = uses_left - 1, used_at = %s::timestamptz"
            " where token_hash = %s and expires_at > %s and (uses_left is null or uses_left > 0) returning 1",
            (now, token_hash, now),
        )
        return bool(rows)

    async def sweep(self, expired_before: datetime) -> int:
        """Delete links that had expired by then; returns how many."""
        rows = await self.database.query(
            "with gone as (delete from storage.links where expires_at < %s returning 1) select count(*) from gone",
            (expired_before,),
        )
        return int(rows[0][0])
