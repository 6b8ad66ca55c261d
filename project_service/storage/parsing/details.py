"""What an uploader says of an object (``Details``): in headers, in fields of a form, or in the body of a PATCH.

Pure.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from project_service.errors import ApiError, require_text, validation_failed
from project_service.http.head import HeaderView
from project_service.http.json_body import MAX_DEPTH, Kind, or_null, read_document, strict_loads, whole
from project_service.storage import cache_control
from project_service.storage.cache_control import MAX_AGE_SECONDS
from project_service.storage.values import Details

MAX_METADATA_BYTES = 16 * 1024
MAX_HEADER_LENGTH = 255
# RFC 9110 section 8.5: a list of language tags. Their subtags are not looked up anywhere.
_LANGUAGE = r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*"
_LANGUAGES = re.compile(rf"{_LANGUAGE}(?:[ ]*,[ ]*{_LANGUAGE})*")


def details_of(headers: HeaderView) -> Details:
    """What an upload's headers say. Raises ``validation_failed``."""
    details = Details()
    if b"cache-control" in headers.first:
        sent = b", ".join(headers.all(b"cache-control")).decode("latin-1")
        details = with_cache_control(details, sent, "Cache-Control")
    language = headers.text(b"content-language")
    if language is not None:
        details = evolve(details, content_language=read_language("Content-Language", language))
    encoded = headers.text(b"x-metadata")
    if encoded is not None:
        details = evolve(details, metadata=_decoded(encoded))
    return details


def with_field(details: Details, name: str, text: str) -> Details:
    """``details`` with what the field ``name`` of a form says. Raises ``validation_failed``."""
    if name == "max_age_seconds":
        return evolve(details, max_age_seconds=cache_control.max_age(text, name), cache_control=None)
    if name == "cache_control":
        return with_cache_control(details, text, name)
    if name == "content_language":
        return evolve(details, content_language=read_language(name, text))
    return evolve(details, metadata=_metadata(name, text.encode()))


def with_cache_control(details: Details, text: str, name: str) -> Details:
    """``details`` with a ``Cache-Control``, as ``cache_control.parse`` understands it."""
    value, age = cache_control.parse(text, name)
    return evolve(details, cache_control=value, max_age_seconds=age)


def _decoded(encoded: str) -> str:
    """The metadata in the header ``X-Metadata``, which is base64 because headers are ASCII."""
    try:
        raw = b64decode(encoded.strip(), validate=True)
    except ValueError:
        raise validation_failed({"X-Metadata": "must be the base64 of a JSON object"}) from None
    return _metadata("X-Metadata", raw)


def _metadata(name: str, raw: bytes) -> str:
    try:
        value = strict_loads(raw)
    except ApiError:
        why = f"must be a JSON object, without a key twice, nested in at most {MAX_DEPTH} levels"
        raise validation_failed({name: why}) from None
    return _read_metadata(name, value)


# Kinds for the body of a PATCH.


def _read_metadata(name: str, value: object) -> str:
    return read_document(name, value, MAX_METADATA_BYTES)[1].decode()


def read_language(name: str, value: object) -> str:
    """A value of ``Content-Language``. Raises ``validation_failed``."""
    text = require_text(name, value).strip()
    if len(text) > MAX_HEADER_LENGTH or not _LANGUAGES.fullmatch(text):
        raise validation_failed({name: "must be language tags, as de or en-GB, en"})
    return text


_TEXT = {"type": "string", "maxLength": MAX_HEADER_LENGTH}
MAX_AGE = or_null(whole(0, MAX_AGE_SECONDS))
LANGUAGE = or_null(Kind(_TEXT, read_language))
DOCUMENT = or_null(
    Kind(
        {
            "type": "object",
            "description": f"At most {MAX_METADATA_BYTES} bytes as JSON, no NUL, no number beyond 64 bits.",
        },
        _read_metadata,
    )
)


def as_columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` of an object as its columns take them: an age and a ``Cache-Control`` replace each other.

    Raises ``validation_failed`` where both are given.
    """
    text, age = changes.get("cache_control"), changes.get("max_age_seconds")
    if text is not None and age is not None:
        raise validation_failed({"max_age_seconds": "cannot be given together with cache_control"})
    if text is not None:
        _, age = cache_control.parse(text, "cache_control")
    elif not {"cache_control", "max_age_seconds"} & changes.keys():
        return dict(changes)
    return {**changes, "cache_control": text, "max_age_seconds": age}
