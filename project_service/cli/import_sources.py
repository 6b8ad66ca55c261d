"""What ``storage import`` reads from: a directory, or another bucket of the store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from attrs import frozen

from project_service.errors import ApiError
from project_service.storage import content_types, errors, reading
from project_service.storage.ports import Store
from project_service.storage.upload import Upload

READ_BYTES = 1024 * 1024

# Writes one file or object into the upload, given the key that it is to have; returns its media type.
Read = Callable[[str, Upload], Awaitable[str]]


class Unreadable(Exception):
    """A file or object could not be read as it is. The message says why."""


class Source(Protocol):
    def found(self) -> AsyncIterator[tuple[str, Read]]:
        """All files or objects, in order: the name within the source, and what reads it."""


@frozen
class Directory:
    path: Path

    async def found(self) -> AsyncIterator[tuple[str, Read]]:
        """Raises ``OSError`` if a folder cannot be listed."""
        for path in sorted(self._files()):
            yield path.relative_to(self.path).as_posix(), partial(_file, path)

    def _files(self) -> Iterator[Path]:
        """Path.rglob() is not used because it silently leaves out folders that cannot be listed."""
        for folder, _, names in os.walk(self.path, onerror=_not_listed):
            yield from (path for name in names if (path := Path(folder, name)).is_file())


@frozen
class StoreBucket:
    """The objects under ``folder`` ("" for all) in the bucket of ``store``."""

    store: Store
    folder: str

    async def found(self) -> AsyncIterator[tuple[str, Read]]:
        async for page in reading.pages(self.store, self.folder):
            for entry in page.objects:
                # Other programs make such objects to represent empty folders.
                if not (entry.key.endswith("/") and entry.size == 0):
                    yield entry.key.removeprefix(self.folder), partial(_object, self.store, entry.key)


async def _file(path: Path, key: str, upload: Upload) -> str:
    content_type = content_types.guess(key)
    upload.describe(content_type, key)
    for data in _pieces(path):
        await upload.write(data)
    return content_type


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                yield data
    except OSError as fault:
        raise Unreadable(fault.strerror) from None


def _not_listed(fault: OSError) -> NoReturn:
    raise fault


async def _object(store: Store, name: str, key: str, upload: Upload) -> str:
    before = await store.stat(name)
    if _packed(before.coding):
        raise Unreadable(f"its Content-Encoding, {before.coding}, would be forgotten")
    content_type = _type(before.content_type, key)
    upload.describe(content_type, key)
    for first in range(0, before.size, READ_BYTES):
        length = min(READ_BYTES, before.size - first)
        await upload.write(await reading.whole(await store.open(name, first, length, before.size)))
    if await store.stat(name) != before:
        # It was overwritten meanwhile, so part of what was read may be old and part new.
        raise errors.precondition_failed()
    return content_type


def _type(declared: str, key: str) -> str:
    try:
        return content_types.parse(declared)
    except ApiError:
        return content_types.guess(key)


def _packed(coding: str) -> bool:
    """Whether bytes with this Content-Encoding are compressed or otherwise encoded.

    "aws-chunked" is only how an SDK has sent them. Some stores keep it, although it says nothing about the bytes.
    """
    return bool({one.strip().lower() for one in coding.split(",")} - {"", "identity", "aws-chunked"})
