"""What ``storage import`` reads: a directory, or what another bucket of the store holds."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from attrs import frozen

from project_service.errors import ApiError
from project_service.storage import content_types, errors, reading
from project_service.storage.objects import Received
from project_service.storage.ports import Store
from project_service.storage.upload import PartStream

READ_BYTES = 1024 * 1024

# Uploads it under the key that the object gets.
Upload = Callable[[str, PartStream], Awaitable[Received]]


class Unreadable(Exception):
    """A file or object could not be read as what it is; the message says why."""


class Source(Protocol):
    def found(self) -> AsyncIterator[tuple[str, Upload]]:
        """Everything there is, in order: its name within the source, and how it is read."""


@frozen
class Directory:
    path: Path

    async def found(self) -> AsyncIterator[tuple[str, Upload]]:
        """Raises ``OSError`` for a folder that cannot be listed."""
        for path in sorted(self._files()):
            yield path.relative_to(self.path).as_posix(), partial(_file, path)

    def _files(self) -> Iterator[Path]:
        """Path.rglob() would leave a folder that may not be listed out without a word."""
        for folder, _, names in os.walk(self.path, onerror=_not_listed):
            yield from (path for name in names if (path := Path(folder, name)).is_file())


@frozen
class StoreBucket:
    """The objects under ``folder`` ("" for all) of the bucket that ``store`` is the client of."""

    store: Store
    folder: str

    async def found(self) -> AsyncIterator[tuple[str, Upload]]:
        async for page in reading.pages(self.store, self.folder):
            for entry in page.objects:
                # What other programs leave to show an empty folder is no object.
                if not (entry.key.endswith("/") and entry.size == 0):
                    yield entry.key.removeprefix(self.folder), partial(_object, self.store, entry.key)


async def _file(path: Path, key: str, parts: PartStream) -> Received:
    content_type = content_types.guess(key)
    parts.describe(content_type, key)
    for data in _pieces(path):
        await parts.write(data)
    return Received(key, content_type)


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                yield data
    except OSError as fault:
        raise Unreadable(fault.strerror) from None


def _not_listed(fault: OSError) -> NoReturn:
    raise fault


async def _object(store: Store, name: str, key: str, parts: PartStream) -> Received:
    before = await store.stat(name)
    if _packed(before.coding):
        raise Unreadable(f"its Content-Encoding, {before.coding}, would be forgotten")
    content_type = _type(before.content_type, key)
    parts.describe(content_type, key)
    for first in range(0, before.size, READ_BYTES):
        length = min(READ_BYTES, before.size - first)
        await parts.write(await reading.whole(await store.open(name, first, length, before.size)))
    if await store.stat(name) != before:
        # Overwritten meanwhile: what was read may be half of each.
        raise errors.precondition_failed()
    return Received(key, content_type)


def _type(declared: str, key: str) -> str:
    try:
        return content_types.parse(declared)
    except ApiError:
        return content_types.guess(key)


def _packed(coding: str) -> bool:
    """Whether bytes with this Content-Encoding are not the object itself, but something that it is packed in.

    "aws-chunked" is how an SDK sent them, which some stores keep; it says nothing of the bytes.
    """
    return bool({one.strip().lower() for one in coding.split(",")} - {"", "identity", "aws-chunked"})
