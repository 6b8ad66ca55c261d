"""``/bucket``: buckets. The service key makes, changes, deletes and sees them, and callers as far as policies on
``storage.buckets`` let them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from attrs import frozen

from project_service import whole_numbers
from project_service.audit import By, by_service
from project_service.errors import validation_failed
from project_service.http.describe import (
    BOOLEAN,
    MOMENT,
    STRING,
    Named,
    Operation,
    Parameter,
    Schema,
    array,
    obj,
)
from project_service.http.json_body import FLAG, TEXT, Kind, member, or_null, read_members
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import timestamp
from project_service.storage import access, errors
from project_service.storage.buckets import Buckets
from project_service.storage.objects import Objects
from project_service.storage.routes.descriptions import DATABASE_AND_STORE, NO_BUCKET
from project_service.storage.values import CONTENT_TYPES, MAX_OBJECT_BYTES, Bucket, BucketRules
from project_service.supabase.storage.common import IN_BUCKET, MESSAGE, TAG, body_of, ok, read_body

ONE = "/bucket/<bucket>"

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?) ?([kmgt]?b)?", re.IGNORECASE | re.ASCII)
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def read_size(name: str, value: object) -> int | None:
    """A number of bytes, or a text such as ``20MB`` with decimal units. None for null and 0, which mean no limit.
    Raises ``validation_failed``."""
    if value is None:
        return None
    number = whole_numbers.from_json(value)
    if number is None and isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number = int(Decimal(match[1]) * _UNITS[(match[2] or "b").lower()])
    if number is None or not 0 <= number <= MAX_OBJECT_BYTES:
        why = f"must be a size of up to {MAX_OBJECT_BYTES} bytes, as 20MB, 500kB or a whole number"
        raise validation_failed({name: why})
    return number or None


_SIZE_KIND = Kind({"type": ["integer", "string", "null"], "description": "In bytes, or as 20MB."}, read_size)
_BUCKET_MEMBERS: dict[str, Schema] = {
    "id": STRING,
    "name": STRING,
    "owner": STRING,
    "public": BOOLEAN,
    "file_size_limit": {"type": ["integer", "null"]},
    "allowed_mime_types": {"type": ["array", "null"], "items": STRING},
    "created_at": MOMENT,
    "updated_at": MOMENT,
}
_BUCKET = Named("ClientBucket", obj(_BUCKET_MEMBERS, False, **_BUCKET_MEMBERS))


@frozen
class BucketChanges:
    """What is absent stays."""

    public: bool | None = member(or_null(FLAG), default=None)
    file_size_limit: int | None = member(_SIZE_KIND, default=None)
    allowed_mime_types: tuple[str, ...] | None = member(CONTENT_TYPES, default=None)


@frozen(kw_only=True)
class NewBucket(BucketChanges):
    name: str = member(TEXT)
    id: str | None = member(or_null(TEXT), default=None)


def shown(bucket: Bucket, with_type: bool = False) -> dict[str, Any]:
    types = bucket.rules.allowed_content_types
    return {
        "id": bucket.name,
        "name": bucket.name,
        "owner": "" if bucket.owner is None else str(bucket.owner),
        "public": bucket.rules.anonymous_reads,
        **({"type": "STANDARD"} if with_type else {}),
        "file_size_limit": bucket.rules.max_object_bytes,
        "allowed_mime_types": None if types is None else [*types],
        "created_at": timestamp(bucket.created_at),
        "updated_at": timestamp(bucket.updated_at),
    }


_SORTS: dict[str, Callable[[Bucket], Any]] = {
    "id": lambda bucket: bucket.name,
    "name": lambda bucket: bucket.name,
    "created_at": lambda bucket: (bucket.created_at, bucket.name),
    "updated_at": lambda bucket: (bucket.updated_at, bucket.name),
}
_ORDERS = ("asc", "desc")
_REFUSED = (errors.not_allowed(), NO_BUCKET)


@frozen(eq=False)
class BucketRoutes:
    buckets: Buckets
    objects: Objects
    now: Callable[[], datetime]

    def by(self, request: Request) -> By:
        """For what is done with the service key; what others do is not recorded."""
        return partial(by_service, request, self.now())

    @endpoint(
        "GET",
        "/bucket",
        Operation(
            "listBuckets",
            TAG,
            "The buckets: all for the service key, for others those that policies show",
            ok("The buckets", array(_BUCKET)),
            (
                Parameter("limit", "How many.", {"type": "integer", "minimum": 1}),
                Parameter("offset", "How many to pass over.", {"type": "integer", "minimum": 0}),
                Parameter("search", "Part of their names, in either case."),
                Parameter("sortColumn", "What to sort by.", {"enum": [*_SORTS], "default": "name"}),
                Parameter("sortOrder", "desc: backwards.", {"enum": [*_ORDERS], "default": "asc"}),
            ),
        ),
    )
    async def list(self, request: Request) -> Reply:
        limit, offset = _number(request, "limit", 1), _number(request, "offset", 0) or 0
        column = _choice(request, "sortColumn", tuple(_SORTS)) or "name"
        descending = _choice(request, "sortOrder", _ORDERS) == "desc"
        search = (request.query_value("search") or "").lower()
        seen = await self.buckets.seen_by(access.caller_by_policies(request.caller))
        found = [bucket for bucket in seen if search in bucket.name.lower()]
        found.sort(key=_SORTS[column], reverse=descending)
        end = None if limit is None else offset + limit
        return _reply([shown(bucket, with_type=True) for bucket in found[offset:end]])

    @endpoint(
        "POST",
        "/bucket",
        Operation(
            "createBucket",
            TAG,
            "Make a bucket in which policies decide; a public one may be downloaded from by anybody",
            ok("Its name", obj(("name",), False, name=STRING)),
            body=body_of(NewBucket),
            errors=(errors.not_allowed(), errors.bucket_exists()),
        ),
    )
    async def create(self, request: Request) -> Reply:
        body = await read_body(request, NewBucket)
        is_open = body.public is True
        rules = BucketRules(
            "public" if is_open else "private",
            max_object_bytes=body.file_size_limit,
            allowed_content_types=body.allowed_mime_types or None,
            anonymous_reads=is_open,
            policies=True,
        )
        writer = access.caller_by_policies(request.caller)
        bucket = await self.buckets.create_by_id(
            body.id or body.name, rules, is_open, writer, self.by(request)
        )
        return _reply({"name": bucket.name})

    @endpoint(
        "GET",
        ONE,
        Operation(
            "getBucket", TAG, "One bucket", ok("The bucket", _BUCKET), (IN_BUCKET,), errors=(NO_BUCKET,)
        ),
    )
    async def show(self, request: Request) -> Reply:
        writer = access.caller_by_policies(request.caller)
        return _reply(shown(await self.buckets.shown_to(writer, request.path_args["bucket"])))

    @endpoint(
        "PUT",
        ONE,
        Operation(
            "updateBucket",
            TAG,
            "Change a bucket",
            ok("That it was done", MESSAGE),
            (IN_BUCKET,),
            body_of(BucketChanges),
            _REFUSED,
        ),
    )
    async def change(self, request: Request) -> Reply:
        given = await request.json_object()
        names = ("public", "file_size_limit", "allowed_mime_types")
        sent = read_members(BucketChanges, {name: given[name] for name in names if name in given})
        changes: dict[str, Any] = {}
        if "file_size_limit" in sent:
            changes["max_object_bytes"] = sent["file_size_limit"]
        if "allowed_mime_types" in sent:
            changes["allowed_content_types"] = sent["allowed_mime_types"] or None
        is_open = sent.get("public")
        if is_open is not None:
            changes |= {"visibility": "public" if is_open else "private", "anonymous_reads": is_open}
        writer = access.caller_by_policies(request.caller)
        await self.buckets.change(request.path_args["bucket"], changes, is_open, writer, self.by(request))
        return _reply({"message": "Successfully updated"})

    @endpoint(
        "POST",
        f"{ONE}/empty",
        Operation(
            "emptyBucket",
            TAG,
            "Delete everything in a bucket; it is done when the response comes",
            ok("That it was done", MESSAGE),
            (IN_BUCKET,),
            errors=(*_REFUSED, errors.object_in_use()),
            needs=DATABASE_AND_STORE,
        ),
    )
    async def empty(self, request: Request) -> Reply:
        writer = access.caller_by_policies(request.caller)
        bucket = await self.buckets.shown_to(writer, request.path_args["bucket"])
        await self.objects.empty(bucket, access.writer_by_policies(request.caller, bucket), self.by(request))
        # The words of those servers, by which clients' tests go.
        return _reply({"message": "Empty bucket has been queued. Completion may take up to an hour."})

    @endpoint(
        "DELETE",
        ONE,
        Operation(
            "deleteBucket",
            TAG,
            "Delete an empty bucket",
            ok("That it was done", MESSAGE),
            (IN_BUCKET,),
            errors=(*_REFUSED, errors.bucket_not_empty(), errors.bucket_in_use()),
        ),
    )
    async def delete(self, request: Request) -> Reply:
        writer = access.caller_by_policies(request.caller)
        await self.buckets.delete(request.path_args["bucket"], writer, self.by(request))
        return _reply({"message": "Successfully deleted"})


def _number(request: Request, name: str, minimum: int) -> int | None:
    text = request.query_value(name)
    if text is None:
        return None
    number = whole_numbers.from_digits(text)
    if number is None or number < minimum:
        raise validation_failed({name: f"must be a whole number from {minimum}"})
    return min(number, 2**31)


def _choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    text = request.query_value(name)
    if text is not None and text not in choices:
        raise validation_failed({name: f"must be one of {', '.join(choices)}"})
    return text


def _reply(value: object) -> Reply:
    return json_reply(value, headers=(NO_STORE,))
