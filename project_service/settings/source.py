"""Where a process finds its settings, at its start and again after a SIGHUP."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from twisted.logger import Logger

from project_service.settings.configure import ALL_PARTS, BadSettings, Fault, Part, look_through, refuse
from project_service.settings.model import Settings, Stage, StageDatabase

# Where ``project-service extension create`` puts extensions. It is not exposed, since everybody may execute their
# functions.
EXTENSIONS_SCHEMA = "extensions"
EMBEDDED_SEARCH_PATH = (*StageDatabase().extra_search_path, EXTENSIONS_SCHEMA)

log = Logger()


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
