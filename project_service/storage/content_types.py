"""Media types: reading, guessing, and matching against a bucket's list. Pure."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Sequence

from project_service.errors import validation_failed

DEFAULT = "application/octet-stream"
MAX_LENGTH = 255

# The names of types (RFC 6838 section 4.2). Unlike a token of RFC 9110 they have no "*", which here stands for any.
_WORD = r"[A-Za-z0-9!#$&+.^_-]+"
_ESSENCE = re.compile(rf"{_WORD}/{_WORD}")
_PATTERN = re.compile(rf"\*/\*|{_WORD}/\*|{_WORD}/{_WORD}")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
# A second media type after a comma. Browsers split Content-Type at its commas and take the last type that they find
# (Fetch Standard, "extract a MIME type"), so that such a header would name another type than the one checked here.
# The comma in "codecs=vp8,opus" does no harm, since no type follows it.
_SECOND = re.compile(r",[ ]*[A-Za-z0-9!#$%&'*+.^_`|~-]+/")

# Only the table that Python ships: with the machine's own files (/etc/mime.types) hosts would give different answers.
_TABLE = mimetypes.MimeTypes(filenames=())
# Types that it lacks, or that differ between versions of Python, under their registered names (RFC 6838).
for _type, _endings in (
    ("application/epub+zip", ".epub"),
    ("application/geo+json", ".geojson"),
    ("application/toml", ".toml"),
    ("application/vnd.apache.parquet", ".parquet"),
    ("application/vnd.oasis.opendocument.presentation", ".odp"),
    ("application/vnd.oasis.opendocument.spreadsheet", ".ods"),
    ("application/vnd.oasis.opendocument.text", ".odt"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", ".pptx"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".docx"),
    ("application/wasm", ".wasm"),
    ("application/yaml", ".yaml .yml"),
    ("audio/flac", ".flac"),
    ("audio/mp4", ".m4a"),
    ("audio/ogg", ".oga .ogg"),
    ("font/otf", ".otf"),
    ("font/ttf", ".ttf"),
    ("font/woff", ".woff"),
    ("font/woff2", ".woff2"),
    ("image/avif", ".avif"),
    ("image/webp", ".webp"),
    ("model/gltf+json", ".gltf"),
    ("model/gltf-binary", ".glb"),
    ("text/calendar", ".ics"),
    ("text/javascript", ".js .mjs"),
    ("text/markdown", ".md"),
    ("video/matroska", ".mkv"),
    ("video/ogg", ".ogv"),
):
    for _ending in _endings.split():
        _TABLE.add_type(_type, _ending)


def parse(text: str) -> str:
    """A media type with its parameters, as it was sent, but for tabs between these, which become spaces. Raises
    ``validation_failed`` if it is none, or a list of them."""
    text = text.strip().replace("\t", " ")
    readable = len(text) <= MAX_LENGTH and _PRINTABLE.fullmatch(text) and _ESSENCE.fullmatch(essence(text))
    if not readable or _SECOND.search(text):
        raise validation_failed({"content_type": "is not a media type"})
    return text


def essence(content_type: str) -> str:
    """``type/subtype`` in lower case, without parameters (RFC 9110 section 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()


def of_body(declared: str | None) -> str | None:
    """What a request's Content-Type says of an object; None where it says nothing.

    curl, wget, axios and urllib send ``application/x-www-form-urlencoded`` where they were told no type.
    """
    return None if essence(declared or "") == "application/x-www-form-urlencoded" else declared


def guess(key: str) -> str:
    """The media type that the key's ending stands for; ``application/octet-stream`` if it is unknown or names an
    encoding."""
    guessed, encoding = _TABLE.guess_type(f"/{key}")
    return guessed if guessed is not None and encoding is None else DEFAULT


def is_pattern(text: str) -> bool:
    """Whether ``text`` can stand in a bucket's list: ``type/subtype``, ``type/*`` or ``*/*``."""
    return len(text) <= MAX_LENGTH and _PATTERN.fullmatch(text) is not None


def allowed(content_type: str, patterns: Sequence[str] | None) -> bool:
    if patterns is None:
        return True
    wanted = essence(content_type)
    family = wanted.partition("/")[0] + "/*"
    return any(pattern.lower() in {wanted, family, "*/*"} for pattern in patterns)
