"""The command line's frame: its commands, exit codes, output and messages. What commands do is tested in
tests/live."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

import click
import orjson
import psycopg2
from click.testing import CliRunner
from OpenSSL import SSL
from twisted.internet import error
from twisted.trial.unittest import TestCase

from project_service import __version__
from project_service.cli import NOUNS, main, shared
from project_service.database.connection import DatabaseGone
from project_service.errors import ApiError
from project_service.keys import LABEL_MAX
from project_service.storage.s3.errors import (
    NO_NEXT_PAGE,
    NO_SIZE,
    SAME_PAGE,
    UNREADABLE,
    BrokenAnswer,
    StoreError,
    StoreUnreachable,
    kind_of,
)
from tests.temporary import temporary_directory


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        found = ((name, one) for name, one in command.commands.items())
        return [leaf for name, one in found for leaf in leaves(one, (*path, name))]
    return [(path, command)]


ALL = [
    leaf
    for noun in NOUNS
    for leaf in leaves(import_module(f"project_service.cli.{noun.replace('-', '_')}").command, (noun,))
]


class EveryCommand(TestCase):
    def test_has_the_shared_options(self) -> None:
        for path, command in ALL:
            options = {option for parameter in command.params for option in parameter.opts}
            self.assertTrue({"--config", "--data-dir", "--json"} <= options, path)

    def test_has_help(self) -> None:
        for path, command in ALL:
            self.assertTrue(command.help, path)
            self.assertEqual(CliRunner().invoke(main, [*path, "--help"]).exit_code, 0, path)

    def test_is_listed(self) -> None:
        shown = CliRunner().invoke(main, ["--help"]).output
        for noun in NOUNS:
            self.assertIn(noun, shown)


class Ending(TestCase):
    """Exit codes: 2 for wrong usage or configuration, 1 for a failure."""

    def test_wrong_usage_exits_with_2(self) -> None:
        for arguments in (
            ["nonsense"],
            ["keys", "create", "root"],
            ["dsn", "--stage", "dev"],
            ["keys", "--x"],
            ["keys", "list", "--data-dir", ""],
            ["keys", "list", "--config", "", "--data-dir", "/nowhere"],
            ["keys", "create", "anon", "--label", "two\nlines"],
            ["keys", "create", "anon", "--label", "x" * (LABEL_MAX + 1)],
            ["bucket", "update", "papers", "--max-object-bytes", "-1"],
            ["jwt-keys", "rotate", "--announce", "--to", "kid"],
            ["jwt-keys", "rotate", "--keep", "-1"],
            ["storage", "import", "papers", "/no/such/directory"],
            ["storage", "import", "papers", "s3://"],
            ["storage", "import", "papers", "s3:///folder"],
            ["storage", "import", "papers", "s3://a b/folder"],
            # An empty path is not taken for the current directory.
            ["storage", "import", "papers", ""],
            ["jwt-keys", "create", "--file", ""],
            ["storage", "sweep", "--stale-after", "-1"],
            ["storage", "sweep", "--stale-after", "1000000001"],
        ):
            self.assertEqual(CliRunner().invoke(main, arguments).exit_code, 2, arguments)

    def test_an_invalid_configuration_exits_with_2_and_names_every_fault(self) -> None:
        config = temporary_directory(self) / "bad.toml"
        config.write_text("[server]\nworkers = 'many'\nnonsense = 1\n")
        ended = CliRunner().invoke(main, ["keys", "list", "--config", str(config)])
        self.assertEqual(ended.exit_code, 2)
        self.assertIn("server.workers", ended.stderr)
        self.assertIn("server.nonsense", ended.stderr)
        self.assertIn("database.dsn", ended.stderr)

    def test_an_unreadable_sql_file_exits_with_2(self) -> None:
        files = temporary_directory(self)
        (files / "latin1").write_bytes(b"select '\xe4'")
        # libpq would take it for the end of the text, and leave out the rest without a word.
        (files / "nul").write_text("select 1\0; select 2")
        said = {
            "latin1": "is not UTF-8",
            "nul": "has a NUL character",
            "none": "No such file",
            ".": "directory",
        }
        for name, why in said.items():
            ended = CliRunner().invoke(main, ["sql", str(files / name)])
            self.assertEqual(ended.exit_code, 2, name)
            self.assertIn(why, ended.stderr)

    def test_closed_standard_streams_are_refused_before_anything_is_done(self) -> None:
        """Otherwise the result, such as a new key, could not be printed."""
        nowhere = ["--config", "/no/such.toml"]
        for stream, arguments, code in (
            ("stdin", ["sql", *nowhere], 2),
            ("stdin", ["user", "create", "a@example.test", "--password-stdin", *nowhere], 2),
            ("stdout", ["keys", "create", "anon", *nowhere], "project-service: standard output is closed"),
        ):
            self.patch(sys, stream, None)
            self.assertEqual(self.assertRaises(SystemExit, main.main, arguments).code, code)

    def test_the_version_is_shown(self) -> None:
        self.assertIn(__version__, CliRunner().invoke(main, ["--version"]).output)


class _Full(StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class OddPlaces(TestCase):
    def test_a_directory_as_key_file_is_a_failure(self) -> None:
        for path in ("/", ".", str(temporary_directory(self))):
            ended = CliRunner().invoke(main, ["jwt-keys", "create", "--file", path])
            self.assertEqual(
                (ended.exit_code, ended.stderr), (1, f"project-service: {path}: Is a directory\n")
            )

    def test_a_key_file_whose_name_is_not_unicode_is_made_and_shown(self) -> None:
        path = os.fsdecode(os.fsencode(str(temporary_directory(self))) + b"/\xff")
        for options in (["--json"], []):
            ended = CliRunner().invoke(main, ["jwt-keys", "create", "--file", path, *options])
            self.assertEqual((ended.exit_code, ended.exception), (0, None))
            self.assertIn("udcff", ended.output)
            Path(path).unlink()

    def test_a_deleted_current_directory_is_reported(self) -> None:
        def gone() -> str:
            raise FileNotFoundError(2, "No such file or directory")

        self.patch(os, "getcwd", gone)
        for arguments in (["keys", "list", "--data-dir", "var"], ["jwt-keys", "create"]):
            ended = CliRunner().invoke(main, arguments)
            self.assertEqual(ended.exit_code, 2)
            self.assertIn("command line: var begins in the current directory, which is gone", ended.stderr)

    def test_a_password_in_another_encoding_is_refused(self) -> None:
        strict = TextIOWrapper(BytesIO(b"caf\xe9"), "utf-8")
        with patch.object(sys, "stdin", strict), patch.object(sys, "stderr", StringIO()) as said:
            arguments = ["user", "create", "a@example.test", "--password-stdin"]
            self.assertEqual(self.assertRaises(SystemExit, main.main, arguments).code, 2)
        self.assertIn("the password is not in the encoding of standard input", said.getvalue())

    def test_an_output_that_cannot_be_written_exits_with_1_and_says_that_the_work_is_done(self) -> None:
        with patch.object(sys, "stdout", _Full()):
            why = self.assertRaises(SystemExit, main.main, ["--help"]).code
            self.assertIn("No space left on device", str(why))
            path = temporary_directory(self) / "keys.json"
            with patch.object(sys, "stderr", StringIO()) as said:
                ended = self.assertRaises(SystemExit, main.main, ["jwt-keys", "create", "--file", str(path)])
        self.assertEqual(ended.code, 1)
        self.assertTrue(path.exists())
        words = "project-service: done, but what came of it cannot be written: No space left on device\n"
        self.assertEqual(said.getvalue(), words)


class Explaining(TestCase):
    """Failures become one plain sentence on standard error."""

    def test_failures_become_a_sentence(self) -> None:
        self.assertEqual(shared.explained(shared.Failed("why")), "why")
        no_text = self.assertRaises(UnicodeEncodeError, "\udcff".encode)
        self.assertEqual(shared.explained(no_text), "an argument is not UTF-8")
        self.assertEqual(
            shared.explained(ApiError(422, "validation_failed", "No.", {"name": "is empty"})),
            "No.\n  name: is empty",
        )
        gone = shared.explained(DatabaseGone("connection refused"))
        self.assertEqual(gone, "the database cannot be reached: connection refused")
        self.assertEqual(shared.explained(psycopg2.Error()), "the database refuses: no reason given")
        self.assertIn("AccessDenied", shared.explained(StoreError(403, "AccessDenied")))
        self.assertIn("cannot be reached", shared.explained(StoreUnreachable("http://10.0.0.1/secret")))

    def test_why_the_store_cannot_be_reached_is_said_if_known(self) -> None:
        for problem, why in (
            (error.ConnectionRefusedError(), ": no server listens there"),
            (error.DNSLookupError(), ": unknown host"),
            (BrokenAnswer("ConnectionLost"), ": it hangs up"),
            (
                SSL.Error([("SSL routines", "", "certificate verify failed")]),
                ": the certificate is not trusted",
            ),
            (SSL.Error([("SSL routines", "", "wrong version number")]), ": no TLS is spoken there"),
            (SSL.Error(), ": no TLS is spoken there"),
            (StoreError(503, "SlowDown"), ""),
        ):
            said = shared.explained(StoreUnreachable(kind_of(problem)))
            self.assertTrue(said.startswith(f"the store cannot be reached{why}"), said)

    def test_a_wrong_response_of_the_store_is_explained(self) -> None:
        for told, why in (
            (UNREADABLE, "its answer is none of S3"),
            (NO_SIZE, "it does not say how long an object is"),
            (NO_NEXT_PAGE, "its list does not say where it goes on"),
            (SAME_PAGE, "its list repeats a page"),
        ):
            said = shared.explained(StoreUnreachable(told))
            self.assertEqual(said, f"the store cannot be reached: {why}")

    def test_addresses_of_the_store_are_not_shown(self) -> None:
        self.assertNotIn("10.0.0.1", shared.explained(StoreUnreachable("http://10.0.0.1/secret")))


class Showing(TestCase):
    def _shown(self, json: bool) -> str:
        @click.command()
        @shared.options
        def command(invocation: shared.Invocation) -> None:
            invocation.show({"ids": [1, 2]}, "1", "2")

        return CliRunner().invoke(command, ["--json"] if json else []).output

    def test_results_are_lines_for_people(self) -> None:
        self.assertEqual(self._shown(False), "1\n2\n")

    def test_results_are_json_for_programs(self) -> None:
        self.assertEqual(orjson.loads(self._shown(True)), {"ids": [1, 2]})


class WhereItWorks(TestCase):
    def test_config_and_data_dir_decide_whether_servers_are_embedded(self) -> None:
        config, data = Path("/etc/x.toml"), Path("/srv/data")
        self.assertEqual(shared.Invocation(None, None, False).embeds_into, Path("var").absolute())
        self.assertEqual(shared.Invocation(None, data, False).embeds_into, data)
        self.assertEqual(shared.Invocation(config, data, False).embeds_into, data)
        self.assertIsNone(shared.Invocation(config, None, False).embeds_into)
