"""Files with secrets: readable by their owner only, and written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service import private_file
from tests.places import temporary_directory


class Files(TestCase):
    def setUp(self) -> None:
        self.folder = temporary_directory(self)
        self.path = self.folder / "secret.json"

    def there(self) -> dict[str, tuple[bytes, int]]:
        return {one.name: (one.read_bytes(), one.stat().st_mode & 0o777) for one in self.folder.iterdir()}

    def test_what_is_written_replaces_what_was_there_and_leaves_nothing_beside_it(self) -> None:
        self.path.write_text("old and longer than the new")
        self.path.chmod(0o644)
        private_file.write(self.path, b"new")
        self.assertEqual(self.there(), {"secret.json": (b"new", 0o600)})

    def test_who_may_read_what_is_replaced_may_read_what_replaces_it(self) -> None:
        for before, after in ((0o600, 0o600), (0o640, 0o640), (0o644, 0o640), (0o400, 0o600)):
            self.path.write_text("old")
            self.path.chmod(before)
            private_file.replace(self.path, b"new")
            self.assertEqual(self.there(), {"secret.json": (b"new", after)})

    def test_what_is_replaced_stays_its_owners(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("only root may give files away")
        self.path.write_text("old")
        os.chown(self.path, 1234, 5678)
        private_file.replace(self.path, b"new")
        self.assertEqual((self.path.stat().st_uid, self.path.stat().st_gid), (1234, 5678))

    def test_what_a_link_names_is_replaced_and_not_the_link(self) -> None:
        link = self.folder / "link.json"
        self.path.write_text("old")
        link.symlink_to(self.path)
        private_file.replace(link, b"new")
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.path.read_bytes(), b"new")

    def test_of_two_who_make_it_the_first_one_has_made_it(self) -> None:
        self.assertTrue(private_file.create(self.path, b"first"))
        self.assertFalse(private_file.create(self.path, b"second"))
        self.assertEqual(self.there(), {"secret.json": (b"first", 0o600)})

    def test_where_it_cannot_be_nothing_is(self) -> None:
        self.path.mkdir()
        (self.path / "in the way").touch()
        self.assertRaises(OSError, private_file.write, self.path, b"new")
        self.assertEqual([one.name for one in self.folder.iterdir()], ["secret.json"])

    def test_what_is_read_is_an_object_or_nothing(self) -> None:
        self.assertIsNone(private_file.read_json(self.path))
        private_file.write_json(self.path, {"a": 1})
        self.assertEqual(private_file.read_json(self.path), {"a": 1})
        for content in (b"", b"{", b"[]", b"null", b"\xff"):
            private_file.write(self.path, content)
            with self.assertRaisesRegex(ValueError, "secret.json holds no JSON object"):
                private_file.read_json(Path(self.path))
