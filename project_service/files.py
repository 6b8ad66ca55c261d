"""Files that hold secrets, and files that have to be regular ones."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from typing import Any

import orjson

# Files that the configuration names have to be regular ones: reading a pipe or a device may block the process for
# ever.


def regular(path: Path) -> Path:
    """``path``. Raises ``OSError`` for a pipe, a device or a socket. A missing file is no error here."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(EINVAL, "it is a pipe or a device", str(path))
    return path


# Files with secrets: mode 0600 from the first byte, never visible in part, and synced before they replace
# another.


def write_json(path: Path, value: Any) -> None:
    write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def write(path: Path, content: bytes) -> None:
    """Replace ``path``; a crash leaves the old content or the new, never a part."""
    with _draft(path, content) as draft:
        draft.replace(path)


def replace(path: Path, content: bytes) -> None:
    """As ``write``, for a file that an operator provided: its owner, group and group's right to read stay.

    Where ``path`` is a symbolic link, the file that it points to is replaced. Raises ``FileNotFoundError``.
    """
    path = path.resolve(strict=True)
    before = path.stat()
    with _draft(path, content) as draft:
        if os.geteuid() == 0:
            os.chown(draft, before.st_uid, before.st_gid)
        draft.chmod(0o600 | before.st_mode & 0o040)
        draft.replace(path)


@contextmanager
def held(path: Path) -> Iterator[bytes]:
    """The content of ``path``, locked until the end of the block against others who call this, in any process, so
    that no change by ``replace`` is lost. Network file systems without locks leave that to chance."""
    while True:
        with path.open("rb") as file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever held the lock may have put another file in its place.
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file.read()
                return


def create(path: Path, content: bytes) -> bool:
    """As ``write``, but only if there is no file yet. Returns whether it was written.

    Of two processes that do so at the same time exactly one gets True.
    """
    with _draft(path, content) as draft:
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return False
        return True


@contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """A synced file with ``content`` in the folder of ``path``, under a random name; removed at the end if still
    there."""
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
    """The object in the file; None if there is no file. Raises ``ValueError`` if it is not a JSON object."""
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


def printable(name: Path | str) -> str:
    """``name`` as text that every output accepts: bytes of a file's name that are not UTF-8 are escaped."""
    return str(name).encode("utf-8", "backslashreplace").decode()
