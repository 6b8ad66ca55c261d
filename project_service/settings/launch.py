"""What one start of the daemon was asked for."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve, frozen

from project_service.settings.configure import BadSettings, Fault
from project_service.settings.model import Secret, Settings, StageDatabase, Store
from project_service.settings.source import Source


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
