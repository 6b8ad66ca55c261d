"""The command line: its commands, exit codes, output and messages. What commands do is tested in tests/live."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

import click
import orjson
import psycopg2
from click.testing import CliRunner, Result
from OpenSSL import SSL
from twisted.internet import error
from twisted.trial.unittest import TestCase

from project_service import __version__
from project_service.cli import COMMANDS, main
from project_service.cli.invocation import Failed, Invocation, common_options, explained
from project_service.database.connection import DatabaseGone
from project_service.errors import ApiError
from project_service.keys import LABEL_MAX
from project_service.storage.s3.errors import (
    NO_NEXT_PAGE,
    NO_SIZE,
    SAME_PAGE,
    UNREADABLE,
    StoreError,
    StoreUnreachable,
    kind_of,
)
from tests.temporary import temporary_directory


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        commands = ((name, one) for name, one in command.commands.items())
        return [leaf for name, one in commands for leaf in leaves(one, (*path, name))]
    return [(path, command)]


def command(name: str) -> click.Command:
    """A command of the program."""
    assert isinstance(main, click.Group)
    imported = main.get_command(click.Context(main), name)
    assert imported is not None
    return imported


ALL = [leaf for name in COMMANDS for leaf in leaves(command(name), (name,))]


class Imports(TestCase):
    def test_commands_on_the_database_alone_do_not_load_storage(self) -> None:
        loaded = "import project_service.cli.database, sys; print(*sys.modules)"
        names = subprocess.check_output([sys.executable, "-c", loaded], text=True).split()
        self.assertIn("project_service.embedded.assemble", names)
        for name in ("project_service.storage.assemble", "project_service.storage.s3.client", "botocore"):
            self.assertNotIn(name, names)


class EveryCommand(TestCase):
    def test_has_the_common_options(self) -> None:
        for path, command in ALL:
            options = {option for parameter in command.params for option in parameter.opts}
            self.assertTrue({"--config", "--data-dir", "--json"} <= options, path)

    def test_has_help(self) -> None:
        for path, command in ALL:
            self.assertTrue(command.help, path)
            self.assertEqual(CliRunner().invoke(main, [*path, "--help"]).exit_code, 0, path)

    def test_is_listed(self) -> None:
        shown = CliRunner().invoke(main, ["--help"]).output
        for name in COMMANDS:
            self.assertIn(name, shown)


class NamingTheProject(TestCase):
    """--config and --data-dir, before and after the name of a command, and in the environment."""

    def named(self, *arguments: str, **environ: str) -> tuple[Path | None, Path | None]:
        seen: list[Invocation] = []
        with patch.object(Invocation, "run", lambda invocation, *_, **__: seen.append(invocation)):
            ended = CliRunner().invoke(main, arguments, env=environ)
        self.assertEqual(ended.exit_code, 0, ended.output)
        with patch.dict("os.environ", environ):
            source = seen[0].source()
        return source.config, source.data_dir

    def test_options_stand_before_or_after_the_name_and_the_last_one_wins(self) -> None:
        here = (Path("/a.toml"), None)
        self.assertEqual(self.named("--config", "/a.toml", "user", "list"), here)
        self.assertEqual(self.named("user", "--config", "/a.toml", "list"), here)
        self.assertEqual(self.named("user", "list", "--config", "/a.toml"), here)
        self.assertEqual(self.named("--config", "/b", "user", "list", "--config", "/a.toml"), here)
        both = (Path("/a.toml"), Path("/data"))
        self.assertEqual(self.named("--config", "/a.toml", "user", "list", "--data-dir", "/data"), both)
        self.assertEqual(self.named("--data-dir", "/data", "user", "list"), (None, Path("/data")))
        self.assertEqual(self.named("user", "list"), (None, Path("var").absolute()))

    def test_the_environment_names_what_no_option_does(self) -> None:
        config = {"PROJECT_SERVICE_CONFIG": "/a.toml"}
        self.assertEqual(self.named("user", "list", **config), (Path("/a.toml"), None))
        self.assertEqual(self.named("--config", "/b.toml", "user", "list", **config), (Path("/b.toml"), None))
        folder = {"PROJECT_SERVICE_DATA_DIR": "/data"}
        self.assertEqual(self.named("user", "list", **folder), (None, Path("/data")))
        self.assertEqual(self.named("user", "list", **config, **folder), (Path("/a.toml"), Path("/data")))

    def test_an_empty_name_is_refused(self) -> None:
        for arguments, environ in (
            (["--config", "", "user", "list"], {}),
            (["user", "--data-dir", "", "list"], {}),
            (["user", "list"], {"PROJECT_SERVICE_CONFIG": ""}),
            (["user", "list"], {"PROJECT_SERVICE_DATA_DIR": ""}),
        ):
            ended = CliRunner().invoke(main, arguments, env=environ)
            self.assertEqual(ended.exit_code, 2, arguments)
            self.assertIn("empty", ended.stderr)


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
        reasons = {
            "latin1": "is not UTF-8",
            "nul": "has a NUL character",
            "none": "No such file",
            ".": "directory",
        }
        for name, why in reasons.items():
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


class OddFiles(TestCase):
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
        with patch.object(sys, "stdin", strict), patch.object(sys, "stderr", StringIO()) as stderr:
            arguments = ["user", "create", "a@example.test", "--password-stdin"]
            self.assertEqual(self.assertRaises(SystemExit, main.main, arguments).code, 2)
        self.assertIn("the password is not in the encoding of standard input", stderr.getvalue())

    def test_an_output_that_cannot_be_written_exits_with_1_after_the_operation(self) -> None:
        with patch.object(sys, "stdout", _Full()):
            why = self.assertRaises(SystemExit, main.main, ["--help"]).code
            self.assertIn("No space left on device", str(why))
            path = temporary_directory(self) / "keys.json"
            with patch.object(sys, "stderr", StringIO()) as stderr:
                ended = self.assertRaises(SystemExit, main.main, ["jwt-keys", "create", "--file", str(path)])
        self.assertEqual(ended.code, 1)
        self.assertTrue(path.exists())
        words = "project-service: done, but the result cannot be written: No space left on device\n"
        self.assertEqual(stderr.getvalue(), words)


class Explaining(TestCase):
    """Failures become one plain sentence on standard error."""

    def test_failures_become_a_sentence(self) -> None:
        self.assertEqual(explained(Failed("why")), "why")
        no_text = self.assertRaises(UnicodeEncodeError, "\udcff".encode)
        self.assertEqual(explained(no_text), "an argument is not UTF-8")
        self.assertEqual(
            explained(ApiError(422, "validation_failed", "No.", {"name": "is empty"})),
            "No.\n  name: is empty",
        )
        gone = explained(DatabaseGone("connection refused"))
        self.assertEqual(gone, "the database cannot be reached: connection refused")
        self.assertEqual(explained(psycopg2.Error()), "the database refuses: no reason given")
        self.assertIn("AccessDenied", explained(StoreError(403, "AccessDenied")))
        self.assertIn("cannot be reached", explained(StoreUnreachable("http://10.0.0.1/secret")))

    def test_why_the_store_cannot_be_reached_is_shown_if_known(self) -> None:
        for problem, why in (
            (error.ConnectionRefusedError(), ": no server listens there"),
            (error.DNSLookupError(), ": unknown host"),
            (error.ConnectionLost(), ": it closed the connection"),
            (
                SSL.Error([("SSL routines", "", "certificate verify failed")]),
                ": the certificate is not trusted",
            ),
            (SSL.Error([("SSL routines", "", "wrong version number")]), ": the server does not speak TLS"),
            (SSL.Error(), ": the server does not speak TLS"),
            (StoreError(503, "SlowDown"), ""),
        ):
            message = explained(StoreUnreachable(kind_of(problem)))
            self.assertTrue(message.startswith(f"the store cannot be reached{why}"), message)

    def test_a_wrong_response_of_the_store_is_explained(self) -> None:
        for problem, why in (
            (UNREADABLE, "the response is not one of S3"),
            (NO_SIZE, "it does not report the size of an object"),
            (NO_NEXT_PAGE, "its list does not say where the next page begins"),
            (SAME_PAGE, "its list repeats a page"),
        ):
            message = explained(StoreUnreachable(problem))
            self.assertEqual(message, f"the store cannot be reached: {why}")

    def test_addresses_of_the_store_are_not_shown(self) -> None:
        self.assertNotIn("10.0.0.1", explained(StoreUnreachable("http://10.0.0.1/secret")))


class Showing(TestCase):
    def _shown(self, json: bool) -> str:
        @click.command()
        @common_options
        def shows(invocation: Invocation) -> None:
            invocation.show({"ids": [1, 2]}, "1", "2")

        return CliRunner().invoke(shows, ["--json"] if json else []).output

    def test_results_are_lines_for_people(self) -> None:
        self.assertEqual(self._shown(False), "1\n2\n")

    def test_results_are_json_for_programs(self) -> None:
        self.assertEqual(orjson.loads(self._shown(True)), {"ids": [1, 2]})


class ShellVariables(TestCase):
    """``project-service env``."""

    def env(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["env", *arguments])

    def data_dir(self, content: str | None) -> str:
        folder = temporary_directory(self)
        if content is not None:
            (folder / "credentials.json").write_text(content)
        return str(folder)

    def test_a_shell_gets_each_value_as_it_is(self) -> None:
        awkward = "http://a.test/'$(exit 1)`\" \\"
        credentials = {
            "base_url": awkward,
            "rest_url": "",
            "anon_key": "a",
            "service_key": "b",
            "dsn": "secret",
        }
        folder = self.data_dir(orjson.dumps(credentials).decode())
        printed = self.env("--data-dir", folder).stdout
        self.assertNotIn("secret", printed)
        script = f'set -eu\n{printed}\nprintf "%s\\n" "$URL" "$REST" "$ANON_KEY" "$SERVICE_KEY"'
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, f"{awkward}\n\na\nb\n")
        self.assertEqual(
            orjson.loads(self.env("--data-dir", folder, "--json").stdout),
            {"URL": awkward, "REST": "", "ANON_KEY": "a", "SERVICE_KEY": "b"},
        )

    def test_without_credentials_it_prints_nothing_and_says_why(self) -> None:
        contents = (
            (None, "there is no"),
            ("{", "holds no JSON object"),
            ('{"base_url": "u"}', "has no rest_url"),
        )
        for content, why in contents:
            ended = self.env("--data-dir", self.data_dir(content))
            self.assertEqual((ended.exit_code, ended.stdout), (1, ""))
            self.assertIn(why, ended.stderr)
        ended = self.env("--config", "/etc/x.toml")
        self.assertEqual((ended.exit_code, ended.stdout), (1, ""))
        self.assertIn("--config alone names no data directory", ended.stderr)
