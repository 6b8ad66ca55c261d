"""The upload form (RFC 7578), read chunk by chunk. No I/O: bytes go in, events come out."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen
from multipart import (
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from project_service.errors import unsupported_media_type
from project_service.storage import errors
from project_service.storage.disposition import extended_filename

MAX_PARTS = 100
MAX_FIELD_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_HEADERS = 16
# Transfer encodings that change the bytes (RFC 2045 section 6.1). RFC 7578 section 4.7 forbids them in forms.
ENCODED = ("base64", "quoted-printable")
# How much may stand before the first boundary and after the last one, where RFC 2046 allows anything.
MAX_AROUND_BYTES = 64 * 1024


@frozen
class Field:
    """One of ``FIELDS``, as sent."""

    name: str
    value: str


@frozen
class FileStart:
    """The file begins; its bytes follow as ``bytes`` events. Both fields are as sent, and may be empty."""

    filename: str | None
    content_type: str | None


Event = Field | FileStart | bytes
# The fields that an upload may have beside its file, each once; all others are ignored.
FIELDS = ("key", "owner", "max_age_seconds")


def boundary_of(content_type: str | None) -> str:
    """The boundary; raises ``unsupported_media_type`` for no form, ``invalid_multipart`` without a usable one."""
    kind, options = parse_options_header(content_type or "")
    if kind != "multipart/form-data":
        raise unsupported_media_type("multipart/form-data")
    boundary: str = options.get("boundary", "")
    # RFC 2046 section 5.1.1.
    if not 1 <= len(boundary) <= 70 or not boundary.isascii() or not boundary.isprintable():
        # The usual cause: somebody set the header by hand, and so replaced the one that the HTTP library had made.
        raise errors.invalid_multipart(
            "the Content-Type has no usable boundary; leave it to what makes the form"
        )
    return boundary


class FormReader:
    """Feed it chunks, then call ``finish``. Raises ``invalid_multipart`` as soon as the form cannot be read.

    Parts other than ``file`` and ``FIELDS`` bring no events. Their length is limited all the same.

    A file or key in base64 or quoted-printable raises ``unsupported_media_type``, because it would be stored encoded.
    """

    def __init__(self, boundary: str) -> None:
        self._parser = PushMultipartParser(
            boundary,
            max_header_size=MAX_HEADER_BYTES,
            max_header_count=MAX_HEADERS,
            max_segment_count=MAX_PARTS,
        )
        self._part: MultipartSegment | None = None
        self._value = bytearray()
        self._around = 0
        self._seen: set[str] = set()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events in ``chunk``. The iterator has to be exhausted before the next chunk is fed."""
        inside = False
        try:
            for event in self._parser.parse(chunk):
                inside = True
                yield from self._event(event)
        except MultipartError as problem:
            raise errors.invalid_multipart(_reason(problem)) from None
        if not inside and self._part is None:
            self._around += len(chunk)
            if self._around > MAX_AROUND_BYTES:
                raise errors.invalid_multipart("the boundary of its Content-Type does not come")

    def finish(self) -> None:
        """To be called when the body has ended; raises where the form is incomplete or has no file."""
        try:
            self._parser.close()
        except MultipartError:
            raise errors.invalid_multipart("it ends before its last boundary") from None
        if "file" not in self._seen:
            raise errors.invalid_multipart("it has no part named file")

    def _event(self, event: MultipartSegment | bytes | None) -> Iterator[Event]:
        if isinstance(event, MultipartSegment):
            self._part = event
            yield from self._begun(event)
        elif event is not None:
            yield from self._bytes(event)
        else:
            yield from self._ended()
            self._part = None

    def _begun(self, part: MultipartSegment) -> Iterator[Event]:
        encoding = part.header("Content-Transfer-Encoding", "").strip().lower()
        if encoding in ENCODED and part.name in ("file", "key"):
            raise unsupported_media_type("sent without a transfer encoding of its parts")
        if part.name in self._seen:
            raise errors.invalid_multipart(f"it has more than one part named {part.name}")
        if part.name in ("file", *FIELDS):
            self._seen.add(part.name)
        if part.name != "file":
            self._value = bytearray()
            return
        filename = extended_filename(part.header("Content-Disposition", "")) or part.filename
        yield FileStart(filename, part.header("Content-Type"))

    def _bytes(self, data: bytes) -> Iterator[Event]:
        assert self._part is not None
        if self._part.name == "file":
            yield data
            return
        self._value += data
        if len(self._value) > MAX_FIELD_BYTES:
            raise errors.invalid_multipart(f"a field is longer than {MAX_FIELD_BYTES} bytes")

    def _ended(self) -> Iterator[Event]:
        assert self._part is not None
        name = self._part.name
        if name in FIELDS:
            try:
                yield Field(name, self._value.decode("utf-8"))
            except UnicodeDecodeError:
                if name == "key":
                    raise errors.invalid_key("it is not UTF-8") from None
                raise errors.invalid_multipart(f"the field {name} is not UTF-8") from None


def _reason(problem: Exception) -> str:
    """The library's own words: they name what is wrong and hold nothing of the body."""
    text = str(problem.args[0])
    return text[:1].lower() + text[1:]
