"""``/admin/databases``: what the databases of the table API hold, and who may do what there.

Only what the catalogs say is read, in one statement for each request, on the connections of the table API. Rows are
read by the table API itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from attrs import frozen

from project_service import errors as common
from project_service.database.acting import settings_text
from project_service.database.pool import Pool, Transaction
from project_service.errors import ApiError
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    STRING,
    Answer,
    Named,
    Operation,
    Schema,
    array,
    exactly,
    in_path,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.operators import errors, rights
from project_service.settings.model import StageDatabase

TAG = "databases"
DATABASES = "/admin/databases"
ONE_DATABASE = f"{DATABASES}/<stage>/<database>"
ONE_RELATION = f"{ONE_DATABASE}/relations/<schema>/<relation>"

# Names of types and functions get their schema, unless they are PostgreSQL's own.
_SETTINGS = (("role", "none"), ("search_path", ""), ("quote_all_identifiers", "off"), ("datestyle", "ISO"))
_BEGIN = f"SET TRANSACTION READ ONLY; {settings_text(_SETTINGS)}"

_KINDS = """case c.relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'v' then 'view'
  when 'm' then 'materialized view' when 'f' then 'foreign table' end"""
_SECURITY = """case when c.relkind not in ('r', 'p') then null when c.relrowsecurity and c.relforcerowsecurity
  then 'forced' when c.relrowsecurity then 'on' else 'off' end"""
_PRIVILEGES = "unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE'])"

# Sizes are not asked of tables that are locked against everything: that would wait for the lock.
_RELATIONS = f"""
with locked as materialized (
  select relation from pg_locks where locktype = 'relation' and mode = 'AccessExclusiveLock' and granted
    and database = (select oid from pg_database where datname = current_database())
), relations as (
  select c.*, n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = any(%(schemas)s) and c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
), sized as (
  select c.oid, sum(greatest(part.reltuples, 0)) filter (where part.reltuples >= 0) as rows,
    sum(case when part.oid not in (select relation from locked) then pg_total_relation_size(part.oid) end) as bytes
  from relations c
  cross join lateral (select c.oid as relid where c.relkind <> 'p' union all
                      select relid from pg_partition_tree(c.oid) where c.relkind = 'p' and isleaf) as tree
  join pg_class part on part.oid = tree.relid
  where c.relkind in ('r', 'p', 'm') group by c.oid
)
select jsonb_build_object(
  'schemas', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', given.name, 'comment', obj_description(n.oid, 'pg_namespace')) order by given.position), '[]')
    from unnest(%(schemas)s) with ordinality as given(name, position) join pg_namespace n on n.nspname = given.name),
  'relations', (select coalesce(jsonb_agg(jsonb_build_object(
      'schema', c.nspname, 'name', c.relname, 'kind', {_KINDS},
      'rows', sized.rows::int8, 'bytes', sized.bytes,
      'comment', obj_description(c.oid, 'pg_class'), 'row_level_security', {_SECURITY},
      'has_primary_key', exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
    ) order by c.nspname, c.relname), '[]') from relations c left join sized on sized.oid = c.oid)
)::text
"""  # noqa: S608  # text of ours

_FOREIGN_KEY = """jsonb_build_object('name', k.conname, 'schema', n.nspname, 'relation', o.relname,
  'columns', (select jsonb_agg(a.attname order by at.position) from unnest(k.conkey) with ordinality as
    at(number, position) join pg_attribute a on a.attrelid = k.conrelid and a.attnum = at.number),
  'referenced', (select jsonb_agg(a.attname order by at.position) from unnest(k.confkey) with ordinality as
    at(number, position) join pg_attribute a on a.attrelid = k.confrelid and a.attnum = at.number),
  'on_delete', case k.confdeltype when 'a' then 'no action' when 'r' then 'restrict' when 'c' then 'cascade'
    when 'n' then 'set null' when 'd' then 'set default' end)"""

# ``roles`` are those that requests take, and those that have grants or policies by their own name.
_RELATION = f"""
with recursive one as (
  select c.*, n.nspname, coalesce(c.relacl, acldefault('r', c.relowner)) as acl
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = %(schema)s and c.relname = %(relation)s and n.nspname = any(%(schemas)s)
    and c.relkind in ('r', 'p', 'v', 'm', 'f')
), base as (
  select oid, typbasetype as parent, typbasetype as base from pg_type where typtype = 'd'
  union all
  select base.oid, t.typbasetype, t.typbasetype from base join pg_type t on t.oid = base.parent where t.typtype = 'd'
), columns as (
  select a.*, t.typname, t.typnotnull, coalesce(b.oid, t.oid) as base
  from one join pg_attribute a on a.attrelid = one.oid and a.attnum > 0 and not a.attisdropped
  join pg_type t on t.oid = a.atttypid
  left join lateral (select bt.oid from base join pg_type bt on bt.oid = base.base
                     where base.oid = t.oid and bt.typtype <> 'd') as b on true
), granted as (
  select g.grantee, g.privilege_type as privilege, null::name as col, g.is_grantable
  from one, aclexplode(one.acl) as g
  union all
  select g.grantee, g.privilege_type, columns.attname, g.is_grantable from columns, aclexplode(columns.attacl) as g
), roles as (
  select r.*, r.rolsuper or r.rolbypassrls
    or not one.relforcerowsecurity and pg_has_role(r.oid, one.relowner, 'usage') as exempt,
    array_position(%(roles)s, r.rolname::text) as position
  from pg_roles r, one
  where r.rolname = any(%(roles)s) or r.oid <> one.relowner and (
    r.oid in (select grantee from granted)
    or r.oid in (select unnest(polroles) from pg_policy where polrelid = one.oid))
)
select jsonb_build_object(
  'schema', c.nspname, 'name', c.relname, 'kind', {_KINDS}, 'owner', pg_get_userbyid(c.relowner),
  'comment', obj_description(c.oid, 'pg_class'), 'row_level_security', {_SECURITY},
  'definition', case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end,
  'changes', (select coalesce(jsonb_agg(change order by position), '[]')
    from (values (1, 8, 'insert'), (2, 4, 'update'), (3, 16, 'delete')) as can(position, bit, change)
    where c.relkind in ('r', 'p') or pg_relation_is_updatable(c.oid, true) & bit <> 0),
  'columns', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
      'base_type', format_type(case when e.typcategory = 'A' and e.typelem <> 0 then e.typelem else a.base end, null),
      'array', e.typcategory = 'A' and e.typelem <> 0,
      'nullable', not (a.attnotnull or a.typnotnull),
      'default', case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end,
      'generated', case when a.attidentity = 'a' then 'always' when a.attidentity = 'd' then 'by default'
        when a.attgenerated <> '' then pg_get_expr(d.adbin, d.adrelid) end,
      'settable', a.attgenerated = '' and a.attidentity <> 'a',
      'enum', (select jsonb_agg(label.enumlabel order by label.enumsortorder) from pg_enum label
        where label.enumtypid = case when e.typcategory = 'A' then e.typelem else a.base end),
      'comment', col_description(c.oid, a.attnum)) order by a.attnum), '[]')
    from columns a join pg_type e on e.oid = a.base
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum),
  'primary_key', (select coalesce(jsonb_agg(a.attname order by at.position), '[]')
    from pg_constraint k cross join unnest(k.conkey) with ordinality as at(number, position)
    join pg_attribute a on a.attrelid = k.conrelid and a.attnum = at.number
    where k.conrelid = c.oid and k.contype = 'p'),
  'references', (select coalesce(jsonb_agg({_FOREIGN_KEY} order by k.conname), '[]')
    from pg_constraint k join pg_class o on o.oid = k.confrelid join pg_namespace n on n.oid = o.relnamespace
    where k.conrelid = c.oid and k.contype = 'f'),
  'referenced_by', (select coalesce(jsonb_agg({_FOREIGN_KEY} order by n.nspname, o.relname, k.conname), '[]')
    from pg_constraint k join pg_class o on o.oid = k.conrelid join pg_namespace n on n.oid = o.relnamespace
    where k.confrelid = c.oid and k.contype = 'f' and not o.relispartition),
  'indexes', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', ic.relname, 'unique', i.indisunique, 'primary', i.indisprimary, 'valid', i.indisvalid,
      'definition', pg_get_indexdef(i.indexrelid)) order by i.indisprimary desc, ic.relname), '[]')
    from pg_index i join pg_class ic on ic.oid = i.indexrelid where i.indrelid = c.oid),
  'checks', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', k.conname, 'definition', pg_get_constraintdef(k.oid)) order by k.conname), '[]')
    from pg_constraint k where k.conrelid = c.oid and k.contype in ('c', 'x')),
  'grants', (select coalesce(jsonb_agg(to_jsonb(by_role) order by role, privilege), '[]') from (
      select case g.grantee when 0 then 'PUBLIC' else pg_get_userbyid(g.grantee) end as role, g.privilege,
        case when bool_or(g.col is null) then null else jsonb_agg(g.col order by g.col) end as columns
      from granted g where g.grantee <> c.relowner group by g.grantee, g.privilege) as by_role),
  'policies', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', p.polname, 'permissive', p.polpermissive,
      'command', case p.polcmd when 'r' then 'SELECT' when 'a' then 'INSERT' when 'w' then 'UPDATE'
        when 'd' then 'DELETE' else 'ALL' end,
      'roles', (select jsonb_agg(case of when 0 then 'PUBLIC' else pg_get_userbyid(of) end order by of)
        from unnest(p.polroles) as of),
      'using', pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid),
      'comment', obj_description(p.oid, 'pg_policy')) order by p.polname), '[]')
    from pg_policy p where p.polrelid = c.oid),
  'triggers', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', t.tgname, 'enabled', t.tgenabled <> 'D', 'definition', pg_get_triggerdef(t.oid)
    ) order by t.tgname), '[]')
    from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal),
  'reads_as', case when c.relkind = 'm' or c.relkind = 'v' and not coalesce((select option_value::boolean
      from pg_options_to_table(c.reloptions) where option_name = 'security_invoker'), false)
    then pg_get_userbyid(c.relowner) end,
  'roles', (select coalesce(jsonb_agg(jsonb_build_object(
      'name', r.rolname, 'exempt', r.exempt,
      'uses_schema', has_schema_privilege(r.oid, c.relnamespace, 'usage'),
      'policies', array(select p.polname from pg_policy p where p.polrelid = c.oid and exists (
        select from unnest(p.polroles) as of
        where case when of = 0 then true else pg_has_role(r.oid, of, 'usage') end)),
      'privileges', (select coalesce(jsonb_object_agg(privilege, columns), '{{}}') from (
        select privilege, case when not has_table_privilege(r.oid, c.oid, privilege) then (
          select jsonb_agg(a.attname order by a.attnum) from columns a where privilege <> 'DELETE'
            and has_column_privilege(r.oid, c.oid, a.attnum, replace(privilege, 'DELETE', 'SELECT'))) end as columns
        from {_PRIVILEGES} as privilege) as of_role
        where columns is not null or has_table_privilege(r.oid, c.oid, privilege))
    ) order by r.position nulls last, r.rolname), '[]') from roles r)
)::text
from one c
"""  # noqa: S608  # text of ours

_OPTIONAL: Schema = {"type": ["string", "null"]}
_NAMES = array(STRING)
_IN_DATABASE = (in_path("stage", "The stage, as in the settings."), in_path("database", "Its name there."))
_DATABASE = Named(
    "Database",
    exactly(
        stage=STRING,
        name=STRING,
        path={"type": "string", "description": "Where its table API is."},
        schemas=array(STRING, description="Those that it exposes; without a header, the first is meant."),
        roles=exactly(anon=STRING, authenticated=STRING, service=STRING),
        max_rows={**COUNT, "description": "The most rows of a response; 0 for any number."},
        max_import_bytes={**COUNT, "description": "The largest CSV that is taken; 0 for none."},
    ),
)
_KIND: Schema = {"enum": ["table", "partitioned table", "view", "materialized view", "foreign table"]}
_RLS: Schema = {"enum": ["off", "on", "forced", None], "description": "null for what cannot have it"}
_LISTED_RELATION = Named(
    "ListedRelation",
    exactly(
        schema=STRING,
        name=STRING,
        kind=_KIND,
        rows={
            "type": ["integer", "null"],
            "description": "PostgreSQL's estimate; null if there is none yet.",
        },
        bytes={
            "type": ["integer", "null"],
            "description": "With indexes; null for views and while it is locked.",
        },
        comment=_OPTIONAL,
        row_level_security=_RLS,
        has_primary_key=BOOLEAN,
    ),
)
_COLUMN = exactly(
    name=STRING,
    type=STRING,
    base_type={"type": "string", "description": "Of the elements of an array, or what a domain is made of."},
    array=BOOLEAN,
    nullable=BOOLEAN,
    default=_OPTIONAL,
    generated={
        "type": ["string", "null"],
        "description": "always or by default: identity; else an expression",
    },
    settable={"type": "boolean", "description": "Whether a request may give it a value."},
    enum={"type": ["array", "null"], "items": STRING},
    comment=_OPTIONAL,
)
_FOREIGN_KEYS = array(
    exactly(name=STRING, schema=STRING, relation=STRING, columns=_NAMES, referenced=_NAMES, on_delete=STRING)
)
_DEFINED = {"name": STRING, "definition": STRING}
_RELATION_SCHEMA = Named(
    "Relation",
    exactly(
        schema=STRING,
        name=STRING,
        kind=_KIND,
        owner=STRING,
        comment=_OPTIONAL,
        row_level_security=_RLS,
        definition={"type": ["string", "null"], "description": "The query of a view."},
        changes=array(
            {"enum": ["insert", "update", "delete"]}, description="What the relation is capable of."
        ),
        columns=array(_COLUMN),
        primary_key=_NAMES,
        references=_FOREIGN_KEYS,
        referenced_by=_FOREIGN_KEYS,
        indexes=array(exactly(**_DEFINED, unique=BOOLEAN, primary=BOOLEAN, valid=BOOLEAN)),
        checks=array(exactly(**_DEFINED)),
        grants=array(
            exactly(
                role=STRING,
                privilege=STRING,
                columns={"type": ["array", "null"], "items": STRING, "description": "null for all"},
            )
        ),
        policies=array(
            exactly(
                name=STRING,
                permissive=BOOLEAN,
                command={"enum": ["ALL", "SELECT", "INSERT", "UPDATE", "DELETE"]},
                roles=_NAMES,
                using=_OPTIONAL,
                check=_OPTIONAL,
                comment=_OPTIONAL,
            )
        ),
        triggers=array(exactly(**_DEFINED, enabled=BOOLEAN)),
        rights=exactly(summary=STRING, roles=array(exactly(role=STRING, sentences=_NAMES))),
    ),
)


@frozen
class Source:
    """A database of the table API, and its connections: texts arrive from them as bytes."""

    config: StageDatabase
    pool: Pool


@frozen(eq=False)
class Databases:
    """``sources`` are by stage and name."""

    sources: Mapping[tuple[str, str], Source]

    @endpoint(
        "GET",
        DATABASES,
        Operation(
            "listDatabases",
            TAG,
            "Every database of the table API",
            (Answer(200, "The databases", {JSON: exactly(databases=array(_DATABASE))}),),
        ),
    )
    async def list(self, request: Request) -> Reply:
        return _reply({"databases": [_database(*key, source.config) for key, source in self.sources.items()]})

    @endpoint(
        "GET",
        ONE_DATABASE,
        Operation(
            "showDatabase",
            TAG,
            "The tables and views of a database",
            (
                Answer(
                    200,
                    "Those of its exposed schemas",
                    {
                        JSON: exactly(
                            schemas=array(exactly(name=STRING, comment=_OPTIONAL)),
                            relations=array(_LISTED_RELATION),
                        )
                    },
                ),
            ),
            _IN_DATABASE,
            errors=(errors.database_not_found(),),
        ),
    )
    async def show(self, request: Request) -> Reply:
        source = self._source(request)
        found = await _read(source, _RELATIONS, {"schemas": [*source.config.schemas]})
        return _reply(found)

    @endpoint(
        "GET",
        ONE_RELATION,
        Operation(
            "showRelation",
            TAG,
            "One table or view: columns, keys, and who may do what",
            (Answer(200, "The relation", {JSON: _RELATION_SCHEMA}),),
            (*_IN_DATABASE, in_path("schema", "An exposed schema."), in_path("relation", "Its name.")),
            errors=(errors.database_not_found(), errors.relation_not_found()),
            details="`rights` says in plain words what grants, row-level security and policies amount to, for the "
            "roles that requests take and for those that have grants or policies of their own.",
        ),
    )
    async def relation(self, request: Request) -> Reply:
        source, names = self._source(request), request.path_args
        config = source.config
        params = {
            "schemas": [*config.schemas],
            "schema": names["schema"],
            "relation": names["relation"],
            "roles": [config.anon_role, config.authenticated_role, config.service_role],
        }
        # PostgreSQL has no names with NUL.
        found = (
            None if "\0" in names["schema"] + names["relation"] else await _read(source, _RELATION, params)
        )
        if found is None:
            raise errors.relation_not_found()
        return _reply(_with_rights(found))

    def _source(self, request: Request) -> Source:
        source = self.sources.get((request.path_args["stage"], request.path_args["database"]))
        if source is None:
            raise errors.database_not_found()
        return source


def _database(stage: str, name: str, config: StageDatabase) -> dict[str, Any]:
    return {
        "stage": stage,
        "name": name,
        "path": f"/{stage}/db/{name}/rest/",
        "schemas": config.schemas,
        "roles": {
            "anon": config.anon_role,
            "authenticated": config.authenticated_role,
            "service": config.service_role,
        },
        "max_rows": config.max_rows,
        "max_import_bytes": config.max_import_bytes,
    }


async def _read(source: Source, sql: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """The one JSON value that ``sql`` finds, or None. Raises ``database_unavailable``."""

    async def reading(transaction: Transaction) -> dict[str, Any] | None:
        await transaction.query(_BEGIN, ())
        rows = await transaction.query(sql, params)
        return orjson.loads(rows[0][0]) if rows else None

    try:
        return await source.pool.transaction(reading)
    except ApiError as error:
        # The pool's own errors are those of the table API.
        raise common.database_unavailable() if error.status >= 500 else error from None


def _with_rights(found: dict[str, Any]) -> dict[str, Any]:
    """``found`` with ``rights`` in place of what they are made of."""
    roles = [rights.Role(**role) for role in found.pop("roles")]
    relation = rights.Relation(
        found["schema"],
        len(found["columns"]),
        found["row_level_security"] in ("on", "forced"),
        [
            rights.Policy(
                **{name: each[name] for name in ("name", "command", "permissive", "using", "check")}
            )
            for each in found["policies"]
        ],
        "view" in found["kind"],
        found.pop("reads_as"),
    )
    said = [{"role": role.name, "sentences": rights.sentences(relation, role)} for role in roles]
    return {**found, "rights": {"summary": rights.summary(relation, roles), "roles": said}}


def _reply(value: object) -> Reply:
    return json_reply(value, 200, (NO_STORE,))
