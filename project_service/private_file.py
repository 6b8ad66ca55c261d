"""Files with secrets: mode 0600 from their first byte, there as a whole or not at all, on disk before they count."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson


def write_json(path: Path, value: Any) -> None:
    write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def write(path: Path, content: bytes) -> None:
    """Replace ``path``; a crash leaves the old content or the new, never a part."""
    with _draft(path, content) as draft:
        draft.replace(path)


def replace(path: Path, content: bytes) -> None:
    """As ``write``, for a file that an operator has put there: whoever may read it still may, his group too.

    What a link names is replaced, not the link.
    """
    path = path.resolve(strict=True)
    before = path.stat()
    with _draft(path, content) as draft:
        if os.geteuid() == 0:
            os.chown(draft, before.st_uid, before.st_gid)
        draft.chmod(0o600 | before.st_mode & 0o040)
        draft.replace(path)


def create(path: Path, content: bytes) -> bool:
    """As ``write`` where there is no file yet, else False: of two who make it at once, both then read the first's."""
    with _draft(path, content) as draft:
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return False
        return True


@contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """``content`` beside ``path``, under a name that nobody else takes."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None where there is no file. Raises ``ValueError`` for what is no JSON object."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value
