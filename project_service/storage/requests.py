"""Reads the parameters, headers and bodies of storage requests; each value has an error of its own. Pure but for
Werkzeug's header parsers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson
from attrs import evolve
from werkzeug.datastructures import ResponseCacheControl
from werkzeug.http import parse_cache_control_header

from project_service import base64url, whole_numbers
from project_service.errors import (
    ApiError,
    refuse_unknown,
    require_text,
    require_texts,
    service_key_required,
    unsupported_media_type,
    validation_failed,
)
from project_service.http.head import HeaderView
from project_service.http.request import Request
from project_service.storage import errors, keys
from project_service.storage.links import MAX_EXPIRES_IN_SECONDS, MAX_USES
from project_service.storage.values import Writer

# Page tokens: where the next page of a listing begins, as an opaque text. Pure.
#
# A token holds the last entry of its page and not a position, so that pages do not shift when objects come or go.
# It is no secret: listing the bucket takes the same rights with a token as without.


_VERSION = 1


def encode_page_token(last: str, prefix: str, recursive: bool) -> str:
    packed = orjson.dumps([_VERSION, last, prefix, recursive])
    return base64url.encode(packed)


def decode_page_token(token: str, prefix: str, recursive: bool) -> str:
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


DEFAULT_MAX_KEYS = 100
MAX_MAX_KEYS = 1000
MAX_BULK_KEYS = 1000
# RFC 9111 section 1.2.2; also PostgreSQL's largest integer.
MAX_AGE_SECONDS = 2**31 - 1


def flag(request: Request, name: str) -> bool:
    """A query parameter that is true, false or absent."""
    value = request.query_value(name)
    if value not in (None, "true", "false"):
        raise validation_failed({name: "must be true or false"})
    return value == "true"


def max_keys(request: Request) -> int:
    value = request.query_value("max_keys")
    if value is None:
        return DEFAULT_MAX_KEYS
    number = whole_numbers.from_digits(value)
    if number is None or not 1 <= number <= MAX_MAX_KEYS:
        raise validation_failed({"max_keys": f"must be a whole number from 1 to {MAX_MAX_KEYS}"})
    return number


def refuse_partial(headers: HeaderView) -> None:
    """Raise for an upload with ``Content-Range``: a piece would replace the whole object (RFC 9110 section 14.5)."""
    if headers.get(b"content-range") is not None:
        raise errors.piece_of_an_object()


def refuse_form(headers: HeaderView) -> None:
    """Raise for a form where the body is the object: it would be stored with its boundaries and part headers."""
    if keys.essence(headers.text(b"content-type") or "") == "multipart/form-data":
        raise unsupported_media_type("the object itself; a form is sent by POST")


def require_body(request: Request) -> None:
    """Raise where the request says nothing of a body: somebody forgot it, and would replace the object by nothing.

    An empty object is stored by ``Content-Length: 0``, or by chunks of which there is none.
    """
    if request.body.length == 0 and b"content-length" not in request.headers:
        raise errors.length_required()


def owner_stated(headers: HeaderView, writer: Writer) -> Writer:
    """``writer``, for whom ``X-Object-Owner`` may name another owner of what is written. Only the service key may."""
    owner = headers.text(b"x-object-owner")
    return writer if owner is None else evolve(writer, user_id=parse_owner(owner, writer, "X-Object-Owner"))


def refuse_owner(headers: HeaderView) -> None:
    """Raise for a request that names an owner although it makes no object: the owner would not be changed."""
    if b"x-object-owner" in headers:
        raise errors.owner_not_taken()


# With these a shared cache asks each time, whatever the age (RFC 9111, 5.2.2).
_ASK_ANEW = {"no-cache", "no-store", "private"}


def parse_owner(text: str, writer: Writer, name: str = "owner") -> UUID:
    """``name`` is the field or header. Raises ``service_key_required``, ``validation_failed``."""
    if not writer.is_service:
        raise service_key_required(f"Only the service key can set {name}.")
    try:
        return UUID(text)
    except ValueError:
        raise validation_failed({name: "must be the id of a user"}) from None


def max_age_stated(headers: HeaderView) -> int | None:
    """``max-age`` of an upload's ``Cache-Control``, which S3 keeps with the object too; 0 where that forbids caches
    to answer by themselves, and None if it says neither."""
    text = b", ".join(headers.all(b"cache-control")).decode("latin-1")
    stated = parse_cache_control_header(text, cls=ResponseCacheControl)
    directives = {name.lower(): value for name, value in stated.items()}
    age = directives.get("max-age")
    seconds = None if age is None else parse_max_age(age, "Cache-Control")
    return 0 if _ASK_ANEW & directives.keys() else seconds


def parse_max_age(text: str, name: str = "max_age_seconds") -> int:
    number = whole_numbers.from_digits(text)
    if number is None or not 0 <= number <= MAX_AGE_SECONDS:
        raise validation_failed({name: f"must be a whole number from 0 to {MAX_AGE_SECONDS}"})
    return number


def changes(body: Mapping[str, Any], writer: Writer) -> dict[str, Any]:
    """What ``PATCH`` of an object is to change; null removes an owner, or an age of its own."""
    refuse_unknown(body, {"owner", "max_age_seconds"})
    given = dict(body)
    if given.get("owner") is not None:
        given["owner"] = parse_owner(require_text("owner", given["owner"]), writer)
    if given.get("max_age_seconds") is not None:
        given["max_age_seconds"] = whole(given, "max_age_seconds", 0, 0, MAX_AGE_SECONDS)
    return given


def whole(body: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    number = whole_numbers.from_json(body.get(name, default))
    if number is None or not least <= number <= most:
        raise validation_failed({name: f"must be a whole number from {least} to {most}"})
    return number


def presign(body: Mapping[str, Any], default_seconds: int) -> tuple[str, int, int]:
    """Key, lifetime in seconds and number of uses (0: any)."""
    refuse_unknown(body, {"key", "expires_in_seconds", "uses"})
    key = keys.parse_key(require_text("key", body.get("key")))
    seconds = whole(body, "expires_in_seconds", default_seconds, 1, MAX_EXPIRES_IN_SECONDS)
    return key, seconds, whole(body, "uses", 1, 0, MAX_USES)


def source_and_target(body: Mapping[str, Any]) -> tuple[str, str]:
    """``from`` and ``to`` of a copy or move."""
    refuse_unknown(body, {"from", "to"})
    given = {name: body.get(name) for name in ("from", "to")}
    require_texts(given)
    source, target = (keys.parse_key(require_text(name, value), name) for name, value in given.items())
    if source == target:
        raise validation_failed({"to": "is the same as from"})
    return source, target


def bulk_keys(body: Mapping[str, Any]) -> list[str]:
    refuse_unknown(body, {"keys"})
    value = body.get("keys")
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_BULK_KEYS:
        raise validation_failed({"keys": f"must be a list of 1 to {MAX_BULK_KEYS} keys"})
    if not all(isinstance(key, str) for key in value):
        raise validation_failed({"keys": "must be strings"})
    return list(dict.fromkeys(keys.parse_key(key, "keys") for key in value))
