"""The ``project-service`` console script, with one module for each noun.

To add a noun, write ``project_service/cli/<noun>.py`` with a click command or group named ``command``, and add its
name to ``NOUNS``. ``keys.py`` is an example:

- Each command has ``@frame.options`` directly above its function, which gives it ``--config``, ``--data-dir`` and
``--json`` and passes an ``Invocation`` as the first argument. - The work is an ``async def`` that takes an ``Opened``
(settings, database pool, store), and is run by ``invocation.run(work, database=True, store=False)``. ``run`` uses the
servers that the configuration names, or those of the service that runs on the data directory, or starts them there. -
The result is shown by ``invocation.show(value, *lines)``: ``value`` with ``--json``, otherwise the lines. - A command
fails by raising an exception. ``ApiError``, ``frame.Failed("why")`` and what database and store raise end with exit
code 1; ``click.UsageError`` and a configuration that cannot be used, with 2.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from project_service import __version__

NOUNS = {
    "bucket": "Buckets: who may read them and what they take.",
    "check": "Reach every database, the store and the mail server, and say what is wrong.",
    "dsn": "Print a database's connection string.",
    "extension": "Extensions of the embedded PostgreSQL.",
    "jwt-keys": "The keys that sign access tokens.",
    "keys": "The project keys that clients send.",
    "openapi": "Describe a database's table API.",
    "migrate": "Bring the database to the form this program needs.",
    "storage": "The objects behind the buckets: verify, sweep, import.",
    "sql": "Run an SQL file as the owner of the database.",
    "user": "The users who sign in.",
}


class _Nouns(click.Group):
    """Imports a noun's module only when it is used, so that ``--help`` and short commands are fast."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # Whoever starts us may have closed these. Then there is nothing to read, or nowhere to write the result.
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
        return sorted(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command: click.Command = import_module(f"project_service.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(NOUNS.items()))


@click.command(cls=_Nouns, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="project-service")
def main() -> None:
    """Administer a project: the one of --config, or the one in --data-dir (default ./var).

    The service is started by `twistd project-service`. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.
    """
