"""``project-service check``: tries everything that the configuration names once, and reports all faults."""

from __future__ import annotations

import os
import sys
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from attrs import asdict, evolve, frozen
from twisted.internet.defer import CancelledError
from twisted.internet.task import deferLater

from project_service.auth import tokens
from project_service.auth.mail import MailFolder
from project_service.auth.mail_server import MailServer
from project_service.auth.mail_templates import NAMES, MailTemplates
from project_service.auth.tokens import LEEWAY_SECONDS, KeySetError
from project_service.certificates import day, why_not
from project_service.cli.catalog import look, on_system_database
from project_service.cli.invocation import (
    EXPECTED,
    FAILED,
    Failed,
    Invocation,
    Project,
    common_options,
    explained,
    open_project,
)
from project_service.cli.openings import as_text
from project_service.cli.ports import could_listen
from project_service.database.connection import Connection
from project_service.database.migrate import lacking, outstanding
from project_service.database.readers import NotAReader, candidates_of, measured
from project_service.dsn import Candidate, Target, read_dsn
from project_service.lifecycle import in_thread_of
from project_service.network import PROXIED, TLS, endpoint_from, shown
from project_service.settings.model import Secret, Settings, StageDatabase
from project_service.settings.reading import EMBEDDED_SEARCH_PATH, BadSettings, Launch
from project_service.shares import worker_count
from project_service.storage.pictures.pool import ImagePool, NotInstalled, PictureRefused, ProcessGone
from project_service.storage.pictures.process import Job
from project_service.storage.pictures.renditions import is_installed
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import NoSuchObject, StoreError
from project_service.tables.access import identities_of

PROBE = b"written by project-service check"

# Raises ``Doubtful`` for what may be intended, any other exception for what is wrong, otherwise returns a message.
Check = Callable[[], Awaitable[str]]


class Doubtful(Exception):
    """Somebody should look at it, but everything works. The message says at what."""


@frozen
class Finding:
    part: str
    ok: bool
    message: str
    warning: bool = False

    @property
    def mark(self) -> str:
        return "WARN" if self.warning else "ok  " if self.ok else "FAIL"


@click.command()
@common_options
def check(invocation: Invocation) -> None:
    """Try every database, the store and the mail server, and report what is wrong.

    Everything that the configuration names is connected to and used once; no e-mail is sent. All of it is tried even
    if something is wrong with the configuration. Exit code 1 if anything is wrong.

    What the table API opens without row-level security, or past it, is a warning, with the SQL that mends it. Where
    that is intended, "open on purpose" in the comment of the object says so. Warnings do not change the exit code.
    """
    launch: Launch | None = None
    try:
        source = invocation.source()
        settings, faults = source.look_through(os.environ)
        # A fault without a name means that the file could not be read; then nobody knows what to try.
        launch = Launch(settings, source) if all(one.name for one in faults) else None
    except BadSettings as fault:
        faults = fault.faults
    findings = [Finding("configuration", not faults, "\n  ".join(map(str, faults)) or "fine")]
    if launch is not None:
        faulty = {one.name for one in faults}
        invocation.on_reactor(partial(_check_all, launch, faulty, findings))
    ok = all(one.ok for one in findings)
    lines = (f"{one.mark}  {one.part}: {one.message}" for one in merged(findings))
    invocation.show({"ok": ok, "parts": [asdict(one) for one in findings]}, *lines)
    if not ok:
        sys.exit(FAILED)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with failures of the same message put together: one database that is away fails many checks."""
    by_message: dict[str, Finding] = {}
    for one in findings:
        key = one.part if one.ok else one.message
        before = by_message.get(key)
        by_message[key] = one if before is None else evolve(before, part=f"{before.part}, {one.part}")
    return list(by_message.values())


async def _check_all(launch: Launch, faulty: set[str], findings: list[Finding], reactor: Any) -> None:
    """Append to ``findings``. ``faulty`` has the names of settings that cannot be used."""
    has_database = launch.settings.database.dsn is not None or launch.embeds_database
    database = has_database and "database.dsn" not in faulty
    store = not any(name.startswith("store.") for name in faulty)
    try:
        await _check(reactor, launch, faulty, findings, database, store)
    except EXPECTED as fault:
        findings.append(Finding("embedded servers", False, explained(fault)))
        # What the configuration names can be checked all the same.
        database, store = database and not launch.embeds_database, store and not launch.embeds_store
        await _check(reactor, launch, faulty, findings, database, store)


async def _check(
    reactor: Any, launch: Launch, faulty: set[str], findings: list[Finding], database: bool, store: bool
) -> None:
    """``database`` and ``store`` are whether these can be checked."""
    async with open_project(reactor, launch, database=database, store=store) as project:
        for part, check in _checks(project, faulty, database, store):
            try:
                findings.append(Finding(part, True, await check()))
            except CancelledError:
                raise
            except Doubtful as doubt:
                findings.append(Finding(part, True, str(doubt), warning=True))
            except Exception as fault:
                # Any failure is a finding, and the other parts are still worth checking.
                findings.append(Finding(part, False, explained(fault) or type(fault).__name__))


def _checks(project: Project, faulty: set[str], database: bool, store: bool) -> Iterator[tuple[str, Check]]:
    """What can be checked, although the settings in ``faulty`` cannot be used."""
    settings = project.settings
    if database:
        yield "database", partial(_database, project)
        yield "migrations", partial(_migrations, project)
        yield "policies", partial(_policies, project)
        yield "rights", partial(_rights, project)
    if store:
        yield "store", partial(_store, project)
    if database:
        yield "clock", partial(_clock, project)
    if settings.auth.jwt_keys_file is not None:
        yield "token keys", partial(_token_keys, settings.auth.jwt_keys_file)
    yield "workers", partial(_workers, settings)
    yield from _mail_checks(project, faulty)
    if not any(name.startswith("images.") for name in faulty):
        yield "pictures", partial(_pictures, project)
    if settings.tracing.endpoint is not None and not any(name.startswith("tracing.") for name in faulty):
        yield "collector of traces", partial(_collector, project)
    if database and settings.schemas_of_service_role():
        yield "service_role", partial(_service_role, project)
    yield from _endpoint_checks(project, faulty)
    yield from _pooler_checks(project, faulty)
    if not settings.stages:
        yield "tables", _no_tables
    for stage, name, of_stage in settings.stage_databases():
        can_connect = database if of_stage.dsn is None else True
        if can_connect and f"stages.{stage}.databases.{name}.dsn" not in faulty:
            if of_stage.dsn is not None:
                yield f"database {stage}/{name}", partial(_database, project, settings.session_dsn(of_stage))
                yield f"rights of {stage}/{name}", partial(_rights, project, of_stage)
            yield f"tables of {stage}/{name}", partial(_tables, project, of_stage)
            yield from _reader_checks(project, f"{stage}/{name}", of_stage)
        yield f"tokens of {stage}/{name}", partial(_tokens, of_stage)


def _mail_checks(project: Project, faulty: set[str]) -> Iterator[tuple[str, Check]]:
    settings = project.settings
    if not any(name.startswith("smtp.") for name in faulty - {"smtp.sender"}):
        yield "mail server", partial(_mail_server, project)
        yield "e-mail templates", partial(_mail_templates, project)
    if settings.smtp.host is not None and settings.server.client_paths:
        yield "links of e-mails", partial(_mail_links, settings, faulty)


def _pooler_checks(project: Project, faulty: set[str]) -> Iterator[tuple[str, Check]]:
    settings = project.settings
    if settings.is_pooled() and not {"database.dsn", "database.direct_dsn"} & faulty:
        yield "pooler", partial(_pooler, project, None)
    for stage, name, database in settings.stage_databases():
        where = f"stages.{stage}.databases.{name}"
        if database.direct_dsn is not None and not {f"{where}.dsn", f"{where}.direct_dsn"} & faulty:
            yield f"pooler of {stage}/{name}", partial(_pooler, project, database)


def _reader_checks(project: Project, of: str, database: StageDatabase) -> Iterator[tuple[str, Check]]:
    dsns, staleness = project.settings.readers_of(database)
    for name, candidate in candidates_of(dsns):
        yield (
            f"reader {name} of {of}",
            partial(_reader, project, _own_dsn(project, database), candidate, staleness),
        )


def _endpoint_checks(project: Project, faulty: set[str]) -> Iterator[tuple[str, Check]]:
    settings = named(project.settings, faulty)
    for endpoint in secured(settings):
        yield f"certificate of {shown(endpoint)}", partial(_certificate, project.reactor, endpoint)
    for endpoint in listened(settings):
        yield f"port {shown(endpoint)}", partial(_port, project, endpoint)


def _own_dsn(project: Project, database: StageDatabase | None) -> Secret | None:
    """How a session is had with ``database``; None for the system database."""
    return None if database is None or database.dsn is None else project.settings.session_dsn(database)


async def _pooler(project: Project, database: StageDatabase | None) -> str:
    """Whether ``dsn`` and ``direct_dsn`` lead to the same database, which nothing else would show soon."""
    settings, of = project.settings, "select system_identifier, current_database() from pg_control_system()"
    dsn = settings.database.dsn if database is None else database.dsn
    assert dsn is not None
    connect = evolve(project.connector(), target=read_dsn(dsn.reveal()), pooled=True, prepares=False)
    with closing(await connect()) as pooled:
        behind = await pooled.query(of)
    async with project.connection(_own_dsn(project, database)) as connection:
        if await connection.query(of) != behind:
            raise Failed("dsn and direct_dsn lead to different databases")
    return f"leads to {behind[0][1]}, as direct_dsn does"


async def _database(project: Project, dsn: Secret | None = None) -> str:
    async with project.connection(dsn) as connection:
        rows = await connection.query("select current_setting('server_version'), current_user::text")
    return f"PostgreSQL {rows[0][0].split()[0]} as {rows[0][1]}"


async def _reader(project: Project, dsn: Secret | None, candidate: Candidate, staleness: float) -> str:
    async def pause() -> None:
        await deferLater(project.reactor, 0.05)

    connect = evolve(project.connector(dsn), target=Target((candidate,), writable=False))
    async with project.connection(dsn) as primary:
        with closing(await connect()) as standby:
            try:
                return await measured(primary, standby, staleness, pause)
            except NotAReader as fault:
                raise Failed(str(fault)) from None


async def _migrations(project: Project) -> str:
    async with project.connection() as connection:
        todo = await outstanding(connection)
    if todo:
        names = ", ".join(one.name for one in todo)
        raise Failed(f"not applied yet: {names} (`project-service migrate`, or start the service)")
    return "up to date"


async def _policies(project: Project) -> str:
    """Whether policies can decide what they are to decide in buckets with that rule."""
    async with project.connection() as connection:
        if await outstanding(connection):
            return "migrations come first"
        ((buckets,),) = await connection.query(_POLICED)
        tables = await connection.query(_POLICIES)
    for table, secured, has_guard, _ in tables:
        if (table == "buckets" or buckets) and not (secured and has_guard):
            missing = "the policy through_the_service" if secured else "row-level security"
            shown = f"see more than they may in {buckets}" if table == "objects" else "may change all buckets"
            raise Failed(f"storage.{table} lacks {missing}, so users {shown}")
    if not buckets:
        return "no bucket has the rule policies"
    if not any(has_policy for table, _, _, has_policy in tables if table == "objects"):
        return f"storage.objects has none, so only the service key can use {buckets}"
    return f"decide in {buckets}"


_POLICED = "select string_agg(name, ', ' order by name) from storage.buckets where policies"
_POLICIES = """
    select c.relname::text, c.relrowsecurity,
        coalesce(bool_or(p.polname = 'through_the_service' and not p.polpermissive), false),
        coalesce(bool_or(p.polpermissive and (role = 0 or r.rolname in ('anon', 'authenticated'))), false)
    from pg_class c left join pg_policy p on p.polrelid = c.oid
        left join lateral unnest(p.polroles) role on true left join pg_roles r on r.oid = role
    where c.oid in ('storage.objects'::regclass, 'storage.buckets'::regclass)
    group by c.oid, c.relname, c.relrowsecurity order by c.relname
"""


async def _rights(project: Project, database: StageDatabase | None = None) -> str:
    """Whether rows are open by accident: in the system database, or in another one."""
    async with project.connection(_own_dsn(project, database)) as connection:
        databases = on_system_database(project.settings) if database is None else [database]
        open_ = await look(connection, databases)
    if open_:
        raise Doubtful(as_text(open_))
    return "no rows are open past row-level security, unless on purpose"


async def _service_role(project: Project) -> str:
    async with project.connection() as connection:
        if await outstanding(connection):
            return "migrations come first"
        shortcomings = await lacking(connection, project.settings.schemas_of_service_role())
    if shortcomings:
        raise Failed("\n  ".join(shortcomings))
    return "has its rights in every schema that is exposed"


async def _clock(project: Project) -> str:
    """Compare this host's clock with the database's, which all hosts have in common."""
    async with project.connection() as connection:
        before = time.time()
        rows = await connection.query("select extract(epoch from clock_timestamp())::float8")
        after = time.time()
    ahead, behind = before - rows[0][0], rows[0][0] - after
    if max(ahead, behind) > _clock_tolerance(project.settings.auth.refresh_reuse_seconds):
        off = f"{ahead:.0f} s ahead of" if ahead > behind else f"{behind:.0f} s behind"
        raise Failed(f"{off} the database's; all hosts need the same time")
    return "as the database's"


def _clock_tolerance(reuse_seconds: int) -> float:
    """How many seconds one host may be off. Another may be off as much in the other direction: if they differ by more
    than the time for which a replaced refresh token is accepted, one takes a token for stolen that the other has just
    replaced."""
    return min(LEEWAY_SECONDS, reuse_seconds / 2) if reuse_seconds else LEEWAY_SECONDS


async def _store(project: Project) -> str:
    try:
        return await _store_used(project)
    except EXPECTED as fault:
        raise Failed(f"{project.settings.store.endpoint_url}: {explained(fault)}") from None


async def _store_used(project: Project) -> str:
    """Write an object, read it back and delete it, as the service does."""
    key = f".project-service-check/{uuid4()}"
    try:
        await project.store.ensure_bucket()
    except StoreError as refused:
        if refused.code == str(refused.status):
            await _why_refused(project.store, key)
        raise
    await project.store.put(key, PROBE, "text/plain", {})
    try:
        if (await project.store.requests.send("GET", key)).body != PROBE:
            raise Failed("returned something else than was stored")
    finally:
        await project.store.delete(key)
    return f"bucket {project.settings.store.bucket} can be written and read"


async def _why_refused(store: S3Store, key: str) -> None:
    """Raises the error with the reason, by a GET: the response to a HEAD has no body that could say it."""
    with suppress(NoSuchObject):
        await store.requests.send("GET", key)


async def _token_keys(name: str) -> str:
    tokens.load_keys(Path(name))
    return name


async def _certificate(reactor: Any, endpoint: str) -> str:
    return certificate_of(reactor, endpoint, datetime.now(UTC))


async def _workers(settings: Settings) -> str:
    count = worker_count(settings)
    return "one process" if count == 1 else f"{count} processes"


async def _port(project: Project, endpoint: str) -> str:
    file = project.settings.auth.jwt_keys_file
    try:
        kids = [] if file is None else [key.kid for key in tokens.load_keys(Path(file)).keys]
    except (OSError, ValueError, KeySetError):
        kids = []  # which has a finding of its own
    return await could_listen(project.reactor, endpoint, kids)


async def _no_tables() -> str:
    return "no table API is configured: [stages.STAGE.databases.NAME] makes one"


async def _tokens(database: StageDatabase) -> str:
    own = identities_of(database, None, time.time).own
    return "by the service's own keys" if own is None else "by keys of its own"


async def _tables(project: Project, database: StageDatabase) -> str:
    async with project.connection(_own_dsn(project, database)) as connection:
        if database.dsn is None and await outstanding(connection):
            return "migrations come first"
        return await checked(connection, database)


async def _mail_templates(project: Project) -> str:
    templates = MailTemplates.load(project.settings)
    languages = sorted({language for name in NAMES for language in templates.languages(name)})
    folder = project.settings.smtp.templates_dir
    return f"{', '.join(languages)} ({'built in' if folder is None else folder})"


async def _mail_links(settings: Settings, faulty: set[str]) -> str:
    """Whether links that clients of the Supabase family have mailed lead to the application."""
    missing = []
    if settings.server.public_url is None and "server.public_url" not in faulty:
        missing.append("server.public_url is not set, so e-mails have codes, but no links")
    if settings.auth.site_url is None and "auth.site_url" not in faulty:
        others = "whose redirectTo is not in auth.redirect_urls " if settings.auth.redirect_urls else ""
        missing.append(f"auth.site_url is not set, so links {others}sign nobody in")
    if missing:
        raise Doubtful("\n  ".join(missing))
    return f"lead to {settings.auth.site_url}"


@frozen
class _Sample:
    """A picture of one pixel, as an ``ObjectStream``."""

    data: bytes = b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
    )

    def buffered(self) -> bytes:
        return self.data

    async def pipe_to(self, sink: object) -> None:
        """Not called: ``buffered`` has all bytes."""

    def close(self) -> None:
        """See above."""


async def _pictures(project: Project) -> str:
    """Have a process convert a picture, with the limits that are set; what to say of it. Raises ``Failed``."""
    if not is_installed():
        return "not resized (`pip install 'project-service[images]'` adds that)"
    sample = _Sample()
    pool = ImagePool(project.reactor, project.settings.images, 1)
    try:
        process = await pool.acquire("")
        await process.resize(Job(len(sample.data), 1, 1, "cover", "webp", 80, 1), sample)
    except NotInstalled:
        raise Failed("pyvips is installed, but there is no libvips: install pyvips[binary]") from None
    except (PictureRefused, ProcessGone) as fault:
        raise Failed(
            f"a picture of one pixel cannot be converted with the limits in [images]: {fault}"
        ) from None
    finally:
        await pool.stop()
    return "resized by libvips"


async def _mail_server(project: Project) -> str:
    settings = project.settings.smtp
    if settings.host is None and settings.mail_dir is not None:
        MailFolder(project.reactor, Path(settings.mail_dir), None).check()
        return f"none; e-mails are written to {settings.mail_dir}"
    if settings.host is None:
        return "none is configured"
    await MailServer(project.reactor, settings, project.settings.server.public_url).reach()
    security = {"starttls": "with STARTTLS", "tls": "with TLS", "none": "without TLS"}[settings.tls]
    return f"reached {security}, {'logged in' if settings.username else 'without logging in'}"


async def _collector(project: Project) -> str:
    # Only here, because OpenTelemetry comes with an extra.
    from project_service.tracing.export import why_not_taken

    settings = project.settings.tracing
    if why := await in_thread_of(project.reactor)(partial(why_not_taken, settings)):
        raise Failed(f"{settings.endpoint} does not take traces: {why}")
    return f"{settings.endpoint} takes traces"


def secured(settings: Settings) -> list[str]:
    """The endpoints that speak TLS in the service itself."""
    return [one for one in listened(settings) if one.removeprefix(PROXIED).startswith(TLS)]


def named(settings: Settings, faulty: set[str]) -> Settings:
    """``settings`` without the defaults in place of endpoints in ``faulty``, which no start would open."""
    without: dict[str, Any] = {"server.listen": (), "server.admin_listen": None}
    left_out = {name.removeprefix("server."): none for name, none in without.items() if name in faulty}
    return evolve(settings, server=evolve(settings.server, **left_out))


def listened(settings: Settings) -> list[str]:
    server = settings.server
    return [*server.listen, *([server.admin_listen] if server.admin_listen is not None else [])]


def certificate_of(reactor: Any, endpoint: str, now: datetime) -> str:
    """Until when the certificate of an ``ssl:`` endpoint is valid. Raises ``Failed`` for one that clients would
    refuse."""
    try:
        # The endpoint is only made, never listened on, because it reads the certificate.
        options: Any = endpoint_from(reactor, endpoint.removeprefix(PROXIED))._sslContextFactory
    except Exception as fault:
        why = why_not(fault)
        if why is None:
            raise
        raise Failed(why) from None
    certificate = options.certificate.to_cryptography()
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        raise Failed(f"good from {day(begins)} to {day(ends)} only, and it is {day(now)}")
    return f"good until {day(ends)}"


# Before PostgreSQL 16 every member of a role may become it.
_ROLES = """
select name, quote_ident(name), r.oid is not null, r.rolbypassrls or r.rolsuper,
  pg_has_role(session_user, r.oid,
    case when current_setting('server_version_num')::int < 160000 then 'member' else 'set' end),
  quote_ident(session_user)
from unnest(%s::text[]) as name left join pg_roles r on r.rolname = name
"""
_SCHEMAS = "select nspname::text from pg_namespace where nspname = any(%s)"
_CLOSED = """
select quote_ident(nspname) from pg_namespace n
where nspname = any(%(schemas)s)
  and (select not bool_or(has_schema_privilege(r.oid, n.oid, 'usage')) from pg_roles r
       where r.rolname = any(%(roles)s))
order by 1
"""
# The schemas that have a function of this name, which can be called without arguments if it has to be.
_FUNCTIONS = """
select n.nspname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where p.proname = %s and p.prokind = 'f' and (p.pronargs = p.pronargdefaults or not %s)
"""
# PostgreSQL takes these in a search path, although there are no such schemas.
_IN_SEARCH_PATHS = ("$user", "pg_temp")
_DEFAULT = StageDatabase()


async def checked(connection: Connection, database: StageDatabase) -> str:
    """Check that a database has what its settings of the table API name. Raises ``Failed``, which names what is
    missing and the remedy.

    ``connection`` is made as the service's role.
    """
    wrong = [
        *await _roles(connection, database),
        *await _schemas(connection, database),
        *await _functions(connection, database),
    ]
    if wrong:
        raise Failed("\n  ".join(wrong))
    return "its roles, schemas and functions are there"


def _callers(database: StageDatabase) -> dict[str, str]:
    """The roles of callers, by setting.

    If the database has keys of its own, their tokens may name other roles than ``authenticated``.
    """
    settings = ["anon_role", "authenticated_role", "service_role"]
    if database.jwt_secret is not None or database.jwks is not None:
        settings.remove("authenticated_role")
    return {setting: role for setting in settings if (role := getattr(database, setting))}


async def _roles(connection: Connection, database: StageDatabase) -> list[str]:
    callers = _callers(database)
    rows = await connection.query(_ROLES, (list(callers.values()),))
    known = {row[0]: row[1:] for row in rows}
    wrong = []
    for setting, role in callers.items():
        name, exists, bypasses, may, ours = known[role]
        if not exists:
            wrong.append(f"{setting}: there is no role {name}")
        elif not may:
            wrong.append(f"{setting}: {ours} may not become {name}; run grant {name} to {ours}")
        # In the system database the migrations make this role, and another check reports what it lacks.
        if exists and not bypasses and database.dsn is not None and role == _DEFAULT.service_role:
            wrong.append(
                f"{setting}: {name} does not bypass row-level security; run alter role {name} bypassrls"
            )
    return wrong


async def _schemas(connection: Connection, database: StageDatabase) -> list[str]:
    named = [("schemas", name) for name in database.schemas]
    # The defaults are not checked: PostgreSQL passes over a schema that does not exist.
    if database.extra_search_path not in (_DEFAULT.extra_search_path, EMBEDDED_SEARCH_PATH):
        extra = (name for name in database.extra_search_path if name not in _IN_SEARCH_PATHS)
        named += [("extra_search_path", name) for name in extra]
    rows = await connection.query(_SCHEMAS, ([name for _, name in named],))
    wrong = [f"{setting}: there is no schema {name}" for setting, name in named if (name,) not in rows]
    callers = list(_callers(database).values())
    closed = await connection.query(_CLOSED, {"schemas": list(database.schemas), "roles": callers})
    roles = ", ".join(callers)
    return wrong + [f"schemas: none of {roles} has usage on the schema {name}" for (name,) in closed]


async def _functions(connection: Connection, database: StageDatabase) -> list[str]:
    wrong = []
    if database.pre_request is not None:
        schema, _, name = database.pre_request.rpartition(".")
        holders = await connection.query(_FUNCTIONS, (name, True))
        for first in database.schemas:
            # Without a schema it is looked for in the search path of each request.
            path = (schema,) if schema else dict.fromkeys((first, *database.extra_search_path))
            if not any((one,) in holders for one in path):
                wrong.append(f"pre_request: there is no function {name}() in {', '.join(path)}")
    if database.root_spec is not None:
        schema, _, name = database.root_spec.rpartition(".")
        holders = await connection.query(_FUNCTIONS, (name, False))
        if not any((one,) in holders for one in database.schemas if schema in ("", one)):
            wrong.append(f"root_spec: there is no function {database.root_spec} in an exposed schema")
    return list(dict.fromkeys(wrong))
