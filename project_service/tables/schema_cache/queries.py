"""The queries that read PostgreSQL's catalogs into the schema cache, and those that notice changes.

Each returns one JSON text, because making tuples of many rows would block the reactor. They run with an empty search
path, so that ``format_type`` qualifies the names of all types but PostgreSQL's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from project_service.database import trust

_SYSTEM = "n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_t%%'"


# The types of arguments, besides row types, that take a row.
_ANY_ROW = "'record', 'any', 'anyelement', 'anynonarray', 'anycompatible', 'anycompatiblenonarray'"


def _json(query: str, ctes: str = "") -> str:
    """``ctes`` is its WITH clause."""
    return f"{ctes} select coalesce(json_agg(answer), '[]')::text from ({query}) as answer"


# The base type of each domain, also of domains over domains.
_BASES = """
with recursive base as (
  select oid, typbasetype as parent, typbasetype as base from pg_type where typtype = 'd'
  union all
  select base.oid, t.typbasetype, t.typbasetype from base join pg_type t on t.oid = base.parent where t.typtype = 'd'
), bases as (
  select b.oid, b.base from base b join pg_type t on t.oid = b.base where t.typtype <> 'd'
)
"""

# The relations that each relation reads: itself, and those behind a view.
_READING = """
, reads as (
  select c.oid as relation, c.oid as object
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'v', 'f', 'p') and n.nspname = any(%(schemas)s)
  union
  select reads.relation, d.refobjid
  from reads join pg_rewrite r on r.ev_class = reads.object
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid
  where d.refclassid = 'pg_class'::regclass
)
"""

_RELATIONS = _json(
    """
select n.nspname as schema, c.relname as name, c.relkind as kind, obj_description(c.oid, 'pg_class') as description,
  c.relhassubclass and c.relkind <> 'p' as inherited,
  case when c.relkind in ('r', 'p') then 28 when c.oid in (select reads.relation from reads
         join pg_foreign_table f on f.ftrelid = reads.object join pg_foreign_server s on s.oid = f.ftserver
         join pg_foreign_data_wrapper w on w.oid = s.srvfdw where w.fdwhandler = 0) then 0
       else pg_relation_is_updatable(c.oid, true) end as events,
  case when c.reltuples > 0 and c.relkind in ('r', 'm') then
    ceil((c.relpages * current_setting('block_size')::int8
          + case when c.reltoastrelid <> 0 then coalesce(pg_relation_size(c.reltoastrelid), 0) else 0 end)
         / c.reltuples)::int8 end as row_bytes,
  (select json_agg(json_build_array(
     a.attname,
     format_type(a.atttypid, a.atttypmod),
     format_type(coalesce(bases.base, a.atttypid), case when bases.base is null then a.atttypmod else -1 end),
     not (a.attnotnull or t.typnotnull),
     case when a.attidentity <> '' then format('nextval(%%L::regclass)', (
            select d.objid::regclass from pg_depend d where d.classid = 'pg_class'::regclass and d.deptype = 'i'
              and d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid and d.refobjsubid = a.attnum))
          when a.attgenerated <> '' then null
          else coalesce(pg_get_expr(ad.adbin, ad.adrelid), t.typdefault) end,
     (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e
      where e.enumtypid = coalesce(bases.base, a.atttypid)),
     col_description(c.oid, a.attnum),
     information_schema._pg_char_max_length(coalesce(bases.base, a.atttypid),
       case when bases.base is null then a.atttypmod else t.typtypmod end)
   ) order by a.attnum)
   from pg_attribute a
   join pg_type t on t.oid = a.atttypid
   left join bases on bases.oid = a.atttypid
   left join pg_attrdef ad on ad.adrelid = a.attrelid and ad.adnum = a.attnum
   where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v', 'm', 'f', 'p') and n.nspname = any(%(schemas)s) and not c.relispartition
order by n.nspname, c.relname
""",
    _BASES + _READING,
)

# By relation: the columns of its keys, and all columns of views.
_KEY_COLUMNS = """
with needed as (
  select conrelid as relation, unnest(conkey) as number from pg_constraint where contype in ('p', 'f')
  union
  select confrelid, unnest(confkey) from pg_constraint where contype = 'f'
  union
  select a.attrelid, a.attnum from pg_attribute a join pg_class c on c.oid = a.attrelid
  where c.relkind in ('v', 'm') and a.attnum > 0 and not a.attisdropped
), named as (
  select a.attrelid, json_agg(json_build_array(a.attnum, a.attname) order by a.attnum) as columns
  from needed join pg_attribute a on a.attrelid = needed.relation and a.attnum = needed.number
  group by a.attrelid
)
"""

_PRIMARY_KEYS = _json(
    f"""
select c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relkind in ('v', 'm') as is_view,
  named.columns, k.conkey as key
from named
join pg_class c on c.oid = named.attrelid
join pg_namespace n on n.oid = c.relnamespace
left join pg_constraint k on k.conrelid = c.oid and k.contype = 'p'
where {_SYSTEM}
""",
    _KEY_COLUMNS,
)

# Keys with PERIOD (PostgreSQL 18; before it the column does not exist) relate overlapping ranges, not equal ones.
_FOREIGN_KEYS = _json(f"""
select con.conname as name, con.conrelid::int8 as origin, con.confrelid::int8 as target,
  con.conkey as origin_key, con.confkey as target_key,
  exists (select from pg_constraint u where u.conrelid = con.conrelid and u.contype in ('p', 'u')
     and u.conkey @> con.conkey and u.conkey <@ con.conkey) as is_unique
from pg_constraint con
join pg_class c on c.oid = con.conrelid
join pg_namespace n on n.oid = c.relnamespace
where con.contype = 'f' and con.conparentid = 0 and {_SYSTEM}
  and to_jsonb(con) -> 'conperiod' is distinct from 'true'
order by con.conrelid, con.conname
""")

_VIEW_RULES = _json(f"""
select c.oid::int8 as oid, r.ev_action as rule
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_rewrite r on r.ev_class = c.oid and r.rulename = '_RETURN'
where c.relkind in ('v', 'm') and {_SYSTEM}
""")

_ROUTINES = _json(
    """
select n.nspname as schema, p.proname as name, obj_description(p.oid, 'pg_proc') as description,
  p.provolatile as volatility, p.proretset as is_set,
  case when t.typtype = 'd' and t.typname ~ '/' and not p.proretset
    and not coalesce(p.proargmodes::text[] && '{t,b,o}', false) then lower(t.typname) end as return_media,
  bt.oid in ('bytea'::regtype, 'text'::regtype, 'xml'::regtype, 'json'::regtype, 'jsonb'::regtype) as is_bytes,
  p.prorettype = 'void'::regtype as is_void,
  case when coalesce(p.proargmodes::text[] && '{t,b,o}', false) then exists (
    select from unnest(p.proargmodes, p.proallargtypes, coalesce(p.proargnames, '{}')) as args(mode, type, name)
    where mode in ('t', 'b', 'o')
      and (type in ('record'::regtype, 'record[]'::regtype) or coalesce(name, '') = '')
  ) else p.prorettype in ('record'::regtype, 'record[]'::regtype) end as shows_records,
  bt.typtype = 'c' or coalesce(p.proargmodes::text[] && '{t,b,o}', false) as is_composite,
  case when bt.typtype = 'c' then json_build_array(bn.nspname, rc.relname) end as returns,
  coalesce(p.proconfig, '{}') as settings, p.prolang = (select oid from pg_language where lanname = 'sql') as is_sql,
  (select json_agg(coalesce(nullif(o.name, ''), 'column' || o.position) order by o.position)
   from (select name, row_number() over (order by idx) as position
         from unnest(p.proargmodes, coalesce(p.proargnames, '{}')) with ordinality as args(mode, name, idx)
         where mode in ('t', 'b', 'o')) as o) as columns,
  (select json_agg(json_build_array(
      coalesce(a.name, ''), format_type(a.type, null),
      case regexp_replace(format_type(a.type, null), '\\[\\]$', '')
        when 'bit' then 'bit varying' when 'character' then 'character varying'
        else regexp_replace(format_type(a.type, null), '\\[\\]$', '') end
        || case when format_type(a.type, null) like '%%[]' then '[]' else '' end,
      a.position <= p.pronargs - p.pronargdefaults, a.mode = 'v') order by a.position)
   from (select name, type, mode, row_number() over (order by idx) as position
         from unnest(coalesce(p.proargnames, '{}'), coalesce(p.proallargtypes, p.proargtypes::oid[]),
                     coalesce(p.proargmodes, '{}')) with ordinality as args(name, type, mode, idx)
         where type is not null and (mode is null or mode in ('i', 'b', 'v'))) as a) as arguments
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
join pg_type t on t.oid = p.prorettype
left join bases on bases.oid = t.oid
join pg_type bt on bt.oid = coalesce(bases.base, t.oid)
join pg_namespace bn on bn.oid = bt.typnamespace
left join pg_class rc on rc.oid = bt.typrelid
where p.prokind = 'f' and t.typname not in ('trigger', 'event_trigger') and n.nspname = any(%(schemas)s)
  -- Arguments without names are no request's: only a single one of these is, that is given the body. Where they have
  -- defaults PostgreSQL may mean the function by a call without arguments.
  and (p.proargnames is not null or p.pronargs = p.pronargdefaults or p.pronargs = 1 and p.proargtypes[0] in
    ('bytea'::regtype, 'text'::regtype, 'xml'::regtype, 'json'::regtype, 'jsonb'::regtype))
order by n.nspname, p.proname, p.pronargs, pg_get_function_identity_arguments(p.oid) collate "C"
""",
    _BASES,
)

_COMPUTED_RELATIONSHIPS = _json("""
select n.nspname as schema, p.proname as name,
  json_build_array(an.nspname, ac.relname) as origin, json_build_array(rn.nspname, rc.relname) as target,
  not p.proretset or p.prorows = 1 as to_one, p.proretset and p.prorows = 1 as first_only
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
join pg_type at on at.oid = p.proargtypes[0] and at.typrelid <> 0
join pg_class ac on ac.oid = at.typrelid and ac.relkind in ('r', 'v', 'm', 'f', 'p')
join pg_namespace an on an.oid = ac.relnamespace
join pg_type rt on rt.oid = p.prorettype and rt.typrelid <> 0
join pg_class rc on rc.oid = rt.typrelid and rc.relkind in ('r', 'v', 'm', 'f', 'p')
join pg_namespace rn on rn.oid = rc.relnamespace
where p.prokind = 'f' and p.pronargs = 1 and n.nspname = any(%(search_path)s)
order by n.nspname, p.proname, p.oid
""")

# Functions that are computed columns, with the relations that have them: those of the row type that a function takes,
# those that inherit from it and tables OF it. Without a relation: of any row.
_COMPUTED_COLUMNS = _json(
    """
select n.nspname as schema, p.proname as name,
  p.returned = 'record'::regtype as is_record,
  case when ac.oid is not null then json_build_array(an.nspname, ac.relname) end as row,
  case when hc.oid is not null then json_build_array(hn.nspname, hc.relname) end as relation
from taking p
join pg_namespace n on n.oid = p.pronamespace
left join kin on kin.taken = p.argument
left join pg_class ac on ac.oid = p.argument
left join pg_namespace an on an.oid = ac.relnamespace
left join pg_class hc on hc.oid = kin.heir
left join pg_namespace hn on hn.oid = hc.relnamespace
order by kin.distance, n.nspname, p.proname
""",
    """
with recursive taking as (
  select p.pronamespace, p.proname, p.prorettype as returned, nullif(t.typrelid, 0) as argument
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_type t on t.oid = p.proargtypes[0]
  where p.prokind = 'f' and p.provariadic = 0 and p.pronargs - p.pronargdefaults <= 1
    and (t.typrelid <> 0 or t.typname in ("""
    + _ANY_ROW
    + """)) and n.nspname = any(%(search_path)s)
), below as (
  select inhparent as taken, inhrelid as heir from pg_inherits
  union all select t.typrelid, c.oid from pg_class c join pg_type t on t.oid = c.reloftype where c.reloftype <> 0
), kin as (
  select distinct argument as taken, argument as heir, 0 as distance from taking where argument is not null
  union all
  select kin.taken, below.heir, kin.distance + 1
  from kin join below on below.taken = kin.heir join pg_class c on c.oid = below.heir and not c.relispartition
)
""",
)

# The columns of row types that functions return, where they are not those of exposed relations.
_ROW_COLUMNS = _json(
    """
select n.nspname as schema, c.relname as name, (
    select json_agg(a.attname order by a.attnum) from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where (c.relkind = 'c' or c.relispartition or n.nspname <> all(%(schemas)s)) and c.oid in (
  select bt.typrelid from pg_proc p
  join pg_namespace pn on pn.oid = p.pronamespace
  left join bases on bases.oid = p.prorettype
  join pg_type bt on bt.oid = coalesce(bases.base, p.prorettype)
  where bt.typrelid <> 0 and pn.nspname = any(%(search_path)s))
""",
    _BASES,
)

_REPRESENTATIONS = _json("""
select format_type(c.castsource, null) as source, format_type(c.casttarget, null) as target,
  n.nspname as schema, p.proname as name
from pg_cast c
join pg_proc p on p.oid = c.castfunc
join pg_namespace n on n.oid = p.pronamespace
join pg_type s on s.oid = c.castsource
join pg_type t on t.oid = c.casttarget
where c.castcontext = 'i' and c.castmethod = 'f'
  and ((s.typtype = 'd' and t.oid in ('json'::regtype, 'text'::regtype))
    or (t.typtype = 'd' and s.oid in ('json'::regtype, 'text'::regtype)))
""")

_HANDLERS = _json("""
select n.nspname as schema, p.proname as name, lower(t.typname) as media,
  case when at.typrelid <> 0 then json_build_array(an.nspname, ac.relname) end as relation
from pg_aggregate ag
join pg_proc p on p.oid = ag.aggfnoid
join pg_namespace n on n.oid = p.pronamespace
join pg_type t on t.oid = p.prorettype
join pg_type at on at.oid = p.proargtypes[0]
join pg_namespace an on an.oid = at.typnamespace
left join pg_class ac on ac.oid = at.typrelid
where p.pronargs = 1 and t.typtype = 'd' and t.typname ~ '^[[:graph:]]+/[[:graph:]]+$'
  and (at.typrelid <> 0 or at.oid = 'anyelement'::regtype) and n.nspname = any(%(search_path)s)
order by n.nspname, p.proname
""")

VERSION = "select current_setting('server_version_num')"


def role_settings(version: int) -> str:
    """What roles have set for themselves and this connection may set: anybody's settings, and those that PostgreSQL
    15 and later can grant (PostgREST's reference, "Settings with privileged context"). What is sent stays UTF-8."""
    granted = "or g.context = 'superuser' and has_parameter_privilege(session_user, g.name, 'SET')"
    return _json(f"""
select r.rolname as role, s.name, s.value
from pg_db_role_setting d
join pg_roles r on r.oid = d.setrole
cross join lateral (select split_part(c, '=', 1) as name, substr(c, position('=' in c) + 1) as value
                    from unnest(d.setconfig) as c) as s
left join pg_settings g on g.name = s.name
where d.setdatabase in (0, (select oid from pg_database where datname = current_database()))
  and pg_has_role(session_user, r.oid, 'member') and r.rolname <> session_user
  and (g.context = 'user' or position('.' in s.name) > 0 {granted if version >= 150000 else ""})
  and s.name not in
    ('search_path', 'role', 'client_encoding', 'standard_conforming_strings', 'backslash_quote')
order by r.rolname, d.setdatabase
""")


# The catalogs that the schema cache is read from, with the condition for the rows that matter: all but those of
# temporary relations.
_LASTING = "{} <> all(array(select objid from temporary))"
_LASTING_SCHEMA = "{} <> all(array(select oid from passing))"
_WATCHED: Mapping[str, str] = {
    "pg_class": "relpersistence <> 't' and relkind in ('r', 'v', 'm', 'f', 'p', 'c')",
    "pg_attribute": "attnum > 0 and " + _LASTING.format("attrelid"),
    "pg_constraint": _LASTING.format("conrelid"),
    "pg_attrdef": _LASTING.format("adrelid"),
    "pg_rewrite": _LASTING.format("ev_class"),
    "pg_trigger": "not tgisinternal and " + _LASTING.format("tgrelid"),
    "pg_inherits": _LASTING.format("inhrelid"),
    "pg_type": _LASTING_SCHEMA.format("typnamespace"),
    "pg_proc": _LASTING_SCHEMA.format("pronamespace"),
    "pg_namespace": _LASTING_SCHEMA.format("oid"),
    **dict.fromkeys(
        (
            *("pg_aggregate", "pg_cast", "pg_enum", "pg_description", "pg_foreign_table", "pg_extension"),
            *("pg_db_role_setting", "pg_policy", "pg_operator", "pg_amproc", "pg_range", "pg_index"),
        ),
        "true",
    ),
}
# What tells a row's versions apart: one that is written has another ``ctid`` and ``xmin``. Rows of pg_class are
# compared by value, because TRUNCATE and the like write new versions of them too.
_VERSION = "hashtextextended(xmin::text, hashtid(ctid))"
_RELATION = "oid, relname, relnamespace, relkind, relnatts, relhassubclass, relispartition, reloftype"
_RELATION_VERSION = f"hashtextextended(concat_ws(' ', {_RELATION}), 0)"
# How many blocks of a catalog are looked at together.
_SECTION_BLOCKS = 32
# An index leads from a temporary schema to its relations.
_TEMPORARY = """
with passing as materialized (
  select oid from pg_namespace where nspname ~ '^pg_(temp|toast_temp)_'
), temporary as materialized (
  select d.objid from passing join pg_depend d on d.refclassid = 'pg_namespace'::regclass and d.refobjid = passing.oid
  where d.classid = 'pg_class'::regclass
)
"""

# Whether event triggers announce changes: both commands, those of policies and rights among them, and what they drop.
# And a text that is another once any
# transaction has ended that may have written something.
STATE = """
select count(distinct t.evtevent) = 2, pg_current_snapshot()::text
from pg_event_trigger t join pg_proc p on p.oid = t.evtfoid
where t.evtevent in ('ddl_command_end', 'sql_drop') and t.evtenabled in ('O', 'A')
  and p.prosrc ~* 'notify\\W+pgrst\\M'
  and (t.evttags @> '{CREATE POLICY,REVOKE}' or t.evttags is null and p.prosrc !~* 'command_tag')
"""
SIZES = f"""
select relname::text, pg_relation_size(oid) / current_setting('block_size')::int8 from pg_class
where relnamespace = 'pg_catalog'::regnamespace and relname in ({", ".join(f"'{name}'" for name in _WATCHED)})
order by relname
"""


def sections(sizes: Iterable[tuple[str, int]]) -> list[str]:
    """Queries for values that differ after a change of the catalogs, which have these sizes in blocks. Each looks at
    a section so small that it takes about a millisecond, however many tables there are; so nothing else has to wait
    for them."""
    return [
        _section(catalog, first, blocks)
        for catalog, blocks in sizes
        for first in range(0, max(blocks, 1), _SECTION_BLOCKS)
    ]


def _section(catalog: str, first: int, blocks: int) -> str:
    condition, end = _WATCHED[catalog], first + _SECTION_BLOCKS
    temporary = _TEMPORARY if "all(array" in condition else ""
    # The last section has no end, so that rows in new blocks are seen at once.
    upper = f" and ctid < '({end},0)'" if end < blocks else ""
    rows = f"ctid >= '({first},0)'{upper} and {condition}"
    version = _RELATION_VERSION if catalog == "pg_class" else _VERSION
    return f"{temporary}select concat(count(*), ':', bit_xor({version})) from {catalog} where {rows}"


# A value that differs after nearly every change of the catalog that matters here, though not after a change of a
# column's name or type. It is asked for whenever a name is not found, so it has to be quick. Temporary tables and
# functions do not count.
FINGERPRINT = """
(select concat_ws(':', count(*), max(c.oid::int8), sum(c.relnatts), sum(hashname(c.relname)::int8 # c.oid::int8))
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'v', 'm', 'f', 'p') and n.nspname not like 'pg\\_t%%')
|| '/' || (select concat_ws(':', count(*), max(oid::int8), sum(hashname(proname)::int8 # oid::int8)) from pg_proc
  where pronamespace <> all(array(select oid from pg_namespace where nspname like 'pg\\_t%%')))
|| '/' || (select concat_ws(':', count(*), max(oid::int8), sum(hashname(conname)::int8 # oid::int8))
  from pg_constraint where contype in ('p', 'u', 'f')
    and connamespace <> all(array(select oid from pg_namespace where nspname like 'pg\\_t%%')))
"""


# What PostgreSQL would call for ``relation.name``: functions and aggregates of one argument that may be a row.
_ROW_FUNCTIONS = f"""
(select coalesce(json_agg(distinct p.proname), '[]')
 from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_type t on t.oid = p.proargtypes[0]
 where p.pronargs - p.pronargdefaults <= 1 and (t.typrelid <> 0 or t.typname in ({_ANY_ROW}))
   and (n.nspname = 'pg_catalog' or n.nspname = any(%(search_path)s)))
"""

_EXTRAS = f"""
select json_build_object(
  'fingerprint', {FINGERPRINT},
  'row_functions', {_ROW_FUNCTIONS},
  'connects_as', session_user,
  'as_superuser', (select rolsuper from pg_roles where rolname = session_user),
  'postgis', exists (select from pg_extension where extname = 'postgis'),
  'comments', (select coalesce(json_object_agg(n.nspname, obj_description(n.oid, 'pg_namespace')), '{{}}')
               from pg_namespace n where n.nspname = any(%(schemas)s)))::text
"""

# The answers that ``build`` takes, besides the settings of roles.
QUERIES = {
    "relations": _RELATIONS,
    "keys": _PRIMARY_KEYS,
    "foreign_keys": _FOREIGN_KEYS,
    "rules": _VIEW_RULES,
    "routines": _ROUTINES,
    "computed": _COMPUTED_RELATIONSHIPS,
    "computed_columns": _COMPUTED_COLUMNS,
    "row_columns": _ROW_COLUMNS,
    "representations": _REPRESENTATIONS,
    "handlers": _HANDLERS,
    "extras": _EXTRAS,
    "trust": trust.QUERY,
}
