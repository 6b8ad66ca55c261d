"""Reads from PostgreSQL's catalogs what ``openings`` judges: what the roles of requests may use in exposed schemas,
and what views there read. It changes nothing, and every role may do it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from project_service.cli.openings import Catalog, Function, Opening, Policy, Relation, Role, judged
from project_service.database.connection import Connection
from project_service.settings.model import Settings, StageDatabase
from project_service.tables.claimed_roles import REACHABLE

_FOR_CALLERS = """
  a.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
  and case when a.grantee = 0 then true else pg_has_role(callers.oid, a.grantee, 'usage') end
"""
# storage.objects is the service's own, and its policies are the project's.
_CATALOG = f"""
set local search_path = '';
with recursive {REACHABLE}, callers as (
  select r.oid, quote_ident(r.rolname) as name from pg_roles r
  where r.rolname <> %(service_role)s and (r.rolname = any(%(roles)s)
    or %(claims)s and r.oid in (select oid from reachable) and not r.rolsuper and not r.rolbypassrls)
), exposed(oid) as (
  select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = any(%(schemas)s::text[]) and c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
    and not exists (select from pg_depend d
      where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
  union select to_regclass(%(objects)s)
), seen(oid) as (
  select oid from exposed
  union
  select d.refobjid from seen join pg_class c on c.oid = seen.oid and c.relkind in ('v', 'm')
  join pg_rewrite w on w.ev_class = c.oid
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and d.refclassid = 'pg_class'::regclass
), relations as (
  select c.*, n.nspname, format('%%I.%%I', n.nspname, c.relname) as name, exposed.oid is not null as is_exposed,
    coalesce(c.relacl, acldefault('r', c.relowner)) || coalesce((
      select array_agg(item) from pg_attribute t, unnest(t.attacl) as item
      where t.attrelid = c.oid and not t.attisdropped), '{{}}') as acl
  from seen join pg_class c using (oid) join pg_namespace n on n.oid = c.relnamespace
  left join exposed on exposed.oid = c.oid
  where c.relkind in ('r', 'p', 'v', 'm', 'f')
)
select jsonb_build_object(
  'version', current_setting('server_version_num')::int / 10000,
  'callers', (select coalesce(jsonb_agg(name order by name), '[]') from callers),
  'roles', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', quote_ident(r.rolname), 'bypasses', r.rolsuper or r.rolbypassrls,
      'comment', shobj_description(r.oid, 'pg_authid'),
      'has', array(select quote_ident(o.rolname) from pg_roles o
                   where o.oid in (select relowner from relations) and pg_has_role(r.oid, o.oid, 'usage')))), '[]')
    from pg_roles r where r.oid in (select relowner from relations union select oid from callers)),
  'relations', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', c.name, 'kind', c.relkind, 'owner', (select quote_ident(rolname) from pg_roles where oid = c.relowner),
      'exposed_to', array(
        select name from callers
        where c.is_exposed and has_schema_privilege(callers.oid, c.relnamespace, 'usage') order by name),
      'grants', (
        select coalesce(jsonb_object_agg(caller, rights), '{{}}') from (
          select callers.name as caller, jsonb_agg(distinct a.privilege_type) as rights
          from aclexplode(c.acl) a join callers on {_FOR_CALLERS} group by callers.name) as by_caller),
      'grantees', array(
        select distinct coalesce(quote_ident(r.rolname), 'public')
        from aclexplode(c.acl) a join callers on {_FOR_CALLERS} left join pg_roles r on r.oid = a.grantee order by 1),
      'reads', array(
        select distinct format('%%I.%%I', n.nspname, read.relname)
        from pg_rewrite w join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
        join pg_class read on d.refclassid = 'pg_class'::regclass and read.oid = d.refobjid
        join pg_namespace n on n.oid = read.relnamespace
        where c.relkind in ('v', 'm') and w.ev_class = c.oid and read.oid <> c.oid order by 1),
      'invoker', coalesce((select option_value::boolean from pg_options_to_table(c.reloptions)
                           where option_name = 'security_invoker'), false),
      'secured', c.relrowsecurity, 'forced', c.relforcerowsecurity,
      'of_service', %(objects)s is not null and c.nspname in ('auth', 'storage', '_project_service'),
      'comment', obj_description(c.oid, 'pg_class'),
      'policies', (select coalesce(jsonb_agg(jsonb_build_object(
          'name', quote_ident(p.polname), 'command', p.polcmd, 'permissive', p.polpermissive,
          'callers', array(select distinct name from callers, unnest(p.polroles) as of
                           where case when of = 0 then true else pg_has_role(callers.oid, of, 'usage') end),
          'using', pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid),
          'comment', obj_description(p.oid, 'pg_policy')) order by p.polname), '[]')
        from pg_policy p where p.polrelid = c.oid
          and (c.oid = to_regclass(%(objects)s) and p.polname = 'through_the_service') is not true)
    ) order by c.name), '[]') from relations c),
  'functions', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', p.oid::regprocedure::text, 'comment', obj_description(p.oid, 'pg_proc'),
      'callers', array(select name from callers where has_function_privilege(callers.oid, p.oid, 'execute')
                       and has_schema_privilege(callers.oid, n.oid, 'usage') order by name),
      'path', array(select quote_ident(one) from unnest(n.nspname || %(extra)s::name[]) as one)
    ) order by p.oid::regprocedure::text), '[]')
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where p.prosecdef and p.prokind = 'f' and n.nspname = any(%(schemas)s::text[] || %(extra)s::text[])
      and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)
      and not exists (select from unnest(p.proconfig) as setting where setting like 'search_path=%%')
      and not exists (select from pg_depend d
        where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'))
)
"""  # noqa: S608  # text of ours


def on_system_database(settings: Settings) -> list[StageDatabase]:
    """What ``look`` is to look for in the system database. Without a table API these are policies for objects."""
    return settings.on_system_database() or [StageDatabase(schemas=(), extra_search_path=())]


async def look(connection: Connection, databases: Iterable[StageDatabase]) -> list[Opening]:
    """What is open in the database of ``connection``, which is that of all ``databases``, each once."""
    found: dict[Opening, None] = {}
    for one in databases:
        params = {
            "schemas": list(one.schemas),
            "extra": list(one.extra_search_path),
            "roles": [one.anon_role, one.authenticated_role],
            "service_role": one.service_role,
            "claims": one.jwt_secret is not None or one.jwks is not None,
            "objects": "storage.objects" if one.dsn is None else None,
        }
        [(catalog,)] = await connection.query(_CATALOG, params)
        found |= dict.fromkeys(judged(_catalog(catalog)))
    return list(found)


def _catalog(row: dict[str, Any]) -> Catalog:
    return Catalog(
        callers=row["callers"],
        roles=[Role(**one) for one in row["roles"]],
        relations=[
            Relation(**{**one, "policies": [Policy(**policy) for policy in one["policies"]]})
            for one in row["relations"]
        ],
        functions=[Function(**one) for one in row["functions"]],
        version=row["version"],
    )
