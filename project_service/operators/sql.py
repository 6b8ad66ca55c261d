"""``/admin/sql``: whatever SQL an operator sends, run on a database of the table API with the rights of its DSN; and
the names in a database, for whoever completes them while SQL is typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import define, field, frozen
from twisted.logger import Logger

from project_service import audit
from project_service import errors as common
from project_service.audit import Rows
from project_service.database.connecting import Connector
from project_service.database.row_by_row import Report
from project_service.database.sql_runs import (
    MAX_BYTES,
    Explain,
    Fault,
    Limits,
    Outcome,
    Result,
    Script,
    run_script,
)
from project_service.errors import validation_failed
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
from project_service.http.json_body import FLAG, TEXT, Kind, body_of, member, whole
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import shielded
from project_service.operators import errors

TAG = "sql"
MAX_ROWS = 10_000
MAX_SECONDS = 600
# Texts that are run at the same time by one process: each has a connection of its own.
MAX_AT_ONCE = 4
# How many relations and functions are named.
MAX_NAMES = 5000

_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_PLACE: Schema = {"type": ["integer", "null"], "minimum": 1}
_NOTICE = Named(
    "SqlNotice",
    exactly(
        severity=STRING,
        sqlstate=STRING,
        message=STRING,
        detail=_TEXT_OR_NULL,
        hint=_TEXT_OR_NULL,
    ),
)
_RESULT = Named(
    "SqlResult",
    exactly(
        line={**COUNT, "description": "Where the statement begins in the text, from 1."},
        command={"type": "string", "description": 'PostgreSQL\'s command tag, such as "INSERT 0 1".'},
        columns={
            "type": ["array", "null"],
            "items": exactly(name=STRING, type={"type": "string", "description": 'Such as "numeric(10,2)".'}),
            "description": "null for a statement that returns no rows.",
        },
        rows=array(
            array(_TEXT_OR_NULL),
            description="Each value is the text that PostgreSQL writes, which is exact for every type.",
        ),
        row_count={
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "How many rows there were; null if the statement was ended once there were enough.",
        },
        truncated={"type": "boolean", "description": "Whether there are fewer `rows` than there were."},
        notices=array(_NOTICE),
        more_notices={**COUNT, "description": "How many there were beyond those."},
        milliseconds={"type": "number", "minimum": 0},
    ),
)
_FAULT = Named(
    "SqlFault",
    {
        **exactly(
            message=STRING,
            sqlstate={"type": "string", "description": "Empty for what the service itself refuses."},
            detail=_TEXT_OR_NULL,
            hint=_TEXT_OR_NULL,
            context=_TEXT_OR_NULL,
            statement_line={
                **_PLACE,
                "description": "Where the statement begins; null: at the end, by COMMIT.",
            },
            line={**_PLACE, "description": "Where in the text, from 1; null if PostgreSQL does not say."},
            column={**_PLACE, "description": "The character in the line, from 1."},
        ),
        "type": ["object", "null"],
    },
)
_OUTCOME = Named(
    "SqlOutcome",
    exactly(
        results=array(_RESULT, description="Of each statement, in their order."),
        error={"anyOf": [_FAULT]},
        one_transaction={"type": "boolean", "description": "Whether the text was one transaction."},
        undone={"type": "boolean", "description": "Whether a transaction was rolled back at the end."},
    ),
)
_ABOUT = f"""\
Only where `server.console_sql` is true. The text is run with the rights of the database's DSN, on a connection of \
its own that is closed afterwards, so no setting, role, temporary table or lock reaches anybody else, and no \
transaction goes on in the next request: one that is still open at the end is rolled back.

Several statements are one transaction, as with `project-service sql`. If the text begins or ends transactions by \
itself, or its first comment is `-- no transaction`, each statement is run as `psql -f` would run it, but the first \
error ends the text. COPY from or to the client is refused.

The status is 200 whenever the text was run: an error of SQL is in `error`, beside the results of the statements \
before it. A statement is run to its end, whatever `limit` says; with `read_only`, one that is alone is ended once \
there are enough rows. All values together may have about {MAX_BYTES >> 20} MiB; rows beyond that are left out, and \
a row of that size is refused. Who leaves before the response cancels the statement."""


def _read_explain(name: str, value: object) -> Explain:
    if isinstance(value, bool):
        return "plan" if value else "no"
    if value != "analyze":
        raise validation_failed({name: 'must be true, false or "analyze"'})
    return "analyze"


_EXPLAIN = Kind({"enum": [False, True, "analyze"]}, _read_explain)


@frozen
class Text:
    """The body of a request to run SQL."""

    stage: str = member(TEXT)
    database: str = member(TEXT)
    sql: str = member(TEXT)
    limit: int = member(
        whole(0, MAX_ROWS), default=1000, schema={"description": "How many rows of each result are returned."}
    )
    timeout_seconds: int = member(
        whole(1, MAX_SECONDS), default=30, schema={"description": "How long each statement may take."}
    )
    explain: Explain = member(
        _EXPLAIN,
        default="no",
        schema={
            "description": "The plan of the only statement, as JSON in its only row. `analyze` runs the statement "
            "and rolls it back."
        },
    )
    read_only: bool = member(
        FLAG, default=False, schema={"description": "Transactions are read-only, unless they say otherwise."}
    )


# By stage and name: what connects to the database.
Connectors = Mapping[tuple[str, str], Connector]


@frozen
class Audited:
    """Writes into the audit what was done on a database. ``now`` is in seconds since the epoch."""

    rows: Rows
    now: Callable[[], float]
    log = Logger()

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    # Shielded, since whoever did it may leave as soon as it is done.
    @shielded
    async def record(self, request: Request, subject: str, *, action: str, result: str = "ok") -> None:
        """What was done stays done if it cannot be recorded, so the log has to say that."""
        try:
            await audit.record(self.rows, audit.by_service(request, self.moment, action, subject, result))
        except Exception as fault:
            self.log.error(
                "{action} of {subject} could not be recorded in auth.audit: {why} id={request_id}",
                action=action,
                subject=subject,
                why=type(fault).__name__,
                request_id=request.request_id,
            )


# Where SQL on the database looks for names.
_PATH = "reset search_path; select pg_catalog.current_schemas(true)::pg_catalog.text[]"
# This statement looks only among PostgreSQL's own: what others have made may fit better.
_OWN_PATH = "set search_path = pg_catalog, pg_temp"
# Those that a statement can name, PostgreSQL's own functions apart, which are the same everywhere.
_NAMES = f"""
with first as materialized (
  select distinct on (c.relname) c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = any(%(path)s) order by c.relname, array_position(%(path)s, n.nspname::text)
)
select jsonb_build_object(
  'relations', (select coalesce(jsonb_agg(jsonb_build_object(
      'schema', r.nspname, 'name', r.relname, 'visible', r.oid in (select oid from first), 'columns', (
        select coalesce(jsonb_agg(a.attname order by a.attnum), '[]') from pg_attribute a
        where a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped))), '[]')
    from (select c.oid, c.relname, n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
          where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
            and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
          order by n.nspname, c.relname limit {MAX_NAMES}) as r),
  'functions', (select coalesce(jsonb_agg(jsonb_build_object(
      'schema', f.nspname, 'name', f.proname, 'visible', f.visible)), '[]')
    from (select n.nspname, p.proname, n.nspname = any(%(path)s) as visible
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
          where n.nspname <> 'information_schema' and n.nspname !~ '^pg_' and p.prorettype <> 'trigger'::regtype
          group by n.nspname, p.proname order by n.nspname, p.proname limit {MAX_NAMES}) as f),
  'types', (select coalesce(jsonb_agg(jsonb_build_object('schema', t.nspname, 'name', t.typname)), '[]')
    from (select n.nspname, t.typname from pg_type t join pg_namespace n on n.oid = t.typnamespace
          where t.typtype in ('e', 'd') and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
          order by n.nspname, t.typname limit {MAX_NAMES}) as t),
  'roles', (select coalesce(jsonb_agg(rolname order by rolname), '[]') from pg_roles where rolname !~ '^pg_')
)::text
"""  # noqa: S608  # a number of ours
_NAMED = exactly(schema=STRING, name=STRING, visible=BOOLEAN)
_RELATION = exactly(schema=STRING, name=STRING, visible=BOOLEAN, columns=array(STRING))
_IN_DATABASE = (
    in_path("stage", "The stage, as in the settings."),
    in_path("database", "Its name there."),
)


@define(eq=False)
class SqlRoutes:
    """``allowed`` is whether ``server.console_sql`` is true."""

    connectors: Connectors
    allowed: Callable[[], bool]
    clock: Callable[[], float]
    audited: Audited
    _running: int = field(default=0, init=False)

    @endpoint(
        "POST",
        "/admin/sql",
        Operation(
            "runSql",
            TAG,
            "Run SQL",
            (Answer(200, "What came of it", {JSON: _OUTCOME}),),
            body=body_of(Text),
            errors=(errors.console_sql_off(), errors.database_not_found(), common.overloaded()),
            details=_ABOUT,
        ),
    )
    async def run(self, request: Request) -> Reply:
        if not self.allowed():
            raise errors.console_sql_off()
        request.end_with_client()
        text = await request.read_json(Text)
        connect = find(self.connectors, text.stage, text.database)
        try:
            script = Script.of(text.sql, text.explain)
        except ValueError as fault:
            raise validation_failed({"sql": str(fault)}) from None
        if not script.statements:
            return json_reply(
                as_json(Outcome([], None, one_transaction=False, undone=False)), headers=(NO_STORE,)
            )
        if self._running >= MAX_AT_ONCE:
            raise common.overloaded()
        self._running += 1
        result = "cancelled"
        try:
            limits = Limits(text.limit, text.timeout_seconds)
            outcome = await run_script(connect, script, limits, text.read_only, self.clock)
            result = "ok" if outcome.fault is None else outcome.fault.report.sqlstate or "refused"
        finally:
            self._running -= 1
            # The text itself may hold passwords and rows.
            await self.audited.record(
                request, f"{text.stage}/{text.database}", action="run_sql", result=result
            )
        return json_reply(as_json(outcome), headers=(NO_STORE,))

    @endpoint(
        "GET",
        "/admin/databases/<stage>/<database>/names",
        Operation(
            "listNames",
            TAG,
            "The names that SQL on a database can use",
            (
                Answer(
                    200,
                    f"At most {MAX_NAMES} of each kind; `visible` are those that need no schema",
                    {
                        JSON: exactly(
                            relations=array(
                                exactly(schema=STRING, name=STRING, visible=BOOLEAN, columns=array(STRING))
                            ),
                            functions=array(_NAMED),
                            types=array(exactly(schema=STRING, name=STRING)),
                            roles=array(STRING),
                        )
                    },
                ),
            ),
            _IN_DATABASE,
            errors=(errors.database_not_found(),),
            details="Those of PostgreSQL itself are left out.",
        ),
    )
    async def names(self, request: Request) -> Reply:
        connect = find(self.connectors, request.path_args["stage"], request.path_args["database"])
        connection = await connect()
        try:
            ((path,),) = await connection.query(_PATH)
            await connection.query(_OWN_PATH)
            ((text,),) = await connection.query(_NAMES, {"path": path})
        finally:
            connection.close()
        return Reply(200, (("Content-Type", "application/json; charset=utf-8"), NO_STORE), text.encode())


def find(connectors: Connectors, stage: str, database: str) -> Connector:
    try:
        return connectors[stage, database]
    except KeyError:
        raise errors.database_not_found() from None


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "results": [_result(each) for each in outcome.results],
        "error": None if outcome.fault is None else _fault(outcome.fault),
        "one_transaction": outcome.one_transaction,
        "undone": outcome.undone,
    }


def _result(result: Result) -> dict[str, Any]:
    columns = None
    if result.columns is not None:
        types = result.types or [""] * len(result.columns)
        columns = [
            {"name": one.name, "type": type_} for one, type_ in zip(result.columns, types, strict=True)
        ]
    return {
        "line": result.line,
        "command": result.command,
        "columns": columns,
        "rows": result.rows,
        "row_count": result.row_count,
        "truncated": result.truncated,
        "notices": [_notice(each) for each in result.notices],
        "more_notices": result.more_notices,
        "milliseconds": round(result.seconds * 1000, 3),
    }


def _notice(report: Report) -> dict[str, Any]:
    return {
        "severity": report.severity,
        "sqlstate": report.sqlstate,
        "message": report.message,
        "detail": report.detail,
        "hint": report.hint,
    }


def _fault(fault: Fault) -> dict[str, Any]:
    report = fault.report
    return {
        "message": report.message,
        "sqlstate": report.sqlstate,
        "detail": report.detail,
        "hint": "\n".join(fault.hints) or None,
        "context": report.context,
        "statement_line": fault.statement,
        "line": fault.line,
        "column": fault.column,
    }
