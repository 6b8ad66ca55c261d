"""The rows of storage in memory. The fakes have the methods of the SQL classes in ``storage/rows``, and pass
``tests/contracts/storage``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import orjson
from attrs import define, evolve, field, frozen

from project_service.audit import By, Event
from project_service.errors import ApiError
from project_service.storage import access, errors, keys
from project_service.storage.assemble import Rows
from project_service.storage.durations import WAITING_SECONDS
from project_service.storage.rows import listing
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.rows.garbage import GarbageRows
from project_service.storage.rows.links import LinkRows
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.rows.renditions import RenditionRows
from project_service.storage.rows.resumables import ResumableRows
from project_service.storage.values import (
    SERVICE,
    UNCONDITIONAL,
    Bucket,
    BucketRules,
    Conditions,
    Details,
    Entries,
    Identity,
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
    validation_failed_too_many_entries,
)

START = datetime(2026, 11, 21, tzinfo=UTC)

# What row-level security allows. The command is select, insert, update (the old row), check (the new row of an
# update) or delete. One that raises has failed.
Policies = Callable[[str, ObjectRow, Identity], bool]
# The same of buckets.
BucketPolicies = Callable[[str, Bucket, Identity], bool]


def some_link(
    bucket: str = "b",
    key: str = "k",
    expires_at: datetime = START + timedelta(days=1),
    uses: int | None = 1,
    **more: Any,
) -> Link:
    return Link(bucket, key, expires_at, uses, **{"id": uuid4(), "created_at": START, **more})


@define
class Tables:
    """The state that the fakes share."""

    now: Callable[[], datetime] = lambda: START
    buckets: dict[str, tuple[BucketRules, datetime]] = field(factory=dict)
    # Those that are ``open``, and when rules were changed.
    open_buckets: set[str] = field(factory=set)
    changed: dict[str, datetime] = field(factory=dict)
    objects: dict[tuple[str, str], ObjectRow] = field(factory=dict)
    uploads: dict[UUID, tuple[str, datetime]] = field(factory=dict)
    garbage: dict[UUID, tuple[str, datetime]] = field(factory=dict)
    links: dict[bytes, Link] = field(factory=dict)
    policies: Policies = lambda command, row, identity: False
    bucket_policies: BucketPolicies = lambda command, bucket, identity: False
    bucket_owners: dict[str, UUID | None] = field(factory=dict)
    resumables: dict[UUID, ResumableUpload] = field(factory=dict)
    # Who holds a resumable upload and until when; and when others last waited for one.
    holds: dict[UUID, tuple[UUID, datetime]] = field(factory=dict)
    wanted: dict[UUID, datetime] = field(factory=dict)
    # When a key was last left by an object.
    removed: dict[tuple[str, str], datetime] = field(factory=dict)
    # By the version that they are of and their name; and what of the garbage are renditions of what.
    renditions: dict[tuple[UUID, str], StoredRendition] = field(factory=dict)
    # The audit.
    events: list[Event] = field(factory=list)
    rendition_of: dict[UUID, UUID] = field(factory=dict)
    # When a rendition was made or used last.
    rendition_uses: dict[UUID, datetime] = field(factory=dict)

    def rows(self) -> Rows:
        """The fakes for who takes the SQL classes (see ``tests/fakes/auth.py``)."""
        return Rows(
            cast(BucketRows, FakeBuckets(self)),
            cast(ObjectRows, FakeObjects(self)),
            cast(GarbageRows, FakeGarbage(self)),
            cast(LinkRows, FakeLinks(self)),
            cast(RenditionRows, FakeRenditions(self)),
            cast(ResumableRows, FakeResumables(self)),
        )

    def discard(self, bucket: str, version: UUID) -> None:
        """A version is no object's any more."""
        self.garbage[version] = (bucket, self.now())
        for of, name in [key for key in self.renditions if key[0] == version]:
            made = self.renditions.pop((of, name)).version
            self.garbage[made] = (bucket, self.now())
            self.rendition_of[made] = of

    def of(self, bucket: str) -> list[ObjectRow]:
        rows = [row for row in self.objects.values() if row.bucket == bucket]
        return sorted(rows, key=lambda row: row.key.encode())


@frozen(eq=False)
class FakeBuckets:
    tables: Tables

    async def find(self, name: str) -> Bucket | None:
        _check_text(name)
        if name not in self.tables.buckets:
            return None
        rules, created_at = self.tables.buckets[name]
        mine = self.tables.of(name)
        size, changed = sum(row.size for row in mine), self.tables.changed.get(name, created_at)
        is_open, owner = name in self.tables.open_buckets, self.tables.bucket_owners.get(name)
        return Bucket(name, rules, len(mine), size, created_at, is_open, changed, owner)

    async def all(self) -> list[Bucket]:
        buckets = [await self.find(name) for name in sorted(self.tables.buckets)]
        return [bucket for bucket in buckets if bucket is not None]

    async def seen(self, writer: Writer) -> list[Bucket]:
        return [one for one in await self.all() if self._allowed("select", one, writer)]

    async def is_seen(self, writer: Writer, name: str) -> bool:
        bucket = await self.find(name)
        try:
            return bucket is not None and self._allowed("select", bucket, writer)
        except ApiError:
            return False

    def _allowed(self, command: str, bucket: Bucket, writer: Writer) -> bool:
        """A policy that fails refuses."""
        try:
            return writer.is_service or (
                writer.identity is not None and self.tables.bucket_policies(command, bucket, writer.identity)
            )
        except ArithmeticError:
            raise errors.not_allowed() from None

    async def create(
        self,
        name: str,
        rules: BucketRules,
        is_open: bool = False,
        writer: Writer = SERVICE,
        by: By | None = None,
    ) -> Bucket:
        made = Bucket(name, rules, 0, 0, self.tables.now(), is_open, owner=writer.user_id)
        if not self._allowed("insert", made, writer):
            raise errors.not_allowed()
        if name in self.tables.buckets:
            raise errors.bucket_exists()
        self.tables.buckets[name] = (rules, self.tables.now())
        self.tables.bucket_owners[name] = writer.user_id
        self._set_open(name, is_open)
        self._recorded("create_bucket", name, writer, by)
        return await self._existing(name)

    async def _seen(self, writer: Writer, name: str) -> Bucket:
        bucket = await self._existing(name)
        if not writer.is_service and not await self.is_seen(writer, name):
            raise errors.bucket_not_found()
        return bucket

    async def change(
        self,
        name: str,
        changes: Mapping[str, Any],
        is_open: bool | None = None,
        writer: Writer = SERVICE,
        by: By | None = None,
    ) -> Bucket:
        bucket = await self._seen(writer, name)
        changed = evolve(
            bucket,
            rules=evolve(bucket.rules, **changes),
            open=bucket.open if is_open is None else is_open,
        )
        if (changes or is_open is not None) and not (
            self._allowed("update", bucket, writer) and self._allowed("check", changed, writer)
        ):
            raise errors.not_allowed()
        self.tables.buckets[name] = (changed.rules, bucket.created_at)
        if changes or is_open is not None:
            self.tables.changed[name] = self.tables.now()
            self._recorded("change_bucket", name, writer, by)
        self._set_open(name, bucket.open if is_open is None else is_open)
        return await self._existing(name)

    def _set_open(self, name: str, is_open: bool) -> None:
        (self.tables.open_buckets.add if is_open else self.tables.open_buckets.discard)(name)

    async def record(self, event: Event) -> None:
        self.tables.events.append(event)

    def _recorded(self, action: str, name: str, writer: Writer, by: By | None) -> None:
        if by is not None and writer.is_service:
            self.tables.events.append(by(action, name))

    async def delete(self, name: str, writer: Writer = SERVICE, by: By | None = None) -> None:
        bucket = await self._seen(writer, name)
        if self.tables.of(name):
            raise errors.bucket_not_empty()
        if not self._allowed("delete", bucket, writer):
            raise errors.not_allowed()
        del self.tables.buckets[name]
        self.tables.bucket_owners.pop(name, None)
        self.tables.changed.pop(name, None)
        self._set_open(name, False)
        self._recorded("delete_bucket", name, writer, by)
        self.tables.links = {t: link for t, link in self.tables.links.items() if link.bucket != name}
        for upload in list(self.tables.resumables.values()):
            if upload.bucket == name:
                del self.tables.resumables[upload.version]

    async def _existing(self, name: str) -> Bucket:
        bucket = await self.find(name)
        if bucket is None:
            raise errors.bucket_not_found()
        return bucket


def _check_text(text: str) -> None:
    """Raises what psycopg2 raises for a text that PostgreSQL does not accept."""
    if "\0" in text:
        raise ValueError("A string literal cannot contain NUL (0x00) characters.")


def _check_texts(*texts: str) -> None:
    """Texts with NUL cannot be sent to PostgreSQL: what comes from a client has to be refused before."""
    assert not any("\0" in text for text in texts)


def _folder_of(key: str, prefix: str) -> str | None:
    """The folder that a listing of ``prefix`` shows instead of ``key``; None if it shows the key itself."""
    slash = key.find("/", len(prefix))
    return None if slash < 0 else key[: slash + 1]


@frozen(eq=False)
class FakeObjects:
    tables: Tables

    async def find(self, bucket: str, key: str, viewer: Viewer | None = None) -> ObjectRow | None:
        row = self.tables.objects.get((bucket, key))
        return row if row is not None and self._sees(row, viewer) else None

    async def find_many(
        self, bucket: str, keys: Sequence[str], viewer: Viewer | None = None
    ) -> dict[str, ObjectRow]:
        found = {key: await self.find(bucket, key, viewer) for key in keys}
        return {key: row for key, row in found.items() if row is not None}

    async def page(
        self,
        bucket: str,
        prefix: str,
        after: str | None,
        limit: int,
        recursive: bool,
        viewer: Viewer | None = None,
    ) -> Page:
        _check_texts(prefix, after or "")
        entries: dict[str, ObjectRow | None] = {}
        for row in self.tables.of(bucket):
            if row.key.startswith(prefix) and self._sees(row, viewer, errors.not_allowed):
                folder = None if recursive else _folder_of(row.key, prefix)
                entries[folder or row.key] = row if folder is None else None
        if after is not None:
            start = keys.position_after(after).encode()
            entries = {name: row for name, row in entries.items() if name.encode() >= start}
        shown = dict(list(entries.items())[:limit])
        return Page(
            orjson.dumps([row.as_json() for row in shown.values() if row is not None]),
            orjson.dumps([name for name, row in shown.items() if row is None]),
            list(shown)[-1] if len(entries) > limit else None,
        )

    async def sorted_page(
        self,
        bucket: str,
        prefix: str,
        sorting: Sorting,
        after: tuple[str, str] | None,
        limit: int,
        viewer: Viewer | None = None,
    ) -> SortedPage:
        _check_texts(prefix, sorting.search, *(after or ()))

        def place(row: ObjectRow) -> tuple[Any, bytes]:
            return {"key": "", "size": row.size, "last_modified": row.updated_at}[
                sorting.by
            ], row.key.encode()

        rows = sorted(
            (
                row
                for row in self.tables.of(bucket)
                if row.key.startswith(prefix)
                and sorting.search.lower() in row.key[len(prefix) :].lower()
                and self._sees(row, viewer, errors.not_allowed)
            ),
            key=place,
            reverse=sorting.descending,
        )
        if after is not None:
            readers: dict[str, Callable[[str], Any]] = {
                "key": str,
                "size": int,
                "last_modified": datetime.fromisoformat,
            }
            read = readers[sorting.by]
            start = (read(after[0]), after[1].encode())
            rows = [row for row in rows if (place(row) < start if sorting.descending else place(row) > start)]
        shown = rows[:limit]
        last = None if len(rows) <= limit else shown[-1]
        value = "" if last is None else str(place(last)[0])
        return SortedPage(
            orjson.dumps([row.as_json() for row in shown]), None if last is None else (value, last.key)
        )

    async def entries(
        self,
        bucket: str,
        wanted: Entries,
        offset: int,
        limit: int,
        after: str | None = None,
        viewer: Viewer | None = None,
    ) -> list[ObjectRow | str]:
        entries: dict[str, ObjectRow | str] = {}
        for row in self.tables.of(bucket):
            if row.key.startswith(wanted.prefix) and self._sees(row, viewer, errors.not_allowed):
                folder = None if wanted.recursive else _folder_of(row.key, wanted.prefix)
                entries[folder or row.key] = folder or row
        if after is not None:
            start = keys.position_after(after).encode()
            entries = {name: entry for name, entry in entries.items() if name.encode() >= start}
        if offset + limit > listing.MAX_PASSED or (not wanted.in_order and len(entries) > listing.MAX_PASSED):
            raise validation_failed_too_many_entries(listing.MAX_PASSED)
        search, begin = wanted.search.lower(), len(wanted.prefix)
        found = [one for one in entries.items() if one[0][begin:].lower().startswith(search)]
        found.sort(key=lambda one: one[0].encode(), reverse=wanted.descending)
        if wanted.by != "name":

            def moment(entry: ObjectRow | str) -> datetime:
                return getattr(entry, wanted.by) if isinstance(entry, ObjectRow) else START

            found.sort(key=lambda one: moment(one[1]), reverse=wanted.descending)
            found.sort(key=lambda one: isinstance(one[1], ObjectRow))
        return [entry for _, entry in found[offset : offset + limit]]

    async def keys(self, bucket: str, prefix: str, limit: int) -> list[str]:
        return [row.key for row in self.tables.of(bucket) if row.key.startswith(prefix)][:limit]

    async def usage(self, bucket: str, prefix: str) -> tuple[int, int]:
        sizes = [row.size for row in self.tables.of(bucket) if row.key.startswith(prefix)]
        return len(sizes), sum(sizes)

    async def check_policies(
        self, bucket: str, key: str, size: int, content_type: str, details: Details, writer: Writer
    ) -> None:
        new = NewObject(bucket, key, UUID(int=0), size, content_type, "", details)
        self._judge_put(self.tables.objects.get((bucket, key)), self._row(new, writer, None), writer)

    async def room(self, bucket: str, key: str) -> int | None:
        quota = self.tables.buckets[bucket][0].max_bucket_bytes if bucket in self.tables.buckets else None
        if quota is None:
            return None
        old = self.tables.objects.get((bucket, key))
        total = sum(row.size for row in self.tables.of(bucket))
        return (0 if old is None else old.size) + max(0, quota - total)

    async def put(
        self,
        new: NewObject,
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
        link: bytes | None = None,
    ) -> Switched:
        rules = self._rules(new.bucket)
        if link is not None:
            if link not in self.tables.links:
                raise errors.token_not_found()
            if self.tables.links[link].uses_left == 0:
                raise errors.token_used()
        old = self.tables.objects.get((new.bucket, new.key))
        if rules.policies:
            self._judge_put(old, self._row(new, writer, old), writer)
        self._check(old, rules, writer, conditions)
        held = old.size if old is not None else 0
        total = sum(row.size for row in self.tables.of(new.bucket)) - held + new.size
        if rules.max_bucket_bytes is not None and new.size > held and total > rules.max_bucket_bytes:
            raise errors.payload_too_large_for_bucket()
        if self.tables.uploads.pop(new.version, None) is None:
            raise errors.request_timeout_of_upload()
        if link is not None:
            there = self.tables.links[link]
            left = None if there.uses_left is None else there.uses_left - 1
            self.tables.links[link] = evolve(there, uses_left=left, used_at=self.tables.now())
        return self._insert(self._row(new, writer, old), old)

    def _row(self, new: NewObject, writer: Writer, old: ObjectRow | None) -> ObjectRow:
        keeps = writer.is_service and writer.user_id is None
        now = self.tables.now()
        return ObjectRow(
            new.bucket,
            new.key,
            new.version,
            new.size,
            new.content_type,
            new.etag,
            old.owner if keeps and old is not None else writer.user_id,
            now,
            new.details.max_age_seconds,
            False,
            new.details.cache_control,
            new.details.metadata,
            new.details.content_language,
            new.sha256,
            now if old is None else old.created_at,
            new.version if old is None else old.id,
        )

    async def move_to_bucket(
        self, row: ObjectRow, new: NewObject, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        rules, others = self._rules(row.bucket), self._rules(new.bucket)
        there = await self.find(row.bucket, row.key, access.viewer_of(rules, writer))
        if there is None:
            raise errors.object_not_found()
        old = self.tables.objects.get((new.bucket, new.key))
        moved = evolve(
            there,
            bucket=new.bucket,
            key=new.key,
            version=new.version,
            etag=new.etag,
            updated_at=self.tables.now(),
        )
        if rules.policies:
            self._judge("delete", there, None, writer)
        if others.policies:
            self._judge_put(old, moved, writer)
        self._check(there, rules, writer, UNCONDITIONAL)
        self._check(old, others, writer, conditions)
        if there.version != row.version:
            raise errors.object_changed()
        room = await self.room(new.bucket, new.key)
        if room is not None and there.size > room:
            raise errors.payload_too_large_for_bucket()
        if self.tables.uploads.pop(new.version, None) is None:
            raise errors.request_timeout_of_upload()
        del self.tables.objects[row.bucket, row.key]
        self.tables.removed[row.bucket, row.key] = self.tables.now()
        self.tables.discard(row.bucket, row.version)
        return self._insert(moved, old)

    async def change(
        self,
        bucket: str,
        key: str,
        changes: Mapping[str, Any],
        writer: Writer,
        conditions: Conditions = UNCONDITIONAL,
    ) -> ObjectRow:
        row = self.tables.objects.get((bucket, key))
        if row is None:
            raise errors.object_not_found()
        rules = self._rules(bucket)
        if not self._sees(row, access.viewer_of(rules, writer)):
            raise errors.object_not_found()
        if rules.policies:
            self._judge("update", row, evolve(row, **changes), writer)
        self._check(row, rules, writer, conditions)
        self.tables.objects[bucket, key] = evolve(row, **changes)
        return self.tables.objects[bucket, key]

    async def delete(
        self, bucket: str, keys: Sequence[str], writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Mapping[str, UUID]:
        rules = self._rules(bucket)
        rows = {key: self.tables.objects[bucket, key] for key in keys if (bucket, key) in self.tables.objects}
        viewer = access.viewer_of(rules, writer)
        rows = {key: row for key, row in rows.items() if self._sees(row, viewer)}
        if rules.policies:
            for row in rows.values():
                self._judge("delete", row, None, writer)
        for key in keys:
            self._check(rows.get(key), rules, writer, conditions)
        for key, row in rows.items():
            del self.tables.objects[bucket, key]
            self.tables.removed[bucket, key] = self.tables.now()
            self.tables.discard(bucket, row.version)
        return {key: row.version for key, row in rows.items()}

    async def move(
        self, bucket: str, source: str, target: str, writer: Writer, conditions: Conditions = UNCONDITIONAL
    ) -> Switched:
        rules = self._rules(bucket)
        viewer = access.viewer_of(rules, writer)
        row = await self.find(bucket, source, viewer)
        if row is None:
            raise errors.object_not_found()
        old = self.tables.objects.get((bucket, target))
        if rules.policies:
            self._judge("update", row, evolve(row, key=target), writer)
            if old is not None:
                self._judge("delete", old if self._sees(old, viewer) else None, None, writer)
        self._check(row, rules, writer, UNCONDITIONAL)
        self._check(old, rules, writer, conditions)
        del self.tables.objects[bucket, source]
        self.tables.removed[bucket, source] = self.tables.now()
        return self._insert(evolve(row, key=target, updated_at=self.tables.now()), old)

    async def reserve_uploads(self, versions: Sequence[UUID], bucket: str) -> None:
        for version in versions:
            self.tables.uploads[version] = (bucket, self.tables.now())

    async def release_uploads(self, versions: Sequence[UUID]) -> None:
        for version in versions:
            self.tables.uploads.pop(version, None)

    async def renew_upload(self, version: UUID) -> bool:
        if version not in self.tables.uploads:
            return False
        self.tables.uploads[version] = (self.tables.uploads[version][0], self.tables.now())
        return True

    def _sees(
        self, row: ObjectRow, viewer: Viewer | None, failed: Callable[[], ApiError] | None = None
    ) -> bool:
        """``failed`` makes the error for a policy that fails; without it that one shows nothing."""
        if viewer is None or not viewer.owns(row):
            return viewer is None
        try:
            return viewer.identity is None or self.tables.policies("select", row, viewer.identity)
        except ArithmeticError:
            if failed is not None:
                raise failed() from None
            return False

    def _judge_put(self, old: ObjectRow | None, new: ObjectRow, writer: Writer) -> None:
        if old is None:
            self._judge("insert", None, new, writer)
        else:
            seen = self._sees(old, Viewer(None, writer.identity))
            self._judge("update", old if seen else None, new, writer)

    def _judge(self, command: str, old: ObjectRow | None, new: ObjectRow | None, writer: Writer) -> None:
        """Raise ``not_allowed`` unless policies allow it. ``old`` is None where it may not be seen."""
        if writer.is_service:
            return
        who, policies = writer.identity, self.tables.policies
        try:
            allowed = who is not None and (old is not None or command == "insert")
            if old is not None and who is not None:
                allowed = policies(command, old, who)
            if new is not None and who is not None and allowed:
                allowed = policies("insert" if command == "insert" else "check", new, who)
                allowed = allowed and (command == "insert" or policies("select", new, who))
        except ArithmeticError:
            allowed = False
        if not allowed:
            raise errors.not_allowed()

    def _rules(self, bucket: str) -> BucketRules:
        if bucket not in self.tables.buckets:
            raise errors.bucket_not_found()
        return self.tables.buckets[bucket][0]

    def _check(
        self, row: ObjectRow | None, rules: BucketRules, writer: Writer, conditions: Conditions
    ) -> None:
        assert conditions.unmodified_since is None, "the database compares tags alone"
        access.check_write(rules, row, writer, conditions)

    def _insert(self, row: ObjectRow, old: ObjectRow | None) -> Switched:
        before = self.tables.removed.get((row.bucket, row.key)) if old is None else old.updated_at
        second = row.updated_at.replace(microsecond=0)
        row = evolve(row, changed_twice=before is not None and before >= second)
        self.tables.objects[row.bucket, row.key] = row
        if old is not None:
            self.tables.discard(row.bucket, old.version)
        return Switched(row, None if old is None else old.version)


@frozen(eq=False)
class FakeGarbage:
    tables: Tables

    async def discard(self, versions: Sequence[UUID]) -> list[UUID]:
        claimed = [version for version in versions if version in self.tables.uploads]
        for version in claimed:
            self.tables.garbage[version] = (self.tables.uploads.pop(version)[0], self.tables.now())
        return claimed

    async def stale_uploads(self, silent_for: timedelta, limit: int) -> list[UUID]:
        before = self.tables.now() - silent_for
        silent = sorted(
            (seen, version) for version, (_, seen) in self.tables.uploads.items() if seen <= before
        )
        return [version for _, version in silent][:limit]

    async def garbage(
        self, limit: int, after: UUID | None = None, removed_for: timedelta = timedelta(0)
    ) -> list[tuple[UUID, str]]:
        before = self.tables.now() - removed_for
        rows = sorted(
            (version, bucket) for version, (bucket, since) in self.tables.garbage.items() if since <= before
        )
        return [item for item in rows if after is None or item[0] > after][:limit]

    async def forget(self, versions: Sequence[UUID]) -> list[UUID]:
        for version in versions:
            self.tables.garbage.pop(version, None)
            self.tables.rendition_of.pop(version, None)
        return [made for made, of in self.tables.rendition_of.items() if of in versions]

    async def unknown(self, versions: Sequence[UUID]) -> set[UUID]:
        known = {row.version for row in self.tables.objects.values()}
        known |= {made.version for made in self.tables.renditions.values()}
        return set(versions) - known - self.tables.uploads.keys() - self.tables.garbage.keys()

    async def reserved(self, versions: Sequence[UUID]) -> set[UUID]:
        return set(versions) & self.tables.uploads.keys()

    async def current(self, versions: Sequence[UUID]) -> set[UUID]:
        return {row.version for row in self.tables.objects.values()} & set(versions)

    async def objects_from(
        self, after: tuple[str, str] | None, limit: int, *, without_sha256: bool = False
    ) -> list[ObjectRow]:
        rows = sorted(self.tables.objects.values(), key=lambda row: (row.bucket, row.key))
        wanted = [row for row in rows if not (without_sha256 and row.sha256)]
        return [row for row in wanted if after is None or (row.bucket, row.key) > after][:limit]

    async def set_sha256(self, version: UUID, sha256: str) -> bool:
        for at, row in self.tables.objects.items():
            if row.version == version and row.sha256 is None:
                self.tables.objects[at] = evolve(row, sha256=sha256)
                return True
        return False


@frozen(eq=False)
class FakeLinks:
    tables: Tables

    async def add(self, links: Mapping[bytes, Link]) -> None:
        if any(link.bucket not in self.tables.buckets for link in links.values()):
            raise errors.bucket_not_found()
        self.tables.links.update(links)

    async def find(self, token_hash: bytes) -> Link | None:
        return self.tables.links.get(token_hash)

    async def page(
        self,
        bucket: str,
        now: datetime,
        creator: UUID | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> list[Link]:
        links = [
            link
            for link in self.tables.links.values()
            if link.bucket == bucket
            and link.expires_at > now
            and creator in (None, link.created_by)
            and (after is None or (link.created_at, link.id) < after)
        ]
        return sorted(links, key=lambda link: (link.created_at, link.id), reverse=True)[:limit]

    async def revoke(self, bucket: str, link_id: UUID, creator: UUID | None) -> bool:
        for token_hash, link in self.tables.links.items():
            if (link.bucket, link.id) == (bucket, link_id) and creator in (None, link.created_by):
                del self.tables.links[token_hash]
                return True
        return False

    async def use(self, token_hash: bytes, now: datetime) -> bool:
        link = self.tables.links.get(token_hash)
        if link is None or link.expires_at <= now or link.uses_left == 0:
            return False
        left = None if link.uses_left is None else link.uses_left - 1
        self.tables.links[token_hash] = evolve(link, uses_left=left, used_at=now)
        return True

    async def sweep(self, expired_before: datetime) -> int:
        gone = [token for token, link in self.tables.links.items() if link.expires_at < expired_before]
        for token in gone:
            del self.tables.links[token]
        return len(gone)


@frozen(eq=False)
class FakeRenditions:
    tables: Tables

    async def find(self, of: UUID, name: str) -> StoredRendition | None:
        return self.tables.renditions.get((of, name))

    async def keep(
        self,
        bucket: str,
        of: UUID,
        name: str,
        new: StoredRendition,
        max_per_object: int,
        used: Mapping[UUID, float],
    ) -> tuple[StoredRendition | None, list[UUID]]:
        made, uses = self.tables.renditions, self.tables.rendition_uses
        if self.tables.uploads.pop(new.version, None) is None:
            return None, []
        evicted: list[UUID] = []
        current = any(row.version == of for row in self.tables.objects.values())
        if current and max_per_object and (of, name) not in made:
            for version, ago in used.items():
                if version in uses:
                    uses[version] = max(uses[version], self._stamp(ago))
            mine = sorted((key for key in made if key[0] == of), key=lambda key: uses[made[key].version])
            gone = mine[: max(0, len(mine) - max_per_object + 1)]
            evicted = [made.pop(key).version for key in gone]
            self.tables.garbage |= {version: (bucket, self.tables.now()) for version in evicted}
            made[of, name] = new
            uses[new.version] = self._stamp()
        stored = made.get((of, name))
        if stored is None or stored.version != new.version:
            self.tables.garbage[new.version] = (bucket, self.tables.now())
        return stored, evicted

    def _stamp(self, ago: float = 0.0) -> datetime:
        """A time, later than those before, also while the clock stands."""
        return self.tables.now() + timedelta(seconds=-ago, microseconds=len(self.tables.rendition_uses))

    async def forget(self, version: UUID) -> None:
        for key in [key for key, made in self.tables.renditions.items() if made.version == version]:
            del self.tables.renditions[key]


@frozen(eq=False)
class FakeResumables:
    tables: Tables

    async def create(self, upload: ResumableUpload, lasts: timedelta) -> datetime:
        if upload.bucket not in self.tables.buckets:
            raise errors.bucket_not_found()
        expires_at = self.tables.now() + lasts
        self.tables.uploads[upload.version] = (upload.bucket, expires_at)
        self.tables.resumables[upload.version] = evolve(upload, expires_at=expires_at)
        return expires_at

    async def find(self, version: UUID) -> ResumableUpload | None:
        upload = self.tables.resumables.get(version)
        return None if upload is None else evolve(upload, held=self._held(version))

    def _held(self, version: UUID) -> bool:
        return version in self.tables.holds and self.tables.holds[version][1] > self.tables.now()

    def _holds(self, version: UUID, holder: UUID) -> bool:
        """Also after the lease has ended, as long as nobody else holds it."""
        return version in self.tables.resumables and self.tables.holds.get(version, (None,))[0] == holder

    async def hold(self, version: UUID, holder: UUID, lasts: timedelta) -> ResumableUpload | None:
        if version not in self.tables.resumables:
            return None
        if self._held(version):
            self.tables.wanted[version] = self.tables.now()
            return None
        self.tables.holds[version] = (holder, self.tables.now() + lasts)
        self.tables.wanted.pop(version, None)
        return await self.find(version)

    async def renew(self, version: UUID, holder: UUID, lasts: timedelta) -> bool | None:
        if not self._holds(version, holder):
            return None
        self.tables.holds[version] = (holder, self.tables.now() + lasts)
        wanted = self.tables.wanted.get(version)
        return wanted is not None and wanted > self.tables.now() - timedelta(seconds=WAITING_SECONDS)

    async def release(self, version: UUID, holder: UUID) -> None:
        if self._holds(version, holder):
            del self.tables.holds[version]

    async def advance(
        self, version: UUID, holder: UUID, progress: Progress, lasts: timedelta
    ) -> ResumableUpload | None:
        reserved = {version, progress.tail} - {None} <= self.tables.uploads.keys()
        if not self._holds(version, holder) or not reserved:
            return None
        old, expires_at = self.tables.resumables[version], self.tables.now() + lasts
        for one in (version, progress.tail):
            if one is not None:
                self.tables.uploads[one] = (old.bucket, expires_at)
        self.tables.resumables[version] = evolve(
            old,
            received=progress.received,
            length=progress.length,
            upload_id=progress.upload_id,
            etags=(*old.etags, *progress.etags),
            tail=progress.tail,
            etag=progress.etag,
            expires_at=expires_at,
        )
        if old.tail is not None and old.tail != progress.tail:
            await FakeGarbage(self.tables).discard([old.tail])
        return await self.find(version)

    async def expect_sha256(self, version: UUID, holder: UUID, sha256: str) -> bool:
        if not self._holds(version, holder):
            return False
        self.tables.resumables[version] = evolve(self.tables.resumables[version], sha256=sha256)
        return True

    async def commit(
        self, version: UUID, holder: UUID, new: NewObject, writer: Writer, conditions: Conditions
    ) -> Switched | None:
        if not self._holds(version, holder):
            return None
        switched = await FakeObjects(self.tables).put(new, writer, conditions)
        row, old = switched.row, self.tables.resumables[version]
        self.tables.resumables[version] = evolve(old, committed_at=row.updated_at, etag=row.etag)
        return switched

    async def remove(self, version: UUID, holder: UUID) -> list[UUID]:
        if not self._holds(version, holder):
            return []
        upload = self.tables.resumables.pop(version)
        return await FakeGarbage(self.tables).discard(
            [one for one in (version, upload.tail) if one is not None]
        )

    async def sweep(self, expired_before: datetime) -> int:
        old = [one.version for one in self.tables.resumables.values() if one.expires_at < expired_before]
        for version in old:
            del self.tables.resumables[version]
        return len(old)
