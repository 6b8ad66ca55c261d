"""What a worker is told by its parent, in a line."""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from typing import Any

import orjson
from attrs import asdict, frozen

from project_service import __version__
from project_service.launch import Launch
from project_service.settings import Settings

# What is known of an embedded store by nobody but the parent; its secret besides.
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
    """What a worker is told: the settings in force, whatever is in their file by now, and from what it reads them
    again after a SIGHUP. ``settings`` None: it reads them at once, being of another version than its parent.
    ``number`` is its own among all ``processes``; they count changes for each other at the descriptor ``changes``."""

    config: str | None
    options: dict[str, Any]
    data_dir: str | None
    processes: int
    settings: Settings | None
    number: int = 0
    changes: int | None = None

    def to_json(self) -> bytes:
        pickled = b64encode(pickle.dumps(self.settings)).decode()
        return orjson.dumps({**asdict(self, recurse=False), "settings": pickled, "version": __version__})

    @classmethod
    def from_json(cls, raw: bytes) -> Assignment:
        told = orjson.loads(raw)
        version, pickled = told.pop("version", None), told.pop("settings", None)
        # From our own parent, by a pipe; a new version's files may have taken the place of those it runs.
        found = pickle.loads(b64decode(pickled)) if version == __version__ else None  # noqa: S301  # see above
        return cls(**told, settings=found)


def assignment(launch: Launch, settings: Settings, processes: int) -> Assignment:
    """The launch's options and, over them, how to reach what the parent has embedded."""
    options = dict(launch.options)
    if launch.embeds_database and settings.database.dsn is not None:
        options["database.dsn"] = settings.database.dsn.reveal()
    if launch.embeds_store and settings.store.secret_access_key is not None:
        store = settings.store
        for name in _REACHED_BY:
            options[f"store.{name}"] = getattr(store, name)
        options["store.secret_access_key"] = settings.store.secret_access_key.reveal()
    return Assignment(
        str(launch.config) if launch.config is not None else None,
        options,
        str(launch.data_dir) if launch.data_dir is not None else None,
        processes,
        settings,
    )
