"""The JSON schemas of what storage takes and sends, for ``/openapi.json``."""

from __future__ import annotations

from collections.abc import Mapping

from project_service.http.openapi.described import (
    BOOLEAN,
    COUNT,
    MOMENT,
    STRING,
    UUID,
    Named,
    Schema,
    array,
    exactly,
)
from project_service.storage import keys
from project_service.storage.keys import MAX_KEY_BYTES

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
