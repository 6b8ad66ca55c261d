"""What storage must know, as a few dictionaries, written from ``docs/storage.rst``. Times are Unix seconds.

A question that may be refused is answered with the codes of all refusals that apply; which of them is given is left
to the service.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from attrs import define, evolve, field, frozen

from tests.pictures import png

RANGE_REFUSED = "range_not_satisfiable"
FOREVER = 2.0**40
# All that can be resized of what the machine uploads.
PICTURES = (png(200, 0, 0), png(0, 0, 200))


@frozen
class Caller:
    """``user`` is an id, None for somebody caller has only a key; without ``key`` there is nothing at all."""

    user: str | None = None
    key: str | None = "anon"

    @property
    def is_service(self) -> bool:
        return self.key == "service"

    @property
    def signed_in(self) -> bool:
        return self.key is not None and (self.is_service or self.user is not None)


@frozen
class Rules:
    """As ``/admin/buckets`` shows them, without ``visibility``."""

    max_object_bytes: int | None = None
    max_bucket_bytes: int | None = None
    allowed_content_types: tuple[str, ...] | None = None
    owner_only_writes: bool = False
    owner_only_reads: bool = False
    anonymous_reads: bool = False
    cache_control: str | None = None

    def unfit(self, public: bool) -> set[str]:
        """Why a bucket may not have these rules together with its visibility."""
        return {"validation_failed"} if (self.owner_only_reads if public else self.anonymous_reads) else set()


@define
class Bucket:
    """``number`` tells a bucket from another that had the same name."""

    public: bool
    number: int
    rules: Rules = Rules()


# Values of Cache-Control, and the age that is shown of each.
AGES = {"max-age=60, immutable": 60, "no-store": 0, "public, s-maxage=9": None}


@frozen
class Details:
    """What the uploader says of an object; ``album`` is a member of its metadata."""

    cache_control: str | None = None
    language: str | None = None
    album: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As ``PATCH`` takes them."""
        return {
            "cache_control": self.cache_control,
            "content_language": self.language,
            "metadata": None if self.album is None else {"album": self.album},
        }

    def as_headers(self) -> dict[str, str]:
        sent = {"Cache-Control": self.cache_control, "Content-Language": self.language}
        if self.album is not None:
            sent["X-Metadata"] = b64encode(json.dumps({"album": self.album}).encode()).decode()
        return {name: value for name, value in sent.items() if value is not None}


@frozen
class Stored:
    """``changed`` is in whole seconds, as HTTP's dates are; ``etag`` is bare. ``widths`` are those for which there is
    a rendition: of these bytes, and of no others that the key had or will have."""

    payload: bytes
    content_type: str
    owner: str | None
    etag: str
    changed: int
    details: Details = Details()
    widths: frozenset[int] = frozenset()

    def not_resized(self) -> set[str]:
        """Why there is no rendition of it. All pictures of the machine are PNG."""
        if self.content_type != "image/png":
            return {"image_type_unsupported"}
        return set() if self.payload in PICTURES else {"image_invalid"}


@frozen
class Condition:
    """``tag`` belongs to the first two kinds, ``seconds`` to ``If-Unmodified-Since``; the tag ``*`` is any object."""

    header: str = ""
    tag: str = ""
    seconds: int = 0

    def refusal(self, there: Stored | None) -> str:
        """The code of RFC 9110, 13.1, for a change of the object that is ``there``; "" if it may be made."""
        same = there is not None and self.tag in ("*", there.etag)
        if self.header == "If-Match" and not same:
            return "precondition_failed"
        if self.header == "If-None-Match" and same:
            return "object_exists" if self.tag == "*" else "precondition_failed"
        if self.header == "If-Unmodified-Since" and there is not None and there.changed > self.seconds:
            return "precondition_failed"
        return ""


@frozen
class Terms:
    """What a link takes by an upload. With ``by_prefix`` the uploader chooses the rest of the key."""

    by_prefix: bool = False
    max_bytes: int | None = None
    content_types: tuple[str, ...] | None = None
    overwrite: bool = False

    def not_taken(self, size: int, content_type: str) -> set[str]:
        refusals = set() if accepts(self.content_types, content_type) else {"unsupported_media_type"}
        return {*refusals, "payload_too_large"} if size > (self.max_bytes or FOREVER) else refusals


@define
class Link:
    """``uses`` None: any number. ``owner``: whose objects alone it opens. ``continued_until``: how long the last
    download may be continued. ``upload`` None: it is for downloads."""

    id: str
    bucket: str
    key: str
    signer: Caller
    expires: float
    uses: int | None
    owner: str | None = None
    upload: Terms | None = None
    was_used: bool = False
    continued_until: float = 0.0

    def continues(
        self, headers: dict[str, str], expected: int | tuple[int, int], etag: str, now: float
    ) -> bool:
        """Whether the request goes on with the last download, which is no use of its own."""
        inside = isinstance(expected, tuple) and expected[0] > 0
        return inside and headers.get("If-Range") == f'"{etag}"' and now < self.continued_until

    def use(self) -> None:
        self.was_used, self.uses = True, None if self.uses is None else self.uses - 1

    def shown(self) -> dict[str, Any]:
        """As a list of links shows it, without its times and who made it."""
        terms = self.upload or Terms()
        types = terms.content_types
        return {
            "id": self.id,
            "method": "GET" if self.upload is None else "PUT",
            "key": None if terms.by_prefix else self.key,
            "key_prefix": self.key if terms.by_prefix else None,
            "uses_left": self.uses,
            "max_bytes": terms.max_bytes,
            "content_types": None if types is None else list(types),
            "overwrite": terms.overwrite,
        }


@define
class Model:
    """``objects`` are by bucket and key, ``links`` by token."""

    buckets: dict[str, Bucket] = field(factory=dict)
    objects: dict[tuple[str, str], Stored] = field(factory=dict)
    links: dict[str, Link] = field(factory=dict)

    def of(self, bucket: str) -> dict[str, Stored]:
        return {key: one for (name, key), one in self.objects.items() if name == bucket}

    def total(self, bucket: str) -> int:
        return sum(len(one.payload) for one in self.of(bucket).values())

    def unreadable(self, caller: Caller, bucket: str) -> set[str]:
        """Why ``caller`` may not list, download or presign in ``bucket``."""
        if caller.key is None:
            return {"project_key_required"}
        if bucket not in self.buckets:
            return {"bucket_not_found"}
        private = not self.buckets[bucket].public
        return {"authentication_required"} if private and not caller.signed_in else set()

    def page(self, bucket: str, key: str) -> Stored | None:
        """The object, if it is shown to anybody at ``/storage/public``."""
        shown = bucket in self.buckets and self.buckets[bucket].rules.anonymous_reads
        return self.objects.get((bucket, key)) if shown else None

    def kept(self, bucket: str, there: Stored) -> int | None:
        """For how long the object says, or its bucket, that one caller may keep it; 0 for not at all."""
        said = there.details.cache_control or self.buckets[bucket].rules.cache_control or ""
        return 0 if "no-store" in said else 60 if "max-age=60" in said.replace("s-maxage", "") else None

    def caching(self, bucket: str, there: Stored, to_all: bool = True) -> str:
        """The ``Cache-Control`` of an object; of one that is not shown ``to_all``, if its bucket is private."""
        if not (to_all or self.buckets[bucket].public):
            seconds = self.kept(bucket, there)
            return f"private, max-age={seconds}" if seconds else "private, no-store"
        text = there.details.cache_control or self.buckets[bucket].rules.cache_control or "no-cache"
        says_so = any(one in text for one in ("public", "private", "no-store"))
        return text if says_so else f"public, {text}"

    def unwritable(self, caller: Caller, bucket: str) -> set[str]:
        if caller.key is None:
            return {"project_key_required"}
        refusals = set() if bucket in self.buckets else {"bucket_not_found"}
        return refusals if caller.signed_in else {*refusals, "authentication_required"}

    def unchangeable(
        self, caller: Caller, bucket: str, key: str, condition: Condition = Condition()
    ) -> set[str]:
        """Why the object, which may be missing, may not be replaced or removed."""
        refusals = self.unwritable(caller, bucket)
        if refusals:
            return refusals
        there = self.objects.get((bucket, key))
        rules = self.buckets[bucket].rules
        guarded = (rules.owner_only_writes or rules.owner_only_reads) and not caller.is_service
        foreign = guarded and there is not None and there.owner != caller.user
        return {"not_owner" if foreign else "", condition.refusal(there)} - {""}

    def seen(self, caller: Caller, bucket: str, key: str) -> Stored | None:
        """The object, if ``caller`` may know of it."""
        there = self.objects.get((bucket, key))
        if there is None or not self.buckets[bucket].rules.owner_only_reads or caller.is_service:
            return there
        return there if there.owner == caller.user else None

    def unremovable(
        self, caller: Caller, bucket: str, key: str, condition: Condition = Condition()
    ) -> set[str]:
        """Why the object may not be deleted or moved away; one that is not seen is treated as if it were missing."""
        refusals = self.unwritable(caller, bucket)
        if refusals:
            return refusals
        there = self.seen(caller, bucket, key)
        if there is None:
            return {condition.refusal(None), "object_not_found"} - {""}
        return self.unchangeable(caller, bucket, key, condition)

    def does_not_fit(self, bucket: str, key: str, size: int) -> set[str]:
        """The quota refuses what would add to a bucket that is full by then."""
        quota = self.buckets[bucket].rules.max_bucket_bytes
        there = self.objects.get((bucket, key))
        replaced = 0 if there is None else len(there.payload)
        over = quota is not None and self.total(bucket) - replaced + size > quota
        return {"payload_too_large"} if over and size > replaced else set()

    def not_taken(self, bucket: str, key: str, size: int, content_type: str) -> set[str]:
        """Why the bucket's rules refuse these bytes of this type."""
        rules = self.buckets[bucket].rules
        refusals = self.does_not_fit(bucket, key, size)
        if rules.max_object_bytes is not None and size > rules.max_object_bytes:
            refusals.add("payload_too_large")
        if not accepts(rules.allowed_content_types, content_type):
            refusals.add("unsupported_media_type")
        return refusals

    def remove_bucket(self, bucket: str) -> None:
        """Its links go with it."""
        del self.buckets[bucket]
        self.remove(bucket, self.of(bucket))
        self.links = {token: one for token, one in self.links.items() if one.bucket != bucket}

    def remove(self, bucket: str, keys: Iterable[str]) -> None:
        for key in list(keys):
            del self.objects[bucket, key]

    def move(self, bucket: str, source: str, target: str, changed: int) -> None:
        self.objects[bucket, target] = evolve(self.objects.pop((bucket, source)), changed=changed)

    def resized(self, bucket: str, key: str, widths: Iterable[int]) -> None:
        """There are renditions of the object now."""
        there = self.objects[bucket, key]
        self.objects[bucket, key] = evolve(there, widths=there.widths.union(widths))

    def spent(self, token: str, now: float) -> str:
        """Why a link opens nothing any more; "" while it does."""
        if token not in self.links:
            return "token_not_found"
        link = self.links[token]
        if link.expires <= now:
            return "token_expired"
        return "token_used" if link.uses == 0 else ""

    def linked(self, link: Link) -> Stored | None:
        """What ``link`` opens."""
        there = self.objects.get((link.bucket, link.key))
        return there if there is not None and link.owner in (None, there.owner) else None

    def links_of(self, caller: Caller, bucket: str) -> list[Link]:
        """The links of ``bucket`` that ``caller`` may list and revoke."""
        return [
            link
            for link in self.links.values()
            if link.bucket == bucket and (caller.is_service or link.signer.user == caller.user)
        ]

    def listed(self, caller: Caller, bucket: str, prefix: str, recursive: bool) -> list[str]:
        """The keys and folders that a listing shows, in the order of their bytes."""
        shown = set()
        for key in self.of(bucket):
            if key.startswith(prefix) and self.seen(caller, bucket, key) is not None:
                folder, slash, _ = key[len(prefix) :].partition("/")
                shown.add(key if recursive or not slash else prefix + folder + slash)
        return sorted(shown, key=str.encode)

    def shown(self, name: str) -> dict[str, Any]:
        """What ``/admin/buckets`` shows of a bucket, without the time at which it was created."""
        bucket, rules = self.buckets[name], self.buckets[name].rules
        types = rules.allowed_content_types
        return {
            "name": name,
            "visibility": "public" if bucket.public else "private",
            "max_object_bytes": rules.max_object_bytes,
            "max_bucket_bytes": rules.max_bucket_bytes,
            "allowed_content_types": None if types is None else list(types),
            "owner_only_writes": rules.owner_only_writes,
            "owner_only_reads": rules.owner_only_reads,
            "anonymous_reads": rules.anonymous_reads,
            # Row-level security has tests of its own: live/storage/test_policies.py.
            "policies": False,
            "cache_control": rules.cache_control,
            "object_count": len(self.of(name)),
            "total_bytes": self.total(name),
        }


def accepts(allowed: tuple[str, ...] | None, content_type: str) -> bool:
    """Whether a list of media types, if there is one, has this type or its family."""
    family = content_type.partition("/")[0] + "/*"
    return allowed is None or bool({content_type, family} & set(allowed))


def ranged(text: str | None, payload: bytes) -> tuple[int, int] | str | None:
    """The first and last position that ``Range`` asks for, None for the whole, or ``RANGE_REFUSED``.

    RFC 9110, 14.1.2; several ranges are answered with the whole object.
    """
    if text is None or not text.startswith("bytes="):
        return None
    specs = text.removeprefix("bytes=").split(",")
    ranges = [one for spec in specs if (one := _resolved(spec, len(payload))) is not None]
    if not ranges:
        return RANGE_REFUSED
    return ranges[0] if len(specs) == 1 else None


def _resolved(spec: str, size: int) -> tuple[int, int] | None:
    matched = re.fullmatch(r"(\d*)-(\d*)", spec)
    assert matched is not None, "the machine sends no others"
    first, last = matched.groups()
    if not first:
        return (max(0, size - int(last)), size - 1) if size and int(last) else None
    return (int(first), min(int(last or size), size - 1)) if int(first) < size else None
