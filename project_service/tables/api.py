"""The table API: authenticate -> parse -> plan -> statement -> run -> reply (``TableService.answer``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import lru_cache, partial
from hashlib import sha256
from urllib.parse import unquote_to_bytes

import orjson
import psycopg2
from attrs import evolve, field, frozen
from cachetools import LRUCache
from werkzeug.http import parse_etags

from project_service.database.acting import Preamble
from project_service.database.connection import DatabaseGone
from project_service.database.readers import CONSISTENCY, Ask, Readers
from project_service.database.staleness import NOTHING_WANTED, read_tokens
from project_service.errors import ApiError, Away, Headers, has_header
from project_service.http import cors
from project_service.http.caller import presented_key
from project_service.http.head import HeaderView
from project_service.http.request import Request, parse_query
from project_service.http.response import NO_STORE, Reply, Sink, StreamReply
from project_service.http.routing import Policy, Router
from project_service.lifecycle import InThread
from project_service.tables import errors
from project_service.tables.access import Identities, Identity
from project_service.tables.claimed_roles import check_claimed_role
from project_service.tables.description.openapi import document, public_url, rights_sql
from project_service.tables.endpoints import AT_ROOT, BELOW
from project_service.tables.errors import READ_ONLY, VARY, TableError, as_utf8
from project_service.tables.plan.names import find_relation
from project_service.tables.planner import Planned, Planner, Shape
from project_service.tables.reply.hints import Hints, body_hint
from project_service.tables.reply.outcome import as_bytes
from project_service.tables.reply.response import (
    Timing,
    check_outcome,
    options_reply,
    other_methods,
    read_utf8,
    reply_to,
)
from project_service.tables.reply.suggestions import NAMES_BEHIND, usable_sql
from project_service.tables.request import headers as request_headers
from project_service.tables.request.body import Payload, slow_to_read
from project_service.tables.request.json_text import in_order
from project_service.tables.request.query import outline_of_query
from project_service.tables.request.request import (
    READING,
    WRITING,
    Head,
    RawRequest,
    RequestHeaders,
    payload_of,
)
from project_service.tables.run.execution import Executor, Row
from project_service.tables.run.imports import Import, Rows, Upload
from project_service.tables.run.stream import Streams
from project_service.tables.run.transaction_settings import preamble_of, preamble_of_head
from project_service.tables.schema_cache.holder import CacheHolder, Freshness
from project_service.tables.sql.fragment import Sql
from project_service.tables.values import SchemaCache, TablesConfig

# The errors for something that the schema cache does not have: a handler of a media type, a relationship, a function,
# a column, a relation.
_MISSES = ("PGRST107", "PGRST200", "PGRST202", "PGRST204", "42703", "PGRST205")
# The errors in whose hints PostgreSQL names columns and aliases.
_NAMING = ("42703", "42P01")
_BASE = "/<stage>/db/<database>/rest"
# The headers that PostgREST exposes to pages, as it lists them. Ours are in ``cors.EXPOSED``.
_EXPOSED = (
    "Content-Encoding, Content-Location, Content-Range, Content-Type, Date, Location, Server, Transfer-Encoding, "
    "Range-Unit"
)
# PostgREST answers a preflight with all of these, whatever the path is, and clients may rely on that.
_PREFLIGHT_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE", "OPTIONS", "HEAD")
_PREFLIGHT_HEADERS = ("Accept", "Accept-Language", "Content-Language")
# The segments of the path of the root.
_ROOT = ((), ("",))
_NOTHING = Sql("SELECT 1")
_TOKEN = CONSISTENCY.lower()
# Planning a query takes up to five microseconds for each of its bytes.
_LONG_QUERY_BYTES = 2048
# For a few roles, schemas and addresses. The description of a thousand tables has two megabytes.
_CACHED_DESCRIPTIONS = 8


def _preflight(methods: tuple[str, ...], headers: HeaderView) -> Reply:
    """The response to a preflight in PostgREST's form."""
    asked = [name.strip() for name in (headers.text(b"access-control-request-headers") or "").split(",")]
    allowed = ["Authorization", *(name for name in asked if name), *_PREFLIGHT_HEADERS]
    return Reply(200, cors.allowing(_PREFLIGHT_METHODS, ", ".join(allowed)))


def admission_class(stage: str, database: str) -> str:
    """The admission class of the requests for one database."""
    return f"tables:{stage}/{database}"


POLICY = Policy(
    admission=admission_class("{stage}", "{database}"),
    error_form=errors.FORM,
    preflight=_preflight,
    exposed=_EXPOSED,
    reads_by_own_rules=True,
)


@frozen
class TableRoutes:
    """The routes: ``/{stage}/db/{database}/rest`` and everything below. ``services`` by stage and database."""

    services: Mapping[tuple[str, str], TableService]
    # A function for each: identity and settings, which are cached with a connection's headers, are of one database.
    _derived: Mapping[tuple[str, str], Callable[[HeaderView], RequestHeaders]] = field(init=False)

    @_derived.default
    def _functions(self) -> Mapping[tuple[str, str], Callable[[HeaderView], RequestHeaders]]:
        return {key: partial(_derive) for key in self.services}

    def mount(self, router: Router) -> None:
        part = router.of_part(POLICY)
        at_root = (*READING, "OPTIONS")
        for url, described, methods in (
            (_BASE, AT_ROOT, at_root),
            (f"{_BASE}/<path:below>", BELOW, (*at_root, *WRITING)),
        ):
            # Other methods come to the handler too, so that they are refused as PostgREST does it.
            part.route(url, *described, methods=methods, any_method=True, bearer="own")(self.answer)

    def answer(self, request: Request) -> Awaitable[Reply | StreamReply]:
        """The database that the path names answers."""
        where = (request.path_args["stage"], request.path_args["database"])
        return self.answer_of(where, _BASE.count("/"), request)

    async def answer_of(
        self, where: tuple[str, str], depth: int, request: Request, ignored: str | None = None
    ) -> Reply | StreamReply:
        """The database of this stage and name answers. The path of its root has ``depth`` segments. The parameter
        ``ignored`` is not part of the query."""
        service = self.services.get(where)
        if service is None:
            raise errors.no_database()
        request.outline = _outline
        is_service = request.caller.key == "service"
        segments, resource = _resource(request.raw_path, depth)
        body, upload = b"", None
        if request.method in WRITING:
            limit, length = request.max_json_bytes, request.body.length
            if length is None or length > limit:
                upload = Upload.of(request, segments, service.config.max_import_bytes)
            if upload is None:
                body = await request.read(limit)
        # PostgREST ignores a name without ``=``.
        pairs = parse_query(request.raw_query, bare_names=False)
        if ignored is not None:
            pairs = [pair for pair in pairs if pair[0] != ignored]
        incoming = RawRequest(
            request.method,
            segments,
            resource,
            tuple(pairs),
            request.headers.derived(self._derived[where]),
            body,
            request.raw_path.decode("latin-1"),
            request.base_url,
            is_service,
            request.slot,
            len(request.raw_query) > _LONG_QUERY_BYTES,
            request.client_address,
        )
        try:
            if upload is None:
                reply = await service.answer(incoming)
            else:
                await service.check_import(incoming)
                whole = await upload.whole()
                if whole is None:
                    reply = await service.import_rows(incoming, upload)
                else:
                    incoming = evolve(incoming, body=whole)
                    reply = await service.answer(incoming)
        except TableError as error:
            await service.restrict_hint(error, incoming)
            service.complete_error(error, incoming)
            raise
        if is_service and not has_header(reply.headers, "Cache-Control"):
            # Without Authorization no rule keeps a cache from storing this and showing it to others (RFC 9111
            # section 3.5 is about that header alone). SQL may decide otherwise.
            reply = evolve(reply, headers=(*reply.headers, NO_STORE))
        return reply


@lru_cache(maxsize=1024)
def _resource(raw_path: bytes, depth: int) -> tuple[tuple[str, ...], str]:
    """The path's segments below the first ``depth``, decoded, and the path of these as PostgREST would see it. An
    encoded slash is part of a name and separates nothing.

    Raises PGRST125 where they are not UTF-8.
    """
    below = raw_path.split(b"/", depth + 1)[depth + 1 :]
    raw = below[0].strip(b"/") if below else b""
    try:
        segments = [unquote_to_bytes(segment).decode() for segment in raw.split(b"/")] if raw else []
    except UnicodeDecodeError:
        raise errors.invalid_path() from None
    return tuple(segments), "/" + "/".join(segments)


def _outline(request: Request) -> str:
    """What the log may say of a slow statement's request: its path has names alone."""
    path = request.raw_path.decode("latin-1")
    query = outline_of_query(parse_query(request.raw_query, bare_names=False))
    return f"{request.method} {path}?{query}" if query else f"{request.method} {path}"


def _derive(headers: HeaderView) -> RequestHeaders:
    pairs = [(name.decode("latin-1"), read_utf8(value)) for name, value in headers]
    return RequestHeaders.of(pairs, presented_key(headers))


@frozen
class Access:
    """How statements reach one server of a database: all at once, or as a stream of rows."""

    executor: Executor
    streams: Streams


@frozen
class TableService:
    """Answers requests to one database. Raises ``TableError`` for everything that is not a success. ``access`` is
    that to its primary; reads may go to its ``readers``, if it has any."""

    config: TablesConfig
    holder: CacheHolder
    identities: Identities
    planner: Planner
    freshness: Freshness
    access: Access
    root: Root
    hints: Hints
    in_thread: InThread
    readers: Readers[Access] | None = None
    # Another one, as what a planner caches is not for several threads. ``in_thread`` calls one function at a time.
    planner_in_thread: Planner = field(init=False)

    @planner_in_thread.default
    def _another_planner(self) -> Planner:
        return Planner(self.config)

    async def answer(self, incoming: RawRequest) -> Reply | StreamReply:  # noqa: PLR0912  # the whole way on one page
        """authenticate -> parse -> plan -> statement -> run -> reply"""
        timing = Timing() if self.config.server_timing else None
        identity = await self._identify(incoming)
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
        shape, operands = await self._shape(incoming, delegated)
        payload = None
        if incoming.method in WRITING:
            payload = await self._payload(shape, incoming.body)
        if timing:
            timing.mark("parse")
        cache, planned = await self._plan(incoming, shape, payload, operands, identity)
        if timing:
            timing.mark("plan")
        preamble = preamble_of(self.config, cache, incoming.headers, planned, identity)
        access = self.access
        if self.readers is not None:
            access = self._reader(self.readers, incoming, cache, planned, preamble) or access
        reply = None
        while reply is None:
            try:
                if planned.compiled.history.streamed and access.streams.expected(planned):
                    reply = await access.streams.at_once(incoming, planned, preamble)
                if reply is None:
                    outcome = await access.executor.execute(
                        planned, preamble, incoming.resource, incoming.slot
                    )
                    reply = (
                        reply_to(planned.request, planned.compiled, outcome, incoming.path)
                        if outcome.whole
                        else await access.streams.after(incoming, planned, outcome, preamble)
                    )
            except (ApiError, Away) as error:
                if self._repeats(error, access, incoming):
                    access = self.access  # nothing has been sent to the client yet
                    continue
                if self.readers is not None and not planned.compiled.read_only:
                    self.readers.wrote(self._caller(incoming))  # perhaps
                if isinstance(error, TableError):
                    await self.hints.add(error, incoming, planned, identity)
                raise
        if self.readers is not None and not planned.compiled.read_only:
            reply = await self._acknowledged(self.readers, incoming, reply)
        if incoming.method == "HEAD":
            reply = StreamReply(reply.status, reply.headers, None, no_body)
        if reply.status == 405 and not has_header(reply.headers, "Allow"):
            reply = evolve(reply, headers=(*reply.headers, *self._allow(incoming)))
        if timing:
            timing.mark("transaction")
            reply = _timed(reply, timing)
        return reply

    def _reader(
        self,
        readers: Readers[Access],
        incoming: RawRequest,
        cache: SchemaCache,
        planned: Planned,
        preamble: Preamble,
    ) -> Access | None:
        """The access to a reader that may answer; None where the primary has to.

        A function that is volatile may lock or notify, although its transaction only reads; a standby would do that
        on its own. And it has no serializable transactions.
        """
        compiled, routine = planned.compiled, planned.compiled.routine
        is_volatile = routine is not None and routine.volatility == "v"
        if not compiled.read_only or is_volatile or compiled.rendering.explain or preamble.sets_isolation:
            return None
        tokens = ", ".join([value for name, value in incoming.headers.pairs if name == _TOKEN])
        strong = planned.request.head.preferences.get("consistency") == "strong"
        wanted = read_tokens(tokens) if tokens else NOTHING_WANTED
        return readers.choose(Ask(self._caller(incoming), wanted, strong, cache.version))

    def _repeats(self, error: ApiError | Away, access: Access, incoming: RawRequest) -> bool:
        """Whether what failed by ``access`` is to be run again on the primary. It has its place among the requests
        served then, which it gave up where connections were shared."""
        if self.readers is None or access is self.access or not self.readers.repeats(error):
            return False
        incoming.slot.retake()
        return True

    def _caller(self, incoming: RawRequest) -> Hashable:
        return self.identities.caller_of(incoming.headers, incoming.client)

    async def _acknowledged(
        self, readers: Readers[Access], incoming: RawRequest, reply: Reply | StreamReply
    ) -> Reply | StreamReply:
        """``reply``, which is to a write that has been committed, so that its client can read what it wrote: through
        this process in any case, and through others with the token."""
        token = await readers.token()
        readers.wrote(self._caller(incoming))
        return evolve(reply, headers=(*reply.headers, (CONSISTENCY, token)))

    async def _identify(self, incoming: RawRequest) -> Identity:
        """As ``Identities.identify``, and 22023 for a role that a token may not claim."""
        identity = self.identities.identify(incoming.headers, incoming.is_service)
        if identity.claimed:
            cache = self.holder.cache or self.holder.current
            await check_claimed_role(identity, cache, self.config, self.access.executor.actor.pool)
        return identity

    async def _payload(self, shape: Shape, body: bytes) -> Payload | None:
        read = partial(payload_of, shape.head, shape.query, body)
        try:
            return await self.in_thread(read) if slow_to_read(shape.head.content_type, body) else read()
        except TableError:
            await self._check_exists(shape.head)
            raise

    async def _check_exists(self, head: Head) -> None:
        """Before a body is refused: whether there is a table for it at all. Raises PGRST205."""
        if head.kind == "routine":
            return
        cache = self.holder.cache or self.holder.current
        try:
            find_relation(cache, head)
        except TableError as error:
            find_relation(await self._newer(cache, error), head)

    async def _newer(self, cache: SchemaCache, error: TableError) -> SchemaCache:
        """What the schema cache lacks may have been created since: a newer one. Raises ``error`` if there is none, or
        if it is not about that."""
        newer = await self.freshness.newer(cache) if error.code in _MISSES else None
        if newer is None:
            raise error
        return newer

    async def check_import(self, incoming: RawRequest) -> None:
        """Refuse an insert that the caller may not make in any case, before its body is read: into a table that does
        not exist, say, or without the right. PostgreSQL plans it as the caller, but for the rows.

        Not where the pre-request function decides on the role. Raises as ``answer``.
        """
        identity = await self._identify(incoming)
        shape, operands = await self._shape(incoming)
        columns = in_order(shape.query.columns or ())
        payload = Payload("json", "", keys=columns, is_array=True)
        cache, planned = await self._plan(incoming, shape, payload, operands, identity)
        by_pre_request = self.config.pre_request is not None and cache.trust.sets_role
        if by_pre_request or planned.compiled.rendering.explain is not None:
            return
        preamble = preamble_of(self.config, cache, incoming.headers, planned, identity)
        sql = planned.compiled.statement.sql
        explained = Sql(f"EXPLAIN {sql.text}", tuple(sql.values(operands, "[]")))
        try:
            await self.access.executor.read(evolve(preamble, pre_request=None), incoming.resource, explained)
        except TableError as error:
            await self.hints.add(error, incoming, planned, identity)
            raise

    async def _plan(
        self,
        incoming: RawRequest,
        shape: Shape,
        payload: Payload | None,
        operands: list[str],
        identity: Identity,
    ) -> tuple[SchemaCache, Planned]:
        """The plan, and the schema cache that it was made with."""
        slow = incoming.long_query or (payload is not None and payload.has_many_names)
        planner = self.planner_in_thread if slow else self.planner
        plan = partial(planner.plan, shape, incoming.pairs, payload, operands, identity.max_rows)
        cache = self.holder.cache or self.holder.current
        try:
            planned = await self.in_thread(partial(_with_texts, plan, cache)) if slow else plan(cache)
        except TableError as error:
            cache = await self._newer(cache, error)
            planned = await self.in_thread(partial(_with_texts, plan, cache)) if slow else plan(cache)
        return cache, planned

    async def _shape(self, incoming: RawRequest, delegated: Head | None = None) -> tuple[Shape, list[str]]:
        """As ``Planner.shape``."""
        if incoming.long_query:
            return await self.in_thread(partial(self.planner_in_thread.shape, incoming, delegated))
        return self.planner.shape(incoming, delegated)

    async def import_rows(self, incoming: RawRequest, upload: Upload) -> Reply | StreamReply:
        """As ``answer``, for an insert whose rows are written as they arrive."""
        timing = Timing() if self.config.server_timing else None
        identity = await self._identify(incoming)
        shape, operands = await self._shape(incoming)
        rows = Rows.of(shape.head, shape.query, upload, self.access.streams, self.in_thread)
        first = await rows.batch()
        if timing:
            timing.mark("parse")
        cache, planned = await self._plan(incoming, shape, rows.payload, operands, identity)
        if planned.compiled.rendering.explain is not None:
            raise errors.payload_too_large_to_return(upload.request.max_json_bytes)
        preamble = preamble_of(self.config, cache, incoming.headers, planned, identity)
        if timing:
            timing.mark("plan")
        try:
            importing = await Import.open(
                self.access.streams, planned, preamble, incoming.resource, incoming.slot
            )
            try:
                await importing.write(first)
                while batch := await rows.batch():
                    await importing.write(batch)
                check_outcome(planned.request, planned.compiled, importing.outcome)
                # It may have taken hours.
                await upload.request.admit_again()
                await self._identify(incoming)
                await importing.finish()
            finally:
                await importing.close()
        except (ApiError, Away) as error:
            if self.readers is not None:
                self.readers.wrote(self._caller(incoming))  # perhaps
            if isinstance(error, TableError):
                await self.hints.add(error, incoming, planned, identity)
            raise
        reply: Reply | StreamReply = reply_to(
            planned.request, planned.compiled, importing.outcome, incoming.path
        )
        if self.readers is not None:
            reply = await self._acknowledged(self.readers, incoming, reply)
        if reply.status == 405 and not has_header(reply.headers, "Allow"):
            reply = evolve(reply, headers=(*reply.headers, *self._allow(incoming)))
        if timing:
            timing.mark("transaction")
        return _timed(reply, timing)

    async def _root(
        self, incoming: RawRequest, head: Head, identity: Identity, cache: SchemaCache, timing: Timing | None
    ) -> Reply | StreamReply:
        preamble = preamble_of_head(self.config, cache, incoming.headers, head, identity)
        content_type = self.root.content_type(head)
        if timing:
            timing.mark("plan")
        sql = self.root.query(head.schema)
        rows = await self.access.executor.read(preamble, incoming.resource, sql)
        reply = await self.root.reply(cache, incoming, head, content_type, rows[0])
        if timing:
            timing.mark("transaction")
        return _timed(reply, timing)

    async def restrict_hint(self, error: TableError, incoming: RawRequest) -> None:
        """Leave in the hint of ``error`` only names that the caller may use, as the description at the root does. An
        error without a hint is better than another error."""
        shown = not error.terse and self.config.error_verbosity != "minimal" and incoming.method != "HEAD"
        if error.hint is None or self.config.openapi == "ignore-privileges" or not shown:
            return
        suggestion = error.suggestion
        if suggestion is None:
            if error.code in _NAMING and NAMES_BEHIND.match(error.hint):
                error.hint = None
            return
        error.hint, cache = None, self.holder.cache or self.holder.current
        try:
            identity, head = await self._identify(incoming), self.planner.head(incoming)
            preamble = preamble_of_head(self.config, cache, incoming.headers, head, identity)
            if not cache.trust.sets_role:
                preamble = evolve(preamble, pre_request=None)
            rows = await self.access.executor.read(preamble, incoming.resource, usable_sql(suggestion))
        except (psycopg2.Error, DatabaseGone, ApiError):
            return
        error.hint = suggestion.choose(frozenset(orjson.loads(as_bytes(rows[0][0]))))

    def complete_error(self, error: TableError, incoming: RawRequest) -> None:
        """Give ``error``, which ``answer`` raised, the headers and the form that all errors of this database have."""
        error.terse = self.config.error_verbosity == "minimal"
        if error.hint is None and self.config.error_hints:
            error.hint = body_hint(error, incoming)
        allow = self._allow(incoming, error.code) if error.status == 405 else ()
        # A cache that stored a 404 would hide a table that is created a moment later.
        added = (VARY, NO_STORE, *allow)
        error.headers += tuple(header for header in added if not has_header(error.headers, header[0]))

    def _allow(self, incoming: RawRequest, code: str = "") -> Headers:
        """``Allow`` for a 405 that comes from the plan or from SQL. Without the schema cache's relation or function
        there is none, and the edge has to name the methods."""
        try:
            head = self.planner.head(incoming)
            return (other_methods(self.holder.current, head, code == READ_ONLY),)
        except TableError:
            return ()


def _with_texts(plan: Callable[[SchemaCache], Planned], cache: SchemaCache) -> Planned:
    planned = plan(cache)
    planned.compiled.statement.sql.prepare_texts()
    return planned


def _timed(reply: Reply | StreamReply, timing: Timing | None) -> Reply | StreamReply:
    if timing is None:
        return reply
    timing.mark("response")
    return evolve(reply, headers=(*reply.headers, timing.header()))


@frozen
class Root:
    """The root of a database: its OpenAPI description, or the result of a function of the database.

    ``in_thread`` runs what makes the description in a thread: for a thousand tables it takes most of a second.
    Descriptions are cached. Which one is sent follows from what the caller may use at that moment, which PostgreSQL
    is asked each time: a GRANT to a role changes no table.
    """

    config: TablesConfig
    in_thread: InThread
    # Body and ETag.
    _descriptions: LRUCache[Hashable, tuple[bytes, str]] = field(
        factory=lambda: LRUCache(_CACHED_DESCRIPTIONS), init=False, eq=False
    )

    def delegated(self, head: Head) -> Head | None:
        """The head for a call of the function that answers here instead, if ``root_spec`` names one. A name without a
        schema means the request's schema."""
        if self.config.root_spec is None:
            return None
        schema, _, name = self.config.root_spec.rpartition(".")
        return evolve(head, kind="routine", schema=schema or head.schema, name=name)

    def content_type(self, head: Head) -> str:
        """The form of the description that the caller accepts. Raises PGRST107, and PGRST126 if there is none."""
        if self.config.openapi == "disabled":
            raise errors.root_disabled()
        for wanted in head.accept:
            if wanted.refused:
                continue
            if wanted.name in (request_headers.ANY, request_headers.OPENAPI):
                return request_headers.MediaType(request_headers.OPENAPI).content_type
            if wanted.name == request_headers.JSON:
                return wanted.content_type
        raise errors.unacceptable_media([wanted.shown for wanted in head.accept])

    def query(self, schema: str) -> Sql:
        """What to ask as the caller: what they may use. There always is a query, so that the database, or the
        pre-request function, can refuse them."""
        return rights_sql(schema) if self.config.openapi == "follow-privileges" else _NOTHING

    async def reply(
        self, cache: SchemaCache, incoming: RawRequest, head: Head, content_type: str, row: Row
    ) -> Reply | StreamReply:
        """The description, or 304 if the caller has it already. ``row`` is what ``query`` returned."""
        rights = row if self.config.openapi == "follow-privileges" else None
        body, digest = await self._description(cache, head.schema, self._url(incoming), rights)
        # The same bytes are another representation where they have another media type.
        form = "json" if content_type.startswith(request_headers.JSON) else "openapi"
        etag = f"{digest}-{form}"
        profile = (("Content-Profile", as_utf8(head.schema)),) if head.profiled else ()
        headers = (*profile, ("ETag", f'"{etag}"'), VARY)
        if _has(incoming, etag):
            return StreamReply(304, headers, None, no_body)
        headers = (("Content-Type", content_type), *headers)
        if head.method == "HEAD":
            return StreamReply(200, headers, None, no_body)
        return Reply(200, headers, body)

    async def _description(
        self, cache: SchemaCache, schema: str, url: str, rights: Row | None
    ) -> tuple[bytes, str]:
        """The body, and a digest of it. ``rights`` are the row of ``rights_sql``; None means all."""
        texts = [as_bytes(names) for names in rights] if rights is not None else []
        key = (cache.version, schema, url, sha256(b"\0".join(texts)).digest() if texts else None)
        try:
            return self._descriptions[key]
        except KeyError:
            usable, callable_ = (frozenset(orjson.loads(text)) for text in texts) if texts else (None, None)
            secured = self.config.openapi_security_active

        def made() -> tuple[bytes, str]:
            body = orjson.dumps(document(cache, schema, url, usable, callable_, secured))
            return body, sha256(body).hexdigest()[:32]

        description = self._descriptions[key] = await self.in_thread(made)
        return description

    def _url(self, incoming: RawRequest) -> str:
        """The URL at which clients reach the root."""
        configured = self.config.openapi_server_proxy_uri
        if configured is not None:
            return public_url(configured)
        return incoming.base_url + incoming.path.rstrip("/")


def _has(incoming: RawRequest, etag: str) -> bool:
    """Whether the caller already has the representation with this tag (RFC 9110 section 13.1.2)."""
    stated = ", ".join(value for name, value in incoming.headers.pairs if name == "if-none-match")
    return bool(stated) and parse_etags(stated).contains_weak(etag)


async def no_body(sink: Sink) -> None:
    """Writes no body, for a HEAD, whose length is not worked out either."""
