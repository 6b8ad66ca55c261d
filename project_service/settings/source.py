"""Where a process finds its settings, at its start and again after a SIGHUP."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from twisted.logger import Logger

from project_service.auth.tokens import KeySetError
from project_service.settings.model import Secret, Settings, Stage, StageDatabase, Store
from project_service.settings.reading import ALL_PARTS, BadSettings, Fault, Part, look_through, refuse

# SIGHUP: the configuration is read again, and whatever may change without a restart is taken over, all or
# nothing.


log = Logger()


def reread(
    settings: Settings,
    load: Callable[[], Settings],
    take_over: Callable[[Settings], None],
    configured: Settings | None = None,
) -> Settings | None:
    """The settings in force from now on; None where they stay as they are, and then the log says why.

    ``settings`` are those in force now. ``load`` may raise ``BadSettings``. ``take_over`` may raise anything, usually
    ``KeySetError``, as long as it has changed nothing by then. ``configured`` is what ``load`` gave at the start;
    settings that differ from it but need a restart are named in the log.
    """
    try:
        loaded = load()
        fresh = settings.changed_without_restart(loaded)
        take_over(fresh)
    except (BadSettings, KeySetError) as fault:
        log.error("the configuration was not reloaded: {fault}", fault=str(fault))
    except Exception:
        log.failure("the configuration was not taken over")
    else:
        waiting = configured.waiting_for_restart(loaded) if configured is not None else []
        if waiting:
            log.warn("changed, but in force only after a restart: {names}", names=", ".join(waiting))
        return fresh
    return None


# Where ``project-service extension create`` puts extensions. It is not exposed, since everybody may execute their
# functions.
EXTENSIONS_SCHEMA = "extensions"
EMBEDDED_SEARCH_PATH = (*StageDatabase().extra_search_path, EXTENSIONS_SCHEMA)


@frozen
class Source:
    """``config`` is the file. ``options``, the command line's settings by dotted name, win over it and over the
    environment. With a ``data_dir``, what these do not name is embedded there.
    """

    config: Path | None = None
    options: Mapping[str, Any] = field(factory=dict, repr=False)
    data_dir: Path | None = None

    def read(self, environ: Mapping[str, str], needed: Collection[Part] = ALL_PARTS) -> Settings:
        """As ``configure.load``, and the log names settings that have been removed. Raises ``BadSettings``."""
        settings, faults = self.look_through(environ)
        refuse(faults, needed)
        for fault in faults:
            if fault.part == "removed":
                log.warn("{fault}", fault=str(fault))
        return settings

    def look_through(self, environ: Mapping[str, str]) -> tuple[Settings, list[Fault]]:
        """As ``configure.look_through``."""
        settings, faults = look_through(self.config, environ, self.options, self.data_dir is not None)
        return self._placed(settings), faults

    def _placed(self, settings: Settings) -> Settings:
        return settings if self.data_dir is None else with_data_dir_defaults(settings, self.data_dir)

    def read_again(self, environ: Mapping[str, str]) -> Settings:
        """As ``read``, while requests are served.

        Raises ``BadSettings`` for a configuration that is a pipe, as programs that manage secrets use: nobody may be
        writing into it any more, and reading it would block the process for ever.
        """
        if self.config is not None and self.config.is_fifo():
            raise BadSettings([Fault(str(self.config), "", "is a pipe, which is read at the start only")])
        return self.read(environ)


def with_data_dir_defaults(settings: Settings, data_dir: Path) -> Settings:
    """``settings`` with what embedded mode fills in: the key file below ``data_dir``, the database dev/main, and the
    schema of extensions in the search path."""
    if settings.auth.jwt_keys_file is None:
        settings = evolve(settings, auth=evolve(settings.auth, jwt_keys_file=str(data_dir / "jwt-keys.json")))
    if not settings.stages:
        settings = evolve(settings, stages={"dev": Stage({"main": StageDatabase()})})
    if settings.database.dsn is None:
        stages = {name: Stage(_with_extensions(stage.databases)) for name, stage in settings.stages.items()}
        settings = evolve(settings, stages=stages)
    return settings


def _with_extensions(databases: Mapping[str, StageDatabase]) -> dict[str, StageDatabase]:
    return {
        name: evolve(database, extra_search_path=EMBEDDED_SEARCH_PATH)
        if database.dsn is None and database.extra_search_path == StageDatabase().extra_search_path
        else database
        for name, database in databases.items()
    }


# What one start of the daemon was asked for.


@frozen
class Launch:
    """``settings`` are those read from ``source`` at the start."""

    settings: Settings
    source: Source

    @property
    def data_dir(self) -> Path | None:
        """Where servers are embedded that the settings do not name; None if they have to name all."""
        return self.source.data_dir

    @property
    def embeds_database(self) -> bool:
        return self.data_dir is not None and self.settings.database.dsn is None

    @property
    def embeds_store(self) -> bool:
        return self.data_dir is not None and self.settings.store.endpoint_url is None


def placed(path: Path) -> Path:
    """``path`` as an absolute path.

    Raises ``BadSettings`` for a relative one where the current directory has been removed, and for one whose name is
    not UTF-8, since it could not be written to the files and messages that mention it.
    """
    why = "begins in the current directory, which is gone; go to one that exists"
    try:
        placed = path.absolute()
        why = "has a name that is not UTF-8"
        str(placed).encode()
    except (FileNotFoundError, UnicodeEncodeError):
        raise BadSettings([Fault("command line", printable(path), why)]) from None
    return placed


def printable(name: Path | str) -> str:
    """``name`` as text that every output takes: bytes of a file's name that are not UTF-8 are escaped."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def with_embedded_database(settings: Settings, dsn: str) -> Settings:
    return evolve(settings, database=evolve(settings.database, dsn=Secret(dsn)))


def with_embedded_store(settings: Settings, embedded: Store) -> Settings:
    """``settings`` with the address and keys of ``embedded``; all else about the store stays as configured."""
    store = evolve(
        settings.store,
        endpoint_url=embedded.endpoint_url,
        region=embedded.region,
        access_key_id=embedded.access_key_id,
        secret_access_key=embedded.secret_access_key,
        session_token=None,
        credentials_file=None,
        addressing_style="path",
    )
    return evolve(settings, store=store)


def exposed_schemas(settings: Settings) -> frozenset[str]:
    """The schemas of the system database that the table API shows, in any stage."""
    return frozenset(schema for database in _on_system_database(settings) for schema in database.schemas)


def schemas_of_service_role(settings: Settings) -> frozenset[str]:
    """Those of ``exposed_schemas`` in which the service key acts as ``service_role``, which the migrations make."""
    return frozenset(
        schema
        for database in _on_system_database(settings)
        if database.service_role == StageDatabase().service_role
        for schema in database.schemas
    )


def _on_system_database(settings: Settings) -> list[StageDatabase]:
    return [database for _, _, database in settings.stage_databases() if database.dsn is None]
