"""The life of the process, from ``twistd`` to its end.

``Daemon`` is the service that ``twistd`` runs: signals, and what happens when a start fails. ``Startup`` goes from a
configuration to a service that answers, step by step: embedded servers, migrations, first keys, serving.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from attrs import evolve
from psycopg2.extensions import make_dsn, parse_dsn
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

import twisted
from project_service import __version__, bootstrap
from project_service.application import Application
from project_service.auth import tokens
from project_service.certificates import Certificates
from project_service.database.connecting import Connector, connector
from project_service.database.connection import Connection, DatabaseGone
from project_service.database.migrate import expose, lacking, migrate, shipped, watch_ddl
from project_service.database.pool import Pool
from project_service.dsn import read_dsn
from project_service.embedded.assemble import Embedded
from project_service.lifecycle import Backoff, Components, start
from project_service.log import on_output, set_level
from project_service.network import Binder, bind_endpoints, url_of
from project_service.process import allow_descriptors, let_threads_yield, tune_memory
from project_service.settings.reading import Launch, log_failed_reload
from project_service.shares import worker_count
from project_service.workers.supervisor import Workers

log = Logger()

# The first and the longest pause before the database is tried again, in seconds.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
# How often the log repeats that a part is still away.
REPEAT_SECONDS = 60.0
# How often a service that serves, but is not ready, looks whether it is.
LOOK_SECONDS = 2.0


class Daemon(Service):
    """The service that ``twistd`` runs. A failure at the start is logged and ends the process with exit code 1."""

    log = Logger()

    def __init__(self, reactor: Any, launch: Launch) -> None:
        self.setName("project-service")
        self._reactor = reactor
        self._startup = Startup(reactor, launch)
        self._starting: Deferred[None] | None = None
        self._stopping = False

    def startService(self) -> None:
        super().startService()
        # The reactor installs its own signal handlers when it starts, and ours have to replace them. Nothing is begun
        # before that, because until then a signal would simply end the process in the middle of a step.
        self._reactor.callWhenRunning(self._begin)

    def _begin(self) -> None:
        self._take_signals()
        self.log.info(
            "project-service {version} starts (Python {python}, Twisted {twisted})",
            version=__version__,
            python=platform.python_version(),
            twisted=twisted.__version__,
        )
        self._starting = start(self._startup.start())
        self._starting.addErrback(self._failed)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return start(self._stop())

    async def _stop(self) -> None:
        self.log.info("stopping")
        if self._starting is not None and not self._starting.called:
            self._starting.cancel()
        await self._startup.stop()
        self.log.info("stopped")

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) or not self.running:
            return  # it was stopped while it started, and what was interrupted may have raised anything
        self.log.critical("the service cannot start: {why}", why=failure.getErrorMessage())
        self.log.debug("{traceback}", traceback=failure.getTraceback())
        # twistd has no exit code of its own for this. At exit everything else has been cleaned up.
        atexit.register(_exit_failed)
        self._reactor.callWhenRunning(self._stop_once)

    def _take_signals(self) -> None:
        """Handle signals ourselves. With twistd's handlers SIGTERM would show as death by a signal, but a requested
        stop has to end with exit code 0."""

        def stop(signum: int, frame: object) -> None:
            self._reactor.callFromThread(self._stop_once)

        def reload(signum: int, frame: object) -> None:
            self._reactor.callFromThread(self._startup.reload)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)

    def _stop_once(self) -> None:
        # The reactor runs until everything has been stopped, and raises if it is stopped a second time.
        if self._reactor.running and not self._stopping:
            self._stopping = True
            self._reactor.stop()


def _exit_failed() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(1)


class Startup:
    """``start`` returns when requests are answered. ``stop`` undoes what was started, whenever it is called."""

    log = Logger()

    def __init__(self, reactor: Any, launch: Launch) -> None:
        self._reactor = reactor
        self._launch = launch
        self._settings = launch.settings
        self._components = Components()
        self._serving: Application | Workers | None = None
        self._certificates = Certificates()
        self._admin_dsn: str | None = None
        self._looking: Deferred[None] | None = None

    async def start(self) -> None:
        launch = self._launch
        allow_descriptors()
        let_threads_yield(self._reactor.getThreadPool())
        if launch.data_dir is not None and (launch.embeds_database or launch.embeds_store):
            await self._embed(launch.data_dir)
        await self._migrate()
        keys = await self._first_start(launch.data_dir) if launch.data_dir is not None else None
        away = await (await self._serve()).away()
        state = f"serving on {self._base_url()}, not ready: {', '.join(away)}" if away else self._ready
        if launch.data_dir is not None and keys is not None:
            self._announce(launch.data_dir, keys, state)
        elif away:
            self.log.warn("{state}", state=state)
        else:
            self.log.info("{state}", state=state)
        if away:
            self._looking = start(self._look_until_ready())
            self._looking.addErrback(lambda failure: failure.trap(CancelledError))

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._components.stop()

    async def _look_until_ready(self) -> None:
        assert self._serving is not None
        while await self._serving.away():
            await deferLater(self._reactor, LOOK_SECONDS)
        self.log.info("{state}", state=self._ready)

    @property
    def _ready(self) -> str:
        return f"ready on {self._base_url()}"

    def reload(self) -> None:
        """On SIGHUP: read the configuration again and apply what can change without a restart. If it cannot be used,
        nothing changes."""
        try:
            loaded = self._launch.source.read_again(os.environ)
            current = self._settings.changed_without_restart(loaded)
            if self._serving is not None:
                self._serving.reload(current)
        except Exception as fault:
            log_failed_reload(fault)
        else:
            set_level(current.server.log_level)
            self._settings = current
            if names := self._launch.settings.waiting_for_restart(loaded):
                self.log.warn("changed, but used only after a restart: {names}", names=", ".join(names))
            self.log.info("the configuration was reloaded")
        self._renew()

    def _renew(self) -> None:
        """Read certificates again, even if the configuration cannot be used: with an expired one clients could not
        connect any more."""
        for renewed in self._certificates.renew():
            self.log.info("a new certificate was taken over at {found}", found=renewed)
        if isinstance(self._serving, Workers):
            self._serving.renew()

    async def _embed(self, data_dir: Path) -> None:
        launch = self._launch
        embedded = Embedded(
            self._reactor,
            data_dir,
            database=launch.embeds_database,
            store=launch.embeds_store,
            bucket=self._settings.store.bucket,
            progress=say,
        )
        self._components.adopt(embedded)
        running = await embedded.start()
        self._admin_dsn = running.admin_dsn
        if running.dsn is not None:
            self._settings = self._settings.with_database(running.dsn)
        if running.store is not None:
            self._settings = self._settings.with_store(running.store)

    async def _migrate(self) -> None:
        """Migrate the database, after waiting for it while it is away. Raises if it cannot be migrated."""
        connect = evolve(connector(self._reactor, self._settings), statement_timeout_seconds=0.0)
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        last, logged_at = "", 0.0
        while True:
            try:
                with closing(await connect()) as connection:
                    await migrate(connection, shipped(), say, self._expose)
            except DatabaseGone as fault:
                now = self._reactor.seconds()
                if str(fault) != last or now - logged_at >= REPEAT_SECONDS:
                    last, logged_at = str(fault), now
                    self.log.warn("waiting for the database: {why}", why=last)
                await deferLater(self._reactor, backoff.failed())
            else:
                return

    async def _expose(self, connection: Connection) -> None:
        if not await expose(connection, self._settings.exposed_schemas()):
            await self._watch_as_admin()
        for shortcoming in await lacking(connection, self._settings.schemas_of_service_role()):
            self.log.warn("{shortcoming}", shortcoming=shortcoming)

    async def _watch_as_admin(self) -> None:
        """Have the embedded database's superuser do what its owner may not: notice changes of the schema."""
        if self._admin_dsn is None:
            self.log.info("no event triggers announce changes of the schema: some are noticed seconds later")
            return
        assert self._settings.database.dsn is not None
        name = parse_dsn(self._settings.database.dsn.reveal())["dbname"]
        connect = Connector(self._reactor, read_dsn(make_dsn(self._admin_dsn, dbname=name)), 0.0)
        with closing(await connect()) as connection:
            await watch_ddl(connection)

    async def _first_start(self, data_dir: Path) -> tuple[str, str]:
        assert self._settings.auth.jwt_keys_file is not None
        # If nothing is embedded, the directory may not exist yet.
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # noqa: ASYNC240  # one call on a local disk
        tokens.load_or_create_keys(Path(self._settings.auth.jwt_keys_file), self._settings.auth.jwt_algorithm)
        pool = Pool(connector(self._reactor, self._settings), 1, 10.0, self._reactor)
        try:
            keys = await bootstrap.ensure_keys(pool, data_dir)
            await bootstrap.ensure_buckets(pool)
            return keys
        finally:
            await pool.close()

    async def _serve(self) -> Application | Workers:
        count = worker_count(self._settings)
        server = self._settings.server
        serving: Application | Workers
        if count == 1:
            admin = self._binder([server.admin_listen]) if server.admin_listen is not None else None
            serving = Application(
                self._reactor, self._settings, self._binder(server.listen), admin, reload_all=self.reload
            )
        else:
            serving = Workers(
                self._reactor, self._launch, self._settings, count, self._certificates, self.reload
            )
        self._components.adopt(serving)
        self._serving = serving
        await serving.start()
        tune_memory()
        return serving

    def _binder(self, endpoints: Sequence[str]) -> Binder:
        return bind_endpoints(self._reactor, endpoints, self._certificates)

    def _base_url(self) -> str:
        server = self._settings.server
        if server.public_url is not None:
            return server.public_url
        url = self._url_here(server.listen)
        return url or (server.listen[0] if server.listen else "-")

    def _console_url(self) -> str | None:
        """Where a browser on this machine finds the console; None if it does not."""
        server = self._settings.server
        if server.console is False:
            return None
        url = self._url_here(server.listen if server.admin_listen is None else (server.admin_listen,))
        return None if url is None else f"{url}/console"

    def _url_here(self, endpoints: Sequence[str]) -> str | None:
        """The URL that a person on this machine would type for the first of open ``endpoints`` that has one."""
        addresses = self._serving.addresses if self._serving is not None else []
        server = self._settings.server
        opened = [*server.listen, *([server.admin_listen] if server.admin_listen is not None else [])]
        for address, endpoint in zip(addresses, opened, strict=False):
            if endpoint in endpoints and (url := url_of(address, endpoint.startswith("ssl:"))) is not None:
                return url
        return None

    def _announce(self, data_dir: Path, keys: tuple[str, str], state: str) -> None:
        dsn = self._settings.database.dsn
        url = self._base_url()
        databases = [f"/{stage}/db/{name}/rest" for stage, name, _ in self._settings.stage_databases()]
        rest_url = url.rstrip("/") + databases[0] if databases else ""
        credentials = bootstrap.Credentials(url, rest_url, *keys, dsn.reveal() if dsn is not None else "")
        path = bootstrap.write_credentials(data_dir, credentials)
        if on_output() != "text":
            self.log.info("{state}", state=state)
        show("\n".join(bootstrap.welcome(credentials, path, state, self._console_url(), on_terminal())))


# What a start prints on standard output, beside the log or in its place


def say(line: str) -> None:
    """Print ``line`` and log it, unless the log goes to the same output as text."""
    if on_output() != "text":
        log.info("{line}", line=line)
    show(line)


def show(text: str) -> None:
    """Print to standard output; not between the JSON lines of a log, unless it is a terminal."""
    if on_output() == "json" and not on_terminal():
        return
    if sys.__stdout__ is not None and not sys.__stdout__.closed:
        try:
            print(text, file=sys.__stdout__, flush=True)  # progress is meant to be seen
        except OSError:
            return


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    out = sys.__stdout__
    return out is not None and not out.closed and out.isatty()
