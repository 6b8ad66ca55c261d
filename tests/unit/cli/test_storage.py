"""What ``storage import`` finds in a directory or in a bucket of the store, and what it cannot read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from project_service.cli.storage import Read, Unreadable, files_in_bucket, files_in_directory
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


class FakeUpload:
    """Remembers what was written to it."""

    def __init__(self) -> None:
        self.data = b""

    def describe(self, content_type: str, key: str | None) -> None:
        self.described = (content_type, key)

    async def write(self, data: bytes) -> None:
        self.data += data


class Directories(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = temporary_directory(self)
        self.directory.chmod(0o755)
        (self.directory / "sub").mkdir()
        for name in ("b.txt", "a", "sub/c"):
            (self.directory / name).write_text(name)

    def listed(self) -> Deferred[dict[str, Read]]:
        async def all_of_it() -> dict[str, Read]:
            return {name: read async for name, read in files_in_directory(self.directory)}

        return start(all_of_it())

    def read(self, name: str) -> Deferred[FakeUpload]:
        async def uploaded() -> FakeUpload:
            upload = FakeUpload()
            await (await self.listed())[name]("key.txt", cast(Any, upload))
            return upload

        return start(uploaded())

    def test_regular_files_and_links_to_them_are_listed_in_order(self) -> None:
        (self.directory / "elsewhere").symlink_to("/etc")
        (self.directory / "dangling").symlink_to("/nowhere")
        (self.directory / "linked").symlink_to(self.directory / "a")
        os.mkfifo(self.directory / "pipe")
        listed = self.successResultOf(self.listed())
        self.assertEqual(list(listed), ["a", "b.txt", "linked", "sub/c"])
        read = self.successResultOf(self.read("linked"))
        self.assertEqual((read.data, read.described), (b"a", ("text/plain", "key.txt")))

    def test_an_unreadable_file_is_reported_with_its_reason(self) -> None:
        (self.directory / "a").chmod(0)
        with without_rights():
            fault = self.failureResultOf(self.read("a"), Unreadable)
        self.assertEqual(str(fault.value), "Permission denied")

    def test_a_directory_that_cannot_be_listed_is_an_error(self) -> None:
        (self.directory / "sub").chmod(0)
        with without_rights():
            fault = self.failureResultOf(self.listed(), PermissionError)
        self.assertEqual(fault.value.filename, str(self.directory / "sub"))


class Buckets(SynchronousTestCase):
    def test_empty_objects_are_listed_but_not_folder_markers(self) -> None:
        """Names that cannot be imported are listed too, so that they are refused and not silently left out."""
        upload = FakeUpload()

        async def listed() -> list[str]:
            store = MemoryStore()
            for key, data in (("a/empty", b""), ("a/folder/", b""), ("a/odd/", b"x")):
                await store.put(key, data, "text/x-own", {})
            readers = {name: read async for name, read in files_in_bucket(cast(Any, store), "a/")}
            await readers["empty"]("key", cast(Any, upload))
            return list(readers)

        self.assertEqual(self.successResultOf(start(listed())), ["empty", "odd/"])
        self.assertEqual((upload.data, upload.described), (b"", ("text/x-own", "key")))
