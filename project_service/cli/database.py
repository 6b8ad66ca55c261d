"""``project-service dsn``, ``migrate``, ``reset`` and ``sql``: commands about a database as a whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlencode

import click
from click.core import ParameterSource
from psycopg2 import extensions

from project_service.cli.invocation import FAILED, USAGE, Invocation, Project, common_options, end, on_project
from project_service.cli.project_migrations import run_folder
from project_service.cli.results import Result, aligned, as_json, as_written, csv
from project_service.cli.sql_files import naming, run_file
from project_service.database.migrate import expose, lacking, shipped
from project_service.database.migrate import migrate as apply_migrations
from project_service.database.pool import Transaction
from project_service.database.sql_scripts import SqlFile


@click.command()
@click.option("--stage", help="The database of a stage instead of the system database; needs --database.")
@click.option("--database", help="The name of the database within the stage.")
@click.option("--url", is_flag=True, help="As a URL (postgresql://...), which many tools need.")
@common_options
def dsn(invocation: Invocation, stage: str | None, database: str | None, url: bool) -> None:
    """Print a connection string, with its password, as for psql "$(project-service dsn)".

    An embedded database can be used only while a service runs on the data directory. If none does, the string is
    printed all the same, with a note on standard error.
    """
    if (stage is None) != (database is None):
        raise click.UsageError("--stage and --database go together")

    async def operation(project: Project) -> None:
        of_stage = None
        if stage is not None and database is not None:
            of_stage = project.stage_database(stage, database)
        dsn = project.settings.session_dsn(of_stage)
        text = as_url(dsn.reveal()) if url else dsn.reveal()
        invocation.show({"dsn": text}, text)
        if project.started_here:
            click.echo("project-service: nothing runs there now; start the service to use it", err=True)

    invocation.run(operation)


def as_url(dsn: str) -> str:
    """The same connection string as a URL (PostgreSQL's manual, section 34.1.1.2). The directory of a Unix socket is
    the parameter ``host``, and ``sslmode`` is given there, because some drivers would insist on TLS."""
    params = {name: str(value) for name, value in extensions.parse_dsn(dsn).items()}
    hosts, ports = params.pop("host", "").split(","), params.pop("port", "").split(",")
    user, password = params.pop("user", ""), params.pop("password", None)
    name = params.pop("dbname", user)
    if hosts[0].startswith("/"):
        params = {
            "host": hosts[0],
            **({"port": ports[0]} if ports[0] else {}),
            "sslmode": "disable",
            **params,
        }
        hosts, ports = [], []
    # One port may be for all hosts.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(
        f"{_bracketed(host)}:{port}" if port else _bracketed(host)
        for host, port in zip(hosts, ports, strict=True)
    )
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password is not None else "")
    query = f"?{urlencode(params, quote_via=quote, safe='/')}" if params else ""
    return f"postgresql://{f'{login}@' if login else ''}{where}/{quote(name, safe='')}{query}"


def _bracketed(host: str) -> str:
    """An IPv6 address in brackets; any other host as it is."""
    return f"[{host}]" if ":" in host else host


@click.command()
@on_project()
async def migrate(invocation: Invocation, project: Project) -> None:
    """Bring the database to the form that this version needs.

    The service does the same when it starts. Use the command if another role changes the schema, or at another time.
    Two at once are safe.
    """
    exposed = project.settings.exposed_schemas()
    progress = (lambda line: None) if invocation.json else click.echo
    async with project.connection(unhurried=True) as connection:
        done = await apply_migrations(connection, shipped(), progress, lambda locked: expose(locked, exposed))
        for shortcoming in await lacking(connection, project.settings.schemas_of_service_role()):
            click.echo(f"project-service: {shortcoming}", err=True)
    applied = [one.name for one in done]
    invocation.show({"applied": applied}, f"applied {len(applied)}" if applied else "nothing to do")


@click.command()
@click.argument("file", type=click.File("r", encoding="utf-8-sig"), default="-")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Apply the numbered files of this folder that have not been applied yet.",
)
@click.option("--status", is_flag=True, help="With --dir: only list the files, and when each was applied.")
@click.option("--dry-run", is_flag=True, help="With --dir: undo everything, so that only errors show.")
@click.option("--csv", "csv_", is_flag=True, help="Print CSV.")
@common_options
@click.pass_context
def sql(
    context: click.Context,
    invocation: Invocation,
    file: IO[str],
    folder: Path | None,
    status: bool,
    dry_run: bool,
    csv_: bool,
) -> None:
    """Run FILE (default: standard input) in one transaction and print the rows of every statement.

    The first error undoes everything. BEGIN, COMMIT and the like are therefore refused. COPY from or to the standard
    streams, and psql's backslash commands, cannot be used. If a comment above the first statement begins with "-- no
    transaction", each statement is a transaction of its own, which CREATE INDEX CONCURRENTLY and VACUUM need.

    Rows are printed in columns below their names. With --csv an empty line separates two results. With --json the
    output is a list with an object for each statement: its "command", as in "INSERT 0 1", its "columns", which are
    null if it returns no rows, and its "rows", lists in which whole numbers, float8, booleans, json and null are
    JSON's.

    With --dir, files named like 0001_notes.sql are applied in the order of their numbers, each once, on a connection
    of its own and, unless it begins with "-- no transaction", in one transaction. Files that have been applied must
    not change. At the end warnings on standard error name what the table API then opens without row-level security.
    """
    if csv_ and invocation.json:
        raise click.UsageError("--json and --csv cannot go together")
    if folder is not None:
        named = context.get_parameter_source("file") is not ParameterSource.DEFAULT
        if csv_:
            raise click.UsageError("--csv does not go with --dir")
        if named or (status and dry_run):
            raise click.UsageError("give one of FILE, --dir, --dir with --status, --dir with --dry-run")
        invocation.run(lambda project: run_folder(invocation, project, folder, status, dry_run))
        return
    if status or dry_run:
        raise click.UsageError("--status and --dry-run need --dir")
    script = _sql_file(file)

    async def operation(project: Project) -> None:
        results: list[Result] = []
        async with project.connection(unhurried=True) as connection:
            as_written(connection)
            await run_file(script, connection, lambda cursor: results.append(Result.of(cursor)))
        invocation.show([as_json(one) for one in results], *(csv if csv_ else aligned)(results))

    invocation.run(operation)


# Not those of extensions, such as PostGIS's table of reference systems.
_TABLES = """
select format('%%I.%%I', n.nspname, c.relname)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = any(%s) and c.relkind in ('r', 'p')
  and not exists (select from pg_depend d
                  where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
"""
# Sessions go with their users, and every worker is notified of them.
_NOBODY = (
    "delete from auth.users; delete from auth.throttle; delete from auth.audit; delete from storage.links;"
    " select storage.discard_uploads(array[version, tail]) from storage.resumable; delete from storage.resumable;"
)


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--seed", type=click.File("r", encoding="utf-8-sig"), metavar="FILE", help="SQL to run afterwards."
)
@common_options
def reset(invocation: Invocation, yes: bool, seed: IO[str] | None) -> None:
    """Empty an embedded project, for tests: rows, users, sessions, e-mails and objects.

    The tables of exposed schemas are emptied and their identities restarted. Sessions are refused everywhere within
    a second. The schema, the history of migrations, keys and buckets stay. It works with the service running or not.
    Rows change in one transaction with FILE: if that fails, nothing is emptied.
    """
    settings = invocation.launch("database", "store")
    if not (settings.embeds_database and settings.embeds_store) or any(
        database.dsn is not None for _, _, database in settings.settings.stage_databases()
    ):
        end("the configuration names servers that are not embedded; their data is never reset", USAGE)
    script = SqlFile.of("no seed", "") if seed is None else _sql_file(seed)
    if not script.in_transaction:
        end(f"{script.name}: a seed is one transaction with the emptying; it cannot be without one", FAILED)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask; give --yes to delete all data")
        click.confirm(f"Delete all rows, users and objects in {settings.data_dir}?", abort=True, err=True)

    async def operation(project: Project) -> None:
        schemas = list(project.settings.exposed_schemas())
        async with project.connection(unhurried=True) as connection:
            tables = [row[0] for row in await connection.query(_TABLES, (schemas,))]
            emptied = f"truncate {', '.join(tables)} restart identity cascade;" if tables else ""

            async def empty(transaction: Transaction) -> None:
                with naming("the tables cannot be emptied"):
                    await transaction.query(emptied + _NOBODY)

            await run_file(script, connection, first=empty)
        storage = project.storage
        for bucket in await storage.buckets.all():
            await storage.objects.delete_prefix(bucket, "")
        if project.settings.smtp.mail_dir is not None:
            from project_service.auth.mail import MailFolder

            MailFolder(project.reactor, Path(project.settings.smtp.mail_dir), None).empty()
        invocation.show({"reset": True, "tables": len(tables)}, f"reset; tables emptied: {len(tables)}")

    invocation.run(operation, store=True)


def _sql_file(file: IO[str]) -> SqlFile:
    """``file`` as it is to be run. Ends the command if it must not be."""
    name = getattr(file, "name", "<stdin>")
    name = "standard input" if name == "<stdin>" else str(name)
    try:
        text = file.read()
    except UnicodeDecodeError as fault:
        raise click.BadParameter(f"is not UTF-8 ({fault.reason})", param_hint="FILE") from None
    if "\0" in text:
        # libpq would end the message there and silently leave out the rest.
        raise click.BadParameter("has a NUL character in it", param_hint="FILE")
    script = SqlFile.of(name, text)
    faults = script.faults()
    if faults:
        end("\n  ".join(faults), FAILED)
    return script
