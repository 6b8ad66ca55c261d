"""All settings, with kind and default. They are immutable; secrets print as ``***``.

``etc/project-service.toml`` explains each one and has its default; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from project_service.settings.kinds import (
    MAX_INTEGER,
    Kind,
    Secret,
    StoreKeys,
    application_url,
    choice,
    claim_path,
    connection_string,
    console,
    endpoint,
    flag,
    header_name,
    headers_file,
    helo_name,
    hook,
    hook_secret,
    host_name,
    integer,
    issuer_url,
    language,
    list_of,
    list_or_commas,
    mailbox,
    network,
    one_origin,
    optional,
    or_file,
    own_schema,
    page_url,
    pem_file,
    ratio,
    read_dsns,
    redirect_pattern,
    redirect_url,
    role,
    seconds,
    secret,
    secret_file,
    secret_header,
    shared_secret,
    size,
    store_bucket,
    store_keys_file,
    table_of,
    text,
    token_page_url,
    url,
    visible_ascii,
    web_origin,
    workers,
)

__all__ = ["Secret", "Settings"]


def key(kind: Kind, default: Any, *, reloads: bool = False, shown: bool = True) -> Any:
    """A setting. With ``reloads`` a changed value is applied on SIGHUP, without a restart. Without ``shown`` it is
    left out of ``repr``, because people keep secrets in it.
    """
    return attrs.field(default=default, metadata={"kind": kind, "reloads": reloads}, repr=shown)


def _section(cls: type, *, reloads: bool = False) -> Any:
    return attrs.field(factory=cls, metadata={"section": cls, "reloads": reloads})


def _tables(cls: type, *, reloads: bool = False) -> Any:
    """A table for each name that the operator chooses."""
    return attrs.field(factory=dict, metadata={"tables": cls, "reloads": reloads})


@frozen
class Server:
    listen: tuple[str, ...] = key(list_of(endpoint, nonempty=True), ("tcp:8080:interface=127.0.0.1",))
    admin_listen: str | None = key(optional(endpoint), None)
    workers: int | str = key(workers, 1)
    public_url: str | None = key(optional(url), None, reloads=True)
    cors_origins: tuple[str, ...] = key(list_of(web_origin), ("*",), reloads=True)
    trusted_proxies: tuple[str, ...] = key(list_of(network), (), reloads=True)
    shutdown_seconds: float = key(seconds(), 30.0)
    idle_timeout_seconds: float = key(seconds(1), 60.0)
    max_json_bytes: int = key(size(1024), 1048576, reloads=True)
    max_connections: int = key(integer(1, 1000000), 10000)
    log_level: str = key(choice("debug", "info", "warn", "error"), "info", reloads=True)
    log_format: str = key(choice("text", "json"), "text")
    client_paths: bool = key(flag, True)
    client_database: str | None = key(optional(text), None)
    console: bool | str = key(console, "loopback")
    # None: where the database is embedded.
    console_sql: bool | None = key(optional(flag), None)
    console_log: bool | None = key(optional(flag), None)
    # None: with an embedded database, the folder "migrations" of the working directory, if it is there.
    migrations_dir: str | None = key(optional(text), None)


@frozen
class Database:
    dsn: Secret | None = key(optional(connection_string), None)
    direct_dsn: Secret | None = key(optional(connection_string), None)
    prepare: bool = key(flag, True)
    read_dsn: tuple[Secret, ...] = key(read_dsns, ())
    max_staleness_seconds: float = key(seconds(0.1), 5.0)
    pool_size: int = key(integer(1, 10000), 10)
    policy_pool_size: int = key(integer(1, 10000), 10)
    acquire_timeout_seconds: float = key(seconds(0.01), 5.0)
    statement_timeout_seconds: float = key(seconds(), 30.0)
    slow_query_seconds: float = key(seconds(), 1.0, reloads=True)


@frozen
class Store:
    endpoint_url: str | None = key(optional(url), None)
    region: str = key(visible_ascii, "us-east-1")
    bucket: str = key(store_bucket, "project-service")
    access_key_id: str | None = key(optional(visible_ascii), None, reloads=True)
    secret_access_key: Secret | None = key(optional(secret), None, reloads=True)
    session_token: Secret | None = key(optional(secret_header), None, reloads=True)
    # Sets the three above, which are the ones to read.
    credentials_file: StoreKeys | None = key(optional(store_keys_file), None, reloads=True)
    addressing_style: str = key(choice("path", "virtual"), "path")
    connect_timeout_seconds: float = key(seconds(0.01), 5.0)
    idle_timeout_seconds: float = key(seconds(0.1), 60.0)
    max_connections: int = key(integer(1, 100000), 50)
    ca_file: str | None = key(optional(pem_file), None)


# Providers whose addresses are known to ``auth/profiles``, so that they need no issuer.
KNOWN_PROVIDERS = (
    *("apple", "azure", "discord", "facebook", "github", "gitlab", "google", "linkedin_oidc", "slack_oidc"),
    *("twitch", "x"),
)
# What users' identities, and the settings that clients read, have for other ways to sign in.
OTHER_WAYS_IN = ("email", "phone", "anonymous_users")


@frozen
class Provider:
    """``[auth.providers.<name>]``: others who know who somebody is, by OAuth 2.0 or OpenID Connect."""

    # The first is used to sign in by redirect. Tokens that an app brings may be for any of them.
    client_id: tuple[str, ...] | None = key(optional(list_or_commas(visible_ascii)), None, reloads=True)
    client_secret: Secret | None = key(optional(secret), None, reloads=True)
    client_secret_file: Secret | None = key(optional(secret_file), None, reloads=True)
    issuer: str | None = key(optional(issuer_url), None, reloads=True)
    scopes: tuple[str, ...] = key(list_or_commas(visible_ascii), (), reloads=True)
    # Apple makes no secret, but a key that signs one.
    team_id: str | None = key(optional(visible_ascii), None, reloads=True)
    key_id: str | None = key(optional(visible_ascii), None, reloads=True)
    private_key_file: Secret | None = key(optional(secret_file), None, reloads=True)

    @property
    def client_ids(self) -> tuple[str, ...]:
        return self.client_id or ()

    @property
    def secret(self) -> Secret | None:
        return self.client_secret or self.client_secret_file


@frozen
class Hooks:
    """``[auth.hooks]``: functions or addresses of the project that are asked, each with the secret that signs."""

    before_user_created: str | None = key(optional(hook), None, reloads=True)
    before_user_created_secret: Secret | None = key(optional(hook_secret), None, reloads=True)
    custom_access_token: str | None = key(optional(hook), None, reloads=True)
    custom_access_token_secret: Secret | None = key(optional(hook_secret), None, reloads=True)
    send_email: str | None = key(optional(hook), None, reloads=True)
    send_email_secret: Secret | None = key(optional(hook_secret), None, reloads=True)


HOOKS = ("before_user_created", "custom_access_token", "send_email")


@frozen
class Auth:
    access_token_seconds: int = key(integer(1, MAX_INTEGER), 3600, reloads=True)
    refresh_token_seconds: int = key(integer(1, MAX_INTEGER), 2592000, reloads=True)
    refresh_reuse_seconds: int = key(integer(0, MAX_INTEGER), 10, reloads=True)
    bcrypt_cost: int = key(integer(4, 31), 12)
    # Characters, in spite of its name, which is older than that.
    password_min_bytes: int = key(integer(1, 72), 8, reloads=True)
    refuse_common_passwords: bool = key(flag, True, reloads=True)
    require_project_key: bool = key(flag, False)
    confirm_email: bool = key(flag, False, reloads=True)
    allow_signup: bool = key(flag, True, reloads=True)
    secure_password_change: bool = key(flag, True, reloads=True)
    issuer: str | None = key(optional(text), None)
    jwt_algorithm: str = key(choice("ES256", "HS256", "RS256", "EdDSA"), "ES256")
    jwt_keys_file: str | None = key(optional(text), None)
    login_failures_max: int = key(integer(0, MAX_INTEGER), 10, reloads=True)
    login_failures_max_per_address: int = key(integer(0, MAX_INTEGER), 100, reloads=True)
    login_failures_window_seconds: int = key(integer(1, MAX_INTEGER), 900, reloads=True)
    signups_max_per_address: int = key(integer(0, MAX_INTEGER), 30, reloads=True)
    recover_url: str | None = key(optional(token_page_url), None, reloads=True)
    verify_url: str | None = key(optional(token_page_url), None, reloads=True)
    site_url: str | None = key(optional(application_url), None, reloads=True)
    redirect_urls: tuple[str, ...] = key(list_of(redirect_pattern), (), reloads=True)
    verify_by_get: bool = key(flag, False, reloads=True)
    double_confirm_changes: bool = key(flag, True, reloads=True)
    code_seconds: int = key(integer(60, 86400), 3600, reloads=True)
    email_seconds: int = key(integer(0, 86400), 60, reloads=True)
    emails_max_per_account: int = key(integer(0, MAX_INTEGER), 20, reloads=True)
    emails_max_per_address: int = key(integer(0, MAX_INTEGER), 100, reloads=True)
    verifications_max_per_address: int = key(integer(0, MAX_INTEGER), 360, reloads=True)
    anonymous_users: bool = key(flag, False, reloads=True)
    anonymous_days: int = key(integer(1, 36500), 30, reloads=True)
    anonymous_max_per_address: int = key(integer(0, MAX_INTEGER), 30, reloads=True)
    mfa_failures_max: int = key(integer(0, MAX_INTEGER), 10, reloads=True)
    passkeys: bool = key(flag, False, reloads=True)
    passkey_rp_id: str | None = key(optional(host_name), None, reloads=True)
    passkey_origins: tuple[str, ...] = key(list_of(one_origin), (), reloads=True)
    manual_linking: bool = key(flag, False, reloads=True)
    oauth_max_per_address: int = key(integer(0, MAX_INTEGER), 360, reloads=True)
    audit_days: int = key(integer(1, 36500), 90, reloads=True)
    allow_private_hosts: bool = key(flag, False, reloads=True)
    providers: dict[str, Provider] = _tables(Provider, reloads=True)
    hooks: Hooks = _section(Hooks, reloads=True)


@frozen
class Storage:
    max_object_bytes: int = key(size(1, 5 * 1024**4), 5368709120, reloads=True)
    part_bytes: int = key(size(5 * 1024**2, 5 * 1024**3), 8388608)
    public_max_age_seconds: int = key(integer(0, MAX_INTEGER), 0, reloads=True)
    default_expires_in_seconds: int = key(integer(1, 604800), 3600, reloads=True)
    resumable_seconds: int = key(integer(1, MAX_INTEGER), 86400, reloads=True)
    sweep_seconds: float = key(seconds(1), 600.0)
    keep_removed_seconds: int = key(integer(0, MAX_INTEGER), 0, reloads=True)
    digest_bytes_per_second: int = key(size(0, MAX_INTEGER), 10 * 1024**2, reloads=True)
    cache_bytes: int = key(size(0, MAX_INTEGER), 8 * 1024**2)
    redirect_urls: tuple[str, ...] = key(list_of(redirect_url), (), reloads=True)


@frozen(cache_hash=True)
class Images:
    processes: int | None = key(optional(integer(1, 1000)), None)
    timeout_seconds: float = key(seconds(0.1), 30.0)
    memory_bytes: int = key(size(64 * 1024**2), 512 * 1024**2)
    max_source_bytes: int = key(size(1, 1024**3), 32 * 1024**2)
    max_pixels: int = key(integer(1, 10**9), 50331648)
    max_size: int = key(integer(1, 10000), 2500)
    sizes: tuple[int, ...] = key(list_of(integer(1, 10000)), ())
    quality: int = key(integer(1, 100), 80)
    max_per_object: int = key(integer(0, 100000), 100)


@frozen
class Smtp:
    host: str | None = key(optional(text), None)
    port: int = key(integer(1, 65535), 587)
    username: str | None = key(optional(text), None)
    password: Secret | None = key(optional(secret), None)
    sender: str | None = key(optional(mailbox), None)
    tls: str = key(choice("starttls", "tls", "none"), "starttls")
    ca_file: str | None = key(optional(pem_file), None)
    helo: str | None = key(optional(helo_name), None)
    mail_dir: str | None = key(optional(text), None)
    templates_dir: str | None = key(optional(text), None, reloads=True)
    default_language: str = key(language, "en", reloads=True)
    product_name: str | None = key(optional(text), None, reloads=True)
    product_url: str | None = key(optional(page_url), None, reloads=True)
    template_variables: dict[str, str] = key(table_of(text), attrs.Factory(dict), reloads=True)

    @property
    def sends(self) -> bool:
        """Whether e-mails go anywhere: to a mail server, or into a folder."""
        return self.host is not None or self.mail_dir is not None


@frozen
class Tracing:
    """``[tracing]``: spans by OTLP over HTTP. Without an ``endpoint`` nothing is traced."""

    endpoint: str | None = key(optional(url), None)
    headers_file: Secret | None = key(optional(headers_file), None)
    ca_file: str | None = key(optional(pem_file), None)
    service_name: str = key(text, "project-service")
    sample_ratio: float = key(ratio, 0.1)
    # None: as sample_ratio.
    parent_sample_ratio: float | None = key(optional(ratio), None)


# PostgREST's default of "db-hoisted-tx-settings".
HOISTED = ("statement_timeout", "plan_filter.statement_cost_limit", "default_transaction_isolation")


@frozen
class StageDatabase:
    """``[stages.<stage>.databases.<name>]``, in PostgREST's terms. With ``dsn`` None it is the system database."""

    dsn: Secret | None = key(optional(or_file(connection_string)), None)
    direct_dsn: Secret | None = key(optional(or_file(connection_string)), None)
    # None: where the database is the system database, what [database] has.
    read_dsn: tuple[Secret, ...] | None = key(optional(read_dsns), None)
    max_staleness_seconds: float | None = key(optional(seconds(0.1)), None)
    schemas: tuple[str, ...] = key(list_or_commas(own_schema, nonempty=True), ("public",))
    extra_search_path: tuple[str, ...] = key(list_or_commas(text), ("public",))
    max_rows: int = key(integer(0, 2**63 - 1), 1000)  # as far as PostgreSQL's bigint goes
    max_rows_by_role: dict[str, int] = key(table_of(integer(0, 2**63 - 1)), attrs.Factory(dict))
    pool_size: int = key(integer(1, 10000), 10)
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
    stream_threshold_bytes: int = key(size(1), 1048576)
    stream_min_bytes_per_second: int = key(size(0), 16384)
    max_import_bytes: int = key(size(0), 256 * 1024**2)
    app_settings: dict[str, str] = key(table_of(text), attrs.Factory(dict), shown=False)
    server_timing: bool = key(flag, False)
    error_verbosity: str = key(choice("verbose", "minimal"), "verbose")
    error_hints: bool = key(flag, True)
    openapi: str = key(choice("follow-privileges", "ignore-privileges", "disabled"), "follow-privileges")
    openapi_security_active: bool = key(flag, False)
    openapi_server_proxy_uri: str | None = key(optional(url), None)
    root_spec: str | None = key(optional(text), None)
    prepare: bool = key(flag, True)
    legacy_target_names: bool = key(flag, True)
    trace_header: str | None = key(optional(header_name), None)
    hoisted_tx_settings: tuple[str, ...] = key(list_or_commas(text), HOISTED)

    def max_rows_of(self, role: str) -> int:
        """How many rows a response to requests in ``role`` has at most; 0 means no limit."""
        return self.max_rows_by_role.get(role, 0 if role == self.service_role else self.max_rows)


@frozen
class Stage:
    databases: dict[str, StageDatabase]


# Of a setting that embedded mode has filled in.
EMBEDDED = "embedded"


@frozen
class Settings:
    """``origins`` says of each setting that is not a default where it comes from, by its dotted name: the path of the
    file, "environment", "command line" or ``EMBEDDED``."""

    server: Server = _section(Server)
    database: Database = _section(Database)
    store: Store = _section(Store)
    auth: Auth = _section(Auth)
    storage: Storage = _section(Storage)
    images: Images = _section(Images)
    smtp: Smtp = _section(Smtp)
    tracing: Tracing = _section(Tracing)
    stages: dict[str, Stage] = attrs.field(factory=dict)
    origins: Mapping[str, str] = attrs.field(factory=dict, eq=False, repr=False, kw_only=True)

    def stage_databases(self) -> Iterator[tuple[str, str, StageDatabase]]:
        """Every database of the table API, after its stage and its name."""
        for stage, of_stage in self.stages.items():
            for name, database in of_stage.databases.items():
                yield stage, name, database

    def readers_of(self, database: StageDatabase) -> tuple[tuple[Secret, ...], float]:
        """The connection strings of the standbys that reads of ``database`` may go to, and how many seconds old what
        they show may be at most."""
        of_system = self.database.read_dsn if database.dsn is None else ()
        staleness = database.max_staleness_seconds
        return (
            of_system if database.read_dsn is None else database.read_dsn,
            self.database.max_staleness_seconds if staleness is None else staleness,
        )

    def client_database(self) -> tuple[str, str] | None:
        """Stage and name of the database at ``/rest/v1``: the one that ``server.client_database`` names, or the only
        one."""
        all_of_them = [(stage, name) for stage, name, _ in self.stage_databases()]
        if self.server.client_database is not None:
            stage, _, name = self.server.client_database.partition("/")
            return stage, name
        return all_of_them[0] if len(all_of_them) == 1 else None

    def exposed_schemas(self) -> frozenset[str]:
        """The schemas of the system database that the table API shows, in any stage."""
        return frozenset(schema for database in self.on_system_database() for schema in database.schemas)

    def schemas_of_service_role(self) -> frozenset[str]:
        """Those of ``exposed_schemas`` in which the service key acts as ``service_role``, which the migrations
        make."""
        return frozenset(
            schema
            for database in self.on_system_database()
            if database.service_role == StageDatabase().service_role
            for schema in database.schemas
        )

    def session_dsn(self, database: StageDatabase | None = None) -> Secret:
        """How a session of one's own is had with ``database``, or with the system database: for notifications, locks,
        migrations and commands."""
        of_system = self.database.direct_dsn or self.database.dsn
        found = of_system if database is None or database.dsn is None else database.direct_dsn or database.dsn
        assert found is not None
        return found

    def is_pooled(self, database: StageDatabase | None = None) -> bool:
        """Whether a pooler gives each transaction of ``database``, or of the system database, another session."""
        own = self.database if database is None or database.dsn is None else database
        return own.direct_dsn is not None

    def on_system_database(self) -> list[StageDatabase]:
        """The databases of the table API that are the system database."""
        return [database for _, _, database in self.stage_databases() if database.dsn is None]

    def with_database(self, dsn: str) -> Settings:
        """These settings with the address of an embedded database."""
        changed = attrs.evolve(self, database=attrs.evolve(self.database, dsn=Secret(dsn), direct_dsn=None))
        return changed.filled_in("database.dsn")

    def with_store(self, embedded: Store) -> Settings:
        """These settings with the address and keys of an embedded store. All else about the store stays."""
        store = attrs.evolve(
            self.store,
            endpoint_url=embedded.endpoint_url,
            region=embedded.region,
            access_key_id=embedded.access_key_id,
            secret_access_key=embedded.secret_access_key,
            session_token=None,
            credentials_file=None,
            addressing_style="path",
        )
        names = ("endpoint_url", "region", "access_key_id", "secret_access_key", "addressing_style")
        return attrs.evolve(self, store=store).filled_in(*(f"store.{name}" for name in names))

    def filled_in(self, *names: str) -> Settings:
        """These settings, of which embedded mode has filled in those of these dotted names."""
        return attrs.evolve(self, origins={**self.origins, **dict.fromkeys(names, EMBEDDED)})

    def changed_without_restart(self, new: Settings) -> Settings:
        """These settings, with those that can be reloaded taken from ``new``."""
        sections = {}
        for name, section in SECTIONS.items():
            reloaded = {
                one.name: getattr(getattr(new, name), one.name)
                for one in attrs.fields(section)
                if one.metadata["reloads"]
            }
            sections[name] = attrs.evolve(getattr(self, name), **reloaded)
        # A key pair belongs to one store. If ``new`` names another store, or none because it is embedded, keep ours.
        if new.store.endpoint_url != self.store.endpoint_url:
            sections["store"] = self.store
        # The mail server is only used after a restart, and until then nobody could confirm an address.
        if not self.smtp.sends and new.smtp.sends:
            sections["auth"] = attrs.evolve(sections["auth"], confirm_email=self.auth.confirm_email)
        return attrs.evolve(self, **sections, origins=self._origins_with(new))

    def _origins_with(self, new: Settings) -> Mapping[str, str]:
        """The origins once the settings that can be reloaded are taken from ``new``. What embedded mode has filled in
        stays so: ``new`` may have been read by a worker, to which it is an option."""
        kept = {
            name: origin for name, origin in self.origins.items() if origin == EMBEDDED or not reloads(name)
        }
        return {name: origin for name, origin in new.origins.items() if reloads(name)} | kept

    def waiting_for_restart(self, new: Settings) -> list[str]:
        """The dotted names of settings that are different in ``new`` but need a restart."""
        before, after = self.changed_without_restart(new)._by_section(), new._by_section()
        names = []
        for path in sorted(before.keys() | after.keys()):
            old_section, new_section = before.get(path), after.get(path)
            if old_section is None or new_section is None:
                names.append(path)
                continue
            names += [
                f"{path}.{one.name}"
                for one in attrs.fields(type(old_section))
                if getattr(old_section, one.name) != getattr(new_section, one.name)
            ]
        return names

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
# Sections within these, by their dotted names; of those whose names the operator chooses, NAME stands for it.
INNER_SECTIONS: Mapping[str, type] = {
    f"{name}.{one.name}{'.NAME' if 'tables' in one.metadata else ''}": one.metadata.get("section")
    or one.metadata["tables"]
    for name, section in SECTIONS.items()
    for one in attrs.fields(section)
    if "kind" not in one.metadata
}


def reloads(name: str) -> bool:
    """Whether a changed value of the setting of this dotted name is applied on SIGHUP."""
    section, _, rest = name.partition(".")
    field = attrs.fields_dict(SECTIONS[section]).get(rest.partition(".")[0]) if section in SECTIONS else None
    return field is not None and bool(field.metadata["reloads"])
