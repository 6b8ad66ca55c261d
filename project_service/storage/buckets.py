"""Buckets: what operators decide about them, and how requests see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field
from twisted.internet.interfaces import IReactorTime

from project_service import whole_numbers
from project_service.errors import ApiError, no_text, validation_failed
from project_service.storage import errors, keys
from project_service.storage.durations import BUCKET_FRESH_SECONDS, BUCKET_REREAD_SECONDS
from project_service.storage.repository import BucketRows
from project_service.storage.values import RULES, Bucket, BucketRules

if TYPE_CHECKING:
    from project_service.storage.objects import Objects

MAX_REMEMBERED = 10_000
# S3 has no larger objects. A bucket may have a thousand of these.
MAX_OBJECT_BYTES = 5 * 1024**4
MAX_BYTES = {"max_object_bytes": MAX_OBJECT_BYTES, "max_bucket_bytes": 1000 * MAX_OBJECT_BYTES}
MAX_CONTENT_TYPES = 100
# How often to empty a bucket that is to be deleted, where others put objects into it at the same time.
EMPTYINGS = 10


@define(eq=False)
class Buckets:
    """Buckets as they are in the database. Their rules are remembered for half a second, or for a little longer while
    they are read again; that a bucket does not exist is not remembered."""

    rows: BucketRows
    clock: IReactorTime
    _seen: dict[str, tuple[float, Bucket]] = field(factory=dict, init=False)
    _asking: set[str] = field(factory=set, init=False)

    async def get(self, name: str) -> Bucket:
        """The bucket; raises ``bucket_not_found``. Its rules and counters may be nearly a second old."""
        seen = self._seen.get(name)
        if seen is not None:
            age = self.clock.seconds() - seen[0]
            if age < (BUCKET_REREAD_SECONDS if name in self._asking else BUCKET_FRESH_SECONDS):
                return seen[1]
        return await self.fresh(name)

    async def same(self, bucket: Bucket) -> Bucket:
        """``bucket`` with its present rules; raises ``bucket_not_found`` where it has been deleted, even if there is
        another bucket of its name by now."""
        current = await self.get(bucket.name)
        if current.created_at != bucket.created_at:
            raise errors.bucket_not_found()
        return current

    async def fresh(self, name: str) -> Bucket:
        """The bucket as it is now; raises ``bucket_not_found``."""
        # Its age counts from the question, because the answer may have been long on its way.
        asked = self.clock.seconds()
        bucket = await self._found(name) if keys.is_bucket_name(name) else None
        if bucket is None:
            self._seen.pop(name, None)
            raise errors.bucket_not_found()
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[name] = (asked, bucket)
        return bucket

    async def _found(self, name: str) -> Bucket | None:
        self._asking.add(name)
        try:
            return await self.rows.find(name)
        finally:
            self._asking.discard(name)

    async def all(self) -> list[Bucket]:
        return await self.rows.all()

    async def create(self, name: str, rules: BucketRules) -> Bucket:
        """Raises ``bucket_exists``, and ``validation_failed`` for a name that is not allowed."""
        faults = bucket_name_errors(name)
        if faults:
            raise validation_failed(faults)
        return await self.rows.create(name, rules)

    async def change(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        """Raises ``bucket_not_found``."""
        if not keys.is_bucket_name(name):
            raise errors.bucket_not_found()
        bucket = await self.rows.change(name, changes)
        self._seen.pop(name, None)
        return bucket

    async def delete(self, name: str, objects: Objects | None = None) -> None:
        """Raises ``bucket_not_found``, ``bucket_not_empty`` or ``bucket_in_use``; with ``objects`` it is emptied
        first."""
        bucket = await self.fresh(name)
        if objects is None:
            await self.rows.delete(name)
        else:
            await self._delete_emptied(bucket, objects)
        self._seen.pop(name, None)

    async def _delete_emptied(self, bucket: Bucket, objects: Objects) -> None:
        for left in reversed(range(EMPTYINGS)):
            await objects.delete_prefix(bucket, "")
            try:
                await self.rows.delete(bucket.name)
            except ApiError as refusal:
                if refusal.code != "bucket_not_empty" or not left:
                    raise
            else:
                return


def bucket_name_errors(name: object) -> dict[str, str]:
    """What is wrong with the name of a new bucket, under ``name``."""
    if not isinstance(name, str):
        return {"name": no_text(name)}
    if keys.is_bucket_name(name):
        return {}
    return {"name": "must be 1 to 63 of a-z, 0-9, '.', '_', '-', beginning and ending with a letter or digit"}


def parse_rules(given: Mapping[str, Any], found: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The rules in a JSON object, checked; raises ``validation_failed`` naming every field that is wrong.

    ``found`` is what is wrong with other fields.
    """
    faults = {name: "is not a rule of a bucket" for name in given if name not in RULES} | dict(found or {})
    rules: dict[str, Any] = {}
    for name, value in given.items():
        if name in RULES:
            why = _fault(name, value)
            if why is None:
                rules[name] = _stored(value)
            else:
                faults[name] = why
    if faults:
        raise validation_failed(faults)
    return rules


def _stored(value: Any) -> Any:
    """A valid rule as it is kept: 1e6 is a whole number too."""
    if isinstance(value, list):
        return tuple(value)
    return int(value) if isinstance(value, float) else value


def _fault(name: str, value: Any) -> str | None:
    if name == "visibility":
        return None if value in ("public", "private") else "must be public or private"
    if name == "owner_only_writes":
        return None if isinstance(value, bool) else "must be true or false"
    if value is None:
        return None
    if name == "allowed_content_types":
        fine = isinstance(value, list) and len(value) <= MAX_CONTENT_TYPES
        if fine and all(isinstance(one, str) and keys.is_pattern(one) for one in value):
            return None
        return "must be null or a list of media types, as image/png or image/*"
    number = whole_numbers.from_json(value)
    fine = number is not None and 0 < number <= MAX_BYTES[name]
    return None if fine else f"must be null or a whole number from 1 to {MAX_BYTES[name]}"
