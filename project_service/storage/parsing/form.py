"""The upload form (RFC 7578, in the syntax of RFC 2046), read chunk by chunk.

No I/O: bytes go in, events come out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from attrs import evolve, frozen
from multipart import content_disposition_unquote, header_unquote

from project_service.errors import unsupported_media_type
from project_service.storage import errors

MAX_PARTS = 100
MAX_FIELD_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_HEADERS = 16
# Transfer encodings that change the bytes (RFC 2045 section 6.1). RFC 7578 section 4.7 forbids them in forms.
ENCODED = ("base64", "quoted-printable")
# How much may stand before the first boundary and after the last one, where RFC 2046 allows anything.
MAX_AROUND_BYTES = 64 * 1024
# What a recipient has to read in extended parameters such as ``filename*`` (RFC 5987 section 3.2.1).
CHARSETS = ("utf-8", "iso-8859-1")

_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BLANKS = re.compile(rb"[ \t]*")
# A quoted string without an end extends to the end of the header: trying again from each quote would take long.
_PARAMETER = re.compile(r';[ \t]*([^;="\s]+)[ \t]*=[ \t]*("(?:\\.|[^"\\])*+["\\]?|[^;]*)')
_EXTENDED = re.compile(r"([^']*)'[^']*'([^\s;\"]+)", re.ASCII)


@frozen
class Field:
    """One of the fields that the reader was asked for, as sent."""

    name: str
    value: str


@frozen
class FileStart:
    """The file begins; its bytes follow as ``bytes`` events. Both fields are as sent, and may be empty."""

    filename: str | None
    content_type: str | None


Event = Field | FileStart | bytes


@frozen
class Names:
    """What the parts of a form are called. ``fields`` are those that an upload may have besides its file, each once,
    by the names that they are sent under; all others are ignored. ``file`` None: the file is the first part that has
    a file name."""

    fields: Mapping[str, str]
    file: str | None = "file"


_DETAILS = ("max_age_seconds", "cache_control", "content_language", "metadata")


def _as_sent(*names: str) -> Names:
    return Names({name: name for name in (*names, *_DETAILS)})


FIELDS = _as_sent("key", "owner")
# One by a link must not name an owner, whatever rights its link has.
FIELDS_BY_LINK = _as_sent("key", "redirect")
# Those of Supabase's clients. The cacheControl is an age.
FIELDS_OF_CLIENTS = Names(
    {"cacheControl": "max_age_seconds", "metadata": "metadata", "contentType": "content_type"}, None
)


def boundary_of(content_type: str | None) -> str:
    """The boundary. Raises ``unsupported_media_type`` if this is no form, ``invalid_multipart`` if it has no valid
    boundary."""
    kind, parameters = _parse_header(content_type or "")
    if kind != "multipart/form-data":
        raise unsupported_media_type("multipart/form-data")
    boundary: str = header_unquote(parameters.get("boundary", ""))
    # RFC 2046 section 5.1.1. It does not end with a blank, as blanks may follow it on its line.
    if not re.fullmatch(r"[\x20-\x7e]{0,69}[\x21-\x7e]", boundary):
        # The usual cause: somebody set the header by hand, and so replaced the one that the HTTP library had made.
        raise errors.invalid_multipart(
            "the Content-Type has no usable boundary; leave it to what makes the form"
        )
    return boundary


@frozen
class _Part:
    """The headers of a part that count; ``name`` is that of ``Event``s, "file" for the file and "" for what is read
    past. Others are ignored, Content-Length among them (RFC 7578 section 4.8)."""

    name: str
    filename: str | None
    content_type: str | None
    encoding: str


class FormReader:
    """Feed it chunks, then call ``finish``. Raises ``invalid_multipart`` as soon as the form cannot be parsed.

    Parts that ``names`` does not know give no events, but their length is limited all the same. A file or key
    in base64 or quoted-printable raises ``unsupported_media_type``, because it would be stored encoded.
    """

    def __init__(self, boundary: str, names: Names = FIELDS) -> None:
        self._names = names
        self._delimiter = b"\r\n--" + boundary.encode("ascii")
        # What has been fed but not parsed yet begins at ``_at``. The first boundary may be the first line.
        self._data = b"\r\n"
        self._at = 0
        # Each stage parses from ``_at`` on, and returns False when it needs more bytes.
        self._stage: Callable[[], bool] = self._preamble
        self._events: list[Event] = []
        self._lines: list[bytes] = []
        self._part = _Part("", None, None, "")
        self._value = bytearray()
        self._part_count = 0
        self._around = 0
        self._seen: set[str] = set()
        self._complete = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events in ``chunk``."""
        self._data, self._at = self._data[self._at :] + chunk, 0
        while self._stage():
            pass
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Call this at the end of the body; raises if the form is incomplete or has no file."""
        if not self._complete:
            raise errors.invalid_multipart("it ends before its last boundary")
        if "file" not in self._seen:
            raise errors.invalid_multipart("it has no part named file")

    def _preamble(self) -> bool:
        start = self._data.find(self._delimiter)
        if start < 0:
            self._skip_to(
                max(0, len(self._data) - len(self._delimiter) + 1),
                "the boundary of its Content-Type does not come",
            )
            return False
        self._at = start + len(self._delimiter)
        self._stage = self._boundary
        return True

    def _boundary(self) -> bool:
        """The rest of a boundary's line: blanks (RFC 2046, "transport-padding"), or -- after the last boundary."""
        rest = self._data[self._at : self._at + 2]
        if rest == b"--":
            self._at += 2
            self._complete = True
            self._stage = self._epilogue
            return True
        blanks = _BLANKS.match(self._data, self._at)
        assert blanks is not None
        end = self._data[blanks.end() : blanks.end() + 2]
        if end == b"\r\n":
            self._at = blanks.end() + 2
            self._begin_headers()
            return True
        if (end not in (b"", b"\r") and rest != b"-") or len(blanks[0]) > MAX_HEADER_BYTES:
            raise errors.invalid_multipart("a boundary is not followed by CRLF")
        return False

    def _headers(self) -> bool:
        end = self._data.find(b"\r\n", self._at)
        line = self._data[self._at :] if end < 0 else self._data[self._at : end]
        if b"\n" in line:
            raise errors.invalid_multipart("a line of a part's headers does not end with CRLF")
        if len(line) > MAX_HEADER_BYTES:
            raise errors.invalid_multipart(f"a header of a part is longer than {MAX_HEADER_BYTES} bytes")
        if end < 0:
            return False
        if line:
            self._at = end + 2
            self._add_line(line)
        else:
            self._begin_part()
            self._stage = self._body_start
        return True

    def _body_start(self) -> bool:
        """The empty line after the headers. In a part without a body it belongs to the next boundary."""
        start = self._data[self._at : self._at + len(self._delimiter)]
        if len(start) < len(self._delimiter) and self._delimiter.startswith(start):
            return False
        if start != self._delimiter:
            self._at += 2
        self._stage = self._body
        return True

    def _body(self) -> bool:
        data, at = self._data, self._at
        end = data.find(self._delimiter, at)
        if end >= 0:
            self._take(data[at:end])
            self._end_part()
            self._at = end + len(self._delimiter)
            self._stage = self._boundary
            return True
        # What may be the beginning of the delimiter is left for the next chunk. It has one CR, at its start.
        held = data.rfind(b"\r", max(at, len(data) - len(self._delimiter) + 1))
        self._at = held if held >= 0 and self._delimiter.startswith(data[held:]) else len(data)
        self._take(data[at : self._at])
        return False

    def _epilogue(self) -> bool:
        self._skip_to(len(self._data), "too much follows its last boundary")
        return False

    def _skip_to(self, end: int, why: str) -> None:
        self._around += end - self._at
        self._at = end
        if self._around > MAX_AROUND_BYTES:
            raise errors.invalid_multipart(why)

    def _begin_headers(self) -> None:
        self._part_count += 1
        if self._part_count > MAX_PARTS:
            raise errors.invalid_multipart(f"it has more than {MAX_PARTS} parts")
        self._lines = []
        self._stage = self._headers

    def _add_line(self, line: bytes) -> None:
        if line[:1] in (b" ", b"\t"):
            if not self._lines:
                raise errors.invalid_multipart("the headers of a part begin with a blank")
            line = self._lines.pop() + b" " + line.lstrip()
            if len(line) > MAX_HEADER_BYTES:
                raise errors.invalid_multipart(f"a header of a part is longer than {MAX_HEADER_BYTES} bytes")
        name, colon, _ = line.partition(b":")
        if not colon or not _HEADER_NAME.fullmatch(name.strip()):
            raise errors.invalid_multipart("a header of a part is not a name, a colon and a value")
        if len(self._lines) == MAX_HEADERS:
            raise errors.invalid_multipart(f"a part has more than {MAX_HEADERS} headers")
        self._lines.append(line)

    def _begin_part(self) -> None:
        sent = _part_of(self._lines)
        part = self._part = evolve(sent, name=self._known_as(sent))
        self._value = bytearray()
        if part.encoding in ENCODED and part.name in ("file", "key"):
            raise unsupported_media_type("sent without a transfer encoding of its parts")
        if part.name in self._seen:
            raise errors.invalid_multipart(f"it has more than one part named {sent.name}")
        if part.name:
            self._seen.add(part.name)
        if part.name == "file":
            self._events.append(FileStart(part.filename, part.content_type))

    def _known_as(self, part: _Part) -> str:
        if self._names.file is None and part.filename is not None:
            return "" if "file" in self._seen else "file"
        return "file" if part.name == self._names.file else self._names.fields.get(part.name, "")

    def _take(self, data: bytes) -> None:
        if self._part.name == "file":
            if data:
                self._events.append(data)
            return
        self._value += data
        if len(self._value) > MAX_FIELD_BYTES:
            raise errors.invalid_multipart(f"a field is longer than {MAX_FIELD_BYTES} bytes")

    def _end_part(self) -> None:
        name = self._part.name
        if name not in ("", "file"):
            try:
                self._events.append(Field(name, self._value.decode("utf-8")))
            except UnicodeDecodeError:
                if name == "key":
                    raise errors.invalid_key("it is not UTF-8") from None
                raise errors.invalid_multipart(f"the field {name} is not UTF-8") from None


def _part_of(lines: list[bytes]) -> _Part:
    headers: dict[str, str] = {}
    for line in lines:
        raw, _, value = line.partition(b":")
        name = raw.strip().decode("ascii").lower()
        if name in headers and name == "content-disposition":
            raise errors.invalid_multipart("a part has more than one Content-Disposition")
        headers[name] = value.strip().decode("latin-1")
    kind, parameters = _parse_header(headers.get("content-disposition", ""))
    if kind != "form-data":
        raise errors.invalid_multipart("a part has no Content-Disposition that is form-data")
    encoding = headers.get("content-transfer-encoding", "").lower()
    name = _as_utf8(parameters.get("name", ""), "the name of a field")
    return _Part(name, _filename(parameters), headers.get("content-type"), encoding)


def _filename(parameters: dict[str, str]) -> str | None:
    """Some clients send the real name in ``filename*``, which RFC 7578 section 4.2 forbids, beside an encoded one."""
    extended = _EXTENDED.fullmatch(parameters.get("filename*", ""))
    if extended is not None and extended[1].lower() in CHARSETS and extended[2].isascii():
        try:
            return unquote(extended[2], extended[1], "strict")
        except UnicodeDecodeError:
            pass
    if "filename" not in parameters:
        return None
    return _as_utf8(parameters["filename"], "the name of the file", is_filename=True)


def _as_utf8(value: str, what: str, is_filename: bool = False) -> str:
    """A parameter of Content-Disposition, as browsers write it."""
    try:
        text: str = content_disposition_unquote(value.encode("latin-1").decode("utf-8"), is_filename)
    except UnicodeDecodeError:
        raise errors.invalid_multipart(f"{what} is not UTF-8") from None
    return text


def _parse_header(header: str) -> tuple[str, dict[str, str]]:
    """A header's value and its parameters, by their names in lower case; quotes are left in place."""
    kind = header.partition(";")[0].strip().lower()
    return kind, {name.lower(): value.strip() for name, value in _PARAMETER.findall(header)}
