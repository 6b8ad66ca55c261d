"""``/admin/settings``: every setting in force, with where it comes from, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from project_service.http.describe import (
    BOOLEAN,
    JSON,
    STRING,
    Answer,
    Named,
    Operation,
    Schema,
    array,
    exactly,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.settings.model import EMBEDDED, SECTIONS, Settings, reloads

TAG = "operators"

_SETTING = Named(
    "Setting",
    exactly(
        name=STRING,
        value={"description": "null for a secret."},
        source={"enum": ["default", "file", "environment", "command line", EMBEDDED]},
        reloads=BOOLEAN,
        secret=BOOLEAN,
        set=BOOLEAN,
    ),
)
_ANSWER: Schema = exactly(
    file={"type": ["string", "null"], "description": "The configuration file, if anything is set there."},
    settings=array(_SETTING),
)


@frozen
class SettingRoutes:
    """``settings`` returns those that are in force."""

    settings: Callable[[], Settings]

    @endpoint(
        "GET",
        "/admin/settings",
        Operation(
            "readSettings",
            TAG,
            "Every setting in force, with where it comes from",
            (Answer(200, "The settings", {JSON: _ANSWER}, {"Cache-Control": "no-store"}),),
            details="reloads says whether a SIGHUP applies a changed value; else it takes a restart. A secret has no "
            "value here; set says whether it has one. What is embedded was filled in, since no server was named.",
            needs=(),
        ),
    )
    async def read(self, request: Request) -> Reply:
        return json_reply(shown(self.settings()), headers=(NO_STORE,))


def shown(settings: Settings) -> dict[str, Any]:
    """The answer. What is a ``Secret``, or not to be printed (``model.key``), has no value in it."""
    files = {origin for origin in settings.origins.values() if _source(origin) == "file"}
    return {
        "file": min(files, default=None),
        "settings": [_view(settings, name, field, value) for name, field, value in _all(settings)],
    }


def _all(settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Every setting with its dotted name, its field and its value."""
    for name in SECTIONS:
        yield from _of_section(name, getattr(settings, name))
    for stage, name, database in settings.stage_databases():
        yield from _of_section(f"stages.{stage}.databases.{name}", database)


def _of_section(path: str, section: Any) -> Iterator[tuple[str, Any, Any]]:
    for field in attrs.fields(type(section)):
        name, value = f"{path}.{field.name}", getattr(section, field.name)
        if "section" in field.metadata:
            yield from _of_section(name, value)
        elif "tables" in field.metadata:
            for inner, one in value.items():
                yield from _of_section(f"{name}.{inner}", one)
        else:
            yield name, field, value


# Of a URL.
_USER_INFO = re.compile(r"(?<=://)\S*@")
# Addresses that only this service calls, so that their query may be what lets it in.
_CALLED = "auth.hooks."


def _view(settings: Settings, name: str, field: Any, value: Any) -> dict[str, Any]:
    is_secret = not field.repr or any(kind in str(field.type) for kind in ("Secret", "StoreKeys"))
    origin = settings.origins.get(name)
    by_default = "default" if value == _default(field) else EMBEDDED
    shown_value = None if is_secret else _plain(value)
    if name.startswith(_CALLED) and isinstance(shown_value, str):
        address, mark, _ = shown_value.partition("?")
        shown_value = f"{address}?…" if mark else address
    return {
        "name": name,
        "value": shown_value,
        "source": by_default if origin is None else _source(origin),
        "reloads": reloads(name),
        "secret": is_secret,
        "set": value not in (None, "", (), {}),
    }


def _plain(value: Any) -> Any:
    """``value`` for JSON, without what is in front of the host of a URL. Raises ``TypeError`` for a type that is not
    known to hold no secret."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _USER_INFO.sub("…@", value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    raise TypeError(type(value).__name__)


def _default(field: Any) -> Any:
    return field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]


def _source(origin: str) -> str:
    return origin if origin in ("environment", "command line", EMBEDDED) else "file"
