"""``/storage/buckets/{bucket}/...`` and ``/storage/download``. Each endpoint has its description and the model of its
body beside it, and ``translated`` around it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from uuid import UUID

from attrs import evolve, frozen
from orjson import Fragment
from twisted.logger import Logger

from project_service.errors import (
    ApiError,
    Headers,
    authentication_required,
    database_unavailable,
    service_key_required,
    unsupported_media_type,
    validation_failed,
)
from project_service.http import describe
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    LOCATION,
    MOMENT,
    STRING,
    Answer,
    Named,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    exactly,
    in_header,
    in_path,
    obj,
)
from project_service.http.json_body import (
    TEXT,
    Kind,
    body_of,
    member,
    or_null,
    read_members,
    text,
    whole,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.routing import Handler, endpoint
from project_service.storage import access, errors, images, keys, requests
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import (
    CACHE_CONTROL,
    MAX_AGE_SECONDS,
    NOT_SHARED,
    for_caller,
    for_everybody,
)
from project_service.storage.conditions import making_conditions, write_conditions
from project_service.storage.details import (
    DOCUMENT,
    LANGUAGE,
    MAX_AGE,
    as_columns,
    details_of,
)
from project_service.storage.download import NO_SNIFFING, Downloads, Terms
from project_service.storage.objects import Objects
from project_service.storage.receiving import Destination, Receiver
from project_service.storage.repository import ObjectRows
from project_service.storage.requests import DEFAULT_PAGE_KEYS, MAX_PAGE_KEYS
from project_service.storage.s3.errors import kind_of
from project_service.storage.values import NOT_SEEN, RULE_SCHEMAS, Bucket, Live, ObjectRow, Viewer, Writer

_log = Logger()

BUCKETS = "/storage/buckets"
BUCKET = f"{BUCKETS}/<bucket>"
OBJECTS = f"{BUCKET}/objects"
OBJECT = f"{OBJECTS}/<path:key>"
TAG = "storage"
MAX_BULK_KEYS = 1000
# Up to here every JSON parser reads whole numbers exactly (RFC 8259 section 6).
MAX_SAFE_INTEGER = 2**53 - 1
# What tells the callers of a private bucket from each other: users, and those who have the service key.
_VARY, _VARY_BY_KEY = "Authorization", "Authorization, apikey, X-Service-Key"
# What descriptions have in common: schemas, parameters and refusals.

DATABASE_AND_STORE: tuple[ApiError, ...] = (database_unavailable(), errors.store_unavailable())
KEY: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": keys.MAX_KEY_BYTES,
    "description": f"1 to {keys.MAX_KEY_BYTES} bytes of UTF-8 without control characters; no leading /, no empty, . "
    "or .. segment. New ones have none of U+202A to U+202E and U+2066 to U+2069 either.",
}
PREFIX: Schema = {"type": "string", "maxLength": keys.MAX_KEY_BYTES}
# "binary" says it to generators that do not know JSON Schema's contentMediaType, and a type of its own to those that
# pass over "*/*".
BINARY: Schema = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
BYTES: Mapping[str, Schema] = {"application/octet-stream": BINARY, "*/*": {}}
_OWNER = or_null(Kind(describe.UUID, access.read_user_id))
_METADATA: Mapping[str, Schema] = {
    "key": KEY,
    "size": COUNT,
    "content_type": STRING,
    "last_modified": MOMENT,
    "etag": {"type": "string", "description": "The store's, without quotes; opaque."},
}
METADATA = Named("Object", exactly(**_METADATA))
_AGE = {"description": "For how long caches may store it; that of cache_control, if it has one."}
_CACHING = {"description": "Its own Cache-Control; in a private bucket for the caller alone."}
_LANGUAGES = {"description": "For whom it is, as language tags."}
_INFO: Mapping[str, Schema] = {
    **_METADATA,
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
_VISIBLE_BUCKET = Named(
    "VisibleBucket",
    exactly(name=STRING, **{rule: schema for rule, schema in RULE_SCHEMAS.items() if rule not in NOT_SEEN}),
)
_NEXT_TOKEN: Schema = {
    "type": ["string", "null"],
    "description": "page_token of the next page; null on the last.",
}
_LISTING = Named(
    "ObjectListing",
    exactly(
        objects=array(METADATA),
        folders=array({"type": "string", "pattern": "/$"}),
        prefix=STRING,
        is_truncated=BOOLEAN,
        next_token=_NEXT_TOKEN,
    ),
)

_SORTS: Schema = {"enum": ["key", "size", "last_modified"], "default": "key"}
_ORDERS: Schema = {"enum": ["asc", "desc"], "default": "asc"}
IN_BUCKET = in_path("bucket", "The bucket's name.")
KEY_IN_PATH = in_path("key", "The object's key; its / may be sent as they are or as %2F.", KEY)
INLINE = Parameter("inline", "true: to be shown in the browser, in a sandbox; else to be saved.", BOOLEAN)
_DRY_RUN = Parameter(
    "dry_run", "true: say whether the upload that the JSON body plans would be accepted.", BOOLEAN
)
DOWNLOAD_NAME = Parameter(
    "download",
    "To be saved, under this name; without a value under the last segment of the key. It counts before inline.",
    {"type": "string", "maxLength": requests.MAX_FILENAME_LENGTH},
)
_SHOW_INFO = Parameter(
    "info", "true: what there is to know of the object, as JSON, in place of its bytes.", BOOLEAN
)
WRITE_IF = (
    in_header("If-Match", "Only if the object is this very one."),
    in_header("If-None-Match", "*: only if there is no object with that key."),
    in_header("If-Unmodified-Since", "Only if the object has not changed since; If-Match counts instead."),
)
# Of a request that makes an object.
MAKE_IF = (
    *WRITE_IF,
    in_header(
        "X-Upsert", "true: it may replace an object, as without the header. Anything else: it must not."
    ),
)
_OWNER_HEADER = in_header(
    "X-Object-Owner", "By the service key alone: the user to whom the object is to belong."
)
DETAIL_HEADERS = (
    in_header(
        "Cache-Control",
        "How caches may store it; in a public bucket public unless it says otherwise, else private.",
    ),
    in_header("Content-Language", "For whom the object is, as language tags."),
    in_header("X-Metadata", "The base64 of a JSON object, for the application's own use."),
    in_header("Content-Digest", "Refused unless the body has this SHA-256 or SHA-512 (RFC 9530)."),
    in_header("Repr-Digest", "As Content-Digest."),
)
# The same as fields of a form.
DETAIL_FIELDS: Mapping[str, Schema] = {
    "max_age_seconds": {**whole(0, MAX_AGE_SECONDS).schema, "description": "As max-age in Cache-Control."},
    "cache_control": {"type": "string", "description": "As Cache-Control."},
    "content_language": {"type": "string", "description": "As Content-Language."},
    "metadata": {"type": "string", "description": "A JSON object, as X-Metadata has it."},
}
READ_IF = (
    in_header("If-Match", "412 unless the object is this one."),
    in_header("If-Unmodified-Since", "412 if it has changed since."),
    in_header("If-None-Match", "304 if the object is this one."),
    in_header("If-Modified-Since", "304 if it has not changed since."),
    in_header("Range", "One range of bytes; several, and other units, give the whole."),
    in_header("If-Range", "The range counts only if the object is this one."),
    in_header(
        "Want-Repr-Digest", "sha-256=1: the response has the SHA-256 of the whole object, if it is known."
    ),
)
_SIDE: Schema = {"type": "integer", "minimum": 1}
PICTURE = (
    Parameter("width", "Of a picture, as it is to be, in pixels: up to images.max_size.", _SIDE),
    Parameter("height", "As width.", _SIDE),
    Parameter(
        "fit",
        "With both: cover crops, contain pads, inside does neither.",
        {"enum": [*images.FITS], "default": images.FITS[0]},
    ),
    Parameter(
        "format",
        "The picture's format; its own by default. auto: the smallest that Accept names.",
        {"enum": [*images.FORMATS]},
    ),
    Parameter(
        "quality",
        "Of JPEG, WebP and AVIF; images.quality by default.",
        {"type": "integer", "minimum": 1, "maximum": images.MAX_QUALITY},
    ),
)

NO_BUCKET, NO_OBJECT = errors.bucket_not_found(), errors.object_not_found()
BAD_KEY = errors.invalid_key("why")
# A private bucket is read by signed-in users alone.
READ_REFUSED: tuple[ApiError, ...] = (NO_BUCKET, authentication_required())
_CONDITIONS_FAILED: tuple[ApiError, ...] = (errors.object_exists(), errors.precondition_failed())
WRITE_REFUSED: tuple[ApiError, ...] = (
    NO_BUCKET,
    errors.not_allowed(),
    errors.not_owner(),
    BAD_KEY,
    *_CONDITIONS_FAILED,
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
DOWNLOAD_REFUSED: tuple[ApiError, ...] = (
    NO_OBJECT,
    errors.precondition_failed(),
    errors.range_not_satisfiable(0),
    errors.image_type_unsupported(),
    errors.image_invalid(),
    errors.image_too_large(),
    errors.images_not_installed(),
)


def json_answer(status: int, summary: str, schema: Schema | Named) -> Answer:
    return Answer(status, summary, {JSON: schema}, LOCATION if status == HTTPStatus.CREATED else {})


_OBJECT_HEADERS = {
    "Content-Disposition": "attachment or inline, with the last segment of the key as file name.",
    "ETag": "The entity tag, in quotes.",
    "Last-Modified": "When the object was written.",
    "Accept-Ranges": "bytes",
    "Cache-Control": "As the object or its bucket says; private, no-store in a private one that says nothing.",
    "Content-Language": "As the upload said it.",
    "Repr-Digest": "The SHA-256 of the whole object, where it was wanted and is known.",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "A sandbox, which only a PDF that a public page shows has not.",
    "Cross-Origin-Resource-Policy": "cross-origin, if pages of every origin may read responses.",
    "Vary": "Accept, with format=auto; Authorization, where the caller alone may keep it.",
}
DOWNLOADED = (
    Answer(200, "The bytes, with the object's own Content-Type", BYTES, _OBJECT_HEADERS),
    Answer(
        206,
        "One range of the bytes",
        BYTES,
        {**_OBJECT_HEADERS, "Content-Range": "Which bytes of how many these are."},
    ),
    Answer(
        304,
        "The object is the one that the condition names",
        headers={name: _OBJECT_HEADERS[name] for name in ("ETag", "Last-Modified", "Cache-Control")},
    ),
)


_DOWNLOADED_OR_SHOWN = (
    evolve(
        DOWNLOADED[0],
        summary="The bytes, with the object's own Content-Type; what there is to know of it for info=true",
        content={**BYTES, JSON: _DETAILS},
    ),
    *DOWNLOADED[1:],
)


# Bodies.


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


def _read_keys(name: str, value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_BULK_KEYS:
        raise validation_failed({name: f"must be a list of 1 to {MAX_BULK_KEYS} keys"})
    if not all(isinstance(key, str) for key in value):
        raise validation_failed({name: "must be strings"})
    return value


KEYS = Kind(array(KEY, minItems=1, maxItems=MAX_BULK_KEYS), _read_keys)


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


def translated(handler: Handler, headers: Headers = ()) -> Handler:
    """``handler``, with failures of the store turned into ``store_unavailable`` and their kind logged.

    Errors get ``headers``, and a browser must not guess the type of one either.
    """

    async def handling(request: Request) -> Reply | StreamReply:
        # No variable outlives its clause here: an error that a variable in its own traceback refers to holds a
        # reference cycle, with all that the request holds.
        try:
            try:
                return await handler(request)
            except errors.STORE_FAILURES as failure:
                kind, request_id = kind_of(failure), request.request_id
                _log.warn("The store failed: {kind} id={request_id}", kind=kind, request_id=request_id)
                raise errors.store_unavailable() from None
        except ApiError as refusal:
            refusal.headers = (*refusal.headers, NO_SNIFFING, *headers)
            raise

    return handling


async def readable(buckets: Buckets, request: Request) -> tuple[Bucket, Viewer | None]:
    """The bucket, and what the caller may see of it; None: everything."""
    bucket = await buckets.get(request.path_args["bucket"])
    return bucket, access.check_read(request.caller, bucket)


async def writable(buckets: Buckets, request: Request) -> tuple[Bucket, Writer]:
    """The bucket and the writer, decided by the headers alone: the body has not been requested yet."""
    writer = access.writer_of(request.caller, request.headers.text(b"x-object-owner"))
    return await buckets.get(request.path_args["bucket"]), writer


@frozen(eq=False)
class StorageRoutes:
    buckets: Buckets
    rows: ObjectRows
    objects: Objects
    receiver: Receiver
    downloads: Downloads
    live: Live

    @endpoint(
        "GET",
        BUCKETS,
        Operation(
            "listVisibleBuckets",
            TAG,
            "The buckets from which the caller may read: all of them for a signed-in user, else the public ones",
            (json_answer(200, "The buckets, by name", exactly(buckets=array(_VISIBLE_BUCKET))),),
        ),
    )
    async def list_buckets(self, request: Request) -> Reply:
        signed_in = request.caller.signed_in
        shown = [one.as_seen() for one in await self.buckets.all() if one.public or signed_in]
        return json_reply({"buckets": shown}, headers=(NOT_SHARED if signed_in else NO_STORE,))

    @endpoint(
        "GET",
        OBJECTS,
        Operation(
            "listObjects",
            TAG,
            "List objects, ordered bytewise by key and grouped into folders",
            (json_answer(200, "A page of the listing", _LISTING),),
            (
                IN_BUCKET,
                Parameter("prefix", "Only keys that begin with it.", PREFIX),
                Parameter(
                    "max_keys",
                    "Objects and folders on a page.",
                    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_KEYS, "default": DEFAULT_PAGE_KEYS},
                ),
                Parameter("recursive", "true: no folders, every key.", BOOLEAN),
                Parameter("sort", "What to sort by; other than by key there are no folders.", _SORTS),
                Parameter("order", "desc: backwards, and without folders.", _ORDERS),
                Parameter(
                    "search",
                    "Only objects with this, in either case, in what follows the prefix; without folders. A page may "
                    "then have few objects or none and not be the last.",
                    {"type": "string", "maxLength": requests.MAX_SEARCH_LENGTH},
                ),
                Parameter("page_token", "next_token of the page before, of the same listing."),
            ),
            errors=(*READ_REFUSED, errors.not_allowed(), BAD_KEY),
        ),
    )
    async def list(self, request: Request) -> Reply:
        bucket, viewer = await readable(self.buckets, request)
        prefix = keys.parse_prefix(request.query_value("prefix") or "")
        recursive = requests.flag(request, "recursive")
        limit = requests.page_limit(request, "max_keys")
        token = request.query_value("page_token")
        sorting = requests.sorting_of(request) if request.raw_query else None
        if sorting is None:
            after = None if token is None else requests.decode_page_token(token, prefix, recursive)
            page = await self.rows.page(bucket.name, prefix, after, limit, recursive, viewer)
            objects, folders = page.objects, page.folders
            following = page.last and requests.encode_page_token(page.last, prefix, recursive)
        else:
            after_entry = None if token is None else requests.decode_sorted_token(token, prefix, sorting)
            flat = await self.rows.sorted_page(bucket.name, prefix, sorting, after_entry, limit, viewer)
            objects, folders = flat.objects, b"[]"
            following = flat.last and requests.encode_sorted_token(flat.last, prefix, sorting)
        return json_reply(
            {
                "objects": Fragment(objects),
                "folders": Fragment(folders),
                "prefix": prefix,
                "is_truncated": following is not None,
                "next_token": following,
            },
            # Without this header a cache may store the listing, some do for a day, and return it without any key.
            headers=(NO_STORE if bucket.public else NOT_SHARED,),
        )

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
            (IN_BUCKET, _DRY_RUN, *MAKE_IF, _OWNER_HEADER, *DETAIL_HEADERS),
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
        if requests.flag(request, "dry_run"):
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
                _OWNER_HEADER,
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
        declared = keys.content_type_of_body(request.headers.text(b"content-type"))
        switched = await self.receiver.body(request, to, key, declared)
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
        inline, filename = requests.shown_as(request)
        if request.raw_query and requests.flag(request, "info"):
            # Refuses parameters that it would refuse for the bytes.
            self.downloads.renditions.wanted(request)
            return await self._info(request, bucket, key, viewer)
        # With policies, what the service key or a user sees need not be for everybody.
        if bucket.public and (not bucket.rules.policies if viewer is None else viewer.is_anybody):
            max_age = self.live.settings.public_max_age_seconds
            caching = partial(for_everybody, bucket.rules.cache_control, max_age)
        else:
            vary = _VARY_BY_KEY if request.caller.is_service else _VARY
            caching = partial(for_caller, bucket.rules.cache_control, vary)
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
        bucket, writer = await self._changeable(request)
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
        bucket, writer = await self._changeable(request)
        conditions = write_conditions(request.headers)
        changes = as_columns(read_members(ObjectChanges, await request.json_object()))
        if "owner" in changes and not writer.is_service:
            raise access.service_key_required_for_owner("owner")
        row = await self.objects.change(bucket, key, changes, writer, conditions)
        return json_reply(row.as_info(access.may_see_owner(request.caller, row)), headers=(NO_STORE,))

    @endpoint(
        "POST",
        f"{BUCKET}/copy",
        Operation(
            "copyObject",
            TAG,
            "Copy an object within its bucket, or into another",
            (json_answer(201, "The metadata of the copy", METADATA),),
            (IN_BUCKET, *MAKE_IF, _OWNER_HEADER),
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
        bucket, writer = await self._changeable(request)
        body = await request.read_json(FromTo)
        to = await self._target(bucket, body)
        source, target = body.parsed(within=to is bucket)
        conditions = making_conditions(request.headers)
        if to is bucket:
            switched = await self.objects.move(bucket, source, target, writer, conditions)
        else:
            switched = await self.objects.move_to_bucket(bucket, source, to, target, writer, conditions)
        return json_reply(switched.row.as_json())

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
        bucket, writer = await self._changeable(request)
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

    async def _target(self, bucket: Bucket, body: FromTo) -> Bucket:
        """The bucket of the copy or move, ``bucket`` itself where the body names no other."""
        return (
            bucket if body.to_bucket in (None, bucket.name) else await self.buckets.get(body.to_bucket or "")
        )

    async def _changeable(self, request: Request) -> tuple[Bucket, Writer]:
        """As ``writable``, for a request that makes no object, and so must not name an owner in a header."""
        bucket_and_writer = await writable(self.buckets, request)
        if b"x-object-owner" in request.headers:
            raise errors.bad_request_object_owner()
        return bucket_and_writer

    async def _destination(self, request: Request) -> Destination:
        bucket, writer = await writable(self.buckets, request)
        return Destination(bucket, writer, making_conditions(request.headers))

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


def created(request: Request, row: ObjectRow, headers: Headers = ()) -> Reply:
    """The response to a request that made an object: what it is and where."""
    location = request.location(f"/storage/buckets/{row.bucket}/objects/{row.key}")
    return json_reply(row.as_json(), 201, (location, *headers))
