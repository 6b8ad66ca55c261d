"""``/object``: uploads, downloads, what there is to know of an object, moves, copies and deletions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attrs import frozen

from project_service.errors import ApiError, require_text, unsupported_media_type, validation_failed
from project_service.http.describe import (
    COUNT,
    STRING,
    UUID,
    Named,
    Operation,
    RequestBody,
    array,
    in_header,
    obj,
)
from project_service.http.head import HeaderView
from project_service.http.json_body import FLAG, TEXT, Kind, member, or_null
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import timestamp
from project_service.storage import access, errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import NOT_SHARED, for_everybody
from project_service.storage.download import Downloads, Terms
from project_service.storage.objects import Objects
from project_service.storage.parsing import parameters
from project_service.storage.parsing.conditions import with_upsert, write_conditions
from project_service.storage.parsing.details import details_of, with_cache_control
from project_service.storage.parsing.form import FIELDS_OF_CLIENTS
from project_service.storage.presentation import ANY_ORIGIN
from project_service.storage.receiving import Destination, Receiver
from project_service.storage.routes.common import VARY_BY_KEY, caching_of
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    BINARY,
    BYTES,
    DATABASE_AND_STORE,
    DOWNLOAD_NAME,
    DOWNLOAD_REFUSED,
    DOWNLOADED,
    NO_OBJECT,
    READ_IF,
    READ_REFUSED,
    WRITE_REFUSED,
)
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.values import (
    NEW_ONLY,
    NO_DETAILS,
    Bucket,
    Conditions,
    Live,
    ObjectRow,
    Switched,
    Viewer,
)
from project_service.supabase.storage import common
from project_service.supabase.storage.common import (
    FILE,
    IN_BUCKET,
    IN_OBJECT,
    MESSAGE,
    PATHS,
    TAG,
    UPLOADED,
    body_of,
    fetchable,
    ok,
    read_body,
    uploaded,
    writable,
)

_PATH = "<bucket>/<path:key>"
OBJECT = f"/object/{_PATH}"

_UPSERT = in_header("x-upsert", "true: it may replace an object.")
_OF_UPLOAD = (
    in_header("cache-control", "How caches may store it, as max-age=3600."),
    in_header("x-metadata", "The base64 of a JSON object, for the application's own use."),
)
UPLOAD_BODY = RequestBody(
    {
        "multipart/form-data": obj(
            (),
            False,
            cacheControl={"type": "string", "description": "An age in seconds."},
            metadata={"type": "string", "description": "A JSON object."},
            contentType={"type": "string", "description": "In place of that of the file's part."},
            file={**BINARY, "description": "The first part with a file name, whatever its own name."},
        ),
        **BYTES,
    },
    required=False,
    summary="The bytes themselves, or a form with them.",
)
UPLOAD_REFUSED: tuple[ApiError, ...] = (
    *WRITE_REFUSED,
    errors.bad_request_content_range(),
    errors.payload_too_large_for_bucket(),
    errors.request_timeout_of_upload(),
    errors.unsupported_media_type_of_object("a type that the bucket does not take"),
    unsupported_media_type("sent without a transfer encoding of its parts"),
    errors.invalid_multipart("why"),
    errors.bad_digest("Content-Digest", "why"),
    errors.length_required(),
    validation_failed({}),
)
_INFO = Named(
    "ClientFileInfo",
    obj(
        ("id", "name", "size"),
        False,
        id=UUID,
        name=STRING,
        version=UUID,
        bucket_id=STRING,
        size=COUNT,
        content_type=STRING,
        cache_control=STRING,
        etag=STRING,
        metadata={"type": "object"},
        last_modified=STRING,
        created_at=STRING,
    ),
)
_DOWNLOADS = (*READ_IF, DOWNLOAD_NAME)
_READ_REFUSED = (*READ_REFUSED, BAD_KEY)


def _download(name: str, summary: str) -> Operation:
    return Operation(
        name,
        TAG,
        summary,
        DOWNLOADED,
        (*IN_OBJECT, *_DOWNLOADS),
        errors=(*_READ_REFUSED, *DOWNLOAD_REFUSED),
        needs=DATABASE_AND_STORE,
    )


def _info(name: str, summary: str) -> Operation:
    return Operation(
        name,
        TAG,
        summary,
        ok("What there is to know of it", _INFO),
        IN_OBJECT,
        errors=(*_READ_REFUSED, NO_OBJECT),
    )


def _read_file_metadata(name: str, value: object) -> Mapping[str, Any]:
    """What of a copy is to be other than of its source, as ``Objects.copy`` takes it."""
    given = {} if value is None else value
    if not isinstance(given, dict):
        raise validation_failed({name: "must be an object"})
    changes: dict[str, Any] = {}
    if (caching := given.get("cacheControl")) is not None:
        details = with_cache_control(NO_DETAILS, require_text(f"{name}.cacheControl", caching), name)
        changes |= {"cache_control": details.cache_control, "max_age_seconds": details.max_age_seconds}
    if (kind := given.get("mimetype")) is not None:
        changes["content_type"] = keys.parse_content_type(require_text(f"{name}.mimetype", kind))
    return changes


_FILE_METADATA = Kind(
    {"type": ["object", "null"], "properties": {"cacheControl": STRING, "mimetype": STRING}},
    _read_file_metadata,
)


@frozen
class FromTo:
    """The keys of a copy or move."""

    bucket: str = member(TEXT, name="bucketId")
    source: str = member(TEXT, name="sourceKey")
    target: str = member(TEXT, name="destinationKey")
    to_bucket: str | None = member(or_null(TEXT), name="destinationBucket", default=None)

    def parsed(self) -> tuple[str, str]:
        """Raises ``invalid_key``."""
        source = keys.parse_key(self.source, "sourceKey")
        return source, keys.parse_new_key(self.target, "destinationKey")

    @property
    def within(self) -> bool:
        return self.to_bucket in (None, self.bucket)


@frozen
class ToCopy(FromTo):
    """An object may be copied onto itself, with other metadata."""

    file_metadata: Mapping[str, Any] = member(_FILE_METADATA, name="metadata", default={})
    copies_metadata: bool | None = member(
        or_null(FLAG),
        name="copyMetadata",
        default=None,
        schema={"description": "false: not the application's own, for which x-metadata counts."},
    )

    def changes(self, headers: HeaderView) -> Mapping[str, Any]:
        """As ``Objects.copy`` takes them. Raises ``validation_failed``."""
        own = details_of(headers).metadata if b"x-metadata" in headers else None
        replaced = own is not None or self.copies_metadata is False
        return {**self.file_metadata, **({"metadata": own} if replaced else {})}


@frozen
class Prefixes:
    """Whole keys, whatever the name."""

    prefixes: list[str] = member(PATHS)


_FROM_TO_REFUSED = (
    *WRITE_REFUSED,
    NO_OBJECT,
    validation_failed({}),
    errors.payload_too_large_for_bucket(),
    errors.unsupported_media_type_of_object("a type that the other bucket does not take"),
)


@frozen(eq=False)
class ObjectRoutes:
    """What needs a project key."""

    buckets: Buckets
    rows: ObjectRows
    objects: Objects
    receiver: Receiver
    downloads: Downloads
    live: Live

    @endpoint(
        "POST",
        OBJECT,
        Operation(
            "upload",
            TAG,
            "Upload an object; with x-upsert it may replace one",
            ok("Where it is", UPLOADED),
            (*IN_OBJECT, _UPSERT, *_OF_UPLOAD),
            UPLOAD_BODY,
            UPLOAD_REFUSED,
            DATABASE_AND_STORE,
        ),
    )
    async def upload(self, request: Request) -> Reply:
        return await self._upload(request, upsert_of(request))

    @endpoint(
        "PUT",
        OBJECT,
        Operation(
            "update",
            TAG,
            "Upload an object, or replace one",
            ok("Where it is", UPLOADED),
            (*IN_OBJECT, *_OF_UPLOAD),
            UPLOAD_BODY,
            UPLOAD_REFUSED,
            DATABASE_AND_STORE,
        ),
    )
    async def update(self, request: Request) -> Reply:
        return await self._upload(request, write_conditions(request.headers))

    async def _upload(self, request: Request, conditions: Conditions) -> Reply:
        key = keys.parse_new_key(request.path_args["key"])
        bucket, writer = await writable(self.buckets, request)
        to = Destination(bucket, writer, conditions, None, key, FIELDS_OF_CLIENTS)
        switched = await receive(self.receiver, request, to, key)
        return json_reply(uploaded(switched.row))

    @endpoint("GET", OBJECT, _download("download", "Download an object"))
    async def download(self, request: Request) -> Reply | StreamReply:
        bucket, viewer = await fetchable(self.buckets, request)
        key = keys.parse_key(request.path_args["key"])
        return await self.downloads.send(request, bucket.name, key, self.terms(request, bucket, viewer))

    @endpoint(
        "GET", f"/object/authenticated/{_PATH}", _download("downloadAuthenticated", "Download an object")
    )
    async def download_authenticated(self, request: Request) -> Reply | StreamReply:
        return await self.download(request)

    def terms(self, request: Request, bucket: Bucket, viewer: Viewer | None) -> Terms:
        """How an object is sent to a caller. Images, audio, video and PDF are shown, everything else is saved."""
        inline, filename = parameters.shown_as(request, None)
        caching = caching_of(bucket, viewer, self.live, VARY_BY_KEY)
        return Terms(inline, caching, viewer=viewer, filename=filename, unquoted=True)

    @endpoint("GET", f"/object/info/{_PATH}", _info("info", "What there is to know of an object"))
    async def info(self, request: Request) -> Reply:
        bucket, viewer = await fetchable(self.buckets, request)
        return await info(self.rows, request, bucket, viewer)

    @endpoint(
        "GET",
        f"/object/info/authenticated/{_PATH}",
        _info("infoAuthenticated", "What there is to know of an object"),
    )
    async def info_authenticated(self, request: Request) -> Reply:
        return await self.info(request)

    @endpoint(
        "DELETE",
        OBJECT,
        Operation(
            "deleteObject",
            TAG,
            "Delete an object",
            ok("That it is gone", MESSAGE),
            IN_OBJECT,
            errors=(*WRITE_REFUSED, NO_OBJECT, errors.object_in_use()),
            needs=DATABASE_AND_STORE,
        ),
    )
    async def delete(self, request: Request) -> Reply:
        key = keys.parse_key(request.path_args["key"])
        bucket, writer = await writable(self.buckets, request)
        if not await self.objects.delete(bucket, [key], writer):
            raise errors.object_not_found()
        return json_reply({"message": "Successfully deleted"})

    @endpoint(
        "DELETE",
        "/object/<bucket>",
        Operation(
            "remove",
            TAG,
            "Delete several objects, or none where one may not be deleted; what is not there is left out",
            ok("Those that were deleted", array(FILE)),
            (IN_BUCKET,),
            body_of(Prefixes),
            (*WRITE_REFUSED, errors.object_in_use()),
            DATABASE_AND_STORE,
        ),
    )
    async def remove(self, request: Request) -> Reply:
        bucket, writer = await writable(self.buckets, request)
        body = await read_body(request, Prefixes)
        wanted = [*dict.fromkeys(key for key in body.prefixes if _possible(key))]
        if not wanted:
            return json_reply([])
        there = await self.rows.find_many(bucket.name, wanted, access.viewer_of(bucket.rules, writer))
        versions = await self.objects.delete(bucket, wanted, writer)
        gone = [row for key, row in there.items() if versions.get(key) == row.version]
        return json_reply([common.whole(row, access.may_see_owner(request.caller, row)) for row in gone])

    @endpoint(
        "POST",
        "/object/move",
        Operation(
            "move",
            TAG,
            "Give an object a key that is free, in its bucket or in another",
            ok("Where it is", obj(("message", "Id", "Key"), False, message=STRING, Id=UUID, Key=STRING)),
            body=body_of(FromTo),
            errors=(*_FROM_TO_REFUSED, errors.object_in_use(), errors.object_changed()),
            needs=DATABASE_AND_STORE,
        ),
    )
    async def move(self, request: Request) -> Reply:
        body = await read_body(request, FromTo)
        source, target = body.parsed()
        if source == target and body.within:
            raise validation_failed({"destinationKey": "is the same as sourceKey"})
        bucket, writer = await writable(self.buckets, request, body.bucket)
        if body.within:
            switched = await self.objects.move(bucket, source, target, writer, NEW_ONLY)
        else:
            to, _ = await writable(self.buckets, request, body.to_bucket)
            switched = await self.objects.move_to_bucket(bucket, source, to, target, writer, NEW_ONLY)
        return json_reply({"message": "Successfully moved", **uploaded(switched.row)})

    @endpoint(
        "POST",
        "/object/copy",
        Operation(
            "copy",
            TAG,
            "Copy an object, within its bucket or into another; with x-upsert the copy may replace one",
            ok("The copy", FILE),
            (_UPSERT, _OF_UPLOAD[1]),
            body=body_of(ToCopy),
            errors=_FROM_TO_REFUSED,
            needs=DATABASE_AND_STORE,
        ),
    )
    async def copy(self, request: Request) -> Reply:
        body = await read_body(request, ToCopy)
        source, target = body.parsed()
        changes, conditions = body.changes(request.headers), upsert_of(request)
        bucket, writer = await writable(self.buckets, request, body.bucket)
        to = bucket if body.within else (await writable(self.buckets, request, body.to_bucket))[0]
        switched = await self.objects.copy(bucket, source, to, target, writer, conditions, changes)
        row = switched.row
        return json_reply({**uploaded(row), **common.whole(row, access.may_see_owner(request.caller, row))})


@frozen(eq=False)
class PublicRoutes:
    """What looks at no key and no token. Pages of every origin may read it."""

    buckets: Buckets
    rows: ObjectRows
    downloads: Downloads
    live: Live

    @endpoint(
        "GET",
        f"/object/public/{_PATH}",
        _download("downloadPublic", "Download an object of a public bucket"),
        key="ignored",
        bearer="own",
    )
    async def download(self, request: Request) -> Reply | StreamReply:
        key = keys.parse_key(request.path_args["key"])
        bucket, viewer = await self.readable(request)
        return await self.downloads.send(request, bucket.name, key, self.terms(request, bucket, viewer))

    def terms(self, request: Request, bucket: Bucket, viewer: Viewer | None) -> Terms:
        inline, filename = parameters.shown_as(request, None)
        headers = () if request.any_origin else (ANY_ORIGIN,)
        caching = partial(
            for_everybody, bucket.rules.cache_control, self.live.settings.public_max_age_seconds
        )
        return Terms(inline, caching, headers, viewer=viewer, filename=filename, unquoted=True)

    async def readable(self, request: Request) -> tuple[Bucket, Viewer | None]:
        bucket = await self.buckets.of_object(request.path_args["bucket"])
        return bucket, access.check_open_read(bucket)

    @endpoint(
        "GET",
        f"/object/info/public/{_PATH}",
        _info("infoPublic", "What there is to know of an object of a public bucket"),
        key="ignored",
        bearer="own",
    )
    async def info(self, request: Request) -> Reply:
        bucket, viewer = await self.readable(request)
        return await info(self.rows, request, bucket, viewer)


async def receive(receiver: Receiver, request: Request, to: Destination, key: str) -> Switched:
    """The upload of a request, whose body is the bytes or a form with them."""
    if keys.essence(request.headers.text(b"content-type") or "") == "multipart/form-data":
        switched, _ = await receiver.form(request, to)
        return switched
    return await receiver.body(request, to, key)


async def info(rows: ObjectRows, request: Request, bucket: Bucket, viewer: Viewer | None) -> Reply:
    key = keys.parse_key(request.path_args["key"])
    row = await rows.find(bucket.name, key, viewer)
    if row is None:
        raise errors.object_not_found()
    caching = NO_STORE if bucket.public else NOT_SHARED
    return json_reply(_shown(row), headers=(("ETag", f'"{row.etag}"'), caching))


def _shown(row: ObjectRow) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "name": row.key,
        "version": str(row.version),
        "bucket_id": row.bucket,
        "size": row.size,
        "content_type": row.content_type,
        "cache_control": common.cache_control(row),
        "etag": f'"{row.etag}"',
        "metadata": common.user_metadata(row),
        "last_modified": timestamp(row.updated_at),
        "created_at": timestamp(row.created_at),
    }


def upsert_of(request: Request) -> Conditions:
    """The conditions of a request that may not replace an object unless it says so."""
    sent = b",".join(request.headers.all(b"x-upsert")).decode("latin-1")
    return with_upsert(write_conditions(request.headers), sent)


def _possible(key: str) -> bool:
    try:
        keys.parse_key(key)
    except ApiError:
        return False
    return True
