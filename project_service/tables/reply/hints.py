"""Hints for errors of missing rights (SQLSTATE 42501): the GRANT or the policy that is missing, or that the request
came without a user token. And for bodies that are JSON but do not say so.

PostgreSQL's message names what it refused, but neither the schema nor the right. So the catalogs are asked, in one
query after the request has failed. A hint says nothing of what the request does not name itself, such as a table that
only a function reads: for that it says that something behind the request uses it. Policies are never shown, only
whether there is one for the role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import orjson
import psycopg2
from attrs import frozen

from project_service.database.connection import DatabaseGone
from project_service.database.pool import Pool
from project_service.database.quoting import ident
from project_service.errors import ApiError
from project_service.tables.access import Identity
from project_service.tables.errors import TableError
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Compiled, Planned
from project_service.tables.reply.outcome import as_bytes
from project_service.tables.request.headers import FORM, parse_media
from project_service.tables.request.request import RawRequest
from project_service.tables.values import TablesConfig

INSUFFICIENT_PRIVILEGE = "42501"

Kind = Literal["relation", "sequence", "function", "schema", "policy", "role"]

# PostgreSQL's messages, in English: ``lc_messages`` in another language means no hints.
_MESSAGES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "relation",
        re.compile(r"permission denied for (?:table|view|materialized view|foreign table) (.+)", re.DOTALL),
    ),
    ("sequence", re.compile(r"permission denied for sequence (.+)", re.DOTALL)),
    ("function", re.compile(r"permission denied for (?:function|procedure|aggregate) (.+)", re.DOTALL)),
    ("schema", re.compile(r"permission denied for schema (.+)", re.DOTALL)),
    ("role", re.compile(r'permission denied to set role "(.+)"', re.DOTALL)),
    (
        "policy",
        re.compile(
            r'(?:new|target) row violates row-level security policy(?: ".*")?(?: \(USING expression\))?'
            r' for table "(.+)"',
            re.DOTALL,
        ),
    ),
)

# Each query returns one JSON object, or no row. ``object`` is for GRANT … ON, ``lacks`` are the needed rights that
# the caller's role has not, and ``partly`` those of them that it has for some columns. ``other`` says whether the
# role of signed-in users may do what the caller may not; it is null if there is no such role.
#
# Without a search path no function of the application is called in place of PostgreSQL's own.
_ANSWER = "set local search_path = ''; select jsonb_build_object('role', quote_ident(caller.rolname),"
_ROLES = (
    " from pg_catalog.pg_roles as caller"
    " left join pg_catalog.pg_roles as signed_in on signed_in.rolname = %(signed_in)s"
)
_IN_SCHEMA = (
    " join pg_catalog.pg_namespace as n on n.nspname = %(schema)s"
    " join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = %(name)s"
)
_LACKING = "from unnest(%(needed)s) as needed where not has_table_privilege({0}.oid, c.oid, needed)"
_QUERIES: Mapping[Kind, str] = {
    "relation": (
        f"{_ANSWER} 'object', format('%%I.%%I', n.nspname, c.relname),"
        f" 'lacks', array(select needed {_LACKING.format('caller')}),"
        f" 'partly', array(select needed {_LACKING.format('caller')}"
        " and case when needed <> 'DELETE' then has_any_column_privilege(caller.oid, c.oid, needed) end),"
        f" 'other', has_schema_privilege(signed_in.oid, n.oid, 'USAGE')"
        f" and not exists (select {_LACKING.format('signed_in')}))"
        f"{_ROLES}{_IN_SCHEMA} where caller.rolname = %(role)s"
    ),
    "sequence": (
        f"{_ANSWER} 'object', format('SEQUENCE %%I.%%I', n.nspname, c.relname),"
        " 'lacks', case when has_sequence_privilege(caller.oid, c.oid, 'USAGE') then '{}' else '{USAGE}'::text[] end,"
        " 'other', has_sequence_privilege(signed_in.oid, c.oid, 'USAGE'))"
        f"{_ROLES}{_IN_SCHEMA} and c.relkind = 'S' where caller.rolname = %(role)s"
    ),
    "function": (
        f"{_ANSWER} 'object', format('FUNCTION %%I.%%I(%%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)),"
        " 'lacks', array['EXECUTE'],"
        " 'other', has_schema_privilege(signed_in.oid, n.oid, 'USAGE')"
        " and has_function_privilege(signed_in.oid, p.oid, 'EXECUTE'))"
        f"{_ROLES} join pg_catalog.pg_namespace as n on n.nspname = %(schema)s"
        " join pg_catalog.pg_proc as p on p.pronamespace = n.oid and p.proname = %(name)s"
        " where caller.rolname = %(role)s and not has_function_privilege(caller.oid, p.oid, 'EXECUTE')"
        " order by p.oid limit 1"
    ),
    "schema": (
        f"{_ANSWER} 'object', format('SCHEMA %%I', n.nspname),"
        " 'lacks', case when has_schema_privilege(caller.oid, n.oid, 'USAGE') then '{}' else '{USAGE}'::text[] end,"
        " 'other', has_schema_privilege(signed_in.oid, n.oid, 'USAGE'))"
        f"{_ROLES} join pg_catalog.pg_namespace as n on n.nspname = %(name)s where caller.rolname = %(role)s"
    ),
    # ``lacks`` are the commands that no permissive policy allows the role.
    "policy": (
        f"{_ANSWER} 'object', format('%%I.%%I', n.nspname, c.relname),"
        " 'lacks', array(select needed from unnest(%(needed)s) as needed where not exists ("
        "select from pg_catalog.pg_policy as p where p.polrelid = c.oid and p.polpermissive"
        " and p.polcmd::text in ('*', case needed when 'SELECT' then 'r' when 'INSERT' then 'a' else 'w' end)"
        " and exists (select from unnest(p.polroles) as r"
        " where r = 0 or case when r <> 0 then pg_has_role(caller.oid, r, 'USAGE') end))))"
        f"{_ROLES}{_IN_SCHEMA} where caller.rolname = %(role)s"
    ),
}

_BEHIND = (
    "The request does not name it: a view, function, trigger or policy that the request uses needs a right on it "
    "that the role in which that runs lacks."
)


@frozen
class Hints:
    """Adds hints to the errors of one database."""

    config: TablesConfig
    pool: Pool

    async def add(
        self, error: TableError, incoming: RawRequest, planned: Planned, identity: Identity
    ) -> None:
        """Give ``error`` its hint, if there is something to say and it has none. It never raises: an error without a
        hint is better than another error."""
        shown = (
            self.config.error_hints and self.config.error_verbosity != "minimal" and incoming.method != "HEAD"
        )
        if error.code != INSUFFICIENT_PRIVILEGE or error.hint is not None or not shown:
            return
        refused = refused_by(error.message)
        if refused is None:
            return
        kind, name = refused
        caller = Caller(identity.role, not identity.authenticated, incoming.headers.bearer is not None)
        if kind == "role":
            error.hint = _membership(name)
            return
        needed = needed_for(kind, name, planned.compiled)
        if needed is None:
            error.hint = _BEHIND
            return
        # On a shared connection the request has left its slot to others.
        incoming.slot.retake()
        schema = planned.request.head.schema
        values = {
            "schema": schema,
            "name": name,
            "role": caller.role,
            "signed_in": self.config.authenticated_role,
            "needed": list(needed),
        }
        try:
            rows = await self.pool.query(_QUERIES[kind], values)
        except (psycopg2.Error, DatabaseGone, ApiError):
            return
        answer = orjson.loads(as_bytes(rows[0][0])) if rows else None
        if kind == "policy":
            error.hint = policy_hint(caller, answer, planned.compiled)
        else:
            error.hint = grant_hint(
                caller, answer, self.config.authenticated_role, kind == "schema" and name != schema
            )


def body_hint(error: TableError, incoming: RawRequest) -> str | None:
    """What to send, where a body was not read as JSON because of its Content-Type: text is what ``fetch()`` calls a
    string, and a form what ``curl -d`` calls everything."""
    if error.code == "PGRST102" and error.message.startswith("Content-Type not acceptable"):
        return "Send rows as JSON, with the header 'Content-Type: application/json'."
    if error.code == "PGRST204" and incoming.body.lstrip()[:1] in (b"{", b"["):
        given = dict(incoming.headers.pairs).get("content-type", "")
        if parse_media(given).name == FORM:
            return (
                "The body looks like JSON, but its Content-Type says that it is a form: send the header "
                "'Content-Type: application/json'."
            )
    return None


@frozen
class Caller:
    """The role that a request acted in, whether that is the anonymous one, and whether a user token came with it."""

    role: str
    anonymous: bool
    has_token: bool


def refused_by(message: str) -> tuple[Kind, str] | None:
    """What PostgreSQL's ``message`` is about, and its name without a schema. None for other messages, such as those
    of functions that raise this code themselves."""
    for kind, pattern in _MESSAGES:
        match = pattern.fullmatch(message)
        if match is not None:
            return kind, match[1]
    return None


def needed_for(kind: Kind, name: str, compiled: Compiled) -> tuple[str, ...] | None:
    """The rights that the request needs on what it was refused. None where it does not name that itself."""
    plan = compiled.plan
    written = plan if isinstance(plan, WritePlan) and plan.relation.name == name else None
    if kind == "policy":
        return None if written is None else _commands(written)
    if kind == "relation" and written is not None:
        return _rights(written)
    if kind == "relation":
        return ("SELECT",) if any(one == name for _, one in compiled.named) else None
    if kind == "function":
        return ("EXECUTE",) if any(one == name for _, one in compiled.named) else None
    if kind == "sequence":
        return ("USAGE",) if isinstance(plan, WritePlan) else None
    return ("USAGE",)


def _rights(plan: WritePlan) -> tuple[str, ...]:
    """The rights on the written relation, in the order in which GRANT's documentation lists them."""
    looks = plan.conditions or plan.returning or plan.everything or plan.conflict or not plan.limited.whole
    rights = ["SELECT"] if looks else []
    rights.append(plan.verb.upper())
    if plan.merges:
        rights.append("UPDATE")
    return tuple(rights)


def _commands(plan: WritePlan) -> tuple[str, ...]:
    """The commands whose policies the written row has to satisfy."""
    rights = _rights(plan)
    return tuple(one for one in ("INSERT", "UPDATE", "SELECT") if one in rights)


def _membership(role: str) -> str:
    return (
        "The role of the token has to be one that the service may act in: "
        f"GRANT {ident(role)} TO the role that the service connects as."
    )


def grant_hint(caller: Caller, answer: Any, signed_in: str, foreign_schema: bool = False) -> str:
    """The hint for a missing right. ``answer`` is what the query for the object returned, None if there is no such
    object in the request's schema; ``signed_in`` is the role of users with a token. ``foreign_schema``: it is a
    schema that the request does not name."""
    if answer is None or not answer["lacks"]:
        return _BEHIND
    partly = answer.get("partly", [])
    # What is missing altogether is what PostgreSQL refused; a right for some columns may be enough.
    lacks = [one for one in answer["lacks"] if one not in partly] or partly
    grant = f"GRANT {', '.join(lacks)} ON {answer['object']} TO {{}};"
    if caller.anonymous and answer["other"]:
        return (
            f"{_anonymous(caller)} The role {signed_in} has the right: send the access token of a signed-in user as "
            f"'Authorization: Bearer'. Or let everybody do it: {grant.format(answer['role'])}"
        )
    sentences = [_anonymous(caller)] if caller.anonymous else []
    if foreign_schema:
        sentences.append("Something that the request uses, such as a type or a function, is in that schema.")
    sentences.append(f"The right is missing: {grant.format(answer['role'])}")
    if lacks == partly:
        sentences.append("The role has it for some columns only, and the request needs others.")
    if caller.anonymous:
        sentences.append(f"To let signed-in users do it, grant it to {signed_in} instead.")
    return " ".join(sentences)


def policy_hint(caller: Caller, answer: Any, compiled: Compiled) -> str:
    """The hint for a row that row-level security refuses. ``answer`` is what the query for the table returned."""
    if answer is None:
        return _BEHIND
    sentences = [_anonymous(caller)] if caller.anonymous else []
    role, returns = (
        answer["role"],
        isinstance(compiled.plan, WritePlan) and compiled.plan.representation != "minimal",
    )
    for command in answer["lacks"]:
        clause = "USING" if command == "SELECT" else "WITH CHECK"
        sentences.append(
            f"No policy allows it: CREATE POLICY name ON {answer['object']} "
            f"FOR {command} TO {role} {clause} (condition);"
        )
    if not answer["lacks"]:
        sentences.append(
            "There are policies for the role, but the row does not satisfy their conditions. A column for the user's "
            "id has to be that of the token: declared as DEFAULT auth.uid() it need not be sent."
        )
    if returns and answer["lacks"] in ([], ["SELECT"]):
        sentences.append(
            "The policies FOR SELECT have to show the new row too, unless 'Prefer: return=minimal' is sent."
        )
    return " ".join(sentences)


def _anonymous(caller: Caller) -> str:
    if caller.has_token:
        return f"The user token has no role, so the request acted in the role {caller.role}."
    return f"No user token came with the request, so it acted in the role {caller.role}."
