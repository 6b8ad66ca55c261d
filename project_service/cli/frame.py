"""What all commands share: options, output, and how they end."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import click
import orjson
import psycopg2
from attrs import frozen

from project_service.cli.on_reactor import Interrupted, run_on_reactor
from project_service.cli.opened import Opened, opened
from project_service.database.migrate import MigrationRefused
from project_service.database.session import DatabaseGone
from project_service.embedded.command import ChildFailed
from project_service.embedded.lock import InUse
from project_service.errors import ApiError
from project_service.settings.configure import BadSettings, Part
from project_service.settings.launch import Launch, placed, printable
from project_service.settings.model import Settings, StageDatabase
from project_service.settings.source import Source
from project_service.storage.s3.errors import (
    NO_NEXT_PAGE,
    NO_SIZE,
    NO_TLS,
    SAME_PAGE,
    UNREADABLE,
    UNTRUSTED,
    StoreError,
    StoreUnreachable,
)
from project_service.tap import DEFAULT_DATA_DIR

USAGE = 2
FAILED = 1


class Failed(Exception):
    """The command could not do what it was asked for. The message says why."""


@frozen
class Invocation:
    """The options that all commands have, as they were given."""

    config: Path | None
    data_dir: Path | None
    json: bool

    @property
    def embeds_into(self) -> Path | None:
        """The data directory; None if the configuration has to name all servers. Raises ``BadSettings``."""
        if self.config is not None and self.data_dir is None:
            return None
        return placed(self.data_dir or Path(DEFAULT_DATA_DIR))

    def launch(self, *needed: Part) -> Launch:
        """As the service's own, with the same settings. Ends the command with exit code 2 if they cannot be used for
        the parts that are ``needed``."""
        try:
            source = self.source()
            return Launch(source.read(os.environ, needed), source)
        except BadSettings as fault:
            end(f"the configuration cannot be used\n{fault}", USAGE)

    def source(self) -> Source:
        """Where the settings are. Raises ``BadSettings``."""
        return Source(self.config, data_dir=self.embeds_into)

    def run(
        self, work: Callable[[Opened], Awaitable[None]], *, database: bool = True, store: bool = False
    ) -> None:
        """Run ``work`` with the database and the store open, as asked for. Ends the command with exit code 1 if
        something fails, at once if the database is away: the pool would wait for it to come back."""

        parts: dict[Part, bool] = {"database": database, "store": store}
        launch = self.launch(*(part for part, wanted in parts.items() if wanted))

        async def opened_work(reactor: Any) -> None:
            async with opened(reactor, launch, database=database, store=store) as open_:
                if database:
                    (await open_.connector()()).close()
                await work(open_)

        try:
            self.on_reactor(opened_work)
        except EXPECTED as fault:
            end(explained(fault), FAILED)

    def on_reactor(self, work: Callable[[Any], Awaitable[None]]) -> None:
        """Run ``work`` with the reactor. Raises what it raises. If it is interrupted, the command ends with exit code
        1."""
        try:
            run_on_reactor(work)
        except Interrupted:
            end("interrupted", FAILED)

    def show(self, value: Any, *lines: str) -> None:
        """Print the result: ``value`` as JSON with ``--json``, otherwise ``lines``."""
        shown = [orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()] if self.json else lines
        try:
            for line in shown:
                click.echo(printable(line))
        except OSError as fault:
            # The work is done, but nobody has seen the result, such as a new key.
            end(f"done, but what came of it cannot be written: {fault.strerror}", FAILED)


def stage_database(settings: Settings, stage: str, name: str) -> StageDatabase:
    """The database ``name`` of ``stage``. Raises ``Failed`` if the configuration has none."""
    try:
        return settings.stages[stage].databases[name]
    except KeyError:
        raise Failed(f"the configuration has no stage {stage} with a database {name}") from None


EXPECTED = (
    Failed,
    ApiError,
    ChildFailed,
    InUse,
    MigrationRefused,
    DatabaseGone,
    StoreError,
    StoreUnreachable,
    psycopg2.Error,
    ValueError,
    OSError,
)

# undefined_table, invalid_schema_name, undefined_function (PostgreSQL, Appendix A)
_NOT_MIGRATED = frozenset({"42P01", "3F000", "42883"})


# What to say, by ``storage.s3.errors.kind_of``. Other kinds mean nothing to a person.
_STORE_AWAY = {
    "ConnectionRefusedError": "no server listens there",
    "DNSLookupError": "unknown host",
    "TimeoutError": "timed out",
    "TCPTimedOutError": "timed out",
    "ConnectionLost": "it hangs up",
    "ConnectionDone": "it hangs up",
    UNTRUSTED: "the certificate is not trusted, or has expired",
    "VerificationError": "the certificate is for another name",
    NO_TLS: "no TLS is spoken there",
    UNREADABLE: "its answer is none of S3",
    NO_SIZE: "it does not say how long an object is",
    NO_NEXT_PAGE: "its list does not say where it goes on",
    SAME_PAGE: "its list repeats a page",
}


def explained(fault: BaseException) -> str:
    """A text for a person about one of ``EXPECTED``, without addresses and credentials."""
    if isinstance(fault, ApiError):
        details = "".join(f"\n  {name}: {why}" for name, why in (fault.details or {}).items())
        return f"{fault.message}{details}"
    if isinstance(fault, DatabaseGone):
        return f"the database cannot be reached: {fault}"
    if isinstance(fault, StoreError):
        return f"the store refuses: {fault}"
    if isinstance(fault, StoreUnreachable):
        why = _STORE_AWAY.get(str(fault))
        return f"the store cannot be reached{f': {why}' if why else ''}"
    if isinstance(fault, psycopg2.Error):
        primary = fault.diag.message_primary if fault.diag is not None else None
        hint = "; has it been migrated? (`project-service migrate`)" if fault.pgcode in _NOT_MIGRATED else ""
        return f"the database refuses: {primary or fault.pgcode or 'no reason given'}{hint}"
    return "an argument is not UTF-8" if isinstance(fault, UnicodeEncodeError) else str(fault)


def end(why: str, code: int) -> NoReturn:
    """Print why on standard error, and exit with ``code``."""
    click.echo(f"project-service: {why}", err=True)
    sys.exit(code)


class Place(click.Path):
    """A path that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            # Probably a shell variable that is not set. It must not mean the current directory.
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--config``, ``--data-dir`` and ``--json``, which are passed to it as an ``Invocation``."""

    @click.option("--config", type=Place(path_type=Path), help="TOML file with the settings.")
    @click.option("--data-dir", type=Place(path_type=Path), help="Where embedded parts keep their state.")
    @click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")
    @functools.wraps(function)
    def wrapped(**given: Any) -> None:
        shared = (given.pop("config"), given.pop("data_dir"), given.pop("json_"))
        function(Invocation(*shared), **given)

    return wrapped
