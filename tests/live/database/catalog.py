"""Everything that a database has in the schemas of the service and in ``public``, as lines that can be compared."""

from __future__ import annotations

from tests.live.sql import run_sql

_OURS = "n.nspname in ('auth', 'storage', '_project_service', 'public')"


def _acl(rights: str) -> str:
    """Who may what; PostgreSQL keeps it in the order in which it was granted."""
    return f"(select string_agg(one::text, ' ' order by one::text) from unnest({rights}) one)"


def _acl_of(prefix: str, kind: str) -> str:
    """The same with what is so by default; PostgreSQL keeps nothing where nothing else was ever granted."""
    return _acl(f"coalesce({prefix}acl, acldefault({kind}, {prefix}owner))")


_KIND_SCHEMA, _KIND_FUNCTION = "'n'", "'f'"
_KIND_RELATION = "case c.relkind when 'S' then 's' else 'r' end::\"char\""

_QUERIES = {
    "schema": f"select n.nspname, n.nspowner::regrole, {_acl_of('n.nsp', _KIND_SCHEMA)}"
    f" from pg_namespace n where {_OURS}",
    "default rights": "select defaclrole::regrole, defaclnamespace::regnamespace, defaclobjtype,"
    f" {_acl('defaclacl')} from pg_default_acl",
    "function": f"select pg_get_functiondef(p.oid), p.proowner::regrole, {_acl_of('p.pro', _KIND_FUNCTION)},"
    " obj_description(p.oid, 'pg_proc')"
    f" from pg_proc p join pg_namespace n on n.oid = p.pronamespace where {_OURS}",
    "relation": "select n.nspname, c.relname, c.relkind, c.relowner::regrole, c.reloptions, c.relrowsecurity,"
    f" c.relforcerowsecurity, c.relreplident, {_acl_of('c.rel', _KIND_RELATION)}, obj_description(c.oid, 'pg_class'),"
    " case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end"
    f" from pg_class c join pg_namespace n on n.oid = c.relnamespace where {_OURS}",
    "column": "select a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),"
    " a.attnotnull, a.attcollation::regcollation, a.attidentity, a.attgenerated, a.attstorage,"
    f" {_acl('a.attacl')}, pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum)"
    " from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum"
    " join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace"
    f" where c.relkind in ('r', 'p', 'v', 'm') and {_OURS} and not a.attisdropped and a.attnum > 0",
    "constraint": "select k.conrelid::regclass, k.conname, k.convalidated, pg_get_constraintdef(k.oid)"
    f" from pg_constraint k join pg_namespace n on n.oid = k.connamespace where {_OURS}",
    "index": "select pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisreplident from pg_index i"
    f" join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace where {_OURS}",
    "trigger": "select pg_get_triggerdef(t.oid), t.tgenabled from pg_trigger t"
    " join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace"
    f" where {_OURS} and not t.tgisinternal",
    "policy": "select p.polrelid::regclass, p.polname, p.polcmd, p.polpermissive, p.polroles::regrole[],"
    " pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid) from pg_policy p",
    "event trigger": "select evtname, evtevent, evtowner::regrole, evtfoid::regproc, evtenabled, evttags"
    " from pg_event_trigger",
}


def catalog(dsn: str) -> set[str]:
    """One line for each object, with its definition, owner, rights and comment."""
    return {
        f"{kind}: {line}"
        for kind, query in _QUERIES.items()
        for (line,) in run_sql(dsn, f"select found::text from ({query}) found")
    }
