"""``/storage/buckets/{bucket}/copy`` and ``move``."""

from __future__ import annotations

from attrs import frozen

from project_service.errors import service_key_required, validation_failed
from project_service.http.describe import Operation
from project_service.http.json_body import body_of, member, or_null, text
from project_service.http.request import Request
from project_service.http.response import Reply, json_reply
from project_service.http.routing import endpoint
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.objects import Objects
from project_service.storage.parsing.conditions import making_conditions
from project_service.storage.routes.common import changeable, created, writable
from project_service.storage.routes.descriptions import (
    BUCKET,
    DATABASE_AND_STORE,
    IN_BUCKET,
    KEY,
    MAKE_IF,
    METADATA,
    NO_OBJECT,
    OWNER_HEADER,
    TAG,
    WRITE_REFUSED,
    json_answer,
)
from project_service.storage.values import Bucket


@frozen
class FromTo:
    """The keys of a copy or move, within a bucket or into another."""

    source: str = member(text(KEY), name="from")
    target: str = member(text(KEY), name="to")
    to_bucket: str | None = member(
        or_null(text({"type": "string"})),
        default=None,
        schema={"description": "Another bucket, whose rules and quota hold then."},
    )

    def parsed(self, within: bool = True) -> tuple[str, str]:
        """Raises ``invalid_key``, and ``validation_failed`` if they are the same ``within`` a bucket."""
        source, target = keys.parse_key(self.source, "from"), keys.parse_new_key(self.target, "to")
        if within and source == target:
            raise validation_failed({"to": "is the same as from"})
        return source, target


@frozen(eq=False)
class CopyRoutes:
    buckets: Buckets
    objects: Objects

    @endpoint(
        "POST",
        f"{BUCKET}/copy",
        Operation(
            "copyObject",
            TAG,
            "Copy an object within its bucket, or into another",
            (json_answer(201, "The metadata of the copy", METADATA),),
            (IN_BUCKET, *MAKE_IF, OWNER_HEADER),
            body_of(FromTo),
            (
                *WRITE_REFUSED,
                service_key_required(),
                NO_OBJECT,
                errors.payload_too_large_for_bucket(),
                errors.unsupported_media_type_of_object("a type that the other bucket does not take"),
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
    )
    async def copy(self, request: Request) -> Reply:
        bucket, writer = await writable(self.buckets, request)
        body = await request.read_json(FromTo)
        to = await self._target(bucket, body)
        source, target = body.parsed(within=to is bucket)
        conditions = making_conditions(request.headers)
        switched = await self.objects.copy(bucket, source, to, target, writer, conditions)
        return created(request, switched.row)

    @endpoint(
        "POST",
        f"{BUCKET}/move",
        Operation(
            "moveObject",
            TAG,
            "Give an object another key, or another bucket",
            (json_answer(200, "The metadata under the new key", METADATA),),
            (IN_BUCKET, *MAKE_IF),
            body_of(FromTo),
            (
                *WRITE_REFUSED,
                NO_OBJECT,
                errors.bad_request_object_owner(),
                errors.object_in_use(),
                errors.object_changed(),
                errors.payload_too_large_for_bucket(),
                errors.unsupported_media_type_of_object("a type that the other bucket does not take"),
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
    )
    async def move(self, request: Request) -> Reply:
        bucket, writer = await changeable(self.buckets, request)
        body = await request.read_json(FromTo)
        to = await self._target(bucket, body)
        source, target = body.parsed(within=to is bucket)
        conditions = making_conditions(request.headers)
        if to is bucket:
            switched = await self.objects.move(bucket, source, target, writer, conditions)
        else:
            switched = await self.objects.move_to_bucket(bucket, source, to, target, writer, conditions)
        return json_reply(switched.row.as_json())

    async def _target(self, bucket: Bucket, body: FromTo) -> Bucket:
        """The bucket of the copy or move, ``bucket`` itself where the body names no other."""
        return (
            bucket if body.to_bucket in (None, bucket.name) else await self.buckets.get(body.to_bucket or "")
        )
