"""What storage needs of its database, as protocols. Each has a fake that passes the same tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from project_service.storage.values import (
    UNCONDITIONAL,
    Bucket,
    BucketRules,
    Conditions,
    Details,
    Link,
    NewObject,
    ObjectRow,
    Page,
    Progress,
    ResumableUpload,
    SortedPage,
    Sorting,
    StoredRendition,
    Switched,
    Viewer,
    Writer,
)


class BucketRows(Protocol):
    """Buckets in the database. Methods that need an existing bucket raise ``bucket_not_found``."""

    async def find(self, name: str) -> Bucket | None: ...
    async def all(self) -> list[Bucket]: ...
    async def create(self, name: str, rules: BucketRules) -> Bucket:
        """Raises ``bucket_exists``."""

    async def change(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        """``changes`` are names of ``BucketRules`` with their new values."""

    async def delete(self, name: str) -> None:
        """Raises ``bucket_not_empty``, and ``bucket_in_use`` if rows of the project's own tables refer to it."""


class ObjectRows(Protocol):
    """Objects in the database. Every change is one transaction; one that is refused (``errors.refused``) changes
    nothing. ``conditions`` have entity tags only: dates are replaced before (``conditions.without_date``)."""

    async def find(self, bucket: str, key: str, viewer: Viewer | None = None) -> ObjectRow | None:
        """The object; None if there is none, or ``viewer`` may not see it. A policy that fails shows nothing."""

    async def find_many(
        self, bucket: str, keys: Sequence[str], viewer: Viewer | None = None
    ) -> dict[str, ObjectRow]:
        """Those of the objects that exist and that ``viewer`` may see, by key."""

    async def page(
        self,
        bucket: str,
        prefix: str,
        after: str | None,
        limit: int,
        recursive: bool,
        viewer: Viewer | None = None,
    ) -> Page:
        """Up to ``limit`` objects and folders under ``prefix`` after the entry ``after``, ordered by key.

        With ``viewer`` as if there were only what this one may see. Raises ``not_allowed`` if a policy fails.
        """

    async def sorted_page(
        self,
        bucket: str,
        prefix: str,
        sorting: Sorting,
        after: tuple[str, str] | None,
        limit: int,
        viewer: Viewer | None = None,
    ) -> SortedPage:
        """Up to ``limit`` objects under ``prefix`` after ``after``, the ``last`` of the page before."""

    async def keys(self, bucket: str, prefix: str, limit: int) -> list[str]: ...
    async def check_policies(
        self, bucket: str, key: str, size: int, content_type: str, details: Details, writer: Writer
    ) -> None:
        """Raise ``not_allowed`` if policies would refuse that ``writer``, not the service, puts such an object."""

    async def room(self, bucket: str, key: str) -> int | None:
        """How large an object at ``key`` may be at present by the bucket's quota; None without a quota."""

    async def put(
        self,
        new: NewObject,
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
        link: bytes | None = None,
    ) -> Switched:
        """Make a new object current. Raises ``request_timeout`` unless its version is reserved.

        It belongs to ``writer.user_id``; if the service writes without one, to the owner of the object replaced.
        ``link`` is the hash of the token of an upload link, of which the same transaction takes the use: raises
        ``token_used``, or ``token_not_found`` where it was revoked.
        """

    async def delete(
        self, bucket: str, keys: Sequence[str], writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Mapping[str, UUID]:
        """Delete those of ``keys`` that ``writer`` sees and return their versions, or delete none and raise what
        ``access.check_write`` raises of one, or ``object_in_use`` if rows of the project's tables refer to one."""

    async def move(
        self, bucket: str, source: str, target: str, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        """Raises ``object_in_use`` if rows of the project's own tables refer to the object, or to one at
        ``target``."""

    async def move_to_bucket(
        self, row: ObjectRow, new: NewObject, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        """Make the object ``row`` that of another bucket and key, as ``new`` names them, with a copy of its bytes.
        The old version becomes garbage. Raises ``object_changed`` if it has been replaced, and otherwise what a
        deletion and ``put`` raise."""

    async def change(
        self,
        bucket: str,
        key: str,
        changes: Mapping[str, Any],
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
    ) -> ObjectRow:
        """Change ``owner`` and members of ``Details``, by their names, and nothing else. Raises ``object_not_found``,
        also where ``writer`` does not see the object."""

    async def reserve_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        """Reserve versions, before any of their bytes go to the store."""

    async def release_uploads(self, versions: Sequence[UUID]) -> None:
        """Release reserved versions under which nothing was ever sent to the store."""

    async def renew_upload(self, version: UUID) -> bool:
        """Record that the version is still being uploaded. False if it has been given up."""


class GarbageRows(Protocol):
    """Versions that belong to no object and have to be deleted from the store, and what the sweeper asks of
    others."""

    async def discard(self, versions: Sequence[UUID]) -> list[UUID]:
        """Turn reserved uploads into garbage and return them; a version that has become an object's is left out."""

    async def stale_uploads(self, silent_for: timedelta, limit: int) -> list[UUID]: ...
    async def garbage(
        self, limit: int, after: UUID | None = None, removed_for: timedelta = timedelta(0)
    ) -> list[tuple[UUID, str]]:
        """Up to ``limit`` versions, with their buckets, that have been garbage for at least ``removed_for``.

        In the order of versions, beginning after ``after``.
        """

    async def forget(self, versions: Sequence[UUID]) -> list[UUID]:
        """Remove ``versions`` from the garbage, once their bytes are gone from the store. Returns the versions of
        their renditions, which are garbage too."""

    async def unknown(self, versions: Sequence[UUID]) -> set[UUID]:
        """Those of ``versions`` that belong to no object or rendition, are not reserved, and are not known as
        garbage."""

    async def reserved(self, versions: Sequence[UUID]) -> set[UUID]:
        """Those of ``versions`` that are being uploaded."""

    async def current(self, versions: Sequence[UUID]) -> set[UUID]:
        """Those of ``versions`` that are the current version of an object."""

    async def objects_from(self, after: tuple[str, str] | None, limit: int) -> list[ObjectRow]:
        """Every object in the order of bucket and key, for a check against the store."""

    async def without_sha256(self, after: tuple[str, str] | None, limit: int) -> list[ObjectRow]:
        """As ``objects_from``, of the objects that have no SHA-256."""

    async def set_sha256(self, version: UUID, sha256: str) -> bool:
        """Record the SHA-256 of an object, of which nothing else changes. False if ``version`` is no object's any
        more, or has one."""


class LinkRows(Protocol):
    """Links by the SHA-256 of their token."""

    async def add(self, links: Mapping[bytes, Link]) -> None:
        """Add links of one bucket, all or none. Raises ``bucket_not_found`` if it has been deleted."""

    async def find(self, token_hash: bytes) -> Link | None: ...
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

    async def revoke(self, bucket: str, link_id: UUID, creator: UUID | None) -> bool:
        """Delete a link; with ``creator`` only if this user made it. False if there is none."""

    async def use(self, token_hash: bytes, now: datetime) -> bool:
        """Take one use, atomically. False when none is left or the link has expired."""

    async def sweep(self, expired_before: datetime) -> int: ...


class RenditionRows(Protocol):
    """What was made of the pictures among the objects. It belongs to a version of an object, and becomes garbage
    together with it."""

    async def find(self, of: UUID, name: str) -> StoredRendition | None: ...
    async def keep(
        self,
        bucket: str,
        of: UUID,
        name: str,
        new: StoredRendition,
        max_per_object: int,
        used: Mapping[UUID, float],
    ) -> tuple[StoredRendition | None, list[UUID]]:
        """Store a rendition of version ``of``. The store must have all its bytes, under its own version, which has
        been reserved as for an upload. Returns the one that is stored now: another if somebody was faster, and None
        if ``of`` is no object's version any more. Where ``of`` has ``max_per_object`` already, those that were not
        used for the longest time make room; their versions are returned too. Those and what is not stored become
        garbage.

        ``used`` are renditions of ``of`` that this process has sent lately, with the seconds since then.
        """

    async def forget(self, version: UUID) -> None:
        """Forget a rendition whose bytes are not in the store."""


class ResumableRows(Protocol):
    """Uploads that take several requests (``resumable``), each held by one request at a time.

    Nothing here counts in a bucket's quota. Their versions and tails are reserved like those of other uploads, but
    the sweeper gives them up only after they have expired.
    """

    async def create(self, upload: ResumableUpload, lasts: timedelta) -> datetime:
        """Add an upload and reserve its version; returns when it expires. Raises ``bucket_not_found``."""

    async def find(self, version: UUID) -> ResumableUpload | None: ...
    async def hold(self, version: UUID, holder: UUID, lasts: timedelta) -> ResumableUpload | None:
        """Hold the upload for ``lasts``. None if another request holds it (which then learns from ``renew`` that it
        is waited for), or if there is no such upload."""

    async def renew(self, version: UUID, holder: UUID, lasts: timedelta) -> bool | None:
        """Hold the upload for longer. Whether others wait for it; None if it is not held by ``holder`` any more."""

    async def release(self, version: UUID, holder: UUID) -> None: ...
    async def advance(
        self, version: UUID, holder: UUID, progress: Progress, lasts: timedelta
    ) -> ResumableUpload | None:
        """Record progress, extend the expiry, and turn a tail that is replaced into garbage, in one transaction.

        Returns the upload as it is now; None, with nothing changed, if ``holder`` does not hold it or it has been
        given up.
        """

    async def expect_sha256(self, version: UUID, holder: UUID, sha256: str) -> bool:
        """Record which SHA-256 the whole must have. False, with nothing changed, if ``holder`` does not hold it."""

    async def commit(
        self, version: UUID, holder: UUID, new: NewObject, writer: Writer, conditions: Conditions
    ) -> Switched | None:
        """As ``ObjectRows.put``, and record it with the upload in the same transaction. None if ``holder`` does not
        hold the upload."""

    async def remove(self, version: UUID, holder: UUID) -> list[UUID]:
        """Forget the upload; the versions that have become garbage. None have if it was committed."""

    async def sweep(self, expired_before: datetime) -> int: ...
