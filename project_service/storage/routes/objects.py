"""``/storage/buckets/{bucket}/objects/…``: uploads, downloads, deletions and details. Each endpoint has its
description and the model of its body beside it."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from attrs import evolve, frozen

from project_service.errors import ApiError, service_key_required, unsupported_media_type, validation_failed
from project_service.http import describe
from project_service.http.describe import (
    BOOLEAN,
    JSON,
    Answer,
    Named,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    exactly,
    in_header,
    obj,
)
from project_service.http.json_body import TEXT, Kind, body_of, member, or_null, read_members, text, whole
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.routing import endpoint
from project_service.storage import access, errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import CACHE_CONTROL, NOT_SHARED
from project_service.storage.download import Downloads, Terms
from project_service.storage.objects import Objects
from project_service.storage.parsing import parameters
from project_service.storage.parsing.conditions import making_conditions, write_conditions
from project_service.storage.parsing.details import DOCUMENT, LANGUAGE, MAX_AGE, as_columns, details_of
from project_service.storage.receiving import Destination, Receiver
from project_service.storage.routes.common import (
    VARY_BY_KEY,
    caching_of,
    changeable,
    created,
    readable,
    writable,
)
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    BINARY,
    BUCKET,
    BYTES,
    DATABASE_AND_STORE,
    DETAIL_FIELDS,
    DETAIL_HEADERS,
    DOWNLOAD_NAME,
    DOWNLOAD_REFUSED,
    DOWNLOADED,
    IN_BUCKET,
    INLINE,
    KEY,
    KEY_IN_PATH,
    KEYS,
    MAKE_IF,
    METADATA,
    METADATA_MEMBERS,
    NO_BUCKET,
    NO_OBJECT,
    OBJECT,
    OBJECTS,
    OWNER_HEADER,
    PICTURE,
    READ_IF,
    READ_REFUSED,
    TAG,
    WRITE_IF,
    WRITE_REFUSED,
    json_answer,
)
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.values import Bucket, Live, Viewer

# Up to here every JSON parser reads whole numbers exactly (RFC 8259 section 6).
MAX_SAFE_INTEGER = 2**53 - 1
# What tells the users of a private bucket from each other.
_VARY = "Authorization"

_OWNER = or_null(Kind(describe.UUID, access.read_user_id))

_AGE = {"description": "For how long caches may store it; that of cache_control, if it has one."}
_CACHING = {"description": "Its own Cache-Control; in a private bucket for the caller alone."}
_LANGUAGES = {"description": "For whom it is, as language tags."}
_INFO: Mapping[str, Schema] = {
    **METADATA_MEMBERS,
    "max_age_seconds": {**MAX_AGE.schema, **_AGE},
    "cache_control": {**CACHE_CONTROL.schema, **_CACHING},
    "content_language": {**LANGUAGE.schema, **_LANGUAGES},
    "metadata": DOCUMENT.schema,
    "sha256": {
        "type": ["string", "null"],
        "pattern": "^[0-9a-f]{64}$",
        "description": "Of the whole object; null if it was uploaded without one being computed.",
    },
}
_OWNER_SHOWN: Schema = {**_OWNER.schema, "description": "Only for the service key and the owner."}
_DETAILS = Named("ObjectDetails", obj(_INFO, **_INFO, owner=_OWNER_SHOWN))

_DRY_RUN = Parameter(
    "dry_run", "true: say whether the upload that the JSON body plans would be accepted.", BOOLEAN
)

_SHOW_INFO = Parameter(
    "info", "true: what there is to know of the object, as JSON, in place of its bytes.", BOOLEAN
)

_UPLOAD_REFUSED: tuple[ApiError, ...] = (
    service_key_required(),
    errors.bad_request_content_range(),
    *WRITE_REFUSED,
    errors.payload_too_large_for_bucket(),
    errors.request_timeout_of_upload(),
    errors.unsupported_media_type_of_object("a type that the bucket does not take"),
    validation_failed({}),
)

_DOWNLOADED_OR_SHOWN = (
    evolve(
        DOWNLOADED[0],
        summary="The bytes, with the object's own Content-Type; what there is to know of it for info=true",
        content={**BYTES, JSON: _DETAILS},
    ),
    *DOWNLOADED[1:],
)


@frozen
class Keys:
    keys: list[str] = member(KEYS)


@frozen
class PlannedUpload:
    """The body of a dry run."""

    key: str = member(text(KEY))
    size: int = member(whole(0, MAX_SAFE_INTEGER), schema={"description": "In bytes."})
    content_type: str | None = member(
        TEXT, default=None, schema={"description": "As the upload's; without it one is guessed from the key."}
    )


@frozen
class ObjectChanges:
    """null removes what the object has of its own."""

    owner: UUID | None = member(_OWNER, default=None, schema={"description": "By the service key alone."})
    max_age_seconds: int | None = member(MAX_AGE, default=None, schema=_AGE)
    cache_control: str | None = member(CACHE_CONTROL, default=None, schema=_CACHING)
    content_language: str | None = member(LANGUAGE, default=None, schema=_LANGUAGES)
    metadata: str | None = member(DOCUMENT, default=None)


@frozen(eq=False)
class ObjectRoutes:
    buckets: Buckets
    rows: ObjectRows
    objects: Objects
    receiver: Receiver
    downloads: Downloads
    live: Live

    @endpoint(
        "POST",
        OBJECTS,
        Operation(
            "uploadForm",
            TAG,
            "Upload an object from a form; an existing one is replaced",
            (
                json_answer(201, "The object's metadata", METADATA),
                Answer(204, "With dry_run: the upload would be accepted now."),
            ),
            (IN_BUCKET, _DRY_RUN, *MAKE_IF, OWNER_HEADER, *DETAIL_HEADERS),
            RequestBody(
                {
                    "multipart/form-data": obj(
                        ("file",),
                        False,
                        file=BINARY,
                        key={**KEY, "description": "The object's key; the name of the file without it."},
                        owner={**describe.UUID, "description": "As X-Object-Owner."},
                        **DETAIL_FIELDS,
                    ),
                    **body_of(PlannedUpload).content,
                },
                summary="The form's fields may come before or after the file; others are read past. JSON is for "
                "dry_run=true alone.",
            ),
            (
                *_UPLOAD_REFUSED,
                errors.invalid_multipart("why"),
                errors.bad_digest("Content-Digest", "why"),
                unsupported_media_type("multipart/form-data"),
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
    )
    async def upload_form(self, request: Request) -> Reply:
        if parameters.flag(request, "dry_run"):
            return await self._dry_run(request)
        to = await self._destination(request)
        switched, _ = await self.receiver.form(request, to)
        return created(request, switched.row)

    @endpoint(
        "PUT",
        OBJECT,
        Operation(
            "uploadRaw",
            TAG,
            "Upload an object: the body is its bytes, Content-Type its type",
            (
                json_answer(201, "The metadata of a new object", METADATA),
                json_answer(200, "The metadata of an object that replaced another", METADATA),
            ),
            (
                IN_BUCKET,
                KEY_IN_PATH,
                *MAKE_IF,
                in_header("Content-MD5", "Refused unless the body has this MD5."),
                OWNER_HEADER,
                *DETAIL_HEADERS,
            ),
            RequestBody(BYTES, required=False, summary="Any bytes; none need Content-Length: 0."),
            (*_UPLOAD_REFUSED, errors.bad_digest("Content-Digest", "why"), errors.length_required()),
            DATABASE_AND_STORE,
        ),
        bearer="required",
    )
    async def upload_raw(self, request: Request) -> Reply:
        key = keys.parse_new_key(request.path_args["key"])
        to = await self._destination(request)
        switched = await self.receiver.body(request, to, key)
        if switched.replaced is not None:
            return json_reply(switched.row.as_json())
        return created(request, switched.row)

    @endpoint(
        "GET",
        OBJECT,
        Operation(
            "downloadObject",
            TAG,
            "Download an object, or show what there is to know of it",
            _DOWNLOADED_OR_SHOWN,
            (IN_BUCKET, KEY_IN_PATH, INLINE, DOWNLOAD_NAME, _SHOW_INFO, *PICTURE, *READ_IF),
            errors=(*READ_REFUSED, BAD_KEY, *DOWNLOAD_REFUSED),
            needs=DATABASE_AND_STORE,
        ),
    )
    async def download(self, request: Request) -> Reply | StreamReply:
        bucket, viewer = await readable(self.buckets, request)
        key = keys.parse_key(request.path_args["key"])
        inline, filename = parameters.shown_as(request)
        if request.raw_query and parameters.flag(request, "info"):
            # Refuses parameters that it would refuse for the bytes.
            self.downloads.renditions.wanted(request)
            return await self._info(request, bucket, key, viewer)
        vary = VARY_BY_KEY if request.caller.is_service else _VARY
        caching = caching_of(bucket, viewer, self.live, vary)
        terms = Terms(inline, caching, viewer=viewer, filename=filename)
        return await self.downloads.answer(request, bucket.name, key, terms)

    @endpoint(
        "DELETE",
        OBJECT,
        Operation(
            "deleteObject",
            TAG,
            "Delete an object",
            (Answer(204, "It is gone."),),
            (IN_BUCKET, KEY_IN_PATH, *WRITE_IF),
            errors=(*WRITE_REFUSED, NO_OBJECT, errors.bad_request_object_owner(), errors.object_in_use()),
            needs=DATABASE_AND_STORE,
        ),
        bearer="required",
    )
    async def delete(self, request: Request) -> Reply:
        key = keys.parse_key(request.path_args["key"])
        bucket, writer = await changeable(self.buckets, request)
        conditions = write_conditions(request.headers)
        if not await self.objects.delete(bucket, [key], writer, conditions):
            raise errors.object_not_found()
        return Reply(204)

    @endpoint(
        "PATCH",
        OBJECT,
        Operation(
            "changeObject",
            TAG,
            "Change what an object has beside its bytes",
            (json_answer(200, "The metadata as it is now", _DETAILS),),
            (IN_BUCKET, KEY_IN_PATH, *WRITE_IF),
            body_of(ObjectChanges),
            (*WRITE_REFUSED, NO_OBJECT, service_key_required(), errors.bad_request_object_owner()),
        ),
        bearer="required",
    )
    async def change(self, request: Request) -> Reply:
        key = keys.parse_key(request.path_args["key"])
        bucket, writer = await changeable(self.buckets, request)
        conditions = write_conditions(request.headers)
        changes = as_columns(read_members(ObjectChanges, await request.json_object()))
        if "owner" in changes and not writer.is_service:
            raise access.service_key_required_for_owner("owner")
        row = await self.objects.change(bucket, key, changes, writer, conditions)
        return json_reply(row.as_info(access.may_see_owner(request.caller, row)), headers=(NO_STORE,))

    @endpoint(
        "POST",
        f"{BUCKET}/delete",
        Operation(
            "deleteObjects",
            TAG,
            "Delete several objects, or none where one may not be deleted",
            (
                json_answer(
                    200,
                    "Which are gone, and which were not there",
                    exactly(deleted=array(KEY), missing=array(KEY)),
                ),
            ),
            (IN_BUCKET,),
            body_of(Keys),
            (
                NO_BUCKET,
                errors.not_allowed(),
                errors.not_owner(),
                BAD_KEY,
                errors.bad_request_object_owner(),
                errors.object_in_use(),
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
    )
    async def bulk_delete(self, request: Request) -> Reply:
        bucket, writer = await changeable(self.buckets, request)
        body = await request.read_json(Keys)
        wanted = keys.parse_keys(body.keys, "keys")
        deleted = await self.objects.delete(bucket, wanted, writer)
        gone = [key for key in wanted if key in deleted]
        return json_reply({"deleted": gone, "missing": [key for key in wanted if key not in deleted]})

    async def _info(self, request: Request, bucket: Bucket, key: str, viewer: Viewer | None) -> Reply:
        row = await self.rows.find(bucket.name, key, viewer)
        if row is None:
            raise errors.object_not_found()
        shown = row.as_info(access.may_see_owner(request.caller, row))
        return json_reply(shown, headers=(NO_STORE if bucket.public else NOT_SHARED,))

    async def _destination(self, request: Request) -> Destination:
        bucket, writer = await writable(self.buckets, request)
        return Destination(bucket, writer, request.headers.derived(making_conditions))

    async def _dry_run(self, request: Request) -> Reply:
        """Whether an upload with these headers and the key, size and type in the body would be accepted now."""
        bucket, _ = await writable(self.buckets, request)
        planned = await request.read_json(PlannedUpload)
        key = keys.parse_new_key(planned.key)
        # As it is now: the body may have taken hours, and the upload before may have filled the quota just so.
        to = evolve(await self._destination(request), bucket=await self.buckets.fresh(bucket.name))
        details = details_of(request.headers)
        await self.receiver.check(to, key, planned.content_type, planned.size, details)
        return Reply(204)
