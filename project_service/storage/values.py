"""Buckets and objects as values, and the rules of a bucket, each declared with its schema and its check. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from attrs import asdict, define, evolve, field, fields, frozen
from orjson import Fragment

from project_service import base64url, whole_numbers
from project_service.errors import ApiError, require_text, validation_failed
from project_service.http.json_body import FLAG, Kind, member
from project_service.lifecycle import timestamp
from project_service.settings.model import Storage as StorageSettings
from project_service.storage import keys
from project_service.storage.cache_control import CACHE_CONTROL

Visibility = Literal["public", "private"]

# S3 has no larger objects. A bucket may have a thousand of these.
MAX_OBJECT_BYTES = 5 * 1024**4
MAX_BYTES = {"max_object_bytes": MAX_OBJECT_BYTES, "max_bucket_bytes": 1000 * MAX_OBJECT_BYTES}
MAX_CONTENT_TYPES = 100


def _read_visibility(name: str, value: object) -> object:
    if value not in ("public", "private"):
        raise validation_failed({name: "must be public or private"})
    return value


def _read_limit(name: str, value: object) -> int | None:
    number = whole_numbers.from_json(value)
    if value is not None and (number is None or not 0 < number <= MAX_BYTES[name]):
        raise validation_failed({name: f"must be null or a whole number from 1 to {MAX_BYTES[name]}"})
    return number


def _read_content_types(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    fine = isinstance(value, list) and len(value) <= MAX_CONTENT_TYPES
    if not fine or not all(isinstance(one, str) and keys.is_pattern(one) for one in value):
        raise validation_failed({name: "must be a list of media types, as image/png or image/*, or null"})
    return tuple(value)


def read_bucket_name(name: str, value: object) -> str:
    """``value`` if a new bucket may have it as its name; ``name`` is the field for ``validation_failed``."""
    text = require_text(name, value)
    if not keys.is_bucket_name(text):
        why = "must be 1 to 63 of a-z, 0-9, '.', '_', '-', beginning and ending with a letter or digit"
        raise validation_failed({name: why})
    return text


def read_bucket_id(name: str, value: object) -> str:
    """As ``read_bucket_name``, for a bucket that clients of the Supabase family make."""
    text = require_text(name, value)
    if not keys.is_bucket_id(text):
        why = "must be 1 to 100 of A-Z, a-z, 0-9 and _!.*'() &$@=;:+,?-, without a space at either end"
        raise validation_failed({name: why})
    return text


BUCKET_NAME = Kind({"type": "string", "pattern": f"^{keys.BUCKET_NAME}$"}, read_bucket_name)
_VISIBILITY = Kind({"enum": ["public", "private"]}, _read_visibility)
_OBJECT_LIMIT, _BUCKET_LIMIT = (
    Kind({"type": ["integer", "null"], "minimum": 1, "maximum": maximum}, _read_limit)
    for maximum in MAX_BYTES.values()
)
CONTENT_TYPES = Kind(
    {
        "type": ["array", "null"],
        "maxItems": MAX_CONTENT_TYPES,
        "items": {"type": "string", "description": "type/subtype, type/* or */*"},
    },
    _read_content_types,
)


def validation_failed_owner_only_reads() -> ApiError:
    """The refusal of ``owner_only_reads`` in a public bucket, where anonymous callers may read."""
    return validation_failed(
        {"owner_only_reads": "needs a private bucket; a public one is read by everybody"}
    )


def validation_failed_too_many_entries(most: int) -> ApiError:
    """The refusal of a listing by offset that would have to pass more than ``most`` entries."""
    why = f"cannot be sorted, searched or counted here: there are more than {most} entries"
    return validation_failed({"prefix": why})


def validation_failed_anonymous_reads() -> ApiError:
    """The refusal of ``anonymous_reads`` in a private bucket."""
    return validation_failed(
        {"anonymous_reads": "needs a public bucket; take the rule off before the bucket becomes private"}
    )


def _rule(kind: Kind, default: Any, description: str) -> Any:
    return member(kind, default=default, schema={"description": description})


@frozen
class BucketRules:
    """What an operator decides about a bucket. None means no limit of its own.

    Fields that only describe a bucket belong here too. Their order is that of the columns in SQL.
    """

    visibility: Visibility = _rule(
        _VISIBILITY, "private", "Who may list and download: a project key is enough, or not."
    )
    max_object_bytes: int | None = _rule(_OBJECT_LIMIT, None, "The largest object.")
    max_bucket_bytes: int | None = _rule(_BUCKET_LIMIT, None, "The largest size of all objects together.")
    allowed_content_types: tuple[str, ...] | None = _rule(
        CONTENT_TYPES, None, "What it takes; null: everything."
    )
    owner_only_writes: bool = _rule(FLAG, False, "Only its owner may overwrite, move or delete an object.")
    owner_only_reads: bool = _rule(FLAG, False, "Only its owner knows of an object. For private buckets.")
    anonymous_reads: bool = _rule(
        FLAG, False, "Anybody may download without a key, at /storage/public. For public buckets."
    )
    policies: bool = _rule(FLAG, False, "Row-level security on storage.objects decides what users may do.")
    cache_control: str | None = _rule(
        CACHE_CONTROL,
        None,
        "Cache-Control of objects that have none of their own; private in a private bucket.",
    )

    def __attrs_post_init__(self) -> None:
        if self.owner_only_reads and self.visibility == "public":
            raise validation_failed_owner_only_reads()
        if self.anonymous_reads and self.visibility != "public":
            raise validation_failed_anonymous_reads()


RULE_SCHEMAS = {one.name: one.metadata["kind"].schema for one in fields(BucketRules)}

# Rules that are between operators and the bucket as a whole.
NOT_SEEN = frozenset({"max_bucket_bytes"})


@frozen
class Bucket:
    """A bucket with its rules and its counters.

    ``open``: whoever asks at ``/storage/v1/object/public`` gets every object of it, whatever policies show to others,
    as long as it has ``anonymous_reads``. ``owner`` is the user who made it, as policies on buckets allowed.
    """

    name: str
    rules: BucketRules
    object_count: int
    total_bytes: int
    created_at: datetime
    open: bool = False
    updated_at: datetime = field()
    owner: UUID | None = None

    @updated_at.default
    def _not_changed(self) -> datetime:
        return self.created_at

    @property
    def public(self) -> bool:
        return self.rules.visibility == "public"

    def as_seen(self) -> dict[str, Any]:
        """What concerns those who use it."""
        rules = asdict(self.rules).items()
        return {"name": self.name, **{rule: value for rule, value in rules if rule not in NOT_SEEN}}

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **asdict(self.rules),
            "object_count": self.object_count,
            "total_bytes": self.total_bytes,
            "created_at": timestamp(self.created_at),
        }


@define(eq=False)
class Live:
    """The settings of storage, which are replaced when the configuration is read again. So nobody may keep them."""

    settings: StorageSettings


@frozen
class Details:
    """What an uploader may say of an object; None: nothing.

    ``cache_control`` is a value of that header, and ``max_age_seconds`` its age, or an age alone. ``metadata`` is a
    JSON object, as text. ``content_language`` is a value of that header.
    """

    max_age_seconds: int | None = None
    cache_control: str | None = None
    metadata: str | None = None
    content_language: str | None = None


NO_DETAILS = Details()


@frozen
class ObjectRow:
    """An object as the database knows it. Its bytes are in the store under ``path``.

    The members from ``cache_control`` to ``content_language``, and ``max_age_seconds``, are its ``Details``.
    ``changed_twice``: the key had other bytes earlier in the second of ``updated_at``, so this date does not tell
    them apart. ``sha256``, in hexadecimal, is of the whole object; None if it was not computed when the bytes came.
    ``id`` and ``created_at`` stay when the object is replaced or moved.
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
    cache_control: str | None = None
    metadata: str | None = None
    content_language: str | None = None
    sha256: str | None = None
    created_at: datetime = field()
    id: UUID = field()

    @created_at.default
    def _not_replaced(self) -> datetime:
        return self.updated_at

    @id.default
    def _first_version(self) -> UUID:
        return self.version

    @property
    def details(self) -> Details:
        return Details(self.max_age_seconds, self.cache_control, self.metadata, self.content_language)

    @property
    def modified(self) -> datetime:
        """``updated_at`` in whole seconds, as Last-Modified shows it."""
        return self.updated_at.replace(microsecond=0)

    @property
    def path(self) -> str:
        return store_path(self.bucket, self.version)

    def as_rendition(self, stored: StoredRendition, key: str, content_type: str) -> ObjectRow:
        """The row of a picture that was made of this object, named ``key``."""
        return evolve(
            self,
            key=key,
            version=stored.version,
            size=stored.size,
            content_type=content_type,
            etag=stored.etag,
            sha256=None,  # the object's is of other bytes
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "size": self.size,
            "content_type": self.content_type,
            "last_modified": timestamp(self.updated_at),
            "etag": self.etag,
        }

    def as_info(self, with_owner: bool) -> dict[str, Any]:
        """As ``as_json``, with everything else that there is to know of it."""
        owner = None if self.owner is None else str(self.owner)
        return {
            **self.as_json(),
            **({"owner": owner} if with_owner else {}),
            "max_age_seconds": self.max_age_seconds,
            "cache_control": self.cache_control,
            "content_language": self.content_language,
            "metadata": None if self.metadata is None else Fragment(self.metadata),
            "sha256": self.sha256,
        }


@frozen
class StoredRendition:
    """A picture that was made of an object. Its bytes are in the store as those of an object are, under a version of
    its own."""

    version: UUID
    size: int
    etag: str


# Begins the folder of a bucket whose id is no name, and may have characters that not every store takes.
ENCODED = "~"


def store_path(bucket: str, version: UUID) -> str:
    """Where the bytes of a version are in the store."""
    if keys.is_bucket_name(bucket):
        return f"{bucket}/{version}"
    return f"{ENCODED}{base64url.encode(bucket.encode())}/{version}"


# The roles of callers, as the table API has them.
ANON_ROLE, USER_ROLE = "anon", "authenticated"


@frozen
class Identity:
    """As whom policies judge a caller: ``ANON_ROLE`` or ``USER_ROLE``, and the claims of their token as JSON."""

    role: str
    claims: str = field(repr=False)


@frozen
class Viewer:
    """What a caller may see of a bucket, where that is not everything: with ``owner`` only the objects of this user,
    with ``identity`` only those that policies show to it."""

    owner: UUID | None = None
    identity: Identity | None = None

    @property
    def is_anybody(self) -> bool:
        """Whether everybody who has the anon key may see this."""
        return self.owner is None and self.identity is not None and self.identity.role == ANON_ROLE

    def owns(self, row: ObjectRow) -> bool:
        """Whether ``row`` may be seen as far as it depends on its owner."""
        return self.owner is None or row.owner == self.owner


@frozen
class Writer:
    """The caller of a change, and the owner of what is written. The service key passes every rule about owners, and
    policies; without a user an object that it overwrites keeps its owner. Without an ``identity`` policies allow a
    user nothing."""

    user_id: UUID | None
    is_service: bool = False
    identity: Identity | None = None


SERVICE = Writer(None, is_service=True)


@frozen
class Conditions:
    """``If-Match`` and ``If-None-Match`` of a write, as entity tags without quotes; "*" stands for any.

    ``unmodified_since`` is ``If-Unmodified-Since``, which counts only without ``If-Match``.
    """

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    unmodified_since: datetime | None = None

    def unmodified(self, row: ObjectRow) -> bool:
        return self.unmodified_since is None or row.modified <= self.unmodified_since


UNCONDITIONAL = Conditions()
# Only if there is no object with the key.
NEW_ONLY = Conditions(if_none_match=("*",))


@frozen
class UploadTerms:
    """What a link for an upload takes, within the rules of its bucket. None means no limit of its own.

    ``by_prefix``: the object's key begins with that of the link, and the uploader chooses the rest. ``overwrite``: it
    may replace an object. ``as_service``: the upload has the rights of the service key.
    """

    by_prefix: bool = False
    max_bytes: int | None = None
    content_types: tuple[str, ...] | None = None
    overwrite: bool = False
    as_service: bool = False


@frozen
class ResumableUpload:
    """An upload that takes several requests, as the database knows it. The id in its URL is ``version``.

    ``owner`` and ``by_service`` are those of the caller who began it, ``metadata`` is ``Upload-Metadata`` as it was
    sent, ``length`` is None until the client knows it. ``received`` bytes are in the store: the parts that ``etags``
    name, of the sizes that ``first_part`` and ``part_step`` give, and in ``tail``, a version of its own, what fills
    no part yet. ``etag`` is that of all bytes together, once they are under ``version``. ``committed_at`` is when it
    became an object; None before. ``held``: a request is writing to it. ``sha256``, in hexadecimal, is what the whole
    must have; None if the client has not said.
    """

    version: UUID
    bucket: str
    key: str
    content_type: str
    owner: UUID | None
    by_service: bool
    details: Details
    conditions: Conditions
    metadata: str
    length: int | None
    first_part: int
    part_step: int
    received: int = 0
    upload_id: str | None = None
    etags: tuple[str, ...] = ()
    tail: UUID | None = None
    etag: str | None = None
    expires_at: datetime = datetime.max.replace(tzinfo=UTC)
    committed_at: datetime | None = None
    held: bool = False
    sha256: str | None = None

    @property
    def path(self) -> str:
        return store_path(self.bucket, self.version)

    @property
    def whole(self) -> bool:
        """Whether every byte has been received."""
        return self.received == self.length


@frozen
class Progress:
    """What ``ResumableRows.advance`` records: as in ``ResumableUpload``, but ``etags`` are those of new parts."""

    received: int
    length: int | None
    upload_id: str | None
    etags: tuple[str, ...]
    tail: UUID | None
    etag: str | None = None


@frozen
class Link:
    """A link that downloads an object or, with ``upload``, takes one.

    ``uses_left`` None: any number until it expires. ``used_at``: the last time. ``created_by``: the user who made it.
    With ``owner`` a download opens only an object of this user, also if the key gets an object of somebody else; what
    is uploaded belongs to them. With ``identity`` policies decide as for it each time that the link is used.
    """

    bucket: str
    key: str
    expires_at: datetime
    uses_left: int | None
    id: UUID
    created_at: datetime
    created_by: UUID | None = None
    used_at: datetime | None = None
    owner: UUID | None = None
    upload: UploadTerms | None = None
    identity: Identity | None = None

    @property
    def viewer(self) -> Viewer | None:
        """What a download by the link may see; None: everything."""
        restricted = self.owner is not None or self.identity is not None
        return Viewer(self.owner, self.identity) if restricted else None

    @property
    def method(self) -> str:
        return "GET" if self.upload is None else "PUT"

    def as_json(self) -> dict[str, Any]:
        """What its creator sees in a list."""
        terms = self.upload or UploadTerms()
        return {
            "id": str(self.id),
            "method": self.method,
            "key": None if terms.by_prefix else self.key,
            "key_prefix": self.key if terms.by_prefix else None,
            "created_at": timestamp(self.created_at),
            "created_by": None if self.created_by is None else str(self.created_by),
            "expires_at": timestamp(self.expires_at),
            "uses_left": self.uses_left,
            "used_at": None if self.used_at is None else timestamp(self.used_at),
            "max_bytes": terms.max_bytes,
            "content_types": terms.content_types,
            "overwrite": terms.overwrite,
        }


def _size_of_token(text: str) -> str:
    number = whole_numbers.from_digits(text)
    if number is None or not 0 <= number < 2**63:
        raise ValueError("it is no size")
    return str(number)


def _moment_of_token(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    return moment.astimezone(UTC).isoformat()


# What a listing can be sorted by, each with a function that reads its value in a page token and returns it as the
# database can compare it, or raises ``ValueError``. Of keys alone there is no such value.
SORTS: Mapping[str, Callable[[str], str]] = {
    "key": lambda text: "",
    "size": _size_of_token,
    "last_modified": _moment_of_token,
}


@frozen
class Sorting:
    """How a listing without folders is sorted, and what is searched for: part of what follows the prefix in a key, in
    either case; "" for everything. ``by`` is one of ``SORTS``; objects that are equal by it are in the order of their
    keys."""

    by: str = "key"
    descending: bool = False
    search: str = ""


@frozen
class Entries:
    """Which entries of a bucket a listing by offset has: objects, and without ``recursive`` the folders in place of
    what is in them, whose names end with a slash. ``search`` is how what follows the prefix begins, in either case.
    Sorted by a time the folders come first, by their names."""

    prefix: str
    by: Literal["name", "created_at", "updated_at"] = "name"
    descending: bool = False
    search: str = ""
    recursive: bool = False

    @property
    def in_order(self) -> bool:
        """Whether they come in the order of keys, so that no more are passed than a page needs."""
        return self.by == "name" and not self.descending and not self.search


@frozen
class SortedPage:
    """A page of such a listing. ``objects`` is a JSON array as in ``Page``. ``last`` is where the next page goes on:
    what it is sorted by, as text, and a key; None on the last page. A page may have fewer objects than fit, or none,
    and still not be the last: the search goes on there."""

    objects: bytes
    last: tuple[str, str] | None


@frozen
class Page:
    """A page of a listing, in the order of keys; ``last`` is its last entry where more follow, else None.

    ``objects`` (as ``ObjectRow.as_json`` has them) and ``folders`` are JSON arrays.
    """

    objects: bytes
    folders: bytes
    last: str | None


@frozen
class NewObject:
    """The object that ``ObjectRows.put`` makes current. The store must have all its bytes, under ``version``."""

    bucket: str
    key: str
    version: UUID
    size: int
    content_type: str
    etag: str
    details: Details = NO_DETAILS
    sha256: str | None = None


@frozen
class Switched:
    """The object as it is now, and the version that it replaced."""

    row: ObjectRow
    replaced: UUID | None
