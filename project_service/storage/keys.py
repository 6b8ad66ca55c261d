"""Bucket names, object keys, prefixes and media types: what is valid, and where a prefix ends. Pure."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable, Sequence

from project_service.errors import ApiError, validation_failed
from project_service.storage import errors

MAX_KEY_BYTES = 900

BUCKET_NAME = "[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
_BUCKET_NAME = re.compile(BUCKET_NAME, re.ASCII)
# What clients of the Supabase family may call a bucket; "." and ".." would be no segments of a path.
_BUCKET_ID = re.compile(r"(?!\.{1,2}\Z| )[A-Za-z0-9_!.*'() &$@=;:+,?-]{1,100}(?<! )", re.ASCII)

# All of Unicode's category Cc. A regular expression, because a bulk delete brings a thousand long keys at a time.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# The controls of the Unicode Bidirectional Algorithm that turn the direction of what follows: with one a name ends in
# .txt to the eye and in .exe to the machine. Names do without, as letters have a direction of their own.
TURNING = "\u202a-\u202e\u2066-\u2069"
_TURNING = re.compile(f"[{TURNING}]")

# The least character above "/": the keys of a folder "f/" lie between "f/" and "f0".
AFTER_SLASH = "0"
# Keys hold no control characters, so nothing lies between a key and itself with this appended.
LEAST_CHARACTER = "\x01"


def is_bucket_name(name: str) -> bool:
    return _BUCKET_NAME.fullmatch(name) is not None


def is_bucket_id(text: str) -> bool:
    """Whether a bucket may be called so at ``/storage/v1``. Every name is such an id; a bucket with another one is
    found there alone."""
    return _BUCKET_ID.fullmatch(text) is not None


def parse_key(key: str, name: str = "key") -> str:
    """``key`` itself, which an object may have; raises ``invalid_key``, whose details are under ``name``, the field
    or parameter it was sent in.

    1 to 900 bytes of UTF-8, no control characters, no leading "/", no empty, "." or ".." segment.
    """
    if not key:
        raise errors.invalid_key("it is empty", name)
    _check_text(key, name)
    segments = key.split("/")
    if not segments[0]:
        raise errors.invalid_key("it begins with /", name)
    if not all(segments):
        raise errors.invalid_key("it has an empty segment", name)
    if "." in segments or ".." in segments:
        raise errors.invalid_key('a segment of it is "." or ".."', name)
    return key


def parse_new_key(key: str, name: str = "key") -> str:
    """As ``parse_key``, for an object that is to be made: without characters that turn the direction of text, which
    objects of earlier versions may have."""
    parse_key(key, name)
    if _TURNING.search(key):
        raise errors.invalid_key("it has a character that turns the direction of text", name)
    return key


def parse_keys(given: Sequence[str], name: str, parse: Callable[[str, str], str] = parse_key) -> list[str]:
    """``given``, each once. Raises ``invalid_key``, which says which of them is not allowed."""
    for number, key in enumerate(given, 1):
        try:
            parse(key, name)
        except ApiError as refusal:
            raise errors.invalid_key(
                f"{(refusal.details or {})[name]} (number {number} of {name})", name
            ) from None
    return [*dict.fromkeys(given)]


def parse_prefix(prefix: str, name: str = "prefix") -> str:
    """A prefix is any beginning of a key, or empty; raises ``invalid_key``."""
    _check_text(prefix, name)
    return prefix


def _check_text(text: str, name: str) -> None:
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError:
        raise errors.invalid_key("it is not UTF-8", name) from None
    if len(encoded) > MAX_KEY_BYTES:
        raise errors.invalid_key(f"it is longer than {MAX_KEY_BYTES} bytes", name)
    if _CONTROL.search(text):
        raise errors.invalid_key("it has a control character", name)


def end_of_prefix(prefix: str) -> str | None:
    """The least text above every key with that prefix, in the order of code points; None if there is none."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last == 0xD800:
            # Skip the surrogates, which are not characters.
            last = 0xE000
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None


def position_after(entry: str) -> str:
    """Where a listing goes on after ``entry``: behind all of a folder, or behind a key."""
    return entry[:-1] + AFTER_SLASH if entry.endswith("/") else entry + LEAST_CHARACTER


# Media types.

DEFAULT_CONTENT_TYPE = "application/octet-stream"
MAX_CONTENT_TYPE_LENGTH = 255

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


def parse_content_type(text: str) -> str:
    """A media type with its parameters as it was sent, except that tabs become spaces. Raises ``validation_failed``
    for anything else, such as a list of them."""
    text = text.strip().replace("\t", " ")
    readable = (
        len(text) <= MAX_CONTENT_TYPE_LENGTH
        and _PRINTABLE.fullmatch(text)
        and _ESSENCE.fullmatch(essence(text))
    )
    if not readable or _SECOND.search(text):
        raise validation_failed({"content_type": "is not a media type"})
    return text


def essence(content_type: str) -> str:
    """``type/subtype`` in lower case, without parameters (RFC 9110 section 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()


# What clients make of a variable without a value when they write it as text, in JavaScript and in Python.
_NOTHING = frozenset({"", "undefined", "null", "none"})


def said(text: str | None) -> str | None:
    """``text``, unless it says nothing."""
    return None if text is None or text.strip().lower() in _NOTHING else text


def content_type_of_body(declared: str | None) -> str | None:
    """The Content-Type of a request whose body is an object; None if it says nothing of the object.

    curl, wget, axios and urllib send ``application/x-www-form-urlencoded`` by default.
    """
    return None if essence(declared or "") == "application/x-www-form-urlencoded" else declared


def guess_content_type(key: str) -> str:
    """The media type that the key's ending stands for; ``application/octet-stream`` if it is unknown or names an
    encoding."""
    guessed, encoding = _TABLE.guess_type(f"/{key}")
    return guessed if guessed is not None and encoding is None else DEFAULT_CONTENT_TYPE


# Other names that programs have for types: those that RFCs and IANA's registry call aliases or deprecated, those that
# the MIME Sniffing Standard takes for the same (JavaScript, JSON, XML), and common ones that were never registered.
# All without the "x-" that ``registered_type`` leaves out.
_REGISTERED = {
    alias: name
    for name, aliases in (
        ("application/gzip", "application/gzip-compressed application/gzipped"),
        ("application/json", "text/json"),
        ("application/pdf", "application/acrobat text/pdf"),
        ("application/rtf", "text/rtf"),
        ("application/vnd.rar", "application/rar application/rar-compressed"),
        ("application/vnd.sqlite3", "application/sqlite3"),
        ("application/xml", "text/xml"),
        ("application/yaml", "text/yaml"),
        ("application/zip", "application/zip-compressed"),
        ("audio/aac", "audio/hx-aac-adts"),
        ("audio/midi", "audio/mid application/midi"),
        ("audio/mp4", "audio/m4a"),
        ("audio/mpeg", "audio/mp3 audio/mpeg3 audio/mpeg-3 audio/mpg"),
        ("audio/wav", "audio/wave audio/vnd.wave audio/pn-wav"),
        ("font/otf", "application/font-otf application/font-opentype"),
        ("font/ttf", "application/font-ttf application/font-truetype"),
        ("font/sfnt", "application/font-sfnt"),
        ("font/woff", "application/font-woff"),
        ("font/woff2", "application/font-woff2"),
        ("image/bmp", "image/ms-bmp image/windows-bmp"),
        ("image/jpeg", "image/jpg image/pjpeg image/pjpg image/jpe image/jfif image/pipeg"),
        ("image/svg+xml", "image/svg image/svg-xml"),
        ("image/tiff", "image/tif"),
        ("image/vnd.adobe.photoshop", "image/photoshop image/psd application/photoshop"),
        ("image/vnd.microsoft.icon", "image/icon image/ico"),
        ("text/csv", "application/csv text/comma-separated-values"),
        (
            "text/javascript",
            "application/javascript application/ecmascript text/ecmascript text/jscript text/livescript "
            "text/javascript1.0 text/javascript1.1 text/javascript1.2 text/javascript1.3 text/javascript1.4 "
            "text/javascript1.5",
        ),
        ("video/matroska", "video/mkv"),
        ("video/mp4", "video/m4v"),
        ("video/vnd.avi", "video/avi video/msvideo"),
    )
    for alias in aliases.split()
}
# What was not registered yet began so (RFC 6648); the same name without it is of no other type.
_UNREGISTERED = re.compile("(?<=/)x-")


def registered_type(content_type: str) -> str:
    """As ``essence``, under the name by which types are compared: ``image/jpeg`` for ``image/jpg`` and
    ``image/x-jpeg``."""
    name = _UNREGISTERED.sub("", essence(content_type))
    return _REGISTERED.get(name, name)


def is_pattern(text: str) -> bool:
    """Whether ``text`` can stand in a bucket's list: ``type/subtype``, ``type/*`` or ``*/*``."""
    return len(text) <= MAX_CONTENT_TYPE_LENGTH and _PATTERN.fullmatch(text) is not None


def is_allowed_type(content_type: str, patterns: Sequence[str] | None) -> bool:
    """Whether one of ``patterns`` stands for the type, by whichever of their names."""
    if patterns is None:
        return True
    named, registered = essence(content_type), registered_type(content_type)
    families = {f"{one.partition('/')[0]}/*" for one in (named, registered)} | {"*/*"}
    return any(one.lower() in families or registered_type(one) == registered for one in patterns)
