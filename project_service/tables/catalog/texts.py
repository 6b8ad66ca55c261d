"""What the text of an application's functions tells of them: SQL expressions, parts of a catalogue query.

PostgreSQL knows no more of a function than what it was declared to be, so its text is searched for words. Functions
that are PostgreSQL's own or an extension's are left out.
"""

from __future__ import annotations

_NOT_SYSTEM = "n.nspname not in ('pg_catalog', 'information_schema')"
# A function whose body is SQL's own has no text; PostgreSQL writes one.
_ANY_TEXT = "case when p.prosrc = '' and p.prokind <> 'a' then pg_get_functiondef(p.oid) else p.prosrc end"
_OWN = f"""
pg_proc p join pg_namespace n on n.oid = p.pronamespace
where {_NOT_SYSTEM} and not exists (select from pg_depend d
  where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
"""


def _speaks(text: str, words: str) -> str:
    return f"exists (select from {_OWN} and {text} ~* '{words}')"


# Locks that are not the transaction's, temporary tables, held cursors and channels that are listened to stay with the
# connection; so does the default isolation level, because the next transaction has begun when RESET ALL runs in it.
# Where no function's text speaks of them, and no view takes a lock itself, nothing has to be cleared away. Temporary
# tables are made neither by a body that is SQL's own nor by a request that only reads.
MAKES_TEMPORARY = _speaks("p.prosrc", "\\mtemp(orary)?\\M|\\mpg_temp\\.")
_LEAVES = _speaks(_ANY_TEXT, "advisory_lock|\\mwith\\s+hold\\M|\\mlisten\\M|isolation")
LEAVES_BY_READING = f"""
{_LEAVES}
or exists (select from pg_rewrite r
  join pg_class c on c.oid = r.ev_class join pg_namespace n on n.oid = c.relnamespace
  where c.relkind = 'v' and {_NOT_SYSTEM} and r.ev_action::text ~ (
    select ':funcid (' || string_agg(oid::text, '|') || ') ' from pg_proc
    where pronamespace = 'pg_catalog'::regnamespace and proname ~ 'advisory_lock'))
"""

# As a pre-request function may, for requests that then differ in their rights.
CHANGES_ROLE = _speaks(_ANY_TEXT, "\\mset\\s+(local\\s+|session\\s+)?role\\M|set_config\\s*\\(\\s*''role''")

_FUNCTIONS = f"""
own as materialized (
  select p.oid, lower(p.proname) as name, n.nspname as schema, p.provolatile, p.prolang, {_ANY_TEXT} as text
  from {_OWN}
)
"""

# Declared immutable, but its text, or that of a function it calls, reads settings or asks for the user. What a text
# calls is told by names, without schemas.
FALSE_CONSTANTS = f"""
(with recursive {_FUNCTIONS}, needed as (
  select oid as constant, oid, text from own where provolatile = 'i'
  union
  select needed.constant, own.oid, own.text
  from needed
  cross join lateral regexp_matches(lower(needed.text), '("[^"]+"|\\w+)\\s*\\(', 'g') as found (called)
  join own on own.name = trim(found.called[1], '"')
)
select coalesce(json_agg(distinct constant::regprocedure::text), '[]') from needed
where text ~* '\\m(current_setting|current_user|current_role|session_user)\\M')
"""

# Not for everybody, of a kind that is written into plans, and called from within a function: that one's plan is made
# for whoever calls it first, and holds for all.
GUARDED_WITHIN = f"""
(with {_FUNCTIONS}, guarded as (
  select string_agg(regexp_replace(name, '(\\W)', '\\\\\\1', 'g'), '|') as names from own
  where (provolatile = 'i' or prolang = (select oid from pg_language where lanname = 'sql'))
    and schema not in ('auth', 'storage', '_project_service')
    and not has_function_privilege('public', oid, 'execute')
)
select exists (select from own, guarded where own.text ~* ('\\m(' || names || ')"?\\s*\\(')))
"""
