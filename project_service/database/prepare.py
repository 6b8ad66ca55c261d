"""What ``migrate`` does beside the numbered files: rights and notices that depend on the settings.

Both look first and change nothing that is there already, so they may run at every start.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg2 import errors as pg
from psycopg2 import sql
from twisted.logger import Logger

from project_service.database.session import Session

log = Logger()

_UNGRANTED = """
select n.nspname from pg_namespace n
where n.nspname = any(%s)
  and not (has_schema_privilege('service_role', n.oid, 'usage') and exists (
    select from pg_default_acl d
    where d.defaclnamespace = n.oid and d.defaclrole = current_user::regrole and d.defaclobjtype = 'r'
      and d.defaclacl::text like '%%service_role=%%'))
"""

# Tables to come are those that this role makes; another owner says `alter default privileges` himself.
_GRANT = """
grant usage on schema {schema} to anon, authenticated, service_role;
grant all on all tables in schema {schema} to service_role;
grant all on all sequences in schema {schema} to service_role;
grant all on all routines in schema {schema} to service_role;
alter default privileges in schema {schema} grant all on tables to service_role;
alter default privileges in schema {schema} grant all on sequences to service_role;
alter default privileges in schema {schema} grant usage on sequences to anon, authenticated;
alter default privileges in schema {schema} grant all on routines to service_role
"""

# PostgREST's channel and payload, so that whoever listens for it hears of this too.
_WATCH = """
create or replace function _project_service.announce_ddl() returns event_trigger language plpgsql as $$
begin
  if tg_event = 'sql_drop' then
    if exists (select from pg_event_trigger_dropped_objects() where not is_temporary) then
      notify pgrst, 'reload schema';
    end if;
  elsif exists (select from pg_event_trigger_ddl_commands() where schema_name is distinct from 'pg_temp') then
    notify pgrst, 'reload schema';
  end if;
end $$;
create event trigger project_service_ddl on ddl_command_end execute function _project_service.announce_ddl();
create event trigger project_service_drop on sql_drop execute function _project_service.announce_ddl()
"""


async def grant_service_role(session: Session, schemas: Iterable[str]) -> None:
    """Everything in ``schemas`` to ``service_role``, tables to come included; nothing but passing to the others.

    A schema that does not exist yet is left for the next time; one that is not ours to grant is logged.
    """
    rows = await session.query(_UNGRANTED, (list(schemas),))
    for (schema,) in rows:
        text = sql.SQL(_GRANT).format(schema=sql.Identifier(schema)).as_string(session._connection)
        try:
            await session.query(text, None)
        except pg.InsufficientPrivilege:
            log.warn(
                "service_role was not granted the schema {schema}: it belongs to another role", schema=schema
            )


async def watch_ddl(session: Session) -> bool:
    """Make changes of the schema announce themselves on the channel ``pgrst``; False without the right to.

    PostgreSQL lets only a superuser make event triggers; without one, ``notify pgrst, 'reload schema'`` says it.
    """
    found = await session.query(
        "select count(*) from pg_event_trigger where evtname like 'project_service_%%'", ()
    )
    if found[0][0] == 2:
        return True
    try:
        await session.query(_WATCH, None)
    except pg.InsufficientPrivilege:
        return False
    return True
