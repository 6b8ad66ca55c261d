"""What ``storage import`` finds in a directory or in a bucket of the store, and what it cannot read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from project_service.cli.storage import Directory, Read, StoreBucket, Unreadable
from project_service.lifecycle import start
from tests.fakes.store import MemoryStore
from tests.temporary import temporary_directory

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Run as a user without privileges, since root may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


class Parts:
    """What was read."""

    def __init__(self) -> None:
        self.data = b""

    def describe(self, content_type: str, key: str | None) -> None:
        self.told = (content_type, key)

    async def write(self, data: bytes) -> None:
        self.data += data


class DirectoryTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.place = temporary_directory(self)
        self.place.chmod(0o755)
        (self.place / "sub").mkdir()
        for name in ("b.txt", "a", "sub/c"):
            (self.place / name).write_text(name)

    def found(self) -> Deferred[dict[str, Read]]:
        async def all_of_it() -> dict[str, Read]:
            return {name: read async for name, read in Directory(self.place).found()}

        return start(all_of_it())

    def read(self, name: str) -> Deferred[Parts]:
        async def uploaded() -> Parts:
            parts = Parts()
            await (await self.found())[name]("key.txt", cast(Any, parts))
            return parts

        return start(uploaded())

    def test_regular_files_and_links_to_them_are_found_in_order(self) -> None:
        (self.place / "elsewhere").symlink_to("/etc")
        (self.place / "dangling").symlink_to("/nowhere")
        (self.place / "linked").symlink_to(self.place / "a")
        os.mkfifo(self.place / "pipe")
        found = self.successResultOf(self.found())
        self.assertEqual(list(found), ["a", "b.txt", "linked", "sub/c"])
        read = self.successResultOf(self.read("linked"))
        self.assertEqual((read.data, read.told), (b"a", ("text/plain", "key.txt")))

    def test_an_unreadable_file_says_why(self) -> None:
        (self.place / "a").chmod(0)
        with without_rights():
            fault = self.failureResultOf(self.read("a"), Unreadable)
        self.assertEqual(str(fault.value), "Permission denied")

    def test_a_directory_that_cannot_be_listed_is_an_error(self) -> None:
        (self.place / "sub").chmod(0)
        with without_rights():
            fault = self.failureResultOf(self.found(), PermissionError)
        self.assertEqual(fault.value.filename, str(self.place / "sub"))


class BucketTests(SynchronousTestCase):
    def test_empty_objects_are_found_but_not_folder_markers(self) -> None:
        """What cannot become an object here is found all the same, so that it is refused and not left out."""
        parts = Parts()

        async def found() -> list[str]:
            store = MemoryStore()
            for key, data in (("a/empty", b""), ("a/folder/", b""), ("a/odd/", b"x")):
                await store.put(key, data, "text/x-own", {})
            uploads = {name: upload async for name, upload in StoreBucket(cast(Any, store), "a/").found()}
            await uploads["empty"]("key", cast(Any, parts))
            return list(uploads)

        self.assertEqual(self.successResultOf(start(found())), ["empty", "odd/"])
        self.assertEqual((parts.data, parts.told), (b"", ("text/x-own", "key")))
