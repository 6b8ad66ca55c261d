"""How far the SQL of an application can be trusted with a connection that serves one caller after another. Pure.

PostgreSQL keeps much with a connection. What an application's SQL leaves on the session, such as a setting or a lock,
would reach the next caller. And a plan may hold the value of a function that is declared ``immutable``: if the
function is not what it is declared, that is a value of the caller for whom the plan was made.

So a function is trusted only as far as its text proves it (``sql_facts``). ``trust_of`` puts the facts of all
functions together with what the catalog knows of operators, casts, domains and expressions. A database that is not
trusted is slower, and never wrong: ``acting`` says what is done for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import field, frozen

from project_service.database.sql_facts import LEAVING, Facts, facts_of, settings_form, settings_leave, words

# Extensions whose functions leave nothing on the session but for ``LEAVING``, and whose immutable functions are so.
# Functions of other extensions are judged as an application's own.
EXTENSIONS = words("""
    plpgsql citext hstore ltree cube seg isn intarray earthdistance fuzzystrmatch btree_gin btree_gist bloom pg_trgm
    unaccent uuid-ossp pgcrypto lo moddatetime dict_int dict_xsyn insert_username autoinc refint tcn tsm_system_rows
    tsm_system_time pg_stat_statements pg_buffercache pgstattuple pg_freespacemap pg_visibility pageinspect amcheck
    pgrowlocks pg_prewarm postgres_fdw file_fdw sslinfo vector postgis postgis_raster postgis_sfcgal
    address_standardizer address_standardizer_data_us tablefunc xml2 intagg
""")

# Stable functions of PostgreSQL and of these extensions whose result depends on their arguments and on how values are
# written, which ``acting`` keeps apart by ``FORM_SETTINGS``. They read nothing of a caller.
_OF_FORM = words("""
    length convert convert_from convert_to enum_first enum_last enum_range
    concat concat_ws format array_to_string quote_literal quote_nullable pg_typeof unaccent text num_nulls
    to_char to_date to_timestamp to_number make_timestamptz generate_series overlaps
    date time timetz timestamp timestamptz interval timezone age isfinite date_part date_trunc extract date_bin
    date_add date_subtract to_json to_jsonb row_to_json array_to_json json_build_object json_build_array
    jsonb_build_object jsonb_build_array json_agg jsonb_agg json_object_agg jsonb_object_agg
    to_tsvector to_tsquery plainto_tsquery phraseto_tsquery websearch_to_tsquery ts_headline
""")
# Words that a parenthesis may follow without being called, unless there is a function of that name.
_BEFORE_PARENTHESIS = words("""
    select from where and or not in any all some exists as on using is values row array case when then else end
    return returning distinct between if elsif elseif while loop exit continue assert perform query next with
    having by group order partition over filter within rollup cube sets limit offset union intersect except lateral
    join like ilike similar to both leading trailing escape collate operator for of into strict materialized recursive
    coalesce nullif greatest least cast extract substring position overlay trim normalize grouping slice foreach raise
    numeric decimal dec varchar char character varying bit float nchar precision constant default variadic
""")


# What PostgreSQL makes for each type of ranges.
_OF_RANGES = words("""
    range_constructor2 range_constructor3
    multirange_constructor0 multirange_constructor1 multirange_constructor2
""")


@frozen(slots=False)
class Function:
    """A function of the application, or of an extension that is not known here. ``defaults``: an argument's default
    is more than a constant. ``open`` and ``found``: every role may execute it, and use its schema."""

    oid: int
    schema: str
    name: str
    shown: str
    language: str
    kind: str
    immutable: bool
    open: bool
    found: bool
    text: str
    settings: tuple[str, ...]
    defaults: bool
    definer: bool
    ours: bool

    @cached_property
    def facts(self) -> Facts:
        if self.language == "internal" and self.text in _OF_RANGES:
            return Facts(leaves=False, sets_role=False, sets_form=False, pure=True)
        return facts_of(self.language, self.text)

    @property
    def leaves(self) -> bool:
        return settings_leave(self.settings, self.facts.names) or self.facts.leaves


@frozen
class Trust:
    """What SQL of the application may do to a connection. ``version`` differs after each reading of the catalog.

    ``leaves``: something may stay on the session, which has to be cleared away before the next caller. ``closes``: it
    may be what only a new connection is free of. ``clears`` are statements for what PostgreSQL's own commands do not
    clear away. ``false_constants``: the functions that are declared immutable and
    may not be, so that no plan may be used for another caller. ``guarded``: a plan may hold what one role alone may
    call, so that it is for that role. ``has_constants``: a plan may hold values that depend on how values are
    written. ``sets_role``: some function may change its caller's role. ``triggers`` are the changes of the
    service's tables that fire triggers of the application, as ``auth.users insert``.
    """

    version: int = 0
    leaves: bool = False
    closes: bool = False
    clears: str = ""
    false_constants: tuple[str, ...] = ()
    guarded: bool = False
    has_constants: bool = False
    sets_role: bool = False
    triggers: frozenset[str] = frozenset()
    # Whether nothing has to be done between two callers.
    clean: bool = field(init=False)

    @clean.default
    def _leaves_nothing(self) -> bool:
        return not (self.leaves or self.closes or self.false_constants)


# The trust in a database whose catalog has not been read.
UNKNOWN = Trust(
    leaves=True,
    false_constants=("any function",),
    guarded=True,
    has_constants=True,
    sets_role=True,
    triggers=frozenset(
        f"{table} {change}"
        for table in ("auth.users", "storage.objects")
        for change in ("insert", "update", "delete")
    ),
)


# The functions of the service, by schema and name.
_SHIPPED = words("""
    _project_service.announce_ddl _project_service.announce_drop _project_service.expose_schema
    _project_service.grantable _project_service.granted _project_service.watch_ddl auth.announce_project_keys
    auth.email auth.end_sessions auth.forget_factor auth.jwt auth.keep_email_identity auth.name_providers
    auth.record_change auth.reserve_attempt auth.reserve_login auth.revoke_ended_session auth.role
    auth.rotate_refresh_token auth.set_disabled auth.settle_attempt auth.uid
    storage.advance_upload storage.change_object storage.check_put storage.complete_bucket storage.count_bucket
    storage.create_bucket storage.delete storage.delete_bucket storage.delete_objects storage.discard_renditions
    storage.discard_uploads storage.extension storage.filename storage.folder storage.foldername storage.judge
    storage.judge_put storage.move_object storage.move_to_bucket storage.pass storage.put_object storage.refusal
    storage.row_to_put storage.same_second storage.sees storage.slot storage.store_rendition
    storage.through_the_service storage.use_upload_link
""")
# Those that do what an application's must not: they take back what they do.
_EXEMPT = [
    one
    for one in _SHIPPED
    if one.startswith("_project_service.") or one in ("storage.judge", "storage.through_the_service")
]
_SCHEMAS = "('auth', 'storage', '_project_service')"
_NOT_SYSTEM = "n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_t(emp|oast)'"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


_KNOWN = f"extname in ({_listed(EXTENSIONS)})"
_LEAVING = f"p.proname in ({_listed(LEAVING)})"
# Oids below are those of what initdb makes (FirstNormalObjectId). Others may be in PostgreSQL's schemas too.
_FIRST_OF_APPLICATIONS = 16384
# The nodes of an argument's default that depend on more than the default's text.
_DEPENDING = "FUNCEXPR|OPEXPR|SQLVALUEFUNCTION|COERCETODOMAIN|COERCEVIAIO"
# The functions that an expression in the catalog calls.
_CALLED = "regexp_matches({}::text, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\\d+)', 'g')"

# One JSON text. A function with a body in standard SQL has no text in the catalog; PostgreSQL can print one, with all
# names qualified where the search path is empty. ``%(schemas)s`` are those whose functions a request may call.
QUERY = f"""
with known as materialized (
  select d.objid as oid from pg_depend d join pg_extension e on e.oid = d.refobjid
  where d.classid = 'pg_proc'::regclass and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e' and e.{_KNOWN}
), own as materialized (
  select p.*, n.nspname, concat(n.nspname, '.', p.proname) in ({_listed(_EXEMPT)}) as exempt,
    concat(n.nspname, '.', p.proname) in ({_listed(_SHIPPED)}) as shipped
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where p.oid >= {_FIRST_OF_APPLICATIONS} and n.nspname !~ '^pg_t(emp|oast)' and p.oid not in (select oid from known)
), theirs as materialized (
  select p.oid, p.proname, p.provolatile, p.pronargs, p.pronargdefaults, n.nspname
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where p.oid < {_FIRST_OF_APPLICATIONS} or p.oid in (select oid from known)
), expressions as materialized (
  select concat(ev_action, ev_qual) as tree from pg_rewrite r join pg_class c on c.oid = r.ev_class
    join pg_namespace n on n.oid = c.relnamespace where {_NOT_SYSTEM} and c.oid not in (
      select d.objid from pg_depend d join pg_extension e on e.oid = d.refobjid
      where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_extension'::regclass and e.{_KNOWN})
  union all select concat(polqual, polwithcheck) from pg_policy
  union all select adbin::text from pg_attrdef
  union all select conbin::text from pg_constraint where conbin is not null
  union all select tgqual::text from pg_trigger where tgqual is not null
  union all select concat(indexprs, indpred) from pg_index where indexprs is not null or indpred is not null
  union all select proargdefaults::text from own where proargdefaults is not null
  union all select typdefaultbin::text from pg_type where typdefaultbin is not null
), behind as (
  select oprcode::oid as oid, 'operator' as what from pg_operator
  union all select castfunc, 'cast' from pg_cast where castfunc <> 0
  union all select unnest(array[aggtransfn, aggfinalfn, aggcombinefn, aggserialfn, aggdeserialfn,
    aggmtransfn, aggminvtransfn, aggmfinalfn]::oid[]), 'aggregate' from pg_aggregate
  union all select amproc::oid, 'class' from pg_amproc
  union all select unnest(array[rngcanonical, rngsubdiff]::oid[]), 'range' from pg_range
  union all select called[1]::oid, 'domain' from pg_constraint, lateral {_CALLED.format("conbin")} as called
    where contypid <> 0
), leaving as materialized (
  select p.oid from theirs p where {_LEAVING}
), mark as materialized (
  select ':(funcid|opfuncid) (' || string_agg(oid::text, '|') || ')\\M' as pattern from leaving
)
select json_build_object(
  'functions', (select coalesce(json_agg(json_build_object(
      'oid', p.oid::int8, 'schema', p.nspname, 'name', p.proname, 'shown', p.oid::regprocedure::text,
      'language', l.lanname, 'kind', p.prokind, 'immutable', p.provolatile = 'i',
      'open', has_function_privilege('public', p.oid, 'execute'),
      'found', has_schema_privilege('public', p.pronamespace, 'usage'), 'settings', coalesce(p.proconfig, '{{}}'),
      'definer', p.prosecdef, 'ours', p.shipped, 'defaults', coalesce(p.proargdefaults::text ~ '{_DEPENDING}', false),
      'text', case when p.prosrc = '' and l.lanname = 'sql' then substring(
        pg_get_functiondef(p.oid) from '\n((BEGIN ATOMIC|RETURN)\\M.*)') else p.prosrc end)
      order by p.oid), '[]')
    from own p join pg_language l on l.oid = p.prolang where not p.exempt and p.prokind <> 'a'),
  'aggregates', (select coalesce(json_agg(distinct proname), '[]') from own where prokind = 'a'),
  'constants', case when exists (select from own where provolatile = 'i' and prokind = 'f' and not exempt)
    then (select json_agg(proname) from (
      select proname from theirs group by proname having bool_and(provolatile = 'i')) as constant) end,
  'relations', case when exists (select from own where provolatile = 'i' and prokind = 'f' and not exempt)
    then (select json_agg(distinct relname) from pg_class where relkind in ('r', 'v', 'm', 'f', 'p')) end,
  'readable', (select coalesce(json_agg(distinct proname), '[]') from theirs
    where provolatile <> 'i' and pronargs >= 1 and pronargs - pronargdefaults <= 1),
  'used', (select coalesce(json_agg(distinct d.refobjid::int8), '[]') from pg_depend d
    where d.refclassid = 'pg_proc'::regclass and d.refobjid in (select oid from own)
      and d.classid in ('pg_rewrite'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass)),
  'behind', (select coalesce(json_agg(distinct oid::int8), '[]') from behind where oid in (select oid from own)),
  'unclear', exists (select from behind b join theirs p on p.oid = b.oid
      where b.what = 'domain' and p.provolatile <> 'i')
    or exists (select from pg_constraint where contypid <> 0 and conbin::text ~ 'SQLVALUEFUNCTION'),
  'kept', exists (select from pg_depend d left join pg_operator o
        on o.oid = d.refobjid and d.refclassid = 'pg_operator'::regclass
      join own p on p.oid = o.oprcode or p.oid = d.refobjid and d.refclassid = 'pg_proc'::regclass
      where d.classid = 'pg_constraint'::regclass and d.objid in (select oid from pg_constraint where contypid <> 0)
        or d.classid = 'pg_class'::regclass
          and d.objid in (select oid from pg_class where relkind in ('i', 'I', 'p'))),
  'weak', (select coalesce(min('set role ' || quote_ident(r.rolname)
      || format('; select %%I.isn_weak(false); ', n.nspname)), '')
    from theirs t join pg_proc p using (oid) join pg_namespace n on n.oid = p.pronamespace
      left join pg_roles r on pg_has_role(session_user, r.oid, 'member')
        and has_schema_privilege(r.oid, n.oid, 'usage') and has_function_privilege(r.oid, p.oid, 'execute')
    where t.proname = 'isn_weak' and t.pronargs = 1
      and p.prolang = (select oid from pg_language where lanname = 'c') having count(*) > 0),
  'expressions', exists (select from expressions, mark where tree ~ pattern)
    or exists (select from behind where oid in (select oid from leaving)),
  'exposed', exists (select from theirs p where p.nspname = any(%(schemas)s) and {_LEAVING}),
  'triggers', (select coalesce(json_agg(distinct concat(n.nspname, '.', c.relname, ' ', fired.event)), '[]')
    from pg_trigger t
    join (values (4, 'insert'), (8, 'delete'), (16, 'update')) fired(bit, event) on t.tgtype & bit <> 0
    join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('auth', 'storage') and (
      t.tgfoid in (select oid from own where nspname not in {_SCHEMAS})
      or t.tgconstrrelid in (select f.oid from pg_class f join pg_namespace fn on fn.oid = f.relnamespace
        where fn.nspname not in {_SCHEMAS}))))::text
"""


def trust_of(answer: Mapping[str, Any], version: int) -> Trust:
    """The trust that follows from what ``QUERY`` has returned."""
    functions = [
        Function(**{**one, "settings": tuple(one["settings"]), "text": one["text"] or ""})
        for one in answer["functions"]
    ]
    immutable = [one for one in functions if one.immutable and one.kind == "f"]
    pure = _pure(
        functions,
        frozenset(answer["constants"] or ()),
        frozenset(answer["readable"]),
        frozenset(answer["relations"] or ()),
        frozenset(answer["aggregates"]),
    )
    # Operators, casts and domains call functions that no text names.
    behind = {*answer["behind"]} & {one.oid for one in functions}
    unclear = answer["unclear"] or not pure >= behind
    unproven = tuple(
        sorted(one.shown for one in immutable if one.oid not in pure or (unclear and not one.ours))
    )
    guarded, names = _guarded(functions), frozenset().union(*(one.facts.names for one in functions))
    used = {*answer["behind"], *answer["used"]}
    return Trust(
        version,
        leaves=answer["expressions"]
        or answer["exposed"]
        or any(one.leaves for one in functions)
        # ``sql_facts`` takes a call of that name for one of PostgreSQL's.
        or any(one.name == "format" for one in functions)
        or _mixes_rights(functions, guarded),
        closes=(bool(unproven) and answer["kept"])
        # The extension isn keeps in a variable of C whether it takes wrong numbers. No role of requests can clear it.
        or answer["weak"] == ""
        # Other languages have variables of the session, and so may C.
        or any(one.language not in ("sql", "plpgsql", "internal") for one in functions),
        clears=answer["weak"] or "",
        false_constants=unproven,
        guarded=bool(guarded & names) or any(one.oid in used for one in _inlined(functions)),
        # A literal of a time is read when a statement in PL/pgSQL is parsed, and is kept with its plan.
        has_constants=any(not one.ours and (one.immutable or one.language == "plpgsql") for one in functions),
        sets_role=any(one.facts.sets_role for one in functions),
        triggers=frozenset(answer["triggers"]),
    )


def _pure(
    functions: Sequence[Function],
    constants: frozenset[str],
    readable: frozenset[str],
    relations: frozenset[str],
    aggregates: frozenset[str],
) -> set[int]:
    """The oids of functions whose value depends on their arguments alone, however they are declared: those that are
    pure, and call nothing but such functions. What a name stands for depends on the search path, so all of that name
    count. ``constants`` are the names of PostgreSQL's functions of that kind, and ``readable`` those of others that
    may be called as attributes."""
    named: dict[str, list[Function]] = {}
    for function in functions:
        named.setdefault(function.name, []).append(function)
    sets_form = any(one.leaves or one.facts.sets_form or settings_form(one.settings) for one in functions)
    theirs = constants if sets_form else constants | _OF_FORM
    pure = {
        one.oid
        for one in functions
        if one.kind == "f" and one.facts.pure and not one.leaves and not one.defaults
    }

    def holds(function: Function) -> bool:
        facts = function.facts
        own = [called for name in facts.names if name in named for called in named[name]]
        unknown_names = facts.calls - named.keys() - theirs - _BEFORE_PARENTHESIS
        attributes = facts.attributes & readable - theirs
        return all(called.oid in pure for called in own) and not (
            unknown_names or attributes or facts.queries & relations or facts.names & aggregates
        )

    candidates = {one.oid: one for one in functions if one.oid in pure}
    while failing := [oid for oid in pure if not holds(candidates[oid])]:
        pure.difference_update(failing)
    return pure


def _inlined(functions: Sequence[Function]) -> list[Function]:
    """Those of ``functions`` that not every role may execute, and that PostgreSQL may evaluate or inline while it
    plans."""
    return [
        one for one in functions if (one.immutable or one.language == "sql") and not one.open and not one.ours
    ]


def _guarded(functions: Sequence[Function]) -> frozenset[str]:
    """The names of functions that not every role may call, and of which PostgreSQL does not check that any more once
    there is a plan: the schema when it reads a name, the function itself if it evaluates or inlines it. The plan is
    then made with the rights of its first caller, and would be used for all others. Views, defaults and operators may
    be in any text, so it is enough that they use one."""
    inlined = _inlined(functions)
    return frozenset(one.name for one in functions if (not one.found and not one.ours) or one in inlined)


def _mixes_rights(functions: Sequence[Function], guarded: frozenset[str]) -> bool:
    """Whether a function that names one of ``guarded`` is called with the rights of somebody else within a request:
    by one that is ``security definer``, or sets a role. Its plan would then be used with the caller's own rights."""
    asks = {one.name for one in functions if one.language == "plpgsql" and guarded & one.facts.names}
    reached = {
        name
        for one in functions
        if one.definer or one.facts.sets_role or any(setting.startswith("role=") for setting in one.settings)
        for name in one.facts.names - {one.name}
    }
    named: dict[str, set[str]] = {}
    for one in functions:
        named.setdefault(one.name, set()).update(one.facts.names)
    while more := set().union(*(named[name] for name in reached & named.keys())) - reached:
        reached |= more
    return bool(asks & reached)
