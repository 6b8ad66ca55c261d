"""Page tokens: where the next page of a listing begins, as an opaque text. Pure.

A token holds the last entry of its page and not a position, so that pages do not shift when objects come or go. It is
no secret: listing the bucket takes the same rights with a token as without.
"""

from __future__ import annotations

import orjson

from project_service import base64url
from project_service.errors import ApiError, validation_failed
from project_service.storage import keys

_VERSION = 1


def encode(last: str, prefix: str, recursive: bool) -> str:
    packed = orjson.dumps([_VERSION, last, prefix, recursive])
    return base64url.encode(packed)


def decode(token: str, prefix: str, recursive: bool) -> str:
    """The last entry seen; raises ``validation_failed`` for a token that is not of this very listing."""
    bad = validation_failed({"page_token": "is not a token of this listing"})
    try:
        packed = base64url.decode(token)
        version, last, *listing = orjson.loads(packed)
    except (ValueError, TypeError):
        raise bad from None
    if version != _VERSION or listing != [prefix, recursive] or not isinstance(last, str):
        raise bad
    if not last.startswith(prefix):
        raise bad
    try:
        # The entry is a key or a folder, so it has to be a possible prefix.
        return keys.parse_prefix(last)
    except ApiError:
        raise bad from None
