"""Files with secrets: mode 0600 from their first byte, replaced whole, on disk before they count."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import orjson


def write_json(path: Path, value: Any) -> None:
    write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def write(path: Path, content: bytes) -> None:
    """Replace ``path``; a crash leaves the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None where there is no file. Raises ``ValueError`` for what is no JSON object."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    value = orjson.loads(content)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value
