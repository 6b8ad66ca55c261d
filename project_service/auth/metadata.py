"""What a user's metadata may be."""

from __future__ import annotations

from typing import Any

import orjson

from project_service.errors import validation_failed

MAX_BYTES = 16 * 1024


def checked(value: object, name: str = "metadata") -> dict[str, Any]:
    """An object of at most 16 KiB that PostgreSQL can store; None is an empty one. Raises ``validation_failed``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise validation_failed({name: "must be an object"})
    text = orjson.dumps(value)
    if len(text) > MAX_BYTES:
        raise validation_failed({name: f"must be at most {MAX_BYTES} bytes as JSON"})
    if rb"\u0000" in text:
        raise validation_failed({name: "must not contain NUL"})
    return value
