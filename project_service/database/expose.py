"""What exposed schemas need beside the numbered migrations: rights and notices that depend on the settings.

The work is done by functions of migration 0004; both look first and change nothing that is there already, so they may
run at every start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from psycopg2 import errors as pg

from project_service.database.session import Session

# Tables to come are covered where this role makes them: that is what its default privileges say.
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
    """Both, to be run under the lock of the migrations; False where a superuser has to see to ``watch_ddl``."""
    await grant_service_role(session, schemas)
    return await watch_ddl(session)


async def grant_service_role(session: Session, schemas: Iterable[str]) -> None:
    """Everything in ``schemas`` to ``service_role``, tables to come included; nothing but passing to the others.

    A schema that does not exist yet is left for the next time.
    """
    await session.query(_EXPOSE, (list(schemas),))


async def watch_ddl(session: Session) -> bool:
    """Make changes of the schema announce themselves on the channel ``pgrst``; False without the right to.

    PostgreSQL lets only a superuser make event triggers; without one, ``notify pgrst, 'reload schema'`` says it.
    """
    try:
        rows = await session.query("select _project_service.watch_ddl()")
    except pg.InsufficientPrivilege:
        return False
    return bool(rows[0][0])


async def lacking(session: Session, schemas: Collection[str]) -> list[str]:
    """What ``service_role`` may not do in ``schemas`` although it should, and who can mend it: ``expose`` could not.

    What belongs to an extension is the extension's affair.
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
