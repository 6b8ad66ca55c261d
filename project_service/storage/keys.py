"""Bucket names, object keys and prefixes: what is allowed, and where a prefix ends. Pure."""

from __future__ import annotations

import re

from project_service.storage import errors

MAX_KEY_BYTES = 900

BUCKET_NAME = "[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
_BUCKET_NAME = re.compile(BUCKET_NAME, re.ASCII)

# All of Unicode's category Cc. A regular expression, because a bulk delete brings a thousand long keys at a time.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# The least character above "/": the keys of a folder "f/" lie between "f/" and "f0".
AFTER_SLASH = "0"
# Keys hold no control characters, so nothing lies between a key and itself with this appended.
LEAST = "\x01"


def is_bucket_name(name: str) -> bool:
    return _BUCKET_NAME.fullmatch(name) is not None


def parse_key(key: str, name: str = "key") -> str:
    """``key`` itself; raises ``invalid_key``, whose details are under ``name``, the field or parameter it was sent
    in.

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


def parse_prefix(prefix: str) -> str:
    """A prefix is any beginning of a key, or empty; raises ``invalid_key``."""
    _check_text(prefix, "prefix")
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
    """The least text above every key with that prefix, in the order of code points; None where there is none."""
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
    return entry[:-1] + AFTER_SLASH if entry.endswith("/") else entry + LEAST
