"""Makes the replies to reads, writes and calls."""

from __future__ import annotations

import re
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
# The characters that are never escaped (RFC 3986 section 2.3).
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*")
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


def check_outcome(
    request: Request, plan: WritePlan | CallPlan | None, rendering: Rendering, found: Outcome
) -> None:
    """Refuses an outcome that must not be committed: raises PGRST103, 115, 116, 124 and 127. An EXPLAIN has no rows
    to check and passes. ``plan`` is None for a read."""
    if rendering.explain is not None:
        return
    most = request.head.preferences.max_affected
    if isinstance(plan, WritePlan):
        if plan.is_put and found.affected != 1:
            raise errors.put_mismatch()
        if found.chosen is not None and found.affected > found.chosen:
            raise errors.not_implemented("Several rows of the view have the primary key of one.")
        if plan.verb == "insert":
            most = None
    if most is not None and plan is not None and found.affected > most:
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


def reply_to(
    request: Request, plan: WritePlan | CallPlan | None, rendering: Rendering, found: Outcome, path: str
) -> Reply:
    """The reply in one piece. ``plan`` is None for a read; ``path`` is the resource's public path."""
    if rendering.explain is not None:
        return Reply(200, (("Content-Type", rendering.content_type), VARY), found.body)
    if isinstance(plan, WritePlan):
        return _write_reply(request, plan, rendering, found, path)
    if isinstance(plan, CallPlan):
        return _call_reply(request, plan, rendering, found)
    return _read_reply(request, rendering, found, path)


def _content_location(request: Request, path: str) -> Headers:
    if request.head.kind == "routine":
        return ()
    said = content_location(request, path)
    return (("Content-Location", said),) if len(said) <= LONGEST_CONTENT_LOCATION else ()


def _read_reply(request: Request, rendering: Rendering, found: Outcome, path: str) -> Reply:
    offset = request.range.offset
    status = status_of_range(offset, found.rows, found.total)
    headers = (
        ("Content-Range", content_range(offset, found.rows, found.total)),
        *_content_location(request, path),
        ("Content-Type", rendering.content_type),
    )
    return _finished(request, found, status, headers, found.body)


def head_of_stream(request: Request, rendering: Rendering, found: Outcome, path: str) -> Reply:
    """The reply that a stream begins with, without its body. Only if the total was asked for is it known how many
    rows there will be; otherwise there is no ``Content-Range``."""
    rows = 0
    if found.total is not None:
        rows = max(0, found.total - request.range.offset)
        rows = rows if request.range.limit is None else min(rows, request.range.limit)
    whole = _read_reply(request, rendering, evolve(found, rows=rows, body=b""), path)
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
    said = headers_from_sql(found)
    status = status_from_sql(found) or status
    is_call = request.head.kind == "routine"
    applied = list(_CALLED if is_call else _APPLIED[request.head.method])
    if plan is not None and plan.merges is None and "resolution" in applied:
        applied.remove("resolution")
    headers = (
        *headers,
        *request.head.preferences.applied(applied),
        *((("Content-Profile", as_utf8(request.head.schema)),) if request.head.profiled else ()),
        VARY,
    )
    if said:
        names = {name.lower() for name, _ in said}
        headers = (*(header for header in headers if header[0].lower() not in names), *said)
    return Reply(status, with_required(status, headers), body)


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
    query = "&".join(f"{_escaped(name)}={_escaped(value)}" for name, value in sorted(request.pairs))
    return f"{path}?{query}" if query else path


def location(path: str, names: tuple[str, ...], values: tuple[str | None, ...]) -> str:
    """The path and query that read one row: its primary key, ``names`` and ``values``, as filters."""
    pairs = zip(names, values, strict=True)
    filters = (
        f"{_escaped(as_parameter(name))}={'is.null' if value is None else 'eq.' + _escaped(value)}"
        for name, value in pairs
    )
    return f"{path}?{'&'.join(filters)}"


def _escaped(text: str) -> str:
    return text if _UNRESERVED.fullmatch(text) else quote(text, safe="-_.~")
