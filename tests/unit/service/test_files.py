"""Files with secrets are readable by their owner only, and written completely or not at all. Files that the
configuration names are not pipes or devices, since reading these could block."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase

from project_service import files
from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.files import regular
from project_service.network import endpoint_from
from project_service.settings.reading import BadSettings, Source
from tests.temporary import temporary_directory

WHY = "it is a pipe or a device"
MAIN = "PROJECT_SERVICE__STAGES__DEV__DATABASES__MAIN"
# It stands for a pipe: reading it does not block, so a test that fails ends all the same.
DEVICE = "/dev/null"


class PrivateFiles(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = temporary_directory(self)
        self.path = self.folder / "secret.json"

    def there(self) -> dict[str, tuple[bytes, int]]:
        return {one.name: (one.read_bytes(), one.stat().st_mode & 0o777) for one in self.folder.iterdir()}

    def test_write_replaces_the_file_and_leaves_no_temporary_one(self) -> None:
        self.path.write_text("old and longer than the new")
        self.path.chmod(0o644)
        files.write(self.path, b"new")
        self.assertEqual(self.there(), {"secret.json": (b"new", 0o600)})

    def test_replace_keeps_read_permission_of_owner_and_group(self) -> None:
        for before, after in ((0o600, 0o600), (0o640, 0o640), (0o644, 0o640), (0o400, 0o600)):
            self.path.write_text("old")
            self.path.chmod(before)
            files.replace(self.path, b"new")
            self.assertEqual(self.there(), {"secret.json": (b"new", after)})

    def test_replace_keeps_the_owner(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("only root may give files away")
        self.path.write_text("old")
        os.chown(self.path, 1234, 5678)
        files.replace(self.path, b"new")
        self.assertEqual((self.path.stat().st_uid, self.path.stat().st_gid), (1234, 5678))

    def test_replace_follows_a_link(self) -> None:
        link = self.folder / "link.json"
        self.path.write_text("old")
        link.symlink_to(self.path)
        files.replace(link, b"new")
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.path.read_bytes(), b"new")

    def test_of_two_that_create_a_file_the_first_wins(self) -> None:
        self.assertTrue(files.create(self.path, b"first"))
        self.assertFalse(files.create(self.path, b"second"))
        self.assertEqual(self.there(), {"secret.json": (b"first", 0o600)})

    def test_a_failed_write_leaves_nothing(self) -> None:
        self.path.mkdir()
        (self.path / "in the way").touch()
        self.assertRaises(OSError, files.write, self.path, b"new")
        self.assertEqual([one.name for one in self.folder.iterdir()], ["secret.json"])

    def test_read_json_accepts_only_objects(self) -> None:
        self.assertIsNone(files.read_json(self.path))
        files.write_json(self.path, {"a": 1})
        self.assertEqual(files.read_json(self.path), {"a": 1})
        for content in (b"", b"{", b"[]", b"null", b"\xff"):
            files.write(self.path, content)
            with self.assertRaisesRegex(ValueError, "secret.json holds no JSON object"):
                files.read_json(Path(self.path))


class RegularFiles(SynchronousTestCase):
    def test_a_pipe_is_refused_and_not_opened(self) -> None:
        pipe = temporary_directory(self) / "pipe"
        os.mkfifo(pipe)
        link = pipe.with_name("link")
        link.symlink_to(pipe)
        for path in (pipe, link, Path(DEVICE)):
            self.assertEqual(self.assertRaises(OSError, regular, path).strerror, WHY)

    def test_other_paths_are_returned_unchecked(self) -> None:
        folder = temporary_directory(self)
        file = folder / "file"
        file.write_text("")
        link = folder / "link"
        link.symlink_to(file)
        for path in (file, link, folder, folder / "none", file / "below"):
            self.assertEqual(regular(path), path)

    def test_a_settings_file_that_is_a_device_is_refused(self) -> None:
        for name, value in (
            ("PROJECT_SERVICE__STORE__CREDENTIALS_FILE", DEVICE),
            ("PROJECT_SERVICE__STORE__CA_FILE", DEVICE),
            (f"{MAIN}__DSN", f"@{DEVICE}"),
            (f"{MAIN}__JWT_SECRET", f"@{DEVICE}"),
        ):
            refused = self.assertRaises(BadSettings, Source(data_dir=Path("/data")).read, {name: value})
            self.assertIn(f"cannot be read: {WHY}", str(refused), name)

    def test_a_file_of_signing_keys_that_is_a_device_is_refused(self) -> None:
        refused = self.assertRaises(KeySetError, tokens.load_keys, Path(DEVICE))
        self.assertEqual(str(refused), f"{DEVICE}: {WHY}")

    def test_a_certificate_that_is_a_device_is_refused(self) -> None:
        for named in ("privateKey=none:certKey=/dev/null", "privateKey=none:extraCertChain=/dev/null"):
            refused = self.assertRaises(OSError, endpoint_from, reactor, f"ssl:0:{named}")
            self.assertEqual(refused.strerror, WHY)
