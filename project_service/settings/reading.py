"""Reads ``Settings`` from the TOML file, the environment and the command line, and reports all faults at once.

``Source`` is the face: ``read`` at the start of a process, ``read_again`` after a SIGHUP, ``look_through`` to see
faults and settings side by side. Every value is collected under its dotted name with its origin, then converted by
its kind, then compared with the others. Last, what ``--data-dir`` embeds is filled in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import attrs
import orjson
from attrs import evolve, field, frozen
from twisted.logger import Logger

from project_service.files import printable
from project_service.public_addresses import why_not_url
from project_service.settings.model import (
    HOOKS,
    INNER_SECTIONS,
    KNOWN_PROVIDERS,
    OTHER_WAYS_IN,
    SECTIONS,
    Auth,
    Images,
    Settings,
    Stage,
    StageDatabase,
)

log = Logger()

PREFIX = "PROJECT_SERVICE__"
# What --config and --data-dir are if they are not given.
CONFIG_VARIABLE = "PROJECT_SERVICE_CONFIG"
DATA_DIR_VARIABLE = "PROJECT_SERVICE_DATA_DIR"
DEFAULT_DATA_DIR = "var"
# The folder of the project's numbered SQL files, by convention.
MIGRATIONS = "migrations"

# What some commands do not need. The service needs all of them.
Resource = Literal["database", "store", "token keys", "mail server"]
ALL_RESOURCES: frozenset[Resource] = frozenset(get_args(Resource))

# Where ``project-service extension create`` puts extensions. It is not exposed, since everybody may execute their
# functions.
EXTENSIONS_SCHEMA = "extensions"
EMBEDDED_SEARCH_PATH = (*StageDatabase().extra_search_path, EXTENSIONS_SCHEMA)

# Settings of the console that follow from an embedded database if they are not given.
CONSOLE_SETTINGS = ("console_sql", "console_log", "migrations_dir")
# What ``store.credentials_file`` sets.
_STORE_KEYS = ("access_key_id", "secret_access_key", "session_token")
_TABLES = frozenset({*SECTIONS, "stages"})
# Settings whose values are tables, but for those of databases.
_TABLE_SETTINGS = frozenset({"smtp.template_variables"})


class ConfigurationError(Exception):
    """The configuration, or a file that it names, cannot be used. The message says why."""


@frozen
class Fault:
    """Something wrong with a setting. ``where`` is the file's name, "environment" or "command line"; ``name`` is the
    dotted name, or empty for the whole file. With a ``resource`` it matters only to those who use that."""

    where: str
    name: str
    reason: str
    resource: Resource | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.name} {self.reason}" if self.name else f"{self.where}: {self.reason}"


class BadSettings(ConfigurationError):
    """``faults`` has everything that is wrong with the configuration."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@frozen
class Source:
    """``config`` is the file. ``options``, the command line's settings by dotted name, take precedence over the
    environment, and that over the file. With a ``data_dir``, a database or a store that is not named is embedded
    there; without one it is a fault that it is missing.
    """

    config: Path | None = None
    options: Mapping[str, Any] = field(factory=dict, repr=False)
    data_dir: Path | None = None

    @classmethod
    def named(
        cls,
        environ: Mapping[str, str],
        config: Path | None,
        data_dir: Path | None,
        options: Mapping[str, Any] | None = None,
    ) -> Source:
        """The source that ``--config`` and ``--data-dir`` name, or in the place of one that is not given, its
        variable in ``environ``. A configuration without a data directory has to name all servers; without either the
        data directory is ``./var``. Raises ``BadSettings``."""
        config = config or _path_in(environ, CONFIG_VARIABLE)
        data_dir = data_dir or _path_in(environ, DATA_DIR_VARIABLE)
        if config is None and data_dir is None:
            data_dir = Path(DEFAULT_DATA_DIR)
        return cls(
            None if config is None else absolute_path(config),
            options or {},
            None if data_dir is None else absolute_path(data_dir),
        )

    def read(self, environ: Mapping[str, str], needed: Collection[Resource] = ALL_RESOURCES) -> Settings:
        """The settings. Raises ``BadSettings`` for all faults, except those that only matter to users of other
        resources than ``needed``."""
        settings, faults = self.look_through(environ)
        if serious := [fault for fault in faults if fault.resource is None or fault.resource in needed]:
            raise BadSettings(serious)
        return settings

    def read_again(self, environ: Mapping[str, str]) -> Settings:
        """As ``read``, while requests are served.

        Raises ``BadSettings`` for a configuration that is a pipe, as programs that manage secrets use: nobody may be
        writing into it any more, and reading it would block the process for ever.
        """
        if self.config is not None and self.config.is_fifo():
            raise BadSettings([Fault(str(self.config), "", "is a pipe, which is read at the start only")])
        return self.read(environ)

    def look_through(self, environ: Mapping[str, str]) -> tuple[Settings, list[Fault]]:
        """The settings and all that is wrong with them. A setting with a fault has its default."""
        faults: list[Fault] = []
        given: dict[str, _Given] = {}
        if self.config is not None:
            given.update(_with_own_names(_from_file(self.config, faults), faults))
        given.update(_with_own_names(_from_environment(environ), faults))
        given.update({name: _Given(value, "command line") for name, value in self.options.items()})
        settings = evolve(_converted(given, faults), origins={name: one.where for name, one in given.items()})
        if settings.store.credentials_file is not None:
            keys = {name: getattr(settings.store.credentials_file, name) for name in _STORE_KEYS}
            origin = settings.origins["store.credentials_file"]
            origins = {f"store.{name}": origin for name, value in keys.items() if value is not None}
            settings = evolve(
                settings, store=evolve(settings.store, **keys), origins={**settings.origins, **origins}
            )
        # If the file could not be read, it is unknown what is missing.
        if all(fault.name for fault in faults):
            faulty = {fault.name for fault in faults}
            for name, reason, resource in _contradictions(settings, given, self.data_dir is not None):
                # A setting that could not be read is not reported as missing too.
                if name not in faulty:
                    where = given[name].where if name in given else str(self.config or "configuration")
                    faults.append(Fault(where, name, reason, resource))
        if self.data_dir is not None:
            settings = with_data_dir_defaults(settings, self.data_dir)
        return settings, faults


@frozen
class Launch:
    """What one start of the service was asked for: ``source``, and the settings that were read from it."""

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


def with_data_dir_defaults(settings: Settings, data_dir: Path) -> Settings:
    """``settings`` with what embedded mode fills in: the key file and the folder of e-mails below ``data_dir``, the
    database dev/main, and the schema of extensions in the search path. With an embedded database the console has SQL,
    if there is no other beside it, and the log, unless the settings say otherwise, and saves migrations in the folder
    ``MIGRATIONS``, if there is one."""
    if _embeds_a_server(settings) and settings.smtp.mail_dir is None:
        smtp = evolve(settings.smtp, mail_dir=str(data_dir / "mail"))
        settings = evolve(settings, smtp=smtp).filled_in("smtp.mail_dir")
    if settings.auth.jwt_keys_file is None:
        auth = evolve(settings.auth, jwt_keys_file=str(data_dir / "jwt-keys.json"))
        settings = evolve(settings, auth=auth).filled_in("auth.jwt_keys_file")
    if not settings.stages:
        settings = evolve(settings, stages={"dev": Stage({"main": StageDatabase()})})
    if settings.database.dsn is not None:
        return settings
    server = settings.server
    alone = all(database.dsn is None for *_, database in settings.stage_databases())
    sql = alone if server.console_sql is None else server.console_sql
    shown_log = server.console_log is None or server.console_log
    folder = server.migrations_dir
    if folder is None and Path(MIGRATIONS).is_dir():
        folder = str(Path(MIGRATIONS).resolve())
    filled = evolve(server, console_sql=sql, console_log=shown_log, migrations_dir=folder)
    names = [f"server.{name}" for name in CONSOLE_SETTINGS if getattr(filled, name) != getattr(server, name)]
    settings = evolve(settings, server=filled).filled_in(*names)
    stages: dict[str, dict[str, StageDatabase]] = {}
    for stage, name, database in settings.stage_databases():
        path = database.extra_search_path
        if database.dsn is None and path == StageDatabase().extra_search_path:
            path = EMBEDDED_SEARCH_PATH
        stages.setdefault(stage, {})[name] = evolve(database, extra_search_path=path)
    return evolve(settings, stages={stage: Stage(databases) for stage, databases in stages.items()})


def _path_in(environ: Mapping[str, str], variable: str) -> Path | None:
    if environ.get(variable) == "":
        # Probably made from another variable that is not set. It must not mean an embedded database.
        raise BadSettings([Fault("environment", variable, "is empty; name a path, or unset it")])
    return Path(environ[variable]) if variable in environ else None


def _embeds_a_server(settings: Settings) -> bool:
    """Whether a data directory would hold the database or the store. If it holds neither, the service may well be in
    production, where e-mails in a folder would reach nobody."""
    return settings.database.dsn is None or settings.store.endpoint_url is None


def absolute_path(path: Path) -> Path:
    """``path`` as an absolute path.

    Raises ``BadSettings`` for a relative one where the current directory has been removed, and for one whose name is
    not UTF-8, since it could not be written to the files and messages that mention it.
    """
    try:
        absolute = path.absolute()
    except FileNotFoundError:
        reason = "begins in the current directory, which is gone; go to one that exists"
    else:
        if str(absolute) == printable(absolute):
            return absolute
        reason = "has a name that is not UTF-8"
    raise BadSettings([Fault("command line", printable(path), reason)])


def log_failed_reload(fault: Exception) -> None:
    """Log why settings that were read again are not used. ``fault`` is the exception being handled."""
    if isinstance(fault, ConfigurationError):
        log.error("the configuration was not reloaded: {fault}", fault=str(fault))
    else:
        log.failure("the configuration was not reloaded")


# Collecting values


@frozen
class _Given:
    """A value and where it comes from."""

    value: Any
    where: str


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


def _flattened(tree: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """All values with their dotted names. A table that is a setting's value (``app_settings``) stays one."""
    for name, value in tree.items():
        path = (*above, name)
        is_value = (len(path) == 5 and path[0] == "stages") or ".".join(path) in _TABLE_SETTINGS
        if isinstance(value, Mapping) and value and not is_value:
            yield from _flattened(value, path)
        else:
            yield ".".join(path), value


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    """``PROJECT_SERVICE__AUTH__BCRYPT_COST`` is ``auth.bcrypt_cost``. A whole table (``PROJECT_SERVICE__AUTH``) can
    be given as a JSON object."""
    given: dict[str, _Given] = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX):
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        dotted = ".".join(path)
        tree = None
        if _is_table(path):
            tree = _json_object(value)
        if tree is not None:
            given.update({n: _Given(v, "environment") for n, v in _flattened(tree, path)})
        else:
            given[dotted] = _Given(value, "environment")
    return given


def _is_table(path: Sequence[str]) -> bool:
    """Whether what has this name is a table, if it is a setting at all."""
    named = (*path[:-1], "NAME")
    return (
        ".".join(path) in _TABLES
        or (path[0] == "stages" and len(path) < 5)
        or any(inner.split(".") in (list(path), list(named), [*path, "NAME"]) for inner in INNER_SECTIONS)
    )


def _json_object(value: str) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


# PostgREST's names for the settings of a database of the table API (its documentation, "Configuration") may be used
# too, with dashes or underscores.
_PREFIXES = ("", "db_", "server_", "client_", "url_use_")
_OTHER_NAMES = {
    "uri": "dsn",
    "pool": "pool_size",
    "schema": "schemas",
    "prepared_statements": "prepare",
    "jwt_role_claim_key": "role_claim",
    "role_claim_key": "role_claim",
    "openapi_mode": "openapi",
}


def own_name(name: str, known: Container[str]) -> str:
    """The name in ``known`` that PostgREST's ``name`` stands for, or ``name`` itself if there is none."""
    plain = name.replace("-", "_").removesuffix("_enabled")
    for prefix in _PREFIXES:
        without_prefix = plain.removeprefix(prefix)
        own = _OTHER_NAMES.get(without_prefix, without_prefix)
        if own in known:
            return own
    return name


def _with_own_names(given: dict[str, _Given], faults: list[Fault]) -> dict[str, _Given]:
    """``given`` with our names for settings that have PostgREST's. It is a fault if one source has both."""
    known = {one.name for one in attrs.fields(StageDatabase)}
    renamed: dict[str, _Given] = {}
    for dotted, one in given.items():
        path = dotted.split(".", 4)
        own = dotted
        if len(path) == 5 and (path[0], path[2]) == ("stages", "databases"):
            own = ".".join((*path[:4], own_name(path[4], known)))
        if own != dotted and (own in renamed or own in given):
            faults.append(Fault(one.where, dotted, f"is another name of {own}, which is there too"))
        renamed[own] = one
    return renamed


# Converting values


def _converted(given: Mapping[str, _Given], faults: list[Fault]) -> Settings:
    remaining = dict(given)
    sections = {name: _section(name, section, remaining, faults) for name, section in SECTIONS.items()}
    settings = Settings(**sections, stages=_stages(remaining, faults))
    faults += [Fault(left.where, name, _why_unknown(name, left)) for name, left in remaining.items()]
    return settings


def _section(path: str, cls: type, remaining: dict[str, _Given], faults: list[Fault]) -> Any:
    """The section with the values that ``remaining`` has for it, which are removed there."""
    values: dict[str, Any] = {}
    if path in remaining and remaining[path].value == {}:
        del remaining[path]
    for one in attrs.fields(cls):
        name = f"{path}.{one.name}"
        if "section" in one.metadata:
            values[one.name] = _section(name, one.metadata["section"], remaining, faults)
        elif "tables" in one.metadata:
            values[one.name] = _named_sections(name, one.metadata["tables"], remaining, faults)
        elif (given := remaining.pop(name, None)) is not None:
            try:
                values[one.name] = one.metadata["kind"](given.value)
            except ValueError as fault:
                faults.append(Fault(given.where, name, str(fault)))
    return cls(**values)


_NAME = re.compile(r"[a-z0-9_]{1,50}\Z")


def _named_sections(
    path: str, cls: type, remaining: dict[str, _Given], faults: list[Fault]
) -> dict[str, Any]:
    """The sections below ``path``, by their names."""
    names: dict[str, str] = {}
    for dotted, given in remaining.items():
        if dotted.startswith(f"{path}."):
            name, _, key = dotted.removeprefix(f"{path}.").partition(".")
            if key or given.value == {}:
                names[name] = given.where
    if path in remaining and remaining[path].value == {}:
        del remaining[path]
    for name, where in names.items():
        if not _NAME.match(name):
            faults.append(Fault(where, f"{path}.{name}", "has a name other than of a-z, 0-9 and _"))
    return {name: _section(f"{path}.{name}", cls, remaining, faults) for name in names}


def _stages(remaining: dict[str, _Given], faults: list[Fault]) -> dict[str, Stage]:
    names: dict[tuple[str, str], str] = {}
    for dotted, given in remaining.items():
        path = dotted.split(".")
        if len(path) >= 4 and path[0] == "stages" and path[2] == "databases":
            names[path[1], path[3]] = given.where
    stages: dict[str, dict[str, StageDatabase]] = {}
    for (stage, database), where in names.items():
        section = f"stages.{stage}.databases.{database}"
        if not all(name and "/" not in name for name in (stage, database)):
            reason = "has a name that no path can have: empty, or with a slash"
            faults.append(Fault(where, section, reason))
        stages.setdefault(stage, {})[database] = _section(section, StageDatabase, remaining, faults)
    return {stage: Stage(databases) for stage, databases in stages.items()}


def _why_unknown(name: str, given: _Given) -> str:
    """What is wrong with a value that belongs to no setting."""
    path = name.split(".")
    within_stages = path[0] == "stages" and len(path) <= 4 and path[2:3] in ([], ["databases"])
    if not _is_table(path) or (path[0] == "stages" and not within_stages):
        meant = _meant(path)
        return "is not a setting" + (f"; did you mean {meant}?" if meant else "")
    if isinstance(given.value, Mapping):
        return "names no database"
    return "must be a table" + (" (as JSON in the environment)" if given.where == "environment" else "")


def _meant(path: list[str]) -> str | None:
    """What the unknown name ``path`` probably stands for: a section, a setting of its own section, or the setting of
    this name in another section."""
    section, name = path[0], path[-1]
    if section not in _TABLES:
        section = _closest(section, _TABLES) or ""
        if section and len(path) > 1:
            return f"[{'.'.join([section, *(path[1:4] if section == 'stages' else ())])}]"
    elif section == "stages" and len(path) == 5:
        if _closest(path[2], ["databases"]) and path[2] != "databases":
            return f"[stages.{path[1]}.databases.{path[3]}]"
        if close := _closest(name, _names(StageDatabase)):
            return ".".join([*path[:4], close])
    elif section != "stages" and (found := _meant_within(path)):
        return found
    models = {**SECTIONS, **INNER_SECTIONS, "stages.STAGE.databases.NAME": StageDatabase}
    return " or ".join(f"{other}.{name}" for other, model in models.items() if name in _names(model)) or None


def _meant_within(path: list[str]) -> str | None:
    """The setting of the innermost section of ``path`` whose name is like its own."""
    above = path[:-1]
    for inner, model in INNER_SECTIONS.items():
        if above in (inner.split("."), [*inner.split(".")[:-1], above[-1]]):
            close = _closest(path[-1], _names(model))
            return close and ".".join([*above, close])
    close = _closest(path[-1], _names(SECTIONS[path[0]]))
    return close and f"{path[0]}.{close}"


def _names(model: type) -> list[str]:
    return [one.name for one in attrs.fields(model)]


def _closest(name: str, known: Collection[str]) -> str | None:
    return next(iter(get_close_matches(name.replace("-", "_"), sorted(known), 1, 0.7)), None)


# Comparing values with each other


def _contradictions(
    settings: Settings, given: Mapping[str, _Given], embedded: bool
) -> Iterator[tuple[str, str, Resource | None]]:
    """Name, reason and resource for each setting that does not go with another, or is missing."""
    auth, smtp, store = settings.auth, settings.smtp, settings.store
    yield from _unknown_database(settings, embedded)
    if not embedded and settings.database.dsn is None:
        yield "database.dsn", "is missing (or name a --data-dir to run an embedded database)", "database"
    yield from _without_pooler(settings)
    if store.endpoint_url is not None:
        # A file of keys that could not be read is reported already.
        unreadable = store.credentials_file is None and _is_set(given, "store.credentials_file")
        for name in ("access_key_id", "secret_access_key"):
            if getattr(store, name) is None and not unreadable:
                yield f"store.{name}", "is missing", "store"
        if store.addressing_style == "virtual" and not _makes_a_host(store.bucket, store.endpoint_url):
            reason = 'must be "path": the bucket and this host make no name of a host'
            yield "store.addressing_style", reason, "store"
    elif not embedded:
        yield "store.endpoint_url", "is missing (or name a --data-dir to run an embedded store)", "store"
    if store.credentials_file is not None:
        for name in (f"store.{one}" for one in _STORE_KEYS):
            if _is_set(given, name):
                yield name, "is named besides store.credentials_file, which has its own", "store"
    yield from _sizes_beyond(settings.images)
    yield from _untraceable(settings)
    yield from _unusable_providers(auth, given)
    yield from _unusable_hooks(auth)
    yield from _unusable_passkeys(auth)
    if not embedded and auth.jwt_keys_file is None:
        reason = "is missing (`project-service jwt-keys create` makes one)"
        yield "auth.jwt_keys_file", reason, "token keys"
    if smtp.host is not None and smtp.sender is None:
        yield "smtp.sender", "is missing", "mail server"
    if auth.confirm_email and not smtp.sends and not (embedded and _embeds_a_server(settings)):
        yield "auth.confirm_email", "needs [smtp] host (or mail_dir, to try it)", "mail server"


def _without_pooler(settings: Settings) -> Iterator[tuple[str, str, None]]:
    if not settings.database.prepare and settings.database.direct_dsn is None:
        yield (
            "database.prepare",
            "is for a pooler of transactions, so database.direct_dsn is needed too",
            None,
        )
    if settings.database.direct_dsn is not None and settings.database.dsn is None:
        yield "database.direct_dsn", "is for dsn that leads to a pooler, and there is no database.dsn", None
    for stage, name, database in settings.stage_databases():
        if database.direct_dsn is not None and database.dsn is None:
            yield f"stages.{stage}.databases.{name}.direct_dsn", "is for its dsn, and there is none", None


def _untraceable(settings: Settings) -> Iterator[tuple[str, str, None]]:
    if settings.tracing.endpoint is None:
        return
    try:
        installed = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        installed = False
    if not installed:
        yield "tracing.endpoint", "needs an extra: pip install 'project-service[tracing]'", None


def _unknown_database(settings: Settings, embedded: bool) -> Iterator[tuple[str, str, None]]:
    databases = [f"{stage}/{name}" for stage, name, _ in settings.stage_databases()]
    if not databases and embedded:
        databases = ["dev/main"]
    if settings.server.client_database not in (None, *databases):
        known = f"there are {', '.join(sorted(databases))}" if databases else "there is none"
        reason = f"must be the stage and the name of a database, as in dev/main; {known}"
        yield "server.client_database", reason, None


def _unusable_providers(auth: Auth, given: Mapping[str, _Given]) -> Iterator[tuple[str, str, None]]:
    for name, provider in auth.providers.items():
        section = f"auth.providers.{name}"
        if name in OTHER_WAYS_IN:
            yield section, "has the name of another way to sign in", None
        if not provider.client_ids:
            yield f"{section}.client_id", "is missing", None
        if name not in KNOWN_PROVIDERS and provider.issuer is None:
            known = f"only {', '.join(KNOWN_PROVIDERS)} are known without it"
            yield f"{section}.issuer", f"is missing ({known})", None
        if provider.issuer is not None and (why := why_not_url(provider.issuer, auth.allow_private_hosts)):
            yield f"{section}.issuer", why, None
        if provider.client_secret is not None and _is_set(given, f"{section}.client_secret_file"):
            yield f"{section}.client_secret", "is named besides client_secret_file", None
        signing = (provider.team_id, provider.key_id, provider.private_key_file)
        if any(signing) and not all(signing):
            yield f"{section}.private_key_file", "needs team_id and key_id, and they need it", None


def _unusable_hooks(auth: Auth) -> Iterator[tuple[str, str, None]]:
    for name in HOOKS:
        hook = getattr(auth.hooks, name)
        if hook is None or hook.startswith("sql:"):
            continue
        if why := why_not_url(hook, auth.allow_private_hosts):
            yield f"auth.hooks.{name}", why, None
        if getattr(auth.hooks, f"{name}_secret") is None:
            yield f"auth.hooks.{name}_secret", "is missing: what is sent to an address is signed", None


def _unusable_passkeys(auth: Auth) -> Iterator[tuple[str, str, None]]:
    for name in ("passkey_rp_id", "passkey_origins"):
        if auth.passkeys and auth.site_url is None and not getattr(auth, name):
            yield f"auth.{name}", "is missing (or name auth.site_url, whose it is then)", None


def _sizes_beyond(images: Images) -> Iterator[tuple[str, str, Resource]]:
    if max(images.sizes, default=0) > images.max_size:
        yield "images.sizes", f"has a size above images.max_size, which is {images.max_size}", "store"


def _is_set(given: Mapping[str, _Given], name: str) -> bool:
    return name in given and given[name].value not in (None, "")


def _makes_a_host(bucket: str, url: str) -> bool:
    """Whether ``bucket`` can be put before the host in ``url`` to make another host's name, as "virtual" addressing
    does."""
    try:
        ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return ":" not in bucket and ".." not in f"{bucket}."
    return False
