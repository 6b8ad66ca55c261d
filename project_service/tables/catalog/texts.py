"""What the text of an application's functions tells about them, as SQL expressions for a query of the catalogue.

PostgreSQL records only how a function was declared, so its text is searched for words. PostgreSQL's own functions and
those of extensions are left out.
"""

from __future__ import annotations

_NOT_SYSTEM = "n.nspname not in ('pg_catalog', 'information_schema')"
# A function with a body in standard SQL has no text in the catalogue; PostgreSQL can print one. Its head is left out,
# in which the function would seem to call itself.
_ANY_TEXT = """
case when p.prosrc = '' and p.prokind <> 'a'
  then substring(pg_get_functiondef(p.oid) from '\\n((BEGIN ATOMIC|RETURN)\\M.*)') else p.prosrc end
"""
_OWN = f"""
pg_proc p join pg_namespace n on n.oid = p.pronamespace
where {_NOT_SYSTEM} and not exists (select from pg_depend d
  where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
"""


def _speaks(text: str, words: str) -> str:
    return f"exists (select from {_OWN} and {text} ~* '{words}')"


# Session-level locks, temporary tables, held cursors and LISTEN stay with the connection after a transaction. So does
# the default isolation level, because the next transaction has already begun when RESET ALL runs in it. If no
# function's text mentions any of these, and no view takes a lock itself, nothing has to be cleared away. Temporary
# tables can be made neither by a body in standard SQL nor by a request that only reads.
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

# Whether SQL may leave a setting on the session, which RESET ALL then has to take away before each request. In
# PL/pgSQL and SQL that takes SET (not SET LOCAL) as a statement or at the beginning of a text that is executed,
# RESET, set_config without a plain ``true`` (calls with one are cut out of the text first), or EXECUTE of what is not
# all written there: a literal, or ``format`` of one that takes only names and quoted values. What functions in other
# languages do is not known; what the service's own do is. Views, policies, defaults and constraints can call
# set_config directly. (Its arguments may hold two levels of parentheses; deeper ones count as what leaves a setting.)
_LOCAL_CALL = r"set_config\s*\([^();]*(\([^()]*(\([^()]*\)[^()]*)*\)[^();]*)*,\s*true\s*\)"
_SETS = (
    r"set_config|\mset_limit\M|\mreset\M|\mdiscard\M"
    r"|\mexecute\M(?!\s+(format\s*\(\s*)?''([^''%%]|%%[IL%%])*''\s*([,);]|(into|using|loop)\M))"
    r"|(^|;|\mbegin\M|\mthen\M|\melse\M|\mloop\M|''|\$|\*/)\s*(--[^\n]*\n\s*)*set\s+(?!(local|constraints|transaction)\M)"
)
_CALLS_SET_CONFIG = "~ (':funcid ' || 'pg_catalog.set_config(text,text,bool)'::regprocedure::oid || ' ')"
SETS_FOR_SESSION = rf"""
exists (select from (select p.prolang, regexp_replace({_ANY_TEXT}, '{_LOCAL_CALL}', '', 'gi') as text
    from {_OWN} and n.nspname <> '_project_service') f
  join pg_language l on l.oid = f.prolang
  where l.lanname not in ('sql', 'plpgsql') or f.text ~* '{_SETS}')
or exists (select from pg_rewrite r
  join pg_class c on c.oid = r.ev_class join pg_namespace n on n.oid = c.relnamespace
  where {_NOT_SYSTEM} and r.ev_action::text {_CALLS_SET_CONFIG})
or exists (select from pg_policy where concat(polqual, polwithcheck) {_CALLS_SET_CONFIG})
or exists (select from pg_attrdef where adbin::text {_CALLS_SET_CONFIG})
or exists (select from pg_constraint where conbin::text {_CALLS_SET_CONFIG})
or exists (select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where p.proname in ('set_config', 'set_limit') and n.nspname = any(%(schemas)s))
"""

# A pre-request function may do so: then requests that began with the same role differ in their rights.
CHANGES_ROLE = _speaks(_ANY_TEXT, "\\mset\\s+(local\\s+|session\\s+)?role\\M|set_config\\s*\\(\\s*''role''")

_FUNCTIONS = f"""
own as materialized (
  select p.oid, lower(p.proname) as name, n.nspname as schema, p.provolatile, p.prolang, {_ANY_TEXT} as text
  from {_OWN}
)
"""

# The functions that are declared immutable although their text, or that of a function they call, reads settings or
# the current user. Which functions a text calls is judged by their names alone, without schemas.
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

# Whether some function calls another that not every role may execute, and that PostgreSQL may evaluate or inline
# while planning. The plan of the calling function is then made with the rights of its first caller, and used for all
# others.
GUARDED_WITHIN = f"""
(with {_FUNCTIONS}, guarded as (
  select string_agg(regexp_replace(name, '(\\W)', '\\\\\\1', 'g'), '|') as names from own
  where (provolatile = 'i' or prolang = (select oid from pg_language where lanname = 'sql'))
    and schema not in ('auth', 'storage', '_project_service')
    and not has_function_privilege('public', oid, 'execute')
)
select exists (select from own, guarded where own.text ~* ('\\m(' || names || ')"?\\s*\\(')))
"""
