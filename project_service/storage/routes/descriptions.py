"""What descriptions of endpoints have in common: paths, schemas, parameters and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from project_service.errors import ApiError, authentication_required, database_unavailable, validation_failed
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    LOCATION,
    MOMENT,
    STRING,
    Answer,
    Named,
    Parameter,
    Schema,
    array,
    exactly,
    in_header,
    in_path,
)
from project_service.http.json_body import Kind, whole
from project_service.storage import errors, keys
from project_service.storage.cache_control import MAX_AGE_SECONDS
from project_service.storage.parsing import parameters
from project_service.storage.pictures import images

BUCKETS = "/storage/buckets"
BUCKET = f"{BUCKETS}/<bucket>"
OBJECTS = f"{BUCKET}/objects"
OBJECT = f"{OBJECTS}/<path:key>"
TAG = "storage"
MAX_BULK_KEYS = 1000

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

METADATA_MEMBERS: Mapping[str, Schema] = {
    "key": KEY,
    "size": COUNT,
    "content_type": STRING,
    "last_modified": MOMENT,
    "etag": {"type": "string", "description": "The store's, without quotes; opaque."},
}
METADATA = Named("Object", exactly(**METADATA_MEMBERS))

IN_BUCKET = in_path("bucket", "The bucket's name.")
KEY_IN_PATH = in_path("key", "The object's key; its / may be sent as they are or as %2F.", KEY)
INLINE = Parameter("inline", "true: to be shown in the browser, in a sandbox; else to be saved.", BOOLEAN)

DOWNLOAD_NAME = Parameter(
    "download",
    "To be saved, under this name; without a value under the last segment of the key. It counts before inline.",
    {"type": "string", "maxLength": parameters.MAX_FILENAME_LENGTH},
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
OWNER_HEADER = in_header(
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


def _read_keys(name: str, value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_BULK_KEYS:
        raise validation_failed({name: f"must be a list of 1 to {MAX_BULK_KEYS} keys"})
    if not all(isinstance(key, str) for key in value):
        raise validation_failed({name: "must be strings"})
    return value


KEYS = Kind(array(KEY, minItems=1, maxItems=MAX_BULK_KEYS), _read_keys)
