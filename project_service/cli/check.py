"""``project-service check``: reaches all databases, the store and the mail server once, and reports all faults."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from attrs import frozen
from twisted.internet.defer import CancelledError

from project_service.auth import tokens
from project_service.auth.mail import MailServer
from project_service.auth.tokens import LEEWAY_SECONDS
from project_service.certificates import day, why_not
from project_service.cli import shared
from project_service.cli.shared import Failed, Opened, opened
from project_service.database.connection import Connection
from project_service.database.migrate import lacking, pending, shipped, state
from project_service.network import PROXIED, TLS, endpoint_from, shown
from project_service.settings.model import Secret, Settings, StageDatabase
from project_service.settings.reading import (
    EMBEDDED_SEARCH_PATH,
    BadSettings,
    Fault,
    Launch,
)
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import NoSuchObject, StoreError
from project_service.tables.access import identities_of

# Checks the certificates that the service would use, for ``project-service check``.


def secured(settings: Settings) -> list[str]:
    """The endpoints that speak TLS in the service itself."""
    listened = (*settings.server.listen, settings.server.admin_listen or "")
    return [one for one in listened if one.removeprefix(PROXIED).startswith(TLS)]


def certificate_of(reactor: Any, endpoint: str, now: datetime) -> str:
    """Says until when the certificate of an ``ssl:`` endpoint is valid. Raises ``Failed`` for one that clients would
    refuse."""
    try:
        # The endpoint is not opened, only made, for what it has read of the description.
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


# Checks that a database has what its settings of the table API name, for ``project-service check``.


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
    """Says that all is there. Raises ``Failed``, which names what is not and how to mend it.

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
        # In the system database the migrations make this role, and a check of its own says what it lacks.
        if exists and not bypasses and database.dsn is not None and role == _DEFAULT.service_role:
            wrong.append(
                f"{setting}: {name} does not bypass row-level security; run alter role {name} bypassrls"
            )
    return wrong


async def _schemas(connection: Connection, database: StageDatabase) -> list[str]:
    named = [("schemas", name) for name in database.schemas]
    # The defaults are left out: nobody has asked for it, and PostgreSQL passes over a schema that is not there.
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


PROBE = b"written by project-service check"


@frozen
class Finding:
    what: str
    fine: bool
    says: str


@click.command()
@shared.options
def command(invocation: shared.Invocation) -> None:
    """Reach every database, the store and the mail server, and say what is wrong.

    What the configuration names is connected to and used once; the mail server gets no mail. What is wrong with the
    configuration keeps nothing else from being looked at. Exit code 1 when something is wrong.
    """
    launch: Launch | None = None
    try:
        source = invocation.source()
        settings, faults = source.look_through(os.environ)
        # Without a name it is the whole file that cannot be read, and with it where anything is.
        launch = Launch(settings, source) if all(one.name for one in faults) else None
    except BadSettings as fault:
        faults = fault.faults
    says = "\n  ".join(str(one) for one in faults)
    findings = [Finding("configuration", not faults, says or "fine")]
    if launch is not None:
        invocation.on_reactor(partial(_look_at_all, launch, faults, findings))
    fine = all(one.fine for one in findings)
    value = [{"part": one.what, "ok": one.fine, "message": one.says} for one in findings]
    lines = (f"{'ok  ' if one.fine else 'FAIL'}  {one.what}: {one.says}" for one in findings)
    invocation.show({"ok": fine, "parts": value}, *lines)
    if not fine:
        sys.exit(shared.FAILED)


async def _look_at_all(launch: Launch, faults: list[Fault], findings: list[Finding], reactor: Any) -> None:
    wrong = {one.name for one in faults}
    database = (
        launch.settings.database.dsn is not None or launch.embeds_database
    ) and "database.dsn" not in wrong
    store = not any(name.startswith("store.") for name in wrong)
    try:
        await _look(reactor, launch, wrong, findings, database, store)
    except shared.EXPECTED as fault:
        findings.append(Finding("embedded servers", False, shared.explained(fault)))
        # What the configuration names can be looked at all the same.
        await _look(
            reactor,
            launch,
            wrong,
            findings,
            database and not launch.embeds_database,
            store and not launch.embeds_store,
        )


async def _look(
    reactor: Any, launch: Launch, wrong: set[str], findings: list[Finding], database: bool, store: bool
) -> None:
    """``database`` and ``store`` say whether these can be looked at."""
    async with opened(reactor, launch, database=database, store=store) as open_:
        for what, look in _looks(open_, wrong, database, store):
            findings.append(await _looked(what, look))


def _looks(
    open_: Opened, wrong: set[str], has_database: bool, has_store: bool
) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
    """What can be looked at, although the settings in ``wrong`` have faults."""
    settings = open_.settings
    found: list[tuple[str, Callable[[], Awaitable[str]]]] = []
    if has_database:
        found += [("database", partial(_database, open_)), ("migrations", partial(_migrations, open_))]
    if has_store:
        found.append(("store", partial(_store, open_)))
    if has_database:
        found.append(("clock", partial(_clock, open_)))
    if settings.auth.jwt_keys_file is not None:
        found.append(("token keys", partial(_token_keys, settings.auth.jwt_keys_file)))
    if not any(name.startswith("smtp.") for name in wrong - {"smtp.sender"}):
        found.append(("mail server", partial(_mail_server, open_)))
    if has_database and settings.schemas_of_service_role():
        found.append(("service_role", partial(_service_role, open_)))
    found += [
        (f"certificate of {shown(one)}", partial(_certificate, open_.reactor, one))
        for one in secured(settings)
    ]
    for stage, name, database in settings.stage_databases():
        if f"stages.{stage}.databases.{name}.dsn" not in wrong and (has_database or database.dsn is not None):
            if database.dsn is not None:
                found.append((f"database {stage}/{name}", partial(_database, open_, database.dsn)))
            found.append((f"tables of {stage}/{name}", partial(_tables, open_, database)))
        found.append((f"tokens of {stage}/{name}", partial(_tokens, database)))
    return found


async def _looked(what: str, look: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(what, True, await look())
    except CancelledError:
        raise
    except Exception as fault:
        # Any failure is a finding, and the other parts are still worth checking.
        return Finding(what, False, shared.explained(fault) or type(fault).__name__)


async def _database(open_: Opened, dsn: Secret | None = None) -> str:
    async with open_.connection(dsn) as connection:
        rows = await connection.query("select current_setting('server_version'), current_user::text")
    return f"PostgreSQL {rows[0][0].split()[0]} as {rows[0][1]}"


async def _migrations(open_: Opened) -> str:
    async with open_.connection() as connection:
        todo = pending(shipped(), await state(connection))
    if todo:
        names = ", ".join(one.name for one in todo)
        raise shared.Failed(f"not applied yet: {names} (`project-service migrate`, or start the service)")
    return "up to date"


async def _service_role(open_: Opened) -> str:
    async with open_.connection() as connection:
        if pending(shipped(), await state(connection)):
            return "migrations come first"
        found = await lacking(connection, open_.settings.schemas_of_service_role())
    if found:
        raise shared.Failed("\n  ".join(found))
    return "has its rights in every schema that is exposed"


async def _clock(open_: Opened) -> str:
    """Compare this host's clock with the database's, which all hosts have in common."""
    async with open_.connection() as connection:
        before = time.time()
        rows = await connection.query("select extract(epoch from clock_timestamp())::float8")
        after = time.time()
    ahead, behind = before - rows[0][0], rows[0][0] - after
    if max(ahead, behind) > _clock_tolerance(open_.settings.auth.refresh_reuse_seconds):
        off = f"{ahead:.0f} s ahead of" if ahead > behind else f"{behind:.0f} s behind"
        raise shared.Failed(f"{off} the database's; all hosts need the same time")
    return "as the database's"


def _clock_tolerance(reuse_seconds: int) -> float:
    """How many seconds one host may be off. Another may be off as much in the other direction: if they differ by more
    than the time for which a replaced refresh token is accepted, one takes it for stolen that the other has just
    replaced."""
    return min(LEEWAY_SECONDS, reuse_seconds / 2) if reuse_seconds else LEEWAY_SECONDS


async def _store(open_: Opened) -> str:
    """Do what the service has to be allowed to do: write an object, read it back and delete it."""
    key = f".project-service-check/{uuid4()}"
    try:
        await open_.store.ensure_bucket()
    except StoreError as refused:
        if refused.code == str(refused.status):
            await _why_refused(open_.store, key)
        raise
    await open_.store.put(key, PROBE, "text/plain", {})
    try:
        if (await open_.store.requests.send("GET", key)).body != PROBE:
            raise shared.Failed("gave back something else than was stored")
    finally:
        await open_.store.delete(key)
    return f"bucket {open_.settings.store.bucket} can be written and read"


async def _why_refused(store: S3Store, key: str) -> None:
    """Raises the error with the reason, by a GET: the response to a HEAD has no body that could say it."""
    with suppress(NoSuchObject):
        await store.requests.send("GET", key)


async def _token_keys(name: str) -> str:
    tokens.load_keys(Path(name))
    return name


async def _certificate(reactor: Any, endpoint: str) -> str:
    return certificate_of(reactor, endpoint, datetime.now(UTC))


async def _tokens(database: StageDatabase) -> str:
    found = identities_of(database, None, time.time)
    return "by the service's own keys" if found.own is None else "by keys of its own"


async def _tables(open_: Opened, database: StageDatabase) -> str:
    async with open_.connection(database.dsn) as connection:
        if database.dsn is None and pending(shipped(), await state(connection)):
            return "migrations come first"
        return await checked(connection, database)


async def _mail_server(open_: Opened) -> str:
    settings = open_.settings.smtp
    if settings.host is None:
        return "none is configured"
    await MailServer(open_.reactor, settings).reach()
    secured = {"starttls": "with STARTTLS", "tls": "with TLS", "none": "without TLS"}[settings.tls]
    return f"reached {secured}, {'logged in' if settings.username else 'without logging in'}"
