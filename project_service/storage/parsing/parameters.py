"""Reads what storage requests bring beside JSON: parameters, headers, page tokens, and the fields of an upload form.

Each value has an error of its own. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote, urlencode
from uuid import UUID

import orjson
from attrs import astuple, define, frozen

from project_service import base64url, whole_numbers
from project_service.errors import ApiError, unsupported_media_type, validation_failed
from project_service.http.head import HeaderView
from project_service.http.request import Request
from project_service.storage import access, errors, keys
from project_service.storage.parsing.details import details_of, with_field
from project_service.storage.parsing.digests import Expected, expected_digests
from project_service.storage.parsing.form import Field, FileStart
from project_service.storage.values import SORTS, Bucket, Details, Link, ObjectRow, Sorting, Writer

DEFAULT_PAGE_KEYS = 100
MAX_PAGE_KEYS = 1000
# How much of a form's Content-Length may be something else than its file.
FORM_OVERHEAD_BYTES = 256 * 1024
_TOKEN_VERSION = 1
# What file systems allow.
MAX_FILENAME_LENGTH = 255
_NOT_IN_FILENAMES = re.compile(rf"[/\\\x00-\x1f\x7f-\x9f{keys.TURNING}]")
MAX_SEARCH_LENGTH = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# The characters of URLs (RFC 3986 section 2).
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")


def flag(request: Request, name: str) -> bool:
    """A query parameter that is true, false or absent."""
    value = request.query_value(name)
    if value not in (None, "true", "false"):
        raise validation_failed({name: "must be true or false"})
    return value == "true"


def shown_as(request: Request, inline: bool | None = False) -> tuple[bool | None, str]:
    """Whether a download is to be shown inline, ``inline`` if the request does not say, and its file name, "" for the
    key's. ``?download``, also with a name, means that it is to be saved. Raises ``validation_failed``."""
    if not request.raw_query:
        return inline, ""
    name = request.query_value("download")
    if name is None:
        return inline if request.query_value("inline") is None else flag(request, "inline"), ""
    flag(request, "inline")
    if len(name) > MAX_FILENAME_LENGTH or _NOT_IN_FILENAMES.search(name):
        why = (
            f"must be a file name of up to {MAX_FILENAME_LENGTH} characters, without /, \\, control characters and "
            "those that turn the direction of text"
        )
        raise validation_failed({"download": why})
    return False, name


def page_limit(request: Request, name: str) -> int:
    """How many entries a page is to have, by the query parameter ``name``."""
    value = request.query_value(name)
    if value is None:
        return DEFAULT_PAGE_KEYS
    number = whole_numbers.from_digits(value)
    if number is None or not 1 <= number <= MAX_PAGE_KEYS:
        raise validation_failed({name: f"must be a whole number from 1 to {MAX_PAGE_KEYS}"})
    return number


def sorting_of(request: Request) -> Sorting | None:
    """How the listing is to be sorted and searched; None for the one by key with folders. Raises
    ``validation_failed``."""
    by, order = request.query_value("sort"), request.query_value("order")
    search = request.query_value("search")
    if by is not None and by not in SORTS:
        *first, last = SORTS
        raise validation_failed({"sort": f"must be {', '.join(first)} or {last}"})
    if order not in (None, "asc", "desc"):
        raise validation_failed({"order": "must be asc or desc"})
    if search and (len(search) > MAX_SEARCH_LENGTH or _CONTROL.search(search)):
        why = f"must be up to {MAX_SEARCH_LENGTH} characters, without control characters"
        raise validation_failed({"search": why})
    sorting = Sorting(by or "key", order == "desc", search or "")
    return None if sorting == Sorting() else sorting


def encode_sorted_token(last: tuple[str, str], prefix: str, sorting: Sorting) -> str:
    """As ``encode_page_token``, for a listing that is sorted or searched."""
    return base64url.encode(orjson.dumps([_TOKEN_VERSION, *last, prefix, *astuple(sorting)]))


def decode_sorted_token(token: str, prefix: str, sorting: Sorting) -> tuple[str, str]:
    """Where the page before ended; raises ``validation_failed`` for a token that is not of this very listing."""
    bad = validation_failed({"page_token": "is not a token of this listing"})
    try:
        version, value, key, *listing = orjson.loads(base64url.decode(token))
        same = version == _TOKEN_VERSION and listing == [prefix, *astuple(sorting)]
        if not same or not isinstance(value, str) or not isinstance(key, str):
            raise bad
        return SORTS[sorting.by](value), keys.parse_prefix(key)
    except (ValueError, TypeError, OverflowError, ApiError):
        raise bad from None


def encode_page_token(last: str, prefix: str, recursive: bool) -> str:
    """An opaque text that says where the next page of a listing begins.

    It holds the last entry of its page and not a position, so that pages do not shift when objects come or go. It is
    no secret: listing the bucket takes the same rights with a token as without.
    """
    return base64url.encode(orjson.dumps([_TOKEN_VERSION, last, prefix, recursive]))


def decode_page_token(token: str, prefix: str, recursive: bool) -> str:
    """The last entry seen; raises ``validation_failed`` for a token that is not of this very listing."""
    bad = validation_failed({"page_token": "is not a token of this listing"})
    try:
        version, last, *listing = orjson.loads(base64url.decode(token))
        same = version == _TOKEN_VERSION and listing == [prefix, recursive] and isinstance(last, str)
        if not same or not last.startswith(prefix):
            raise bad
        # The entry is a key or a folder, so it has to be a possible prefix.
        return keys.parse_prefix(last)
    except (ValueError, TypeError, ApiError):
        raise bad from None


def encode_link_token(last: Link) -> str:
    """As ``encode_page_token``, for a list of links."""
    return base64url.encode(orjson.dumps([_TOKEN_VERSION, last.created_at.isoformat(), str(last.id)]))


def decode_link_token(token: str) -> tuple[datetime, UUID]:
    """When the last link seen was made, and its id; raises ``validation_failed``."""
    bad = validation_failed({"page_token": "is not a token of such a list"})
    try:
        version, created_at, link_id = orjson.loads(base64url.decode(token))
        moment = datetime.fromisoformat(created_at)
        if version != _TOKEN_VERSION or moment.tzinfo is None:
            raise bad
        # In UTC, because PostgreSQL takes fewer time zones than Python does.
        return moment.astimezone(UTC), UUID(link_id)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise bad from None


# What uploads say of the object that they are to become.


def refuse_partial(headers: HeaderView) -> None:
    """Raise for an upload with ``Content-Range``: a piece would replace the whole object (RFC 9110 section 14.5)."""
    if headers.get(b"content-range") is not None:
        raise errors.bad_request_content_range()


@frozen
class BodyHead:
    """What the headers of a request say of the object that its body is. ``declared`` is its media type, None if they
    do not say; ``expected`` are its digests."""

    declared: str | None
    details: Details
    expected: tuple[Expected, ...]


def body_head(headers: HeaderView) -> BodyHead:
    """For ``HeaderView.derived``. Raises what refuses such a request whatever its body is: ``bad_request``,
    ``unsupported_media_type``, ``length_required``, ``validation_failed``, ``bad_digest``."""
    refuse_partial(headers)
    content_type = headers.text(b"content-type")
    if keys.essence(content_type or "") == "multipart/form-data":
        # It would be stored with its boundaries and part headers.
        raise unsupported_media_type("the object itself; a form is sent by POST")
    if b"content-length" not in headers and b"transfer-encoding" not in headers:
        # The body was probably forgotten, and would replace the object by an empty one. That takes
        # ``Content-Length: 0``, or an empty chunked body.
        raise errors.length_required()
    return BodyHead(keys.content_type_of_body(content_type), details_of(headers), expected_digests(headers))


def chosen_type(bucket: Bucket, declared: str | None, key: str | None) -> str:
    """The declared media type, else one guessed from the key.

    Raises ``validation_failed`` where the declared one cannot be read, and ``unsupported_media_type`` where the
    bucket does not accept it. Without a key (it may come after the file) a guess is not checked yet.
    """
    parsed = keys.parse_content_type(declared) if declared else None
    chosen = parsed or keys.guess_content_type(key or "")
    known = parsed is not None or key is not None
    allowed = bucket.rules.allowed_content_types
    if known and allowed is not None and not keys.is_allowed_type(chosen, allowed):
        raise errors.unsupported_media_type_of_object(keys.essence(chosen))
    return chosen


@define
class FormFields:
    """The fields of an upload form beside the bytes of its file, as far as they have come; ``key`` is that of the
    object."""

    details: Details
    key: str | None = None
    owner: UUID | None = None
    filename: str | None = None
    content_type: str | None = None
    redirect: str | None = None
    # A field that names the type of the file, which counts before the type of its part.
    named_type: str | None = None
    # Whether the bytes of the file have begun, and whether the rules have been asked about it.
    has_file: bool = False
    checked: bool = False

    def start_file(self, file: FileStart) -> None:
        self.filename, self.content_type = file.filename, self.named_type or file.content_type
        self.has_file = True

    def add(self, sent: Field, writer: Writer, redirect_urls: Sequence[str]) -> None:
        """A field other than ``key``. Raises ``service_key_required``, ``validation_failed``."""
        if sent.name == "owner":
            self.owner = access.parse_owner(sent.value, writer)
        elif sent.name == "redirect":
            self.redirect = parse_redirect(sent.value, redirect_urls)
        elif sent.name == "content_type":
            self.named_type = keys.said(sent.value)
            self.content_type = self.named_type or self.content_type
        else:
            self.details = with_field(self.details, sent.name, sent.value)


def parse_redirect(url: str, allowed: Sequence[str]) -> str:
    """``url``, if it is one of ``allowed``, or begins with one of those that end with /; else raises
    ``validation_failed``.

    Browsers must understand it as it is compared: they take a backslash for a slash, skip line breaks, and resolve
    segments of dots, also where those are percent-encoded (the URL Standard, "basic URL parser").
    """
    if url in allowed:
        return url
    path = unquote(re.split("[?#]", url)[0])
    plain = _URL.fullmatch(url) and not {".", ".."} & set(path.split("/"))
    if not plain or not any(one.endswith("/") and url.startswith(one) for one in allowed):
        raise validation_failed({"redirect": "is not one of storage.redirect_urls"})
    return url


def redirected(url: str, row: ObjectRow) -> str:
    """Where a form leads to once it has made ``row``: ``url`` with the object's bucket, key and ETag, as S3 adds
    them."""
    before, mark, fragment = url.partition("#")
    query = urlencode({"bucket": row.bucket, "key": row.key, "etag": row.etag})
    return f"{before}{'&' if '?' in before else '?'}{query}{mark}{fragment}"
