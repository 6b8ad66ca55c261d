"""What ``/openapi.json`` says of the routes below ``/storage``."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from attrs import evolve

from project_service.errors import (
    ApiError,
    authentication_required,
    service_key_required,
    unsupported_media_type,
    validation_failed,
)
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    LOCATION,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Named,
    Need,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    exactly,
    in_header,
    in_path,
    obj,
    takes,
)
from project_service.storage import errors, keys
from project_service.storage.buckets import MAX_BYTES, MAX_CONTENT_TYPES
from project_service.storage.keys import MAX_KEY_BYTES
from project_service.storage.links import MAX_EXPIRES_IN_SECONDS, MAX_USES
from project_service.storage.requests import DEFAULT_MAX_KEYS, MAX_BULK_KEYS, MAX_MAX_KEYS

# The JSON schemas of what storage takes and sends, for ``/openapi.json``.


KEY: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY_BYTES,
    "description": f"1 to {MAX_KEY_BYTES} bytes of UTF-8 without control characters; no leading /, no empty, . or .. "
    "segment.",
}
PREFIX: Schema = {"type": "string", "maxLength": MAX_KEY_BYTES}
BUCKET_NAME: Schema = {"type": "string", "pattern": f"^{keys.BUCKET_NAME}$"}
MAX_AGE: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_METADATA: Mapping[str, Schema] = {
    "key": KEY,
    "size": COUNT,
    "content_type": STRING,
    "last_modified": MOMENT,
    "etag": {"type": "string", "description": "The store's, without quotes; opaque."},
}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


OBJECT = Named("Object", exactly(**_METADATA))
OBJECT_DETAILS = Named(
    "ObjectDetails", exactly(**_METADATA, owner=or_null(UUID), max_age_seconds=or_null(MAX_AGE))
)
LISTING = Named(
    "ObjectListing",
    exactly(
        objects=array(OBJECT),
        folders=array({"type": "string", "pattern": "/$"}),
        prefix=STRING,
        is_truncated=BOOLEAN,
        next_token={
            "type": ["string", "null"],
            "description": "page_token of the next page; null on the last.",
        },
    ),
)
SIGNED_URL = Named(
    "SignedUrl",
    exactly(
        url={"type": "string", "format": "uri"},
        expires_at=MOMENT,
        method={"const": "GET"},
    ),
)


TAG = "storage"
BOTH: tuple[Need, ...] = ("database", "store")

IN_BUCKET = in_path("bucket", "The bucket's name.")
_KEY_IN_PATH = in_path("key", "The object's key; its / may be sent as they are or as %2F.", KEY)
_INLINE = Parameter("inline", "true: to be shown in the browser, in a sandbox; else to be saved.", BOOLEAN)
_WRITE_IF = (
    in_header("If-Match", "Only if the object is this very one."),
    in_header("If-None-Match", "*: only if there is no object with that key."),
    in_header("If-Unmodified-Since", "Only if the object has not changed since; If-Match counts instead."),
)
_OWNER = in_header("X-Object-Owner", "By the service key alone: the user to whom the object is to belong.")
_MAX_AGE_HEADER = in_header(
    "Cache-Control", "max-age: for how long caches may keep the object without asking, in a public bucket."
)
_READ_IF = (
    in_header("If-Match", "412 unless the object is this one."),
    in_header("If-Unmodified-Since", "412 if it has changed since."),
    in_header("If-None-Match", "304 if the object is this one."),
    in_header("If-Modified-Since", "304 if it has not changed since."),
    in_header("Range", "One range of bytes; several, and other units, give the whole."),
    in_header("If-Range", "The range counts only if the object is this one."),
)

NO_BUCKET, _NO_OBJECT = errors.bucket_not_found(), errors.object_not_found()
BAD_KEY = errors.invalid_key("why")
# A private bucket is read by signed-in users alone.
_READ_REFUSED: tuple[ApiError, ...] = (NO_BUCKET, authentication_required())
_STATED: tuple[ApiError, ...] = (errors.object_exists(), errors.precondition_failed())
_WRITE_REFUSED: tuple[ApiError, ...] = (NO_BUCKET, errors.not_owner(), BAD_KEY, *_STATED)
_SENT_REFUSED: tuple[ApiError, ...] = (
    service_key_required(),
    errors.piece_of_an_object(),
    *_WRITE_REFUSED,
    errors.bucket_full(),
    errors.upload_expired(),
    errors.content_type_not_allowed("a type that the bucket does not take"),
    validation_failed({}),
)


def json_answer(status: int, summary: str, schema: Schema | Named) -> Answer:
    return Answer(status, summary, {JSON: schema}, LOCATION if status == HTTPStatus.CREATED else {})


_OBJECT_HEADERS = {
    "Content-Disposition": "attachment or inline, with the last segment of the key as file name.",
    "ETag": "The entity tag, in quotes.",
    "Last-Modified": "When the object was written.",
    "Accept-Ranges": "bytes",
    "Cache-Control": "As the bucket's visibility asks, in a public one with the object's own age.",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "cross-origin, if pages of every origin may read responses.",
}
# "binary" says it to generators that do not know JSON Schema's contentMediaType, and a type of its own to those that
# pass over "*/*".
_BINARY: Schema = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
_BYTES: Mapping[str, Schema] = {"application/octet-stream": _BINARY, "*/*": {}}
_DOWNLOADED = (
    Answer(200, "The bytes, with the object's own Content-Type", _BYTES, _OBJECT_HEADERS),
    Answer(
        206,
        "One range of the bytes",
        _BYTES,
        {**_OBJECT_HEADERS, "Content-Range": "Which bytes of how many these are."},
    ),
    Answer(304, "The object is the one that the condition names"),
)

LIST = Operation(
    "listObjects",
    TAG,
    "List objects, ordered bytewise by key and grouped into folders",
    (json_answer(200, "A page of the listing", LISTING),),
    (
        IN_BUCKET,
        Parameter("prefix", "Only keys that begin with it.", PREFIX),
        Parameter(
            "max_keys",
            "Objects and folders on a page.",
            {"type": "integer", "minimum": 1, "maximum": MAX_MAX_KEYS, "default": DEFAULT_MAX_KEYS},
        ),
        Parameter("recursive", "true: no folders, every key.", BOOLEAN),
        Parameter("page_token", "next_token of the page before, with the same prefix and recursive."),
    ),
    errors=(*_READ_REFUSED, BAD_KEY),
)
UPLOAD_FORM = Operation(
    "uploadForm",
    TAG,
    "Upload an object from a form; an existing one is replaced",
    (json_answer(201, "The object's metadata", OBJECT),),
    (IN_BUCKET, *_WRITE_IF, _OWNER, _MAX_AGE_HEADER),
    RequestBody(
        {
            "multipart/form-data": obj(
                ("file",),
                False,
                file=_BINARY,
                key={**KEY, "description": "The object's key; the name of the file without it."},
                owner={**UUID, "description": "As X-Object-Owner."},
                max_age_seconds={**MAX_AGE, "description": "As max-age in Cache-Control."},
            )
        },
        summary="These fields may come before or after the file; others are read past.",
    ),
    (*_SENT_REFUSED, errors.invalid_multipart("why"), unsupported_media_type("multipart/form-data")),
    BOTH,
)
UPLOAD_RAW = Operation(
    "uploadRaw",
    TAG,
    "Upload an object: the body is its bytes, Content-Type its type",
    (
        json_answer(201, "The metadata of a new object", OBJECT),
        json_answer(200, "The metadata of an object that replaced another", OBJECT),
    ),
    (
        IN_BUCKET,
        _KEY_IN_PATH,
        *_WRITE_IF,
        in_header("Content-MD5", "Refused unless the body has this MD5."),
        _OWNER,
        _MAX_AGE_HEADER,
    ),
    RequestBody(_BYTES, required=False, summary="Any bytes; none need Content-Length: 0."),
    (*_SENT_REFUSED, errors.bad_digest("why"), errors.length_required()),
    BOTH,
)
DOWNLOAD = Operation(
    "downloadObject",
    TAG,
    "Download an object",
    _DOWNLOADED,
    (IN_BUCKET, _KEY_IN_PATH, _INLINE, *_READ_IF),
    errors=(
        *_READ_REFUSED,
        _NO_OBJECT,
        BAD_KEY,
        errors.precondition_failed(),
        errors.range_not_satisfiable(0),
    ),
    needs=BOTH,
)
DELETE = Operation(
    "deleteObject",
    TAG,
    "Delete an object",
    (Answer(204, "It is gone."),),
    (IN_BUCKET, _KEY_IN_PATH, *_WRITE_IF),
    errors=(*_WRITE_REFUSED, _NO_OBJECT, errors.owner_not_taken(), errors.object_in_use()),
    needs=BOTH,
)
CHANGE = Operation(
    "changeObject",
    TAG,
    "Change metadata of an object",
    (json_answer(200, "The metadata as it is now", OBJECT_DETAILS),),
    (IN_BUCKET, _KEY_IN_PATH, *_WRITE_IF),
    takes({"owner": or_null(UUID), "max_age_seconds": or_null(MAX_AGE)}),
    (NO_BUCKET, _NO_OBJECT, BAD_KEY, errors.owner_not_taken(), *_STATED),
)
PRESIGN = Operation(
    "presign",
    TAG,
    "Make a link that downloads an object without any key or token",
    (json_answer(200, "The link", SIGNED_URL),),
    (IN_BUCKET,),
    takes(
        {
            "expires_in_seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_EXPIRES_IN_SECONDS,
                "description": "storage.default_expires_in_seconds by default, which is 3600 unless it was set.",
            },
            "uses": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_USES,
                "default": 1,
                "description": "How many downloads it is good for; 0: any number until it expires.",
            },
        },
        key=KEY,
    ),
    (*_READ_REFUSED, _NO_OBJECT, BAD_KEY),
)
DOWNLOAD_LINK = Operation(
    "downloadByLink",
    TAG,
    "Download the object of a link",
    _DOWNLOADED,
    (
        Parameter("token", "The link's token.", {"type": "string", "minLength": 1}, required=True),
        _INLINE,
        *_READ_IF,
    ),
    errors=(
        errors.token_not_found(),
        errors.token_used(),
        errors.token_expired(),
        errors.prefetch_refused(),
        _NO_OBJECT,
        errors.precondition_failed(),
        errors.range_not_satisfiable(0),
    ),
    needs=BOTH,
)
_FROM_TO = takes(**{"from": KEY, "to": KEY})
COPY = Operation(
    "copyObject",
    TAG,
    "Copy an object within its bucket",
    (json_answer(201, "The metadata of the copy", OBJECT),),
    (IN_BUCKET, *_WRITE_IF),
    _FROM_TO,
    (*_WRITE_REFUSED, _NO_OBJECT, errors.bucket_full()),
    BOTH,
)
MOVE = evolve(
    COPY,
    name="moveObject",
    summary="Give an object another key",
    answers=(json_answer(200, "The metadata under the new key", OBJECT),),
    errors=(*_WRITE_REFUSED, _NO_OBJECT, errors.owner_not_taken(), errors.object_in_use()),
)
BULK_DELETE = Operation(
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
    takes(keys=array(KEY, minItems=1, maxItems=MAX_BULK_KEYS)),
    (NO_BUCKET, errors.not_owner(), BAD_KEY, errors.owner_not_taken(), errors.object_in_use()),
    BOTH,
)


# What ``/openapi.json`` says of the routes below ``/admin/buckets``.


BUCKETS_TAG = "buckets"

_LIMITS: Mapping[str, Schema] = {
    name: {"type": ["integer", "null"], "minimum": 1, "maximum": most} for name, most in MAX_BYTES.items()
}
_RULES: Mapping[str, Schema] = {
    "visibility": {"enum": ["public", "private"]},
    **_LIMITS,
    "allowed_content_types": {
        "type": ["array", "null"],
        "maxItems": MAX_CONTENT_TYPES,
        "items": {"type": "string", "description": "type/subtype, type/* or */*"},
    },
    "owner_only_writes": BOOLEAN,
}
BUCKET = Named(
    "Bucket",
    exactly(name=BUCKET_NAME, **_RULES, object_count=COUNT, total_bytes=COUNT, created_at=MOMENT),
)


CREATE_BUCKET = Operation(
    "createBucket",
    BUCKETS_TAG,
    "Make a bucket",
    (json_answer(201, "The new bucket", BUCKET),),
    body=takes(_RULES, name=BUCKET_NAME),
    errors=(errors.bucket_exists(),),
)
LIST_BUCKETS = Operation(
    "listBuckets",
    BUCKETS_TAG,
    "Every bucket",
    (json_answer(200, "The buckets", exactly(buckets=array(BUCKET))),),
)
SHOW_BUCKET = Operation(
    "showBucket",
    BUCKETS_TAG,
    "One bucket",
    (json_answer(200, "The bucket", BUCKET),),
    (IN_BUCKET,),
    errors=(NO_BUCKET,),
)
CHANGE_BUCKET = evolve(
    SHOW_BUCKET, name="changeBucket", summary="Change rules of a bucket", body=takes(_RULES)
)
DELETE_BUCKET = Operation(
    "deleteBucket",
    BUCKETS_TAG,
    "Delete a bucket",
    (Answer(204, "It is gone."),),
    (IN_BUCKET, Parameter("force", "true: with everything in it.", BOOLEAN)),
    errors=(NO_BUCKET, errors.bucket_not_empty(), errors.bucket_in_use(), errors.object_in_use()),
    needs=BOTH,
)
DELETE_PREFIX = Operation(
    "deletePrefix",
    BUCKETS_TAG,
    "Delete every object under a prefix; the empty one means all",
    (json_answer(200, "How many there were", exactly(deleted=COUNT)),),
    (
        IN_BUCKET,
        Parameter("prefix", "What their keys begin with.", PREFIX, required=True),
    ),
    errors=(NO_BUCKET, BAD_KEY, errors.object_in_use()),
    needs=BOTH,
)
