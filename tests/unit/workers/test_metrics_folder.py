"""The folder in which workers keep their metrics, and its removal even if its owner was killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.workers import supervisor
from project_service.workers.supervisor import PREFIX, MetricsFolder, lock_folder
from tests.temporary import temporary_directory


class Folders(TestCase):
    def setUp(self) -> None:
        self.directory = temporary_directory(self)
        self.patch(tempfile, "tempdir", str(self.directory))

    def abandoned(self) -> Path:
        """A metrics folder that a killed service has left."""
        left = Path(tempfile.mkdtemp(prefix=PREFIX))
        (left / "counter_7.db").write_bytes(b"metrics")
        return left

    def made(self) -> MetricsFolder:
        folder = MetricsFolder.create()
        self.addCleanup(folder.remove)
        return folder

    def test_an_abandoned_folder_is_removed_when_another_is_made(self) -> None:
        left = self.abandoned()
        folder = self.made()
        self.assertFalse(left.exists())
        self.assertEqual([str(one) for one in self.directory.iterdir()], [folder.path])

    def test_a_folder_that_a_process_holds_is_kept(self) -> None:
        first, left = self.made(), self.abandoned()
        # This is a worker that outlives its parent.
        held = lock_folder(str(left))
        assert held is not None
        self.made()
        self.assertTrue(Path(first.path).exists() and left.exists())
        os.close(held)
        self.made()
        self.assertTrue(Path(first.path).exists())
        self.assertFalse(left.exists())

    def test_folders_and_files_of_others_are_left_alone(self) -> None:
        other = self.directory / "project-service-metrics-old"
        pointed = self.directory / "elsewhere"
        for one in (other, pointed):
            one.mkdir()
        (self.directory / f"{PREFIX}link").symlink_to(pointed)
        (self.directory / f"{PREFIX}file").touch()
        left = self.abandoned()
        self.patch(os, "geteuid", lambda: left.stat().st_uid + 1)
        before = set(self.directory.iterdir())
        folder = self.made()
        self.assertEqual(set(self.directory.iterdir()) - {Path(folder.path)}, before)
        self.assertTrue(pointed.exists())

    def test_a_folder_removed_before_it_is_locked_is_made_again(self) -> None:
        """Two services start at once: between making a folder and locking it, the other may take it for abandoned."""
        unlucky: list[str] = []
        make = tempfile.mkdtemp

        def slow(**named: Any) -> str:
            made: str = make(**named)
            if not unlucky:
                unlucky.append(made)
                supervisor.remove_abandoned()
            return made

        self.patch(supervisor, "mkdtemp", slow)
        folder = self.made()
        self.assertNotIn(folder.path, unlucky)
        self.assertEqual([str(one) for one in self.directory.iterdir()], [folder.path])

    def test_a_folder_removed_while_its_lock_is_waited_for_is_made_again(self) -> None:
        real = fcntl.flock
        gone: list[int] = []

        def slow(descriptor: int, operation: int) -> None:
            real(descriptor, operation)
            if not gone:
                gone.append(descriptor)
                for one in self.directory.iterdir():
                    one.rmdir()

        self.patch(fcntl, "flock", slow)
        self.assertTrue(Path(self.made().path).exists())

    def test_a_file_system_without_locks_does_not_prevent_a_start(self) -> None:
        def without(descriptor: int, operation: int) -> None:
            raise OSError(95, "Operation not supported")

        left = self.abandoned()
        self.patch(fcntl, "flock", without)
        self.assertTrue(Path(self.made().path).exists())
        self.assertTrue(left.exists())
