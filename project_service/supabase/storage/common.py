"""What the endpoints have in common: reading of bodies, and how an object is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import AttrsInstance, fields
from orjson import Fragment

from project_service.http import json_body
from project_service.http.describe import (
    JSON,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Named,
    RequestBody,
    Schema,
    array,
    in_path,
    obj,
)
from project_service.http.json_body import Kind, M
from project_service.http.request import Request
from project_service.lifecycle import timestamp
from project_service.storage import access
from project_service.storage.buckets import Buckets
from project_service.storage.routes.descriptions import KEY_IN_PATH, KEYS, MAX_BULK_KEYS
from project_service.storage.values import Bucket, ObjectRow, Viewer, Writer

TAG = "supabase"
IN_BUCKET = in_path("bucket", "The bucket's id, which is its name.")
IN_OBJECT = (IN_BUCKET, KEY_IN_PATH)

MESSAGE = obj(("message",), False, message=STRING)
METADATA: Schema = {
    "type": ["object", "null"],
    "description": "eTag, size, mimetype, cacheControl, lastModified, and others; null for a folder.",
}
_TIMES = {
    name: {**MOMENT, "type": ["string", "null"]} for name in ("created_at", "updated_at", "last_accessed_at")
}
FILE = Named(
    "ClientFile",
    obj(
        ("name", "id"),
        False,
        name=STRING,
        id={**UUID, "type": ["string", "null"]},
        metadata=METADATA,
        **_TIMES,
    ),
)
UPLOADED = Named("ClientUploaded", obj(("Id", "Key"), False, Id=UUID, Key=STRING))


# Keys as they are sent: what no object can have is not there, and no fault.
PATHS = Kind(array(STRING, minItems=1, maxItems=MAX_BULK_KEYS), KEYS.read)


def ok(summary: str, schema: Schema | Named) -> tuple[Answer, ...]:
    return (Answer(200, summary, {JSON: schema}),)


def body_of(model: type[AttrsInstance]) -> RequestBody:
    """As ``json_body.body_of``, for ``read_body``."""
    closed = json_body.body_of(model).content[JSON]
    assert isinstance(closed, Mapping)
    return RequestBody({JSON: {name: one for name, one in closed.items() if name != "additionalProperties"}})


async def read_body(request: Request, model: type[M]) -> M:
    """As ``Request.read_json``, but members that the model does not have are ignored: newer clients send more."""
    given = await request.json_object()
    known = {one.metadata["name"] or one.name for one in fields(model)}
    return json_body.read(model, {name: value for name, value in given.items() if name in known})


async def readable(buckets: Buckets, request: Request) -> tuple[Bucket, Viewer | None]:
    """As ``routes.common.readable``, where policies decide alone if the bucket has them."""
    bucket = await buckets.get(request.path_args["bucket"])
    return bucket, access.check_read_by_policies(request.caller, bucket)


async def fetchable(buckets: Buckets, request: Request) -> tuple[Bucket, Viewer | None]:
    """As ``readable``, for one object: what is open to anybody by its public address is so here too."""
    bucket = await buckets.get(request.path_args["bucket"])
    return bucket, access.check_fetch_by_policies(request.caller, bucket)


async def writable(buckets: Buckets, request: Request, name: str | None = None) -> tuple[Bucket, Writer]:
    """The bucket ``name``, by default that of the path, and the writer there."""
    bucket = await buckets.get(request.path_args["bucket"] if name is None else name)
    return bucket, access.writer_by_policies(request.caller, bucket)


def cache_control(row: ObjectRow) -> str:
    if row.cache_control is not None:
        return row.cache_control
    return "no-cache" if row.max_age_seconds is None else f"max-age={row.max_age_seconds}"


def metadata(row: ObjectRow) -> dict[str, Any]:
    return {
        "eTag": f'"{row.etag}"',
        "size": row.size,
        "mimetype": row.content_type,
        "cacheControl": cache_control(row),
        "lastModified": timestamp(row.updated_at),
        "contentLength": row.size,
        "httpStatusCode": 200,
    }


def times(row: ObjectRow) -> dict[str, str]:
    """Reading is not recorded, as there: ``last_accessed_at`` is when the object was made."""
    made = timestamp(row.created_at)
    return {"updated_at": timestamp(row.updated_at), "created_at": made, "last_accessed_at": made}


def user_metadata(row: ObjectRow) -> Any:
    return {} if row.metadata is None else Fragment(row.metadata)


def listed(row: ObjectRow, name: str) -> dict[str, Any]:
    """An object in a listing, under ``name``."""
    return {"name": name, "id": str(row.id), **times(row), "metadata": metadata(row)}


def whole(row: ObjectRow, with_owner: bool) -> dict[str, Any]:
    """An object as a row of the table that they know. Whose it is, not everybody learns."""
    owner = str(row.owner) if with_owner and row.owner is not None else None
    return {
        "bucket_id": row.bucket,
        "owner": owner,
        "owner_id": owner,
        "version": str(row.version),
        **listed(row, row.key),
        "user_metadata": user_metadata(row),
    }


def uploaded(row: ObjectRow) -> dict[str, str]:
    return {"Id": str(row.id), "Key": f"{row.bucket}/{row.key}"}
