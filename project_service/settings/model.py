"""All settings, with kind and default. They are immutable; secrets print as ``***``.

``etc/project-service.toml`` says what each one means and has its default; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as NotTheForm
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from project_service.files import regular
from project_service.settings.kinds import (
    MOST_WHOLE,
    Kind,
    Secret,
    choice,
    claim_path,
    dsn,
    endpoint,
    flag,
    header_name,
    listed,
    mailbox,
    network,
    optional,
    or_file,
    own_schema,
    pem_file,
    role,
    seconds,
    secret,
    several,
    shared_secret,
    store_bucket,
    table_of,
    text,
    url,
    web_origin,
    whole,
    word,
)

# PostgREST's names for the settings of a database of the table API (its documentation, "Configuration").
#
# Whoever comes from PostgREST may keep using them, with dashes or underscores.


_PREFIXES = ("", "db_", "server_", "client_", "url_use_")
_SUFFIX = "_enabled"
_OTHERS = {
    "uri": "dsn",
    "pool": "pool_size",
    "schema": "schemas",
    "prepared_statements": "prepare",
    "jwt_role_claim_key": "role_claim",
    "role_claim_key": "role_claim",
    "openapi_mode": "openapi",
}


def own_name(name: str, known: Container[str]) -> str:
    """The name in ``known`` that ``name`` stands for, or ``name`` itself if there is none."""
    whole = name.replace("-", "_").removesuffix(_SUFFIX)
    for prefix in _PREFIXES:
        plain = whole.removeprefix(prefix)
        plain = _OTHERS.get(plain, plain)
        if plain in known:
            return plain
    return name


# Reads the store's key pair from a file in the form of AWS's tools, which also renew it (``~/.aws/credentials``).


SECTION = "default"


@frozen
class StoreKeys:
    """What was in the file at ``path`` when it was read."""

    path: str
    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None


def keys_file(value: Any) -> StoreKeys:
    """The setting that is the path of such a file. The ``ValueError`` contains nothing of what is in the file."""
    # No interpolation: a secret may have a percent sign.
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(regular(Path(text(value))).read_text("utf-8"))
    except OSError as fault:
        raise ValueError(f"names a file that cannot be read: {fault.strerror}") from None
    except (NotTheForm, UnicodeDecodeError):
        raise ValueError("names a file that is not in the form of AWS's credentials") from None
    if not parser.has_section(SECTION):
        raise ValueError(f"names a file without a section [{SECTION}]")
    held = parser[SECTION]
    token = held.get("aws_session_token", "")
    return StoreKeys(
        str(value),
        _held(held, "aws_access_key_id"),
        Secret(_held(held, "aws_secret_access_key")),
        Secret(_in_words("aws_session_token", token)) if token else None,
    )


def header_secret(value: Any) -> Secret:
    """A setting that is secret and is sent in a header."""
    return Secret(word(value))


def _held(section: Any, name: str) -> str:
    return _in_words(name, section.get(name, ""))


def _in_words(name: str, value: str) -> str:
    try:
        return str(word(value))
    except ValueError:
        raise ValueError(f"names a file in which {name} is missing or not printable ASCII") from None


__all__ = ["Secret", "Settings"]


def key(kind: Kind, default: Any, *, reloads: bool = False, shown: bool = True) -> Any:
    """A setting. With ``reloads`` a changed value is applied on SIGHUP, without a restart. Without ``shown`` it is
    left out of ``repr``, because people keep secrets in it.
    """
    return attrs.field(default=default, metadata={"kind": kind, "reloads": reloads}, repr=shown)


def _section(cls: type) -> Any:
    return attrs.field(factory=cls, metadata={"section": cls})


def _workers(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return int(whole(1, 256)(value))
    except ValueError as fault:
        raise ValueError(f'{fault}, or "auto"') from None


@frozen
class Server:
    listen: tuple[str, ...] = key(several(endpoint, least=1), ("tcp:8080:interface=127.0.0.1",))
    admin_listen: str | None = key(optional(endpoint), None)
    workers: int | str = key(_workers, 1)
    public_url: str | None = key(optional(url), None, reloads=True)
    cors_origins: tuple[str, ...] = key(several(web_origin), ("*",), reloads=True)
    trusted_proxies: tuple[str, ...] = key(several(network), (), reloads=True)
    shutdown_seconds: float = key(seconds(), 30.0)
    idle_timeout_seconds: float = key(seconds(1), 60.0)
    max_json_bytes: int = key(whole(1024), 1048576, reloads=True)
    max_connections: int = key(whole(1, 1000000), 10000)
    log_level: str = key(choice("debug", "info", "warn", "error"), "info", reloads=True)
    log_format: str = key(choice("text", "json"), "text")


@frozen
class Database:
    dsn: Secret | None = key(optional(dsn), None)
    pool_size: int = key(whole(1, 10000), 10)
    acquire_timeout_seconds: float = key(seconds(0.01), 5.0)
    statement_timeout_seconds: float = key(seconds(), 30.0)


@frozen
class Store:
    endpoint_url: str | None = key(optional(url), None)
    region: str = key(word, "us-east-1")
    bucket: str = key(store_bucket, "project-service")
    access_key_id: str | None = key(optional(word), None, reloads=True)
    secret_access_key: Secret | None = key(optional(secret), None, reloads=True)
    session_token: Secret | None = key(optional(header_secret), None, reloads=True)
    # Sets the three above, which are the ones to read.
    credentials_file: StoreKeys | None = key(optional(keys_file), None, reloads=True)
    addressing_style: str = key(choice("path", "virtual"), "path")
    connect_timeout_seconds: float = key(seconds(0.01), 5.0)
    idle_timeout_seconds: float = key(seconds(0.1), 60.0)
    max_connections: int = key(whole(1, 100000), 50)
    ca_file: str | None = key(optional(pem_file), None)


@frozen
class Auth:
    access_token_seconds: int = key(whole(1, MOST_WHOLE), 3600, reloads=True)
    refresh_token_seconds: int = key(whole(1, MOST_WHOLE), 2592000, reloads=True)
    refresh_reuse_seconds: int = key(whole(0, MOST_WHOLE), 10, reloads=True)
    bcrypt_cost: int = key(whole(4, 31), 12)
    # Characters, in spite of its name, which is older than that.
    password_min_bytes: int = key(whole(1, 72), 8, reloads=True)
    require_project_key: bool = key(flag, False)
    confirm_email: bool = key(flag, False, reloads=True)
    allow_signup: bool = key(flag, True, reloads=True)
    issuer: str | None = key(optional(text), None)
    jwt_algorithm: str = key(choice("ES256", "HS256", "RS256", "EdDSA"), "ES256")
    jwt_keys_file: str | None = key(optional(text), None)
    login_failures_max: int = key(whole(0, MOST_WHOLE), 10, reloads=True)
    login_failures_max_per_address: int = key(whole(0, MOST_WHOLE), 100, reloads=True)
    login_failures_window_seconds: int = key(whole(1, MOST_WHOLE), 900, reloads=True)
    signups_max_per_address: int = key(whole(0, MOST_WHOLE), 30, reloads=True)
    recover_url: str | None = key(optional(url), None, reloads=True)
    verify_url: str | None = key(optional(url), None, reloads=True)
    audit_days: int = key(whole(1, 36500), 90, reloads=True)


@frozen
class Storage:
    max_object_bytes: int = key(whole(1, 5 * 1024**4), 5368709120, reloads=True)
    part_bytes: int = key(whole(5 * 1024**2, 5 * 1024**3), 8388608)
    public_max_age_seconds: int = key(whole(0, MOST_WHOLE), 0, reloads=True)
    default_expires_in_seconds: int = key(whole(1, 604800), 3600, reloads=True)
    sweep_seconds: float = key(seconds(1), 600.0)
    keep_removed_seconds: int = key(whole(0, MOST_WHOLE), 0, reloads=True)
    cache_bytes: int = key(whole(0, MOST_WHOLE), 8 * 1024**2)


@frozen
class Smtp:
    host: str | None = key(optional(text), None)
    port: int = key(whole(1, 65535), 587)
    username: str | None = key(optional(text), None)
    password: Secret | None = key(optional(secret), None)
    sender: str | None = key(optional(mailbox), None)
    tls: str = key(choice("starttls", "tls", "none"), "starttls")


# PostgREST's default of "db-hoisted-tx-settings".
HOISTED = ("statement_timeout", "plan_filter.statement_cost_limit", "default_transaction_isolation")


@frozen
class StageDatabase:
    """``[stages.<stage>.databases.<name>]``, in PostgREST's terms. With ``dsn`` None it is the system database."""

    dsn: Secret | None = key(optional(or_file(dsn)), None)
    schemas: tuple[str, ...] = key(listed(own_schema, least=1), ("public",))
    extra_search_path: tuple[str, ...] = key(listed(text), ("public",))
    max_rows: int = key(whole(0, 2**63 - 1), 1000)  # as far as PostgreSQL's bigint goes
    pool_size: int = key(whole(1, 10000), 10)
    unfiltered_writes: str = key(choice("refuse", "allow"), "refuse")
    anon_role: str = key(role, "anon")
    authenticated_role: str = key(role, "authenticated")
    service_role: str = key(role, "service_role")
    jwt_secret: Secret | None = key(optional(or_file(shared_secret)), None)
    jwt_secret_is_base64: bool = key(flag, False)
    # It may contain shared secrets.
    jwks: str | None = key(optional(text), None, shown=False)
    jwt_aud: str | None = key(optional(text), None)
    role_claim: str = key(claim_path, ".role")
    pre_request: str | None = key(optional(text), None)
    aggregates: bool = key(flag, True)
    plan: bool = key(flag, False)
    tx_end: str = key(
        choice("commit", "commit-allow-override", "rollback", "rollback-allow-override"), "commit"
    )
    stream_threshold_bytes: int = key(whole(1), 1048576)
    stream_min_bytes_per_second: int = key(whole(0), 16384)
    app_settings: dict[str, str] = key(table_of(text), attrs.Factory(dict), shown=False)
    server_timing: bool = key(flag, False)
    error_verbosity: str = key(choice("verbose", "minimal"), "verbose")
    openapi: str = key(choice("follow-privileges", "ignore-privileges", "disabled"), "follow-privileges")
    openapi_security_active: bool = key(flag, False)
    openapi_server_proxy_uri: str | None = key(optional(url), None)
    root_spec: str | None = key(optional(text), None)
    prepare: bool = key(flag, True)
    legacy_target_names: bool = key(flag, True)
    trace_header: str | None = key(optional(header_name), None)
    hoisted_tx_settings: tuple[str, ...] = key(listed(text), HOISTED)


@frozen
class Stage:
    databases: dict[str, StageDatabase]


@frozen
class Settings:
    server: Server = _section(Server)
    database: Database = _section(Database)
    store: Store = _section(Store)
    auth: Auth = _section(Auth)
    storage: Storage = _section(Storage)
    smtp: Smtp = _section(Smtp)
    stages: dict[str, Stage] = attrs.field(factory=dict)

    def stage_databases(self) -> Iterator[tuple[str, str, StageDatabase]]:
        """Every database of the table API after its stage and its name."""
        for stage, found in self.stages.items():
            for name, database in found.databases.items():
                yield stage, name, database

    def changed_without_restart(self, new: Settings) -> Settings:
        """These settings, with those that can be reloaded taken from ``new``."""
        sections = {}
        for name, section in SECTIONS.items():
            fresh = {
                one.name: getattr(getattr(new, name), one.name)
                for one in attrs.fields(section)
                if one.metadata["reloads"]
            }
            sections[name] = attrs.evolve(getattr(self, name), **fresh)
        # A key pair belongs to one store. If ``new`` names another store, or none because it is embedded, keep ours.
        if new.store.endpoint_url != self.store.endpoint_url:
            sections["store"] = self.store
        # The mail server is only used after a restart, and until then nobody could confirm an address.
        if self.smtp.host is None and new.smtp.host is not None:
            sections["auth"] = attrs.evolve(sections["auth"], confirm_email=self.auth.confirm_email)
        return attrs.evolve(self, **sections)

    def waiting_for_restart(self, new: Settings) -> list[str]:
        """The dotted names of settings that are different in ``new`` but need a restart."""
        before, after = self.changed_without_restart(new)._by_section(), new._by_section()
        found = []
        for path in sorted(before.keys() | after.keys()):
            old_section, new_section = before.get(path), after.get(path)
            if old_section is None or new_section is None:
                found.append(path)
                continue
            found += [
                f"{path}.{one.name}"
                for one in attrs.fields(type(old_section))
                if getattr(old_section, one.name) != getattr(new_section, one.name)
            ]
        return found

    def _by_section(self) -> dict[str, Any]:
        sections = {name: getattr(self, name) for name in SECTIONS}
        databases = {
            f"stages.{stage}.databases.{name}": database for stage, name, database in self.stage_databases()
        }
        return sections | databases


# All sections but ``stages``, by name.
SECTIONS: Mapping[str, type] = {
    one.name: one.metadata["section"] for one in attrs.fields(Settings) if "section" in one.metadata
}
