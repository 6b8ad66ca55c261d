"""Buckets and objects as values. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from attrs import asdict, fields, frozen

from project_service.lifecycle import timestamp

Visibility = Literal["public", "private"]


@frozen
class BucketRules:
    """What an operator decides about a bucket. None means no limit of its own."""

    visibility: Visibility = "private"
    max_object_bytes: int | None = None
    max_bucket_bytes: int | None = None
    allowed_content_types: tuple[str, ...] | None = None
    owner_only_writes: bool = False


RULES = frozenset(one.name for one in fields(BucketRules))


@frozen
class Bucket:
    """A bucket with its rules and its counters."""

    name: str
    rules: BucketRules
    object_count: int
    total_bytes: int
    created_at: datetime

    @property
    def public(self) -> bool:
        return self.rules.visibility == "public"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **asdict(self.rules),
            "object_count": self.object_count,
            "total_bytes": self.total_bytes,
            "created_at": timestamp(self.created_at),
        }


@frozen
class ObjectRow:
    """An object as the database knows it. Its bytes are in the store under ``path``.

    ``max_age_seconds`` None: as the service is configured. ``changed_twice``: the key had other bytes earlier in the
    second of ``updated_at``, so that this date does not tell them apart.
    """

    bucket: str
    key: str
    version: UUID
    size: int
    content_type: str
    etag: str
    owner: UUID | None
    updated_at: datetime
    max_age_seconds: int | None = None
    changed_twice: bool = False

    @property
    def modified(self) -> datetime:
        """``updated_at`` in whole seconds, as Last-Modified shows it."""
        return self.updated_at.replace(microsecond=0)

    @property
    def path(self) -> str:
        return store_path(self.bucket, self.version)

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "size": self.size,
            "content_type": self.content_type,
            "last_modified": timestamp(self.updated_at),
            "etag": self.etag,
        }

    def as_details(self) -> dict[str, Any]:
        """As ``as_json``, with what only the service key sees and changes."""
        owner = None if self.owner is None else str(self.owner)
        return {**self.as_json(), "owner": owner, "max_age_seconds": self.max_age_seconds}


def store_path(bucket: str, version: UUID) -> str:
    """Where the bytes of a version are in the store."""
    return f"{bucket}/{version}"


@frozen
class Writer:
    """Who changes an object, and who owns it then. The service key passes every rule about owners; without a user it
    keeps the owner of an object that it overwrites."""

    user_id: UUID | None
    is_service: bool = False


@frozen
class Conditions:
    """``If-Match`` and ``If-None-Match`` of a write, as entity tags without quotes; "*" stands for any.

    ``unmodified_since`` is ``If-Unmodified-Since``, which counts only without ``If-Match``.
    """

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    unmodified_since: datetime | None = None


UNCONDITIONAL = Conditions()


@frozen
class Link:
    """A download link. ``uses_left`` None: any number until it expires. ``used_at``: the last time."""

    bucket: str
    key: str
    expires_at: datetime
    uses_left: int | None
    used_at: datetime | None = None


@frozen
class Page:
    """A page of a listing, in the order of keys; ``last`` is its last entry where more follow, else None.

    ``objects`` (as ``ObjectRow.as_json`` has them) and ``folders`` are JSON arrays.
    """

    objects: bytes
    folders: bytes
    last: str | None
