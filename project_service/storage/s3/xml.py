"""Parses the store's XML documents, and makes those that are sent to it. Pure.

Anything but the expected document (such as an error page of a proxy) raises ``StoreUnreachable``.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from attrs import frozen

from project_service.storage.s3.errors import (
    NO_NEXT_PAGE,
    UNREADABLE,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)

ABSENT = {"NoSuchKey", "NoSuchUpload", "NotFound", "404"}
# What error documents and answers of a single value have at most; larger documents are worth a thread.
SMALL_BYTES = 16 * 1024
_MAX_MARKS = 50_000
_PIECE_BYTES = 16 * 1024
_BUSY = {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"}
# 5xx that trying again does not change: not implemented, not this version of HTTP, storage full.
_FINAL = {501, 505, 507}
# The bytes were damaged on their way. They are still here, so they can be sent again.
_GARBLED = {"BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody"}


def error_text(body: bytes, name: str = "Code") -> str:
    """One text of an S3 error document, or "" if it has none."""
    try:
        root = _element(body, SMALL_BYTES)
    except ElementTree.ParseError:
        return ""
    return local_text(root, name) if local_name(root) == "Error" else ""


def refusal(status: int, body: bytes, region: str = "") -> StoreError:
    """The error for a response that is no success. ``region`` is that of its header."""
    code = error_text(body) or str(status)
    if code == "NoSuchBucket":
        return NoSuchBucket(status, code)
    kind = NoSuchObject if status == 404 or code in ABSENT else StoreError
    return kind(status, code, region or error_text(body, "Region"))


def worth_retrying(status: int, code: str) -> bool:
    """Whether the failure may pass. That is so for failures of the server, and of a proxy in front of it (408,
    520)."""
    return status in {408, 429} or (status >= 500 and status not in _FINAL) or code in _BUSY | _GARBLED


def local_name(element: ElementTree.Element) -> str:
    """An element's name without its namespace, which not every store sends."""
    return element.tag.rpartition("}")[2]


def local_text(element: ElementTree.Element, name: str) -> str:
    """The text of the first child of that name, or ""."""
    for child in element:
        if local_name(child) == name:
            return child.text or ""
    return ""


_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def document(name: str, content: str) -> bytes:
    """A document for the store with the root element ``name``. ``content`` is XML already."""
    return f'<{name} xmlns="{_NAMESPACE}">{content}</{name}>'.encode()


@frozen
class StoredStat:
    """What a HEAD says of an object. ``coding`` is its ``Content-Encoding``. Headers that it has not are "".
    ``metadata`` is what follows ``x-amz-meta-`` in names of headers, in lower case, with the values."""

    size: int
    etag: str
    content_type: str
    coding: str = ""
    cache_control: str = ""
    content_language: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


@frozen
class StoredObject:
    key: str
    size: int


@frozen
class StoredPage:
    """One page of ListObjectsV2; ``next_token`` is None on the last."""

    objects: tuple[StoredObject, ...]
    next_token: str | None


@frozen
class OpenMultipart:
    """A multipart upload that was neither completed nor aborted."""

    key: str
    upload_id: str


def parse_objects(body: bytes) -> StoredPage:
    """One page. Raises for a page that is not the last and has no token for the next, so that no object is missed."""
    root = _root(body)
    # Keys are decoded only where the store says that it encoded them. They are encoded as in forms: plus is a space.
    readable = unquote_plus if local_text(root, "EncodingType") == "url" else str
    objects = tuple(_stored_object(child, readable) for child in root if local_name(child) == "Contents")
    if local_text(root, "IsTruncated") != "true":
        return StoredPage(objects, None)
    token = local_text(root, "NextContinuationToken")
    if not token:
        raise StoreUnreachable(NO_NEXT_PAGE)
    return StoredPage(objects, token)


def _stored_object(element: ElementTree.Element, readable: Callable[[str], str]) -> StoredObject:
    size = local_text(element, "Size")
    if not size.isdecimal():
        raise _unreadable()
    return StoredObject(readable(local_text(element, "Key")), int(size))


def parse_multiparts(body: bytes) -> tuple[tuple[OpenMultipart, ...], tuple[str, str] | None]:
    """The uploads of one page, and the key and upload id markers of the next page or None."""
    root = _root(body)
    uploads = tuple(
        OpenMultipart(local_text(child, "Key"), local_text(child, "UploadId"))
        for child in root
        if local_name(child) == "Upload"
    )
    markers = (local_text(root, "NextKeyMarker"), local_text(root, "NextUploadIdMarker"))
    return uploads, markers if local_text(root, "IsTruncated") == "true" and markers[0] else None


def text_of(body: bytes, name: str) -> str:
    """The text of the root's child ``name``, such as ``UploadId``; never empty."""
    text = local_text(_root(body, SMALL_BYTES), name)
    if not text:
        raise _unreadable()
    return text


def parse_failed_deletes(body: bytes) -> tuple[str, ...]:
    """The keys that a DeleteObjects response reports as not deleted. A key that did not exist counts as deleted."""
    root = _root(body)
    errors = (child for child in root if local_name(child) == "Error")
    return tuple(local_text(error, "Key") for error in errors if local_text(error, "Code") not in ABSENT)


def _root(body: bytes, max_bytes: int | None = None) -> ElementTree.Element:
    try:
        return _element(body, max_bytes)
    except ElementTree.ParseError:
        raise _unreadable() from None


def _element(body: bytes, max_bytes: int | None = None) -> ElementTree.Element:
    """The root element. Raises ``ParseError`` also for what no store sends: a body of more than ``max_bytes``, or of
    more tags or attributes than a page of a thousand keys has.

    It is read in pieces, since all threads wait while one is.
    """
    # A store that takes long sends white space first (S3 API Reference, CompleteMultipartUpload).
    body = body.lstrip()
    too_long = max_bytes is not None and len(body) > max_bytes
    if too_long or max(body.count(b"<"), body.count(b"=")) > _MAX_MARKS:
        raise ElementTree.ParseError("too much")
    # The store is ours, and expat refuses entity bombs since 2.4.1.
    parser = ElementTree.XMLParser()  # noqa: S314
    for begin in range(0, len(body), _PIECE_BYTES):
        parser.feed(body[begin : begin + _PIECE_BYTES])
    root: ElementTree.Element = parser.close()
    return root


def _unreadable() -> StoreUnreachable:
    return StoreUnreachable(UNREADABLE)
