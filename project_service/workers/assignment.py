"""The message by which the parent tells a new worker process what to do: one line of JSON on its standard input."""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from pathlib import Path

import orjson
from attrs import asdict, evolve, fields, frozen

from project_service import __version__
from project_service.settings.launch import Launch
from project_service.settings.model import SECTIONS, Settings, StageDatabase
from project_service.settings.source import Source

# Settings of an embedded store that only the parent knows, because it started the store. The secret key goes with
# them, see ``assignment``.
_REACHED_BY = (
    "endpoint_url",
    "region",
    "access_key_id",
    "addressing_style",
    "session_token",
    "credentials_file",
)


@frozen
class Assignment:
    """Everything a worker has to know.

    ``settings`` are those in force in the parent, which may differ from what the file says by now. They are None
    where the worker's code has another version than its parent's; it then reads them from ``source`` itself, as it
    does after a SIGHUP.
    """

    source: Source
    processes: int
    settings: Settings | None

    def to_json(self) -> bytes:
        told = asdict(self, recurse=False)
        source = {name: _text(value) for name, value in asdict(told.pop("source")).items()}
        pickled = b64encode(pickle.dumps(self.settings)).decode()
        return orjson.dumps({**told, **source, "settings": pickled, "version": version()})

    @classmethod
    def from_json(cls, raw: bytes) -> Assignment:
        told = orjson.loads(raw)
        theirs, pickled = told.pop("version", None), told.pop("settings", None)
        # Unpickling is safe, because the line comes from our own parent through a pipe. The versions can differ when
        # the package was upgraded under a running parent; a pickle of another version must not be loaded.
        found = pickle.loads(b64decode(pickled)) if theirs == version() else None  # noqa: S301  # see above
        config, options, data_dir = (told.pop(one.name) for one in fields(Source))
        source = Source(_path(config), options, _path(data_dir))
        # A parent of another version may tell more.
        return cls(source, told["processes"], found)


def _text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def version() -> list[str]:
    """The package's version and the names of all settings. The number alone does not tell what a pickle of the
    settings has: a checkout that the package was installed from changes without a new number."""
    sections = (*SECTIONS.values(), StageDatabase)
    return [
        __version__,
        *(f"{section.__name__}.{one.name}" for section in sections for one in fields(section)),
    ]


def assignment(launch: Launch, settings: Settings, processes: int) -> Assignment:
    """The assignment of every worker of ``launch``.

    What the parent has embedded is passed on as command line options, since those win over the configuration file
    whenever a worker reads it again.
    """
    options = dict(launch.source.options)
    if launch.embeds_database and settings.database.dsn is not None:
        options["database.dsn"] = settings.database.dsn.reveal()
    if launch.embeds_store and settings.store.secret_access_key is not None:
        store = settings.store
        for name in _REACHED_BY:
            options[f"store.{name}"] = getattr(store, name)
        options["store.secret_access_key"] = settings.store.secret_access_key.reveal()
    return Assignment(evolve(launch.source, options=options), processes, settings)
