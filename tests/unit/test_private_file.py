"""Files with secrets: for their owner alone, whole or not at all."""

from __future__ import annotations

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
