"""Checks that a database has what its settings of the table API name, for ``project-service check``."""

from __future__ import annotations

from project_service.cli.frame import Failed
from project_service.database.session import Session
from project_service.settings.model import StageDatabase
from project_service.settings.source import EMBEDDED_SEARCH_PATH

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


async def checked(session: Session, database: StageDatabase) -> str:
    """Says that all is there. Raises ``Failed``, which names what is not and how to mend it.

    ``session`` is a connection to the database as the service's role.
    """
    wrong = [
        *await _roles(session, database),
        *await _schemas(session, database),
        *await _functions(session, database),
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


async def _roles(session: Session, database: StageDatabase) -> list[str]:
    callers = _callers(database)
    rows = await session.query(_ROLES, (list(callers.values()),))
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


async def _schemas(session: Session, database: StageDatabase) -> list[str]:
    named = [("schemas", name) for name in database.schemas]
    # The defaults are left out: nobody has asked for it, and PostgreSQL passes over a schema that is not there.
    if database.extra_search_path not in (_DEFAULT.extra_search_path, EMBEDDED_SEARCH_PATH):
        extra = (name for name in database.extra_search_path if name not in _IN_SEARCH_PATHS)
        named += [("extra_search_path", name) for name in extra]
    rows = await session.query(_SCHEMAS, ([name for _, name in named],))
    wrong = [f"{setting}: there is no schema {name}" for setting, name in named if (name,) not in rows]
    callers = list(_callers(database).values())
    closed = await session.query(_CLOSED, {"schemas": list(database.schemas), "roles": callers})
    roles = ", ".join(callers)
    return wrong + [f"schemas: none of {roles} has usage on the schema {name}" for (name,) in closed]


async def _functions(session: Session, database: StageDatabase) -> list[str]:
    wrong = []
    if database.pre_request is not None:
        schema, _, name = database.pre_request.rpartition(".")
        holders = await session.query(_FUNCTIONS, (name, True))
        for first in database.schemas:
            # Without a schema it is looked for in the search path of each request.
            path = (schema,) if schema else dict.fromkeys((first, *database.extra_search_path))
            if not any((one,) in holders for one in path):
                wrong.append(f"pre_request: there is no function {name}() in {', '.join(path)}")
    if database.root_spec is not None:
        schema, _, name = database.root_spec.rpartition(".")
        holders = await session.query(_FUNCTIONS, (name, False))
        if not any((one,) in holders for one in database.schemas if schema in ("", one)):
            wrong.append(f"root_spec: there is no function {database.root_spec} in an exposed schema")
    return list(dict.fromkeys(wrong))
