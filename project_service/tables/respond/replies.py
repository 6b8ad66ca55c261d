"""Makes the replies to reads, writes and calls."""

from __future__ import annotations

import re
from typing import Protocol
from urllib.parse import quote

from attrs import evolve

from project_service.errors import Headers, with_required
from project_service.http.outbound import Reply
from project_service.tables import errors
from project_service.tables.headers import VARY, as_utf8
from project_service.tables.parse.names import as_parameter
from project_service.tables.parse.request import Head, Request
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.media import Rendering
from project_service.tables.plan.write import WritePlan
from project_service.tables.respond.outcome import Outcome, headers_from_sql, status_from_sql
from project_service.tables.respond.ranges import content_range, status_of_range

# In characters. Clients and proxies refuse a response with a large head (nginx above 4 KiB), and this header is
# optional.
LONGEST_CONTENT_LOCATION = 2048
# Whether a text has only characters that are never escaped (RFC 3986 section 2.3).
_is_plain = re.compile(r"[A-Za-z0-9._~-]*").fullmatch
_COMMON = ("count", "handling", "timezone", "tx")
_CALLED = (*_COMMON, "max-affected")
_APPLIED = {
    "GET": _COMMON,
    "HEAD": _COMMON,
    "POST": (*_COMMON, "resolution", "missing", "return"),
    "PUT": (*_COMMON, "return"),
    "PATCH": (*_COMMON, "max-affected", "missing", "return"),
    "DELETE": (*_COMMON, "max-affected", "return"),
}


def check_outcome(request: Request, compiled: Answers, found: Outcome) -> None:
    """Refuses an outcome that must not be committed: raises PGRST103, 115, 116, 124 and 127. An EXPLAIN has no rows
    to check and passes."""
    plan, rendering = compiled.plan, compiled.rendering
    if rendering.explain is not None:
        return
    if plan is None:
        if rendering.form == "object" and found.rows != 1:
            raise errors.not_singular(found.rows)
        return
    most = request.head.preferences.max_affected
    if isinstance(plan, WritePlan):
        if plan.is_put and found.affected != 1:
            raise errors.put_mismatch()
        if found.chosen is not None and found.affected > found.chosen:
            raise errors.not_implemented("Several rows of the view have the primary key of one.")
        if plan.verb == "insert":
            most = None
    if most is not None and found.affected > most:
        raise errors.max_affected_exceeded(found.affected)
    selects = not isinstance(plan, CallPlan) or plan.routine.is_set
    rows = found.rows
    if isinstance(plan, WritePlan) and not plan.read.grouped:
        # Rows count that were written, even if an inner join keeps them out of the body.
        rows = rows if found.affected == 1 else found.affected
    if rendering.singular and selects and rows != 1:
        raise errors.not_singular(rows)
    if isinstance(plan, CallPlan) and plan.routine.is_set:
        status_of_range(request.range.offset, found.rows, found.total)


class Answers(Protocol):
    """What decides the form of a reply: ``plan`` is None for a read of a relation."""

    @property
    def plan(self) -> WritePlan | CallPlan | None: ...
    @property
    def rendering(self) -> Rendering: ...


def reply_to(request: Request, compiled: Answers, found: Outcome, path: str) -> Reply:
    """The reply in one piece; ``path`` is the resource's public path."""
    plan, rendering = compiled.plan, compiled.rendering
    if rendering.explain is not None:
        return Reply(200, (("Content-Type", rendering.content_type), VARY), found.body)
    if plan is None:
        return _read_reply(request, rendering, found, path)
    if isinstance(plan, WritePlan):
        return _write_reply(request, plan, rendering, found, path)
    return _call_reply(request, plan, rendering, found)


def _read_reply(request: Request, rendering: Rendering, found: Outcome, path: str) -> Reply:
    offset = request.range.offset
    headers: Headers = (("Content-Range", content_range(offset, found.rows, found.total)),)
    if request.head.kind != "routine":
        shown = content_location(request, path)
        if len(shown) <= LONGEST_CONTENT_LOCATION:
            headers += (("Content-Location", shown),)
    headers += (("Content-Type", rendering.content_type),)
    status = 200 if found.total is None else status_of_range(offset, found.rows, found.total)
    return _finished(request, found, status, headers, found.body)


def head_of_stream(request: Request, compiled: Answers, found: Outcome, path: str) -> Reply:
    """The reply that a stream begins with, without its body. Only if the total was asked for is it known how many
    rows there will be; otherwise there is no ``Content-Range``."""
    rows = 0
    if found.total is not None:
        rows = max(0, found.total - request.range.offset)
        rows = rows if request.range.limit is None else min(rows, request.range.limit)
    whole = _read_reply(request, compiled.rendering, evolve(found, rows=rows, body=b""), path)
    if found.total is not None:
        return whole
    kept = tuple(header for header in whole.headers if header[0] != "Content-Range")
    return evolve(whole, headers=kept)


def _call_reply(request: Request, plan: CallPlan, rendering: Rendering, found: Outcome) -> Reply:
    offset = request.range.offset if plan.routine.is_set else 0
    status = status_of_range(offset, found.rows, found.total)
    headers: Headers = (("Content-Range", content_range(offset, found.rows, found.total)),)
    if plan.routine.is_void:
        return _finished(request, found, 204, headers, b"")
    headers = (*headers, ("Content-Type", rendering.content_type))
    return _finished(request, found, status, headers, found.body)


def _write_reply(request: Request, plan: WritePlan, rendering: Rendering, found: Outcome, path: str) -> Reply:
    full = plan.representation == "representation"
    headers: Headers = _write_range(request, found)
    if found.location is not None:
        headers = (("Location", location(path, plan.location, found.location)), *headers)
    if full:
        headers = (*headers, ("Content-Type", rendering.content_type))
    body = found.body if full else b""
    return _finished(request, found, _write_status(request.head, plan, found), headers, body, plan)


def _write_status(head: Head, plan: WritePlan, found: Outcome) -> int:
    full = plan.representation == "representation"
    if head.method == "POST":
        merges = head.preferences.get("resolution") == "merge-duplicates"
        return 200 if merges and found.inserted == 0 else 201
    if not full:
        return 204
    return 201 if head.method == "PUT" and found.inserted else 200


def _write_range(request: Request, found: Outcome) -> Headers:
    # The rows written are known exactly, so an estimate is exact too. ``count=planned`` has no number for a write.
    total = found.rows if request.head.preferences.get("count") in ("exact", "estimated") else None
    if request.head.method == "PATCH":
        return (("Content-Range", content_range(0, found.rows, total)),)
    if request.head.method == "PUT":
        return ()
    return (("Content-Range", content_range(0, 0, total)),)


def _finished(
    request: Request,
    found: Outcome,
    status: int,
    headers: Headers,
    body: bytes,
    plan: WritePlan | None = None,
) -> Reply:
    """The reply, with the headers that all replies have. A status that SQL set replaces ``status``, and headers that
    SQL set replace those of the same name."""
    preferences = request.head.preferences
    if preferences.values:
        is_call = request.head.kind == "routine"
        applied = list(_CALLED if is_call else _APPLIED[request.head.method])
        if plan is not None and plan.merges is None and "resolution" in applied:
            applied.remove("resolution")
        headers += preferences.applied(applied)
    if request.head.profiled:
        headers += (("Content-Profile", as_utf8(request.head.schema)),)
    headers += (VARY,)
    if found.headers is None and found.status is None:
        return Reply(status, headers, body)
    said = headers_from_sql(found)
    names = {name.lower() for name, _ in said}
    kept = tuple(header for header in headers if header[0].lower() not in names)
    status = status_from_sql(found) or status
    return Reply(status, with_required(status, (*kept, *said)), body)


def deprecated_names(renamed: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """The ``Warning`` for a request that refers to an embedded relation by the relation's name although it gave it an
    alias. ``renamed`` are such (name, alias)."""
    changes = ", ".join(f"`{target}` to `{alias}`" for target, alias in renamed)
    text = (
        "Embedded resource was referenced by relation name even though it has an alias. "
        "This is deprecated and will stop working in a future release. "
        f"Update {changes} in query string filters, orders or limits."
    )
    shown = "".join(c for c in text if c.isprintable()).replace("\\", "").replace('"', "")
    return ("Warning", f'299 PostgRESTv16 "{shown}"')


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
