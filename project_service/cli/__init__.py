"""The ``project-service`` console script.

To add a command, write it with click in a module of this package and add it to ``COMMANDS``. ``keys.py`` is an
example, and ``invocation.py`` has what all commands share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from project_service import __version__

# Where each command is defined, and what `--help` says about it.
COMMANDS = {
    "alerts": ("samples:alerts", "Print alerts for Prometheus."),
    "auth": ("auth:auth", "Providers by which users sign in: what is wrong with them."),
    "bucket": ("bucket:bucket", "Buckets: who may read them and what they accept."),
    "check": ("check:check", "Try every database, the store and the mail server, and report what is wrong."),
    "config": ("samples:config", "Print every setting with its default and what it does."),
    "dashboard": ("samples:dashboard", "Print a dashboard for Grafana."),
    "dsn": ("database:dsn", "Print a database's connection string."),
    "env": ("keys:env", 'Address and keys for a shell: eval "$(project-service env)".'),
    "extension": ("extension:extension", "Extensions of the embedded PostgreSQL."),
    "jwt-keys": ("keys:jwt_keys", "The keys that sign access tokens."),
    "keys": ("keys:project_keys", "The project keys that clients send."),
    "mail": ("mail:mail", "The e-mails that users get: preview, templates."),
    "migrate": ("database:migrate", "Bring the database to the form that this version needs."),
    "openapi": ("describe:openapi", "Print the description of a database's table API."),
    "reset": (
        "database:reset",
        "Empty an embedded project, for tests: rows, users, sessions, e-mails and objects.",
    ),
    "sql": ("database:sql", "Run an SQL file, or a folder of numbered ones, as the owner of the database."),
    "storage": ("storage:storage", "The objects in the buckets: verify, sweep, links, orphans, import."),
    "types": (
        "describe:types",
        "The types of a database's rows, for TypeScript, Python and generators of clients.",
    ),
    "unit": ("samples:unit", "Print a systemd unit that starts this installation."),
    "user": ("user:user", "The users who sign in."),
}


class _Commands(click.Group):
    """Imports a command's module only when it is used, so that ``--help`` and short commands are fast."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # The caller may have closed these. Then there is nothing to read, or nowhere to write the result.
        if sys.stdin is None:
            sys.stdin = Path(os.devnull).open()  # noqa: SIM115  # for as long as the process lives
        if sys.stdout is None:
            sys.exit("project-service: standard output is closed")
        try:
            return super().main(*args, **kwargs)
        except OSError as fault:
            # For instance a help text that is written to a full disk.
            sys.exit(f"project-service: {fault}")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"project_service.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


class NonEmptyPath(click.Path):
    """A path that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            # Probably a shell variable that is not set. It must not mean the current directory.
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


def project_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--config`` and ``--data-dir``, which may stand before the name of a command and after it."""
    path = NonEmptyPath(path_type=Path)
    for name, what in (
        ("--data-dir", "Data directory of embedded servers."),
        ("--config", "TOML file with the settings."),
    ):
        function = click.option(name, type=path, help=what, expose_value=False, callback=_note)(function)
    return function


def _note(context: click.Context, option: click.Parameter, value: Path | None) -> None:
    # Contexts of commands share ``meta``, and the last one on the command line is read last.
    if value is not None:
        context.meta[f"{__name__}.{option.name}"] = value


def project_named(context: click.Context) -> tuple[Path | None, Path | None]:
    """--config and --data-dir as they were given; after a command's name they win over those before it."""
    return context.meta.get(f"{__name__}.config"), context.meta.get(f"{__name__}.data_dir")


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="project-service")
@project_options
def main() -> None:
    """Administer a project: the one of --config, or the one in --data-dir (default ./var).

    Both may stand before or after the name of a command, or be PROJECT_SERVICE_CONFIG and PROJECT_SERVICE_DATA_DIR
    in the environment.

    The service itself is started by `twistd project-service`. Exit codes: 0 done, 1 failed, 2 wrong usage or
    configuration.
    """
