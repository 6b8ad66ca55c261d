"""Files that the configuration names: pipes and devices are refused, since reading them could block."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase

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
