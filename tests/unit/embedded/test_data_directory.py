"""What embedded mode keeps in the data directory: the lock, its secrets, and the note of a running service."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from attrs import asdict
from twisted.trial.unittest import TestCase

from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import DirectoryLock, InUse, load_or_make_secrets
from project_service.lifecycle import start
from tests.live.logged import warnings_logged
from tests.temporary import temporary_directory


class Locks(TestCase):
    def test_a_second_service_in_the_data_directory_is_refused_with_advice(self) -> None:
        directory = temporary_directory(self)
        with patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))):
            # An error of a file system without locks does not mean that somebody holds one.
            fault = self.assertRaises(OSError, DirectoryLock(directory).take)
        self.assertEqual(fault.errno, errno.ENOLCK)
        first, second = DirectoryLock(directory), DirectoryLock(directory)
        (directory / "lock").write_text("123456789\n")  # of the one before
        first.take()
        refusal = self.assertRaises(InUse, second.take)
        self.assertIn(f"(pid {os.getpid()})", str(refusal))
        self.assertIn("--data-dir", str(refusal))
        first.release()
        second.take()
        self.assertTrue(second.held)
        second.release()


class SecretsFile(TestCase):
    def test_secrets_are_made_once_and_not_shown(self) -> None:
        directory = temporary_directory(self)
        made = load_or_make_secrets(directory)
        self.assertEqual(load_or_make_secrets(directory), made)
        self.assertEqual(len(set(asdict(made).values())), 5)
        self.assertEqual((directory / "embedded.json").stat().st_mode & 0o777, 0o600)
        for secret in asdict(made).values():
            self.assertGreater(len(secret), 30)
            self.assertNotIn(secret, repr(made))

    def test_lost_secrets_of_an_existing_database_are_not_replaced(self) -> None:
        directory = temporary_directory(self)
        (directory / "postgres").mkdir()
        (directory / "postgres" / "PG_VERSION").write_text("18\n")
        fault = self.assertRaises(ValueError, load_or_make_secrets, directory)
        self.assertIn("restore it", str(fault))

    def test_a_secrets_file_of_another_shape_is_refused(self) -> None:
        directory = temporary_directory(self)
        (directory / "embedded.json").write_text('{"superuser_password": "x"}')
        fault = self.assertRaises(ValueError, load_or_make_secrets, directory)
        self.assertEqual(
            str(fault), f"{directory}/embedded.json is not what project-service wrote; restore it"
        )


class Note(TestCase):
    def test_a_note_that_cannot_be_removed_does_not_prevent_the_stop(self) -> None:
        home = temporary_directory(self)
        stopped: list[bool] = []

        async def stop() -> None:
            stopped.append(True)

        embedded = Embedded(None, home)
        embedded._lock.take()
        embedded.children["postgres"] = cast(Any, SimpleNamespace(stop=stop))
        # Removing what is in a file of this name fails, as on a read-only file system.
        (home / "run").touch()
        with warnings_logged() as warnings:
            self.successResultOf(start(embedded.stop()))
        self.assertEqual(warnings, [f"{home}/run/running.json cannot be removed: Not a directory"])
        self.assertEqual((stopped, embedded._lock.held), ([True], False))
