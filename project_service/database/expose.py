"""What exposed schemas need besides the numbered migrations: rights and triggers that depend on the settings.

The work is done by SQL functions of migration 0004. Both check first and change nothing that is right already, so
they may run at every start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from psycopg2 import errors as pg

from project_service.database.session import Session

# Skips schemas that have been done: those where service_role may use the schema, and the default privileges of this
# role give it rights in tables to come.
_EXPOSE = """
select _project_service.expose_schema(n.nspname) from pg_namespace n
where n.nspname = any(%s)
  and not (has_schema_privilege('service_role', n.oid, 'usage') and exists (
    select from pg_default_acl d
    where d.defaclnamespace = n.oid and d.defaclrole = current_user::regrole and d.defaclobjtype = 'r'
      and d.defaclacl::text like '%%service_role=%%'))
"""

_SCHEMAS = """
select quote_literal(n.nspname), has_schema_privilege('service_role', n.oid, 'usage'), (
  select min(format('%%I.%%I', n.nspname, c.relname)) from pg_class c
  where c.relnamespace = n.oid and c.relkind in ('r', 'p', 'v', 'm', 'f')
    and not has_table_privilege('service_role', c.oid, 'select')
    and not exists (
      select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'))
from pg_namespace n where n.nspname = any(%s) order by 1
"""


async def expose(session: Session, schemas: Iterable[str]) -> bool:
    """Grant the rights and install the trigger; to be called under the lock of the migrations.

    False where only a superuser could do the latter (see ``watch_ddl``).
    """
    await grant_service_role(session, schemas)
    return await watch_ddl(session)


async def grant_service_role(session: Session, schemas: Iterable[str]) -> None:
    """Give ``service_role`` every right in ``schemas``, also in tables to come, and the other roles only USAGE.

    A schema that does not exist yet is skipped.
    """
    await session.query(_EXPOSE, (list(schemas),))


async def watch_ddl(session: Session) -> bool:
    """Install the event trigger that announces changes of the schema on the channel ``pgrst``; False where it cannot.

    PostgreSQL lets only superusers make event triggers. Without it, changes have to be announced by
    ``notify pgrst, 'reload schema'``.
    """
    try:
        rows = await session.query("select _project_service.watch_ddl()")
    except pg.InsufficientPrivilege:
        return False
    return bool(rows[0][0])


async def lacking(session: Session, schemas: Collection[str]) -> list[str]:
    """What ``service_role`` lacks in ``schemas`` after ``expose``, as sentences that say who can mend it and how.

    Objects that belong to an extension are left out.
    """
    if not schemas:
        return []
    found = []
    if await session.query("select from pg_roles where rolname = 'service_role' and not rolbypassrls"):
        found.append(
            "service_role does not bypass row-level security: let a superuser run alter role service_role bypassrls"
        )
    for schema, usable, unreadable in await session.query(_SCHEMAS, (list(schemas),)):
        if not usable or unreadable is not None:
            what = f"read {unreadable}" if usable else f"use the schema {schema}"
            found.append(
                f"service_role may not {what}: let a superuser, or who owns all of the schema, run "
                f"select _project_service.expose_schema({schema})"
            )
    return found
