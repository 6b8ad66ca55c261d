"""The columns of an object, and the values that several of these modules write and read."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from project_service.database.connection import Row
from project_service.storage.values import Identity, ObjectRow

# The columns that ``object_row`` takes, in this order.
COLUMNS = (
    "bucket",
    "key",
    "version",
    "size",
    "content_type",
    "etag",
    "owner",
    "updated_at",
    "max_age_seconds",
    "changed_twice",
    "cache_control",
    "metadata::text",
    "content_language",
    "sha256",
    "created_at",
    "id",
)
ALL_COLUMNS = ", ".join(COLUMNS)


def object_row(row: Row) -> ObjectRow:
    bucket, key, version, size, content_type, etag, owner, *more, first = row
    owner_id = None if owner is None else UUID(owner)
    # One that was never replaced may have no id of its own.
    more.append(UUID(version if first is None else first))
    return ObjectRow(bucket, key, UUID(version), size, content_type, etag, owner_id, *more)


def uuid_array(values: Iterable[UUID]) -> str:
    """A parameter for an array of uuids. psycopg2 would write a list as an array of texts, which EXECUTE refuses."""
    return f"{{{','.join(map(str, values))}}}"


def plain_text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def role_and_claims(identity: Identity | None) -> tuple[str | None, str | None]:
    return (None, None) if identity is None else (identity.role, identity.claims)


def uuid_of(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)
