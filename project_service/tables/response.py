"""Makes the replies to reads, writes and calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol
from urllib.parse import quote

import orjson
from attrs import define, evolve, field, frozen

from project_service.errors import Headers, with_required
from project_service.http.response import Reply
from project_service.tables import errors
from project_service.tables.errors import as_utf8, is_header, settable, status_of
from project_service.tables.plan.call import CallPlan, unknown_routine
from project_service.tables.plan.media import Rendering
from project_service.tables.plan.names import find_relation
from project_service.tables.plan.write import WritePlan
from project_service.tables.request.request import READING, WRITING, Head, Request
from project_service.tables.request.scanning import as_parameter
from project_service.tables.values import Relation, SchemaCache
from project_service.whole_numbers import from_digits

# ``Content-Range`` and the statuses that go with it.


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


# Headers of the table API's responses: the one that all have, and the rules for those that SQL sets.


# On errors too, since they depend on these headers as much (PostgREST's reference, "Vary Header").
VARY = ("Vary", "Accept, Prefer, Range")


def read_utf8(value: bytes) -> str:
    """A request header as text: UTF-8 if it is valid, else Latin-1. RFC 9110 section 5.5 does not say which."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


# ``OPTIONS``: which methods a relation, a function or the root has.


def options_reply(cache: SchemaCache, head: Head) -> Reply:
    """The reply with ``Allow``. Raises PGRST202 and PGRST205 for what the schema cache does not have."""
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
    found = ["GET", "HEAD"]
    if relation.insertable:
        found.append("POST")
    if relation.insertable and relation.updatable and relation.primary_key:
        found.append("PUT")
    if relation.updatable:
        found.append("PATCH")
    if relation.deletable:
        found.append("DELETE")
    return found


# The one row that a statement returns, as a value.


@frozen
class Outcome:
    """What a statement returned (see ``sql.statement.Statement``).

    ``rows`` is the number of rows in the body, ``total`` the number without the range, if it was asked for. ``size``
    is the length of the body in bytes, also if it was left out because of that. If it is not ``whole``, there are
    more rows or bytes than are sent in one piece. ``written`` is the number of rows that were written, or that a
    function made, where the body may show fewer. ``chosen`` is how many a limited write was to affect, where it may
    have affected more. ``location`` is the primary key of an inserted row; ``headers`` and ``status`` are what SQL
    set for the response.
    """

    rows: int = 0
    total: int | None = None
    body: bytes = b""
    location: tuple[str | None, ...] | None = None
    headers: bytes | None = None
    status: bytes | None = None
    updated: int = 0
    size: int = 0
    whole: bool = True
    written: int | None = None
    chosen: int | None = None

    @property
    def affected(self) -> int:
        return self.rows if self.written is None else self.written

    @property
    def inserted(self) -> int:
        # Never negative: a trigger may drop a row after it was counted as updated.
        return max(0, self.affected - self.updated)


def outcome_of_read(row: Sequence[Any]) -> Outcome:
    """Of the statement's row, whose numbers may be texts."""
    total, rows, body, headers, status, *more = row
    return Outcome(
        int(rows),
        None if total is None else int(total),
        body if body.__class__ is bytes else as_bytes(body),
        None,
        headers if headers is None else as_bytes(headers),
        status if status is None else as_bytes(status),
        size=int(more[0] or 0) if more else 0,
        written=int(more[1]) if len(more) > 1 else None,
    )


def outcome_of_write(row: Sequence[Any]) -> Outcome:
    updated, rows, location, body, headers, status, *counted = row
    keys = tuple(orjson.loads(location)) if location is not None else None
    return Outcome(
        int(rows),
        None,
        as_bytes(body),
        keys,
        _optional(headers),
        _optional(status),
        int(updated) if updated else 0,
        written=int(counted[0]) if counted else None,
        chosen=int(counted[1]) if len(counted) > 1 else None,
    )


def as_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else bytes(value)


def _optional(value: Any) -> bytes | None:
    return None if value is None else as_bytes(value)


def headers_from_sql(outcome: Outcome) -> Headers:
    """The headers in ``response.headers``, a JSON array of objects with one member each. Raises PGRST111 for anything
    else."""
    if outcome.headers is None:
        return ()
    try:
        found = orjson.loads(outcome.headers)
    except ValueError:
        raise errors.invalid_response_headers() from None
    if not isinstance(found, list):
        raise errors.invalid_response_headers()
    headers = []
    for item in found:
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


# Measures the stages of a request.


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
        found = (f"{stage};dur={self._taken.get(stage, 0.0):.3f}" for stage in _STAGES)
        return ("Server-Timing", ", ".join(found))


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
