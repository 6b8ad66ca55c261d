"""The heads of tus 1.0.0 (https://tus.io/protocols/resumable-upload), the protocol of resumable uploads. Pure.

Core and the extensions creation, creation-with-upload, creation-defer-length, expiration, termination and checksum.
Each function raises the refusal that the protocol asks for, with a code of ``errors``.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from attrs import define, field, frozen

from project_service import whole_numbers
from project_service.errors import Headers
from project_service.http.head import HeaderView
from project_service.storage import errors, keys
from project_service.storage.values import MAX_OBJECT_BYTES

VERSION = "1.0.0"
RESUMABLE = ("Tus-Resumable", VERSION)
EXTENSIONS = "creation,creation-with-upload,creation-defer-length,expiration,termination,checksum"
CONTENT_TYPE = "application/offset+octet-stream"
# The protocol asks for the first at least.
ALGORITHMS = ("sha1", "sha256", "md5")
# What a page may read of a response, besides what it may read of every other.
EXPOSED: tuple[str, str] = (
    "Access-Control-Expose-Headers",
    "Tus-Resumable, Tus-Version, Tus-Extension, Tus-Max-Size, Tus-Checksum-Algorithm, Upload-Offset, Upload-Length, "
    "Upload-Defer-Length, Upload-Metadata, Upload-Expires",
)
# The headers that all responses have.
OF_RESPONSES: Headers = (RESUMABLE, EXPOSED)

# What clients call the object's key and its content type, the first that is there counting. Supabase's clients send
# objectName and contentType; Uppy sends filename and name, filetype and type.
_KEYS = ("key", "objectName", "filename", "name")
_TYPES = ("contentType", "filetype", "type")
# Supabase's clients send it as a header, some apps as metadata.
_UPSERT = ("x-upsert", "upsert")
# Visible ASCII without comma and space.
_NAME = re.compile(r"[!-+\--~]+")


def options(max_size: int) -> Headers:
    """The headers of the answer to OPTIONS."""
    return (
        ("Tus-Version", VERSION),
        ("Tus-Extension", EXTENSIONS),
        ("Tus-Max-Size", str(max_size)),
        ("Tus-Checksum-Algorithm", ",".join(ALGORITHMS)),
    )


def check_version(headers: HeaderView) -> None:
    """Raises ``tus_version_not_supported`` unless the request speaks this version."""
    if headers.text(b"tus-resumable") != VERSION:
        raise errors.tus_version_not_supported(VERSION)


def has_bytes(headers: HeaderView) -> bool:
    """Whether the body is bytes of the upload."""
    declared = headers.text(b"content-type") or ""
    return declared.partition(";")[0].strip().lower() == CONTENT_TYPE


def _number(headers: HeaderView, name: bytes) -> int | None:
    values = headers.all(name)
    if not values:
        return None
    number = whole_numbers.from_digits(values[0].decode("latin-1"))
    if len(values) > 1 or number is None or number < 0:
        raise errors.invalid_upload_header(f"{name.decode().title()} must be a whole number of bytes")
    # One far beyond every limit would not fit into the database.
    return min(number, 2 * MAX_OBJECT_BYTES)


def offset(headers: HeaderView) -> int:
    """The number in ``Upload-Offset`` of a PATCH. Raises ``invalid_upload_header``."""
    number = _number(headers, b"upload-offset")
    if number is None:
        raise errors.invalid_upload_header("Upload-Offset is missing")
    return number


def length(headers: HeaderView) -> int | None:
    """``Upload-Length`` of a PATCH: None unless it is there."""
    return _number(headers, b"upload-length")


def length_of_new(headers: HeaderView) -> int | None:
    """The length of a new upload; None where it is to be said later."""
    stated, deferred = _number(headers, b"upload-length"), headers.text(b"upload-defer-length")
    if b"upload-concat" in headers:
        raise errors.invalid_upload_header("Upload-Concat is not supported; send the file as one upload")
    if deferred not in (None, "1"):
        raise errors.invalid_upload_header("Upload-Defer-Length must be 1")
    if (stated is None) == (deferred is None):
        raise errors.invalid_upload_header("there must be one of Upload-Length and Upload-Defer-Length")
    return stated


def parse_metadata(text: str) -> Mapping[str, str]:
    """``Upload-Metadata``: names, and values in base64, which may be missing; an empty header has none.

    Values that are no UTF-8 are as Latin-1 has them, since they may mean nothing to us.
    """
    metadata: dict[str, str] = {}
    for pair in text.split(",") if text.strip() else ():
        name, _, encoded = pair.strip().partition(" ")
        if not _NAME.fullmatch(name) or name in metadata:
            raise errors.invalid_upload_header(
                "Upload-Metadata must have names that differ, of visible ASCII"
            )
        try:
            value = b64decode(encoded.strip(), validate=True)
        except ValueError:
            raise errors.invalid_upload_header("a value of Upload-Metadata is not base64") from None
        try:
            metadata[name] = value.decode()
        except UnicodeDecodeError:
            metadata[name] = value.decode("latin-1")
    return metadata


@frozen
class Described:
    """What ``Upload-Metadata`` says of the object. None: nothing. ``text`` is the header as it was sent, ``upsert``
    what ``conditions.with_upsert`` takes."""

    text: str
    key: str | None
    content_type: str | None
    bucket: str | None
    max_age: str | None
    metadata: str | None
    upsert: str | None

    @classmethod
    def of(cls, headers: HeaderView) -> Described:
        text = ",".join(value.decode("latin-1") for value in headers.all(b"upload-metadata")).strip()
        metadata = parse_metadata(text)

        # A file may be named null; anything else that is, is a variable that the client did not set.
        key = next((metadata[name] for name in _KEYS if metadata.get(name)), None)
        content_type = next(filter(None, (keys.said(metadata.get(name)) for name in _TYPES)), None)
        bucket, max_age, document = (
            keys.said(metadata.get(name)) for name in ("bucketName", "cacheControl", "metadata")
        )
        upsert = [metadata[name] for name in _UPSERT if name in metadata]
        return cls(text, key, content_type, bucket, max_age, document, ",".join(upsert) if upsert else None)


@define
class Checksum:
    """Checks the body of a request against ``Upload-Checksum``."""

    _expected: bytes
    _actual: Any = field(repr=False)

    @classmethod
    def of(cls, headers: HeaderView) -> Checksum | None:
        text = headers.text(b"upload-checksum")
        if text is None:
            return None
        algorithm, _, encoded = text.partition(" ")
        if algorithm not in ALGORITHMS:
            raise errors.invalid_checksum(f"names none of {', '.join(ALGORITHMS)}")
        actual = hashlib.new(algorithm, usedforsecurity=False)
        try:
            expected = b64decode(encoded, validate=True)
        except ValueError:
            expected = b""
        if len(expected) != actual.digest_size:
            raise errors.invalid_checksum(f"is not {algorithm} and its digest in base64")
        return cls(expected, actual)

    def update(self, data: bytes) -> None:
        self._actual.update(data)

    def check(self) -> None:
        """Raises ``checksum_mismatch`` unless what came is what was meant."""
        if self._actual.digest() != self._expected:
            raise errors.checksum_mismatch()


def expires(moment: datetime) -> tuple[str, str]:
    """``Upload-Expires`` (RFC 9110 section 5.6.7)."""
    return "Upload-Expires", format_datetime(moment.astimezone(UTC), usegmt=True)
