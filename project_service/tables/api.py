"""One database's table API: from a request to its reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from attrs import evolve, field, frozen
from werkzeug.http import parse_etags

from project_service.errors import ApiError, Headers, has_header
from project_service.http.caller import presented_key
from project_service.http.cors import TABLE_EXPOSED
from project_service.http.describe import (
    COUNT,
    JSON,
    STRING,
    Answer,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    in_header,
    in_path,
)
from project_service.http.head import HeaderView
from project_service.http.request import Request, parse_query
from project_service.http.response import NO_STORE, Reply, Sink, StreamReply
from project_service.http.routing import Router
from project_service.lifecycle import InThread
from project_service.tables import errors
from project_service.tables.access import Identities, Identity
from project_service.tables.bounded_cache import BoundedCache
from project_service.tables.errors import (
    TableError,
    anonymous_disabled,
    invalid_claims,
    no_jwt_secret,
    undecodable_token,
)
from project_service.tables.execution import Executor, Row
from project_service.tables.failures import READ_ONLY, from_sqlstate
from project_service.tables.openapi import document, public_url, rights_sql
from project_service.tables.planner import Planned, Planner
from project_service.tables.request import headers
from project_service.tables.request import headers as request_headers
from project_service.tables.request.body import slow_to_read
from project_service.tables.request.request import (
    READING,
    WRITING,
    Head,
    RawRequest,
    RequestHeaders,
    payload_of,
)
from project_service.tables.response import (
    VARY,
    Timing,
    as_bytes,
    as_utf8,
    deprecated_names,
    options_reply,
    other_methods,
    read_utf8,
    reply_to,
)
from project_service.tables.schema_cache import CacheHolder, Freshness
from project_service.tables.settings import preamble_of, preamble_of_head
from project_service.tables.sql.fragment import Sql
from project_service.tables.stream import LargeReplies
from project_service.tables.values import SchemaCache, TablesConfig

# The errors that ``/openapi.json`` lists for the routes of the table API, by what a route does.


def _sqlstate(code: str, message: str, authenticated: bool = True) -> ApiError:
    return from_sqlstate(code, message, None, None, authenticated)


ANY_REQUEST: tuple[ApiError, ...] = (
    errors.unreadable("…", 1, "…"),
    errors.invalid_preferences([]),
    errors.unacceptable_schema("…", ()),
    errors.invalid_path(),
    undecodable_token("…"),
    anonymous_disabled(),
    invalid_claims("…"),
    no_jwt_secret(),
    errors.method_not_allowed("…", ()),
    errors.database_away(),
    errors.database_unreachable(),
    errors.schema_cache_missing(),
    errors.pool_timeout(),
    errors.invalid_response_headers(),
    errors.invalid_response_status(),
    errors.unreadable_raise("…", "…"),
    _sqlstate("42501", "The role lacks a right (a role that a token claims, or the service's).", True),
    _sqlstate("42501", "The role lacks a right (nobody is signed in).", False),
    _sqlstate("22023", 'role "…" does not exist'),
    _sqlstate("25006", "The transaction is read-only."),
    _sqlstate("22P02", "A value is not of its column's type; other data exceptions likewise."),
    _sqlstate("57014", "The statement took longer than it may."),
)
SELECTING: tuple[ApiError, ...] = (
    errors.unsatisfiable_range("…"),
    errors.unacceptable_media([]),
    errors.not_singular(2),
    errors.not_embedded("…"),
    errors.related_order("…", "…"),
    errors.not_a_null_filter("…"),
    errors.aggregates_disabled(),
    errors.not_implemented("…"),
    errors.no_relationship("…", "…", None, "…", None),
    errors.ambiguous_relationship("…", "…", [], "…"),
    errors.no_column("…", "…"),
    errors.unknown_column("…", "…"),
    errors.same_name("…"),
    errors.name_too_long("…", 63),
    errors.statement_too_large(1),
    _sqlstate("42883", "There is no such operator for these types."),
)
ON_RELATION: tuple[ApiError, ...] = (errors.no_table("…", "…", None), *SELECTING)
CHANGING: tuple[ApiError, ...] = (
    errors.max_affected_exceeded(2),
    _sqlstate("23001", "A foreign key with RESTRICT does not allow it (PostgreSQL 18)."),
    _sqlstate("23503", "A foreign key does not allow it."),
    _sqlstate("23505", "A row with that key is there already."),
    _sqlstate(
        "23P01", "A row that an exclusion constraint or a key WITHOUT OVERLAPS excludes is there already."
    ),
    _sqlstate("23502", "A column must not be null; other constraints likewise."),
)
FILTERED = (errors.unfiltered_write("PATCH"), errors.limit_without_order())
CALLING: tuple[ApiError, ...] = (
    errors.routine_method("…", ()),
    errors.no_routine("…", "…", None),
    errors.ambiguous_routine([]),
    errors.max_affected_needs_rows(),
    *SELECTING,
    *CHANGING,
)


# What ``/openapi.json`` says of the table API: the paths every database has, and nothing of what is in one.


TAG = "tables"
BASE = "/{stage}/db/{database}/rest"
_OPEN_ENDED = (
    "What a function, a trigger or a policy of the database says: it may set any status, headers and body."
)

ROW: Schema = {"type": "object"}
ROWS = array(ROW)
_PLACE = (
    in_path("stage", "A stage of the configuration."),
    in_path("database", "One of its databases."),
)
RELATION = (*_PLACE, in_path("relation", "A table or view."))
ROUTINE = (*_PLACE, in_path("function", "A function."))

SELECT = Parameter("select", "Columns, embedded relations and aggregates to return; * by default.")
ORDER = Parameter(
    "order", "Order terms: column.asc or .desc, .nullsfirst or .nullslast, separated by commas."
)
LIMIT = Parameter("limit", "The greatest number of rows.", COUNT)
OFFSET = Parameter("offset", "How many rows to skip.", COUNT)
COLUMNS = Parameter("columns", "The members of the payload to take; others are ignored.")
FILTERS = Parameter(
    "filters",
    "Any other parameter is a horizontal filter: a column with operator.value; and, or, not with a logic tree.",
    {"type": "object", "additionalProperties": STRING},
)
ARGUMENTS = evolve(FILTERS, name="arguments", summary="The function's arguments, and filters on its result.")
PREFER = in_header(
    "Prefer", "Preferences (RFC 7240): return, count, resolution, missing, handling, timezone and so on."
)
READS = in_header("Accept-Profile", "The exposed schema; the first one by default.")
WRITES = in_header("Content-Profile", "The exposed schema; the first one by default.")
RANGE = in_header("Range", "Rows by position, as 0-24: another way to say offset and limit.")


_REPRESENTED: Mapping[str, Schema] = {
    JSON: ROWS,
    headers.OBJECT: ROW,
    headers.ARRAY: ROWS,
    headers.CSV: STRING,
    headers.NDJSON: STRING,
    headers.GEOJSON: ROW,
    headers.OCTETS: {},
    headers.TEXT: STRING,
    headers.XML: STRING,
    f"{headers.PLAN}+json": {},
    f"{headers.PLAN}+text": STRING,
}
_READ_HEADERS = {
    "Content-Range": "Which rows these are, and of how many where that was asked for.",
    "Content-Location": "The request with its parameters in order.",
    "Preference-Applied": "The preferences that were heeded.",
}
_WRITE_HEADERS = {name: _READ_HEADERS[name] for name in ("Content-Range", "Preference-Applied")}


def _rows(status: int, summary: str, headers: Mapping[str, str] = _WRITE_HEADERS, **more: Any) -> Answer:
    return Answer(status, summary, {**_REPRESENTED, **more}, headers)


_SENT: Mapping[str, Schema] = {
    JSON: {"anyOf": [ROW, ROWS]},
    headers.CSV: STRING,
    headers.FORM: {"type": "object", "additionalProperties": STRING},
}
_ROWS_SENT = RequestBody(_SENT, required=False, summary="Without Content-Type it is JSON.")
_ONE_ROW = evolve(_ROWS_SENT, content={**_SENT, JSON: ROW})
READ = Operation(
    "readRows",
    TAG,
    "Read rows",
    (
        _rows(200, "Every row, or those of the range where their total was not asked for", _READ_HEADERS),
        _rows(206, "Some of the rows", _READ_HEADERS),
    ),
    (*RELATION, SELECT, ORDER, LIMIT, OFFSET, FILTERS, READS, PREFER, RANGE),
    errors=(*ANY_REQUEST, *ON_RELATION),
    methods=("GET", "HEAD"),
    path=f"{BASE}/{{relation}}",
    reads_bearer=True,
    open_ended=_OPEN_ENDED,
)
INSERT = evolve(
    READ,
    name="insertRows",
    summary="Insert one row or many, or upsert them",
    answers=(
        _rows(
            201,
            "The rows were inserted; they are in the body with Prefer: return=representation",
            {**_WRITE_HEADERS, "Location": "A request that reads the one row."},
        ),
        _rows(200, "Rows that were there already have been updated, and none is new"),
    ),
    parameters=(
        *RELATION,
        SELECT,
        COLUMNS,
        Parameter("on_conflict", "The columns by which an upsert finds a row; the primary key by default."),
        WRITES,
        PREFER,
    ),
    body=_ROWS_SENT,
    errors=(*ANY_REQUEST, *ON_RELATION, *CHANGING, errors.invalid_body("…")),
    methods=("POST",),
)
_CHANGED = (
    Answer(204, "It is done.", headers=_WRITE_HEADERS),
    _rows(200, "The rows as they are now, with Prefer: return=representation"),
)
_CHANGED_ROWS = (*RELATION, SELECT, ORDER, LIMIT, OFFSET, FILTERS, WRITES, PREFER)
UPDATE = evolve(
    INSERT,
    name="updateRows",
    summary="Update the rows that match the filters",
    details='Without a filter it is refused, unless the database says unfiltered_writes = "allow".',
    answers=_CHANGED,
    parameters=(*_CHANGED_ROWS, COLUMNS),
    body=_ONE_ROW,
    errors=(*INSERT.errors, *FILTERED),
    methods=("PATCH",),
)
UPSERT = evolve(
    INSERT,
    name="upsertRow",
    summary="Insert or replace the one row whose primary key the filters name",
    answers=(*_CHANGED, _rows(201, "The row is new.")),
    parameters=(*RELATION, SELECT, COLUMNS, FILTERS, WRITES, PREFER),
    body=_ONE_ROW,
    errors=(
        *INSERT.errors,
        errors.invalid_upsert_filters(),
        errors.put_with_range(),
        errors.put_mismatch(),
    ),
    methods=("PUT",),
)
REMOVE = evolve(
    UPDATE,
    name="deleteRows",
    summary="Delete the rows that match the filters",
    answers=(_CHANGED[0], _rows(200, "The rows as they were, with Prefer: return=representation")),
    parameters=_CHANGED_ROWS,
    body=None,
    errors=(*ANY_REQUEST, *ON_RELATION, *CHANGING, *FILTERED),
    methods=("DELETE",),
)
_RESULT = (
    _rows(200, "What the function returned", **{"*/*": {}, JSON: {}}),
    _rows(206, "Some of the rows that it returned", **{"*/*": {}, JSON: {}}),
    Answer(204, "The function returns nothing."),
)
CALL = evolve(
    READ,
    name="callFunction",
    summary="Call a function that does not write, with arguments from the query",
    answers=_RESULT,
    parameters=(*ROUTINE, SELECT, ORDER, LIMIT, OFFSET, ARGUMENTS, READS, PREFER, RANGE),
    errors=(*ANY_REQUEST, *CALLING),
    path=f"{BASE}/rpc/{{function}}",
)
CALL_WITH_BODY = evolve(
    CALL,
    name="callFunctionWithBody",
    summary="Call a function with arguments from the body",
    parameters=(*ROUTINE, SELECT, ORDER, LIMIT, OFFSET, COLUMNS, FILTERS, WRITES, PREFER),
    body=RequestBody(
        {**_SENT, JSON: {}, headers.OCTETS: {}, headers.TEXT: STRING, headers.XML: STRING},
        required=False,
        summary="An object of arguments, or what the function's single unnamed argument takes.",
    ),
    errors=(*CALL.errors, errors.invalid_body("…")),
    methods=("POST",),
)
ROOT = evolve(
    READ,
    name="describeDatabase",
    summary="The description of what the caller may use in the database, in OpenAPI's form",
    answers=(
        Answer(200, "OpenAPI 2.0", {headers.OPENAPI: ROW, JSON: ROW}, {"ETag": "Differs after any change."}),
        Answer(304, "The description is the one that If-None-Match names"),
    ),
    parameters=(*_PLACE, READS, PREFER, in_header("If-None-Match", "304 if the description is this one.")),
    errors=(*ANY_REQUEST, errors.unacceptable_media([]), errors.root_disabled()),
    path=BASE,
)
_ALLOWED = (Answer(200, "Allow names the methods", headers={"Allow": "The methods that the target has."}),)
_PREFLIGHT = evolve(READ, answers=_ALLOWED, methods=("OPTIONS",))
RELATION_OPTIONS = evolve(
    _PREFLIGHT,
    name="relationOptions",
    summary="What may be done with a relation",
    parameters=(*RELATION, READS),
    errors=(*ANY_REQUEST, errors.no_table("…", "…", None)),
)
ROUTINE_OPTIONS = evolve(
    _PREFLIGHT,
    name="functionOptions",
    summary="How a function may be called",
    parameters=(*ROUTINE, READS),
    errors=(*ANY_REQUEST, errors.no_routine("…", "…", None)),
    path=CALL.path,
)
ROOT_OPTIONS = evolve(
    _PREFLIGHT,
    name="databaseOptions",
    summary="What may be done with the root",
    parameters=(*_PLACE, READS),
    errors=ANY_REQUEST,
    path=BASE,
)

AT_ROOT = (ROOT, ROOT_OPTIONS)
BELOW = (READ, INSERT, UPDATE, UPSERT, REMOVE, RELATION_OPTIONS, CALL, CALL_WITH_BODY, ROUTINE_OPTIONS)


# The root of a database's table API: its OpenAPI description, or the result of a function of the database.


RunReadOnly = Callable[[Sql], Awaitable[list[Row]]]
_NOTHING = Sql("SELECT 1")
# How many descriptions are kept: for a few roles, schemas and addresses. One of a thousand tables has two megabytes.
_KEPT = 8


@frozen
class Description:
    body: bytes = field(repr=False)
    etag: str

    @classmethod
    def of(cls, body: bytes) -> Description:
        return cls(body, sha256(body).hexdigest()[:32])


@frozen
class Root:
    """``in_thread`` runs what makes the description in a thread: for a thousand tables it takes most of a second.

    Descriptions are kept. Which one is sent follows from what the caller may use at that moment, which PostgreSQL is
    asked each time: a GRANT to a role changes no table.
    """

    config: TablesConfig
    in_thread: InThread
    _kept: BoundedCache[Description] = field(factory=lambda: BoundedCache[Description](_KEPT), init=False)

    def delegated(self, head: Head) -> Head | None:
        """The head for a call of the function that answers here instead, if ``root_spec`` names one. A name without a
        schema means the request's schema."""
        if self.config.root_spec is None:
            return None
        schema, _, name = self.config.root_spec.rpartition(".")
        return evolve(head, kind="routine", schema=schema or head.schema, name=name)

    async def answer(
        self, cache: SchemaCache, incoming: RawRequest, head: Head, run: RunReadOnly
    ) -> Reply | StreamReply:
        """The description, or 304 if the caller has it. Raises PGRST107 and PGRST126, and what ``run`` raises.

        ``run`` runs a query as the caller. There always is one, so that the database, or the pre-request function,
        can refuse the caller.
        """
        if self.config.openapi == "disabled":
            raise errors.root_disabled()
        profile = (("Content-Profile", as_utf8(head.schema)),) if head.profiled else ()
        content_type = _content_type(head)
        follows = self.config.openapi == "follow-privileges"
        rights = (await run(rights_sql(head.schema) if follows else _NOTHING))[0]
        description = await self._described(
            cache, head.schema, self._url(incoming), rights if follows else None
        )
        # The same bytes are another representation where they have another media type.
        etag = f"{description.etag}-{'json' if content_type.startswith(request_headers.JSON) else 'openapi'}"
        headers = (*profile, ("ETag", f'"{etag}"'), VARY)
        if _has(incoming, etag):
            return StreamReply(304, headers, None, nothing)
        headers = (("Content-Type", content_type), *headers)
        if head.method == "HEAD":
            return StreamReply(200, headers, None, nothing)
        return Reply(200, headers, description.body)

    async def _described(self, cache: SchemaCache, schema: str, url: str, rights: Row | None) -> Description:
        """``rights`` are the row of ``rights_sql``; None means all."""
        texts = [as_bytes(names) for names in rights] if rights is not None else []
        key = (cache.version, schema, url, sha256(b"\0".join(texts)).digest() if texts else None)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        usable, callable_ = (frozenset(orjson.loads(text)) for text in texts) if texts else (None, None)
        secured = self.config.openapi_security_active

        def made() -> Description:
            return Description.of(orjson.dumps(document(cache, schema, url, usable, callable_, secured)))

        description = await self.in_thread(made)
        return self._kept.made(key, lambda: description)

    def _url(self, incoming: RawRequest) -> str:
        """The URL at which clients reach the root."""
        said = self.config.openapi_server_proxy_uri
        return public_url(said) if said is not None else incoming.base_url + incoming.path.rstrip("/")


def _content_type(head: Head) -> str:
    for wanted in head.accept:
        if wanted.refused:
            continue
        if wanted.name in (request_headers.ANY, request_headers.OPENAPI):
            return request_headers.MediaType(request_headers.OPENAPI).content_type
        if wanted.name == request_headers.JSON:
            return wanted.content_type
    raise errors.unacceptable_media([wanted.shown for wanted in head.accept])


def _has(incoming: RawRequest, etag: str) -> bool:
    """Whether the caller already has the representation with this tag (RFC 9110 section 13.1.2)."""
    stated = ", ".join(value for name, value in incoming.headers.pairs if name == "if-none-match")
    return bool(stated) and parse_etags(stated).contains_weak(etag)


async def nothing(sink: Sink) -> None:
    """Writes no body, for a HEAD, whose length is not worked out either."""


# The errors for something that the schema cache does not have: a handler of a media type, a relationship, a function,
# a column, a relation.
_MISSES = ("PGRST107", "PGRST200", "PGRST202", "PGRST204", "42703", "PGRST205")

# The segments of the path of the root.
_ROOT = ((), ("",))

R = TypeVar("R", Reply, StreamReply, Reply | StreamReply)


@frozen
class TableService:
    """Answers requests to one database. Raises ``TableError`` for everything that is not a success."""

    config: TablesConfig
    holder: CacheHolder
    identities: Identities
    planner: Planner
    freshness: Freshness
    executor: Executor
    root: Root
    large: LargeReplies
    in_thread: InThread

    def finish_error(self, fault: TableError, incoming: RawRequest) -> None:
        """Give ``fault``, which ``answer`` raised, the headers and the form that all errors of this database have."""
        fault.terse = self.config.error_verbosity == "minimal"
        # A cache that kept a 404 would hide a table that is created a moment later.
        added = (VARY, NO_STORE, *self._allow(incoming, fault.status, fault.code))
        fault.headers += tuple(one for one in added if not has_header(fault.headers, one[0]))

    def _allow(self, incoming: RawRequest, status: int, code: str = "") -> Headers:
        """``Allow`` for a 405 that comes from the plan or from SQL. Without the schema cache's relation or function
        there is none, and the edge has to name the methods."""
        if status != 405:
            return ()
        try:
            head = self.planner.head(incoming)
            return (other_methods(self.holder.current, head, code == READ_ONLY),)
        except TableError:
            return ()

    async def answer(self, incoming: RawRequest) -> Reply | StreamReply:  # noqa: PLR0912  # the whole way on one page
        """authenticate -> parse -> plan -> statement -> run -> reply"""
        timing = Timing() if self.config.server_timing else None
        identity = self.identities.identify(incoming.headers, incoming.is_service)
        if timing:
            timing.mark("jwt")
        delegated = None
        if incoming.method == "OPTIONS" or incoming.segments in _ROOT:
            head, cache = self.planner.head(incoming), self.holder.current
            if head.method == "OPTIONS":
                return _timed(options_reply(cache, head), timing)
            delegated = self.root.delegated(head)
            if delegated is None:
                return await self._root(incoming, head, identity, cache, timing)
        shape, operands = self.planner.shape(incoming, delegated)
        cache, payload = self.holder.cache or self.holder.current, None
        if incoming.method in WRITING:
            read = partial(payload_of, shape.head, shape.query, incoming.body)
            slow = slow_to_read(shape.head.content_type, incoming.body)
            payload = await self.in_thread(read) if slow else read()
        if timing:
            timing.mark("parse")
        try:
            planned = self.planner.plan(cache, shape, incoming.pairs, payload, operands)
        except TableError as fault:
            # What the schema cache lacks may have been created since, so a newer one is tried.
            newer = await self.freshness.newer(cache) if fault.code in _MISSES else None
            if newer is None:
                raise
            cache, planned = newer, self.planner.plan(newer, shape, incoming.pairs, payload, operands)
        if timing:
            timing.mark("plan")
        preamble = preamble_of(self.config, cache, incoming.headers, planned, identity)
        reply = None
        if planned.compiled.last.streamed and self.large.expected(planned):
            reply = await self.large.at_once(incoming.path, planned, preamble, incoming.resource)
        if reply is None:
            outcome = await self.executor.execute(planned, preamble, incoming.resource, incoming.slot)
            reply = (
                reply_to(planned.request, planned.compiled, outcome, incoming.path)
                if outcome.whole
                else await self.large.after(incoming, planned, outcome, preamble)
            )
        if incoming.method == "HEAD" or planned.compiled.renamed or reply.status == 405:
            reply = self._finished(reply, incoming, planned)
        if timing:
            timing.mark("transaction")
            reply = _timed(reply, timing)
        return reply

    def _finished(
        self, reply: Reply | StreamReply, incoming: RawRequest, planned: Planned
    ) -> Reply | StreamReply:
        if incoming.method == "HEAD":
            reply = StreamReply(reply.status, reply.headers, None, nothing)
        if planned.compiled.renamed:
            reply = evolve(reply, headers=(*reply.headers, deprecated_names(planned.compiled.renamed)))
        if reply.status == 405 and not has_header(reply.headers, "Allow"):
            reply = evolve(reply, headers=(*reply.headers, *self._allow(incoming, reply.status)))
        return reply

    async def _root(
        self, incoming: RawRequest, head: Head, identity: Identity, cache: SchemaCache, timing: Timing | None
    ) -> Reply | StreamReply:
        preamble = preamble_of_head(self.config, cache, incoming.headers, head, identity)
        leaves_things = cache.leaves_things and self.config.pre_request is not None
        if timing:
            timing.mark("plan")

        async def run(sql: Sql) -> list[Row]:
            return await self.executor.read(preamble, incoming.resource, sql, leaves_things)

        reply = await self.root.answer(cache, incoming, head, run)
        if timing:
            timing.mark("transaction")
        return _timed(reply, timing)


def _timed(reply: R, timing: Timing | None) -> R:
    if timing is None:
        return reply
    timing.mark("response")
    return evolve(reply, headers=(*reply.headers, timing.header()))


# The table API's routes: ``/{stage}/db/{database}/rest`` and everything below.


_BASE = "/<stage>/db/<database>/rest"


@frozen
class TableRoutes:
    """``services`` by stage and database."""

    services: Mapping[tuple[str, str], TableService]

    def mount(self, router: Router) -> None:
        at_root = (*READING, "OPTIONS")
        for url, said, methods in (
            (_BASE, AT_ROOT, at_root),
            (f"{_BASE}/<path:below>", BELOW, (*at_root, *WRITING)),
        ):
            # Other methods come to the handler too, so that they are refused as PostgREST does it.
            router.route(url, *said, methods=methods, any_method=True, bearer="own", errors="tables")(
                self.answer
            )

    async def answer(self, request: Request) -> Reply | StreamReply:
        service = self.services.get((request.path_args["stage"], request.path_args["database"]))
        if service is None:
            raise errors.invalid_path()
        is_service = request.caller.key == "service"
        incoming = RawRequest(
            request.method,
            *_resource(request.raw_path),
            # PostgREST ignores a name without ``=``.
            tuple(parse_query(request.raw_query, bare_names=False)),
            request.headers.derived(_sent),
            await request.read(request.max_json_bytes) if request.method in WRITING else b"",
            request.raw_path.decode("latin-1"),
            request.base_url,
            is_service,
            request.slot,
        )
        try:
            reply = await service.answer(incoming)
        except TableError as fault:
            service.finish_error(fault, incoming)
            raise
        if is_service and not has_header(reply.headers, "Cache-Control"):
            # Without Authorization no rule keeps a cache from storing this and showing it to others (RFC 9111
            # section 3.5 is about that header alone). SQL may decide otherwise.
            reply = evolve(reply, headers=(*reply.headers, NO_STORE))
        if b"origin" not in request.headers.first:
            return reply
        return evolve(reply, headers=(*reply.headers, TABLE_EXPOSED))


@lru_cache(maxsize=1024)
def _resource(raw_path: bytes) -> tuple[tuple[str, ...], str]:
    """The path's segments below the base path, decoded, and the path of these as PostgREST would see it. An encoded
    slash is part of a name and separates nothing.

    Raises PGRST125 where they are not UTF-8.
    """
    below = raw_path.split(b"/", _BASE.count("/") + 1)[_BASE.count("/") + 1 :]
    raw = below[0].strip(b"/") if below else b""
    try:
        segments = [unquote_to_bytes(segment).decode() for segment in raw.split(b"/")] if raw else []
    except UnicodeDecodeError:
        raise errors.invalid_path() from None
    return tuple(segments), "/" + "/".join(segments)


def _sent(headers: HeaderView) -> RequestHeaders:
    pairs = [(name.decode("latin-1"), read_utf8(value)) for name, value in headers]
    return RequestHeaders.of(pairs, presented_key(headers))
