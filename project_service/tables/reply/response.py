"""Makes the replies to reads, writes and calls."""

from __future__ import annotations

import re
from time import perf_counter
from urllib.parse import quote

import orjson
from attrs import define, evolve, field

from project_service.errors import Headers, with_required
from project_service.http.response import Reply
from project_service.tables import errors
from project_service.tables.errors import VARY, is_header, settable, status_of
from project_service.tables.plan.call import CallPlan, unknown_routine
from project_service.tables.plan.names import find_relation
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Compiled
from project_service.tables.reply.outcome import Outcome
from project_service.tables.request.request import READING, WRITING, Head, Request
from project_service.tables.request.scanning import as_parameter
from project_service.tables.values import Relation, SchemaCache
from project_service.whole_numbers import from_digits


def content_range(offset: int, rows: int, total: int | None) -> str:
    known = "*" if total is None else str(total)
    return f"{offset}-{offset + rows - 1}/{known}" if rows else f"*/{known}"


def status_of_range(offset: int, rows: int, total: int | None) -> int:
    """200 for all rows, 206 for a part. Raises PGRST103 for a range that begins after the end."""
    if total is None:
        return 200
    if offset > total:
        details = f"An offset of {offset} was requested, but there are only {total} rows."
        raise errors.unsatisfiable_range(details, content_range(0, 0, total))
    return 206 if rows < total else 200


def read_utf8(value: bytes) -> str:
    """A request header as text: UTF-8 if it is valid, else Latin-1. RFC 9110 section 5.5 does not say which."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def options_reply(cache: SchemaCache, head: Head) -> Reply:
    """The reply to OPTIONS, with ``Allow``. Raises PGRST202 or PGRST205 if the schema cache does not have the
    function or relation."""
    return Reply(200, (_allow(_methods(cache, head)), ("Content-Type", "application/json"), VARY))


def other_methods(cache: SchemaCache, head: Head, only_reads: bool) -> tuple[str, str]:
    """``Allow`` for a 405 that the request's method and path do not deserve by themselves: the target's methods
    without the one that was refused. ``only_reads`` says that it was refused because it writes: if it was not a read,
    no other method may write either.

    Raises as ``options_reply``.
    """
    refused = set(READING if head.method in READING else (head.method,))
    if only_reads and head.method in WRITING:
        refused.update(WRITING if head.kind == "relation" else (*READING, *WRITING))
    return _allow([method for method in _methods(cache, head) if method not in refused])


def _allow(methods: list[str]) -> tuple[str, str]:
    return ("Allow", ",".join(["OPTIONS", *methods]))


def _methods(cache: SchemaCache, head: Head) -> list[str]:
    if head.kind == "root":
        return ["GET", "HEAD"]
    if head.kind == "routine":
        overloads = cache.routines.get((head.schema, head.name))
        if not overloads:
            raise unknown_routine(cache, head.schema, head.name)
        readable = any(routine.volatility != "v" for routine in overloads)
        return ["GET", "HEAD", "POST"] if readable else ["POST"]
    return _of_relation(find_relation(cache, head))


def _of_relation(relation: Relation) -> list[str]:
    methods = ["GET", "HEAD"]
    if relation.insertable:
        methods.append("POST")
    if relation.insertable and relation.updatable and relation.primary_key:
        methods.append("PUT")
    if relation.updatable:
        methods.append("PATCH")
    if relation.deletable:
        methods.append("DELETE")
    return methods


def headers_from_sql(outcome: Outcome) -> Headers:
    """The headers in ``response.headers``, a JSON array of objects with one member each. Raises PGRST111 for anything
    else."""
    if outcome.headers is None:
        return ()
    try:
        items = orjson.loads(outcome.headers)
    except ValueError:
        raise errors.invalid_response_headers() from None
    if not isinstance(items, list):
        raise errors.invalid_response_headers()
    headers = []
    for item in items:
        if not isinstance(item, dict) or len(item) != 1:
            raise errors.invalid_response_headers()
        ((name, value),) = item.items()
        if not is_header(name, value):
            raise errors.invalid_response_headers()
        headers.append((name, value))
    return settable(headers)


def status_from_sql(outcome: Outcome) -> int | None:
    """The status in ``response.status``. Raises PGRST112 if it is none."""
    if outcome.status is None:
        return None
    status = status_of(from_digits(outcome.status.decode()))
    if status is None:
        raise errors.invalid_response_status()
    return status


# Says that ``max_rows`` limited the response, and to how many rows.
MAX_ROWS = "X-Max-Rows"

_STAGES = ("jwt", "parse", "plan", "transaction", "response")


@define
class Timing:
    """How long each stage took, in milliseconds, for ``Server-Timing``.

    A stage that a request does not have took no time.
    """

    _taken: dict[str, float] = field(factory=dict, init=False)
    _since: float = field(factory=perf_counter, init=False)

    def mark(self, stage: str) -> None:
        """``stage`` has ended, and the next one begins."""
        now = perf_counter()
        self._taken[stage] = (now - self._since) * 1000
        self._since = now

    def header(self) -> tuple[str, str]:
        entries = (f"{stage};dur={self._taken.get(stage, 0.0):.3f}" for stage in _STAGES)
        return ("Server-Timing", ", ".join(entries))


# In characters. Clients and proxies refuse a response with a large head (nginx above 4 KiB), and this header is
# optional.
LONGEST_CONTENT_LOCATION = 2048
# Whether a text has only characters that are never escaped (RFC 3986 section 2.3).
_is_plain = re.compile(r"[A-Za-z0-9._~-]*").fullmatch


def check_outcome(request: Request, compiled: Compiled, outcome: Outcome) -> None:
    """Rejects an outcome that must not be committed: raises PGRST103, 115, 116, 124 and 127. An EXPLAIN has no rows
    to check and passes."""
    plan, rendering = compiled.plan, compiled.rendering
    if rendering.explain is not None:
        return
    if plan is None:
        if rendering.form == "object" and outcome.rows != 1:
            raise errors.not_singular(outcome.rows)
        return
    limit, rows = request.head.preferences.max_affected, outcome.rows
    if isinstance(plan, WritePlan):
        if plan.is_put and outcome.affected != 1:
            raise errors.put_mismatch()
        if outcome.chosen is not None and outcome.affected > outcome.chosen:
            raise errors.not_implemented("Several rows of the view have the primary key of one.")
        if plan.verb == "insert":
            limit = None
        if not plan.read.grouped and outcome.affected != 1:
            # Rows count that were written, even if an inner join keeps them out of the body.
            rows = outcome.affected
    if limit is not None and outcome.affected > limit:
        raise errors.max_affected_exceeded(outcome.affected)
    if isinstance(plan, CallPlan) and not plan.routine.is_set:
        return
    if rendering.singular and rows != 1:
        raise errors.not_singular(rows)
    if isinstance(plan, CallPlan):
        status_of_range(request.range.offset, outcome.rows, outcome.total)


def reply_to(request: Request, compiled: Compiled, outcome: Outcome, path: str) -> Reply:
    """The reply in one piece; ``path`` is the resource's public path. A status that SQL set replaces the usual one,
    and headers that SQL set replace those of the same name."""
    plan, status, headers, body = compiled.plan, 200, compiled.headers, outcome.body
    if compiled.rendering.explain is not None:
        return Reply(200, headers, body)
    if isinstance(plan, WritePlan):
        status, headers = (
            _status_of_write(request.head, plan, outcome),
            _write_range(request, outcome) + headers,
        )
        if outcome.location is not None:
            headers = (("Location", location(path, plan.location, outcome.location)), *headers)
        if plan.representation != "representation":
            body = b""
    else:
        offset, rows, total = request.range.offset, outcome.rows, outcome.total
        if plan is None:
            shown = content_location(request, path)
            if len(shown) <= LONGEST_CONTENT_LOCATION:
                headers = (("Content-Location", shown), *headers)
        else:
            offset = offset if plan.routine.is_set else 0
        if total is not None:
            status = status_of_range(offset, rows, total)
        if plan is not None and plan.routine.is_void:
            status, body = 204, b""
        headers = (("Content-Range", content_range(offset, rows, total)), *headers)
        if compiled.cut_at and rows == compiled.cut_at and (total is None or total > offset + rows):
            headers = ((MAX_ROWS, str(compiled.cut_at)), *headers)
    if outcome.headers is None and outcome.status is None:
        return Reply(status, headers, body)
    from_sql = headers_from_sql(outcome)
    names = {name.lower() for name, _ in from_sql}
    others = tuple(header for header in headers if header[0].lower() not in names)
    status = status_from_sql(outcome) or status
    return Reply(status, with_required(status, (*others, *from_sql)), body)


def head_of_stream(request: Request, compiled: Compiled, outcome: Outcome, path: str) -> Reply:
    """The reply that a stream begins with, without its body. Only if the total was asked for is it known how many
    rows there will be; otherwise there is no ``Content-Range``, and ``max_rows`` is named wherever it may cut."""
    rows = 0
    if outcome.total is not None:
        rows = max(0, outcome.total - request.range.offset)
        rows = rows if request.range.limit is None else min(rows, request.range.limit)
    reply = reply_to(request, compiled, evolve(outcome, rows=rows, body=b""), path)
    if outcome.total is not None:
        return reply
    limited = ((MAX_ROWS, str(compiled.cut_at)),) if compiled.cut_at else ()
    others = tuple(header for header in reply.headers if header[0] != "Content-Range")
    return evolve(reply, headers=(*limited, *others))


def _status_of_write(head: Head, plan: WritePlan, outcome: Outcome) -> int:
    if head.method == "POST":
        merges = head.preferences.get("resolution") == "merge-duplicates"
        return 200 if merges and outcome.inserted == 0 else 201
    if plan.representation != "representation":
        return 204
    return 201 if head.method == "PUT" and outcome.inserted else 200


def _write_range(request: Request, outcome: Outcome) -> Headers:
    if request.head.method == "PUT":
        return ()
    # The rows written are known exactly, so an estimate is exact too. ``count=planned`` has no number for a write.
    total = outcome.rows if request.head.preferences.get("count") in ("exact", "estimated") else None
    rows = outcome.rows if request.head.method == "PATCH" else 0
    return (("Content-Range", content_range(0, rows, total)),)


def content_location(request: Request, path: str) -> str:
    """The request's path and query, with the parameters sorted by name."""
    query = ""
    for name, value in sorted(request.pairs):
        query += (
            f"&{name if _is_plain(name) else _escaped(name)}={value if _is_plain(value) else _escaped(value)}"
        )
    return f"{path}?{query[1:]}" if query else path


def location(path: str, names: tuple[str, ...], values: tuple[str | None, ...]) -> str:
    """The path and query that read one row: its primary key, ``names`` and ``values``, as filters."""
    pairs = zip(names, values, strict=True)
    filters = (
        f"{_escaped(as_parameter(name))}={'is.null' if value is None else 'eq.' + _escaped(value)}"
        for name, value in pairs
    )
    return f"{path}?{'&'.join(filters)}"


def _escaped(text: str) -> str:
    return quote(text, safe="-_.~")
