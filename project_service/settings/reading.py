"""Reads ``Settings`` from the TOML file, the environment and the command line, or reports all faults at once."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs
import orjson
from attrs import frozen

from project_service.settings.model import SECTIONS, Settings, Stage, StageDatabase, Store, own_name

PREFIX = "PROJECT_SERVICE__"

Tree = dict[str, Any]
# What a command may do without. The service needs all of them, and nobody needs what has been removed.
Part = Literal["database", "store", "token keys", "mail server", "removed"]
ALL_PARTS: frozenset[Part] = frozenset({"database", "store", "token keys", "mail server"})

# What ``store.credentials_file`` sets.
_KEYS = ("access_key_id", "secret_access_key", "session_token")
_TABLES = frozenset({*SECTIONS, "stages"})
# Settings that there used to be, and why they are not needed. A configuration that still names one serves on.
_REMOVED = {"server.http_parser": "every request is parsed by llhttp"}


@frozen
class Fault:
    """Something wrong with a setting. ``where`` is the file's name, "environment" or "command line"; ``name`` is the
    dotted name, or empty for the whole file. ``part`` is set where it is wrong only for those who use that part."""

    where: str
    name: str
    reason: str
    part: Part | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.name} {self.reason}" if self.name else f"{self.where}: {self.reason}"


class BadSettings(Exception):
    """The configuration cannot be used. ``faults`` has everything that is wrong with it."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@frozen
class _Given:
    """A value and where it was found."""

    value: Any
    where: str


def load(
    config: Path | None,
    environ: Mapping[str, str],
    options: Mapping[str, Any],
    embedded: bool,
    needed: Collection[Part] = ALL_PARTS,
) -> Settings:
    """The settings. The environment takes precedence over the file, and ``options``, by dotted name, over both.

    With ``embedded`` a database or store that is not configured will be started; otherwise it is a fault that it is
    missing. Raises ``BadSettings`` for all faults, except in what only other parts than ``needed`` use.
    """
    settings, faults = look_through(config, environ, options, embedded)
    refuse(faults, needed)
    return settings


def refuse(faults: list[Fault], needed: Collection[Part]) -> None:
    """Raise ``BadSettings`` for those that matter to who needs these parts."""
    if serious := [fault for fault in faults if fault.part is None or fault.part in needed]:
        raise BadSettings(serious)


def look_through(
    config: Path | None, environ: Mapping[str, str], options: Mapping[str, Any], embedded: bool
) -> tuple[Settings, list[Fault]]:
    """The settings and all that is wrong with them, as ``load``. What has a fault has its default."""
    faults: list[Fault] = []
    given: dict[str, _Given] = {}
    if config is not None:
        given.update(_own_names(_from_file(config, faults), faults))
    given.update(_own_names(_from_environment(environ), faults))
    given.update({name: _Given(value, "command line") for name, value in options.items()})
    settings = _with_keys(_Reader(given, faults).settings())
    # If the file could not be read, it is unknown what is missing.
    if all(fault.name for fault in faults):
        _cross_check(settings, given, str(config or "configuration"), embedded, faults)
    return settings, faults


def _from_file(path: Path, faults: list[Fault]) -> dict[str, _Given]:
    try:
        # Some editors write a byte order mark.
        tree = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as fault:
        faults.append(Fault(str(path), "", f"cannot be read: {fault.strerror}"))
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        # A TOML error contains line and column but not the text of the line, which may be a secret.
        faults.append(Fault(str(path), "", f"is not TOML: {str(fault).partition(chr(10))[0]}"))
        return {}
    except (ValueError, RecursionError):
        # Python refuses numbers of thousands of digits, and thousands of nested brackets.
        faults.append(Fault(str(path), "", "has a number that is too long, or is nested too deeply"))
        return {}
    return {name: _Given(value, str(path)) for name, value in _flattened(tree, ())}


def _flattened(tree: Mapping[str, Any], above: tuple[str, ...]) -> list[tuple[str, Any]]:
    """All values with their dotted names. A table that is a setting's value (``app_settings``) is not taken apart."""
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        path = (*above, name)
        is_value = len(path) == 5 and path[0] == "stages"
        if isinstance(value, Mapping) and not is_value:
            found.extend(_flattened(value, path) or [(".".join(path), value)])
        else:
            found.append((".".join(path), value))
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    """``PROJECT_SERVICE__AUTH__BCRYPT_COST`` is ``auth.bcrypt_cost``. A whole table (``PROJECT_SERVICE__AUTH``) can
    be given as a JSON object."""
    found: dict[str, _Given] = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX):
            continue
        dotted = ".".join(name.removeprefix(PREFIX).lower().split("__"))
        tree = _json_object(value) if dotted in _TABLES or dotted.startswith("stages.") else None
        if tree is not None and dotted.count(".") < 4:
            above = tuple(dotted.split("."))
            found.update({n: _Given(v, "environment") for n, v in _flattened(tree, above)})
        else:
            found[dotted] = _Given(value, "environment")
    return found


def _json_object(value: str) -> Tree | None:
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _own_names(given: dict[str, _Given], faults: list[Fault]) -> dict[str, _Given]:
    """The same with our names for settings of the table API that have PostgREST's. It is a fault if one source has
    both."""
    known = {one.name for one in attrs.fields(StageDatabase)}
    found: dict[str, _Given] = {}
    for dotted, one in given.items():
        parts = dotted.split(".", 4)
        own = dotted
        if len(parts) == 5 and (parts[0], parts[2]) == ("stages", "databases"):
            own = ".".join((*parts[:4], own_name(parts[4], known)))
        if own != dotted and (own in found or own in given):
            faults.append(Fault(one.where, dotted, f"is another name of {own}, which is there too"))
        found[own] = one
    return found


def _why_left(name: str, left: _Given) -> str:
    """What is wrong with a value that belongs to no setting."""
    if name in _REMOVED:
        return f"is no longer a setting: {_REMOVED[name]}; remove it"
    parts = name.split(".")
    of_stages = parts[0] == "stages" and len(parts) <= 4 and parts[2:3] in ([], ["databases"])
    if name not in _TABLES and not of_stages:
        return "is not a setting"
    if isinstance(left.value, Mapping):
        return "names no database"
    return "must be a table" + (" (as JSON in the environment)" if left.where == "environment" else "")


class _Reader:
    def __init__(self, given: dict[str, _Given], faults: list[Fault]) -> None:
        self._given = dict(given)
        self._faults = faults

    def settings(self) -> Settings:
        sections = {name: self._section(name, section) for name, section in SECTIONS.items()}
        settings = Settings(**sections, stages=self._stages())
        for name, left in self._given.items():
            part: Part | None = "removed" if name in _REMOVED else None
            self._faults.append(Fault(left.where, name, _why_left(name, left), part))
        return settings

    def _section(self, path: str, cls: type) -> Any:
        values: Tree = {}
        if self._is_empty_table(path):
            del self._given[path]
        for one in attrs.fields(cls):
            given = self._given.pop(f"{path}.{one.name}", None)
            if given is None:
                continue
            try:
                values[one.name] = one.metadata["kind"](given.value)
            except ValueError as fault:
                self._faults.append(Fault(given.where, f"{path}.{one.name}", str(fault)))
        return cls(**values)

    def _is_empty_table(self, path: str) -> bool:
        given = self._given.get(path)
        return given is not None and given.value == {}

    def _stages(self) -> dict[str, Stage]:
        names: dict[tuple[str, str], str] = {}
        for dotted, given in self._given.items():
            parts = dotted.split(".")
            if len(parts) >= 4 and parts[0] == "stages" and parts[2] == "databases":
                names[parts[1], parts[3]] = given.where
        stages: dict[str, dict[str, StageDatabase]] = {}
        for (stage, database), where in names.items():
            path = f"stages.{stage}.databases.{database}"
            if not all(name and "/" not in name for name in (stage, database)):
                self._faults.append(
                    Fault(where, path, "has a name that no path can have: empty, or with a slash")
                )
            stages.setdefault(stage, {})[database] = self._section(path, StageDatabase)
        return {stage: Stage(databases) for stage, databases in stages.items()}


def _with_keys(settings: Settings) -> Settings:
    keys = settings.store.credentials_file
    if keys is None:
        return settings
    pair = {name: getattr(keys, name) for name in _KEYS}
    return attrs.evolve(settings, store=attrs.evolve(settings.store, **pair))


def _cross_check(
    settings: Settings, given: dict[str, _Given], where: str, embedded: bool, faults: list[Fault]
) -> None:
    faulty = {one.name for one in faults}

    def fault(name: str, reason: str, part: Part) -> None:
        """Only one fault for each key: what could not be read must not be reported as missing too."""
        if name not in faulty:
            faults.append(Fault(given[name].where if name in given else where, name, reason, part))

    if not embedded and settings.database.dsn is None:
        fault("database.dsn", "is missing (or name a --data-dir to run an embedded database)", "database")
    for name, reason in _store_faults(settings.store, embedded):
        if name not in _KEYS or "store.credentials_file" not in faulty:
            fault(f"store.{name}", reason, "store")
    if settings.store.credentials_file is not None:
        for name in (f"store.{one}" for one in _KEYS):
            if name in given and given[name].value not in (None, ""):
                fault(name, "is named besides store.credentials_file, which has its own", "store")
    auth = settings.auth
    if not embedded and auth.jwt_keys_file is None:
        fault("auth.jwt_keys_file", "is missing (`project-service jwt-keys create` makes one)", "token keys")
    if settings.smtp.host is not None and settings.smtp.sender is None:
        fault("smtp.sender", "is missing", "mail server")
    if auth.confirm_email and settings.smtp.host is None:
        fault("auth.confirm_email", "needs [smtp] host", "mail server")


def _store_faults(store: Store, embedded: bool) -> Iterator[tuple[str, str]]:
    if store.endpoint_url is None:
        if not embedded:
            yield "endpoint_url", "is missing (or name a --data-dir to run an embedded store)"
        return
    for name in ("access_key_id", "secret_access_key"):
        if getattr(store, name) is None:
            yield name, "is missing"
    if store.addressing_style == "virtual" and not _goes_before(store.bucket, store.endpoint_url):
        yield "addressing_style", 'must be "path": the bucket and this host make no name of a host'


def _goes_before(bucket: str, url: str) -> bool:
    """Whether ``bucket`` can be put before the host in ``url`` to make another host's name, as "virtual" addressing
    does."""
    try:
        ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return ":" not in bucket and ".." not in f"{bucket}."
    return False
