"""From a request to the statement that answers it: ``request``, ``plan`` and ``sql`` in turn. No I/O.

Requests of one shape differ only in the operands of their filters, the values of their arguments and their body. They
have the same plan, whose parameters these are, so the plans of earlier requests are cached by shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Literal

from attrs import Factory, define, evolve, field, frozen
from cachetools import LRUCache

from project_service.errors import Headers
from project_service.frozen import quick
from project_service.tables import errors
from project_service.tables.errors import VARY, TableError, as_utf8
from project_service.tables.plan.call import CallPlan, plan_call
from project_service.tables.plan.media import Rendering, negotiate
from project_service.tables.plan.names import find_relation
from project_service.tables.plan.nodes import ReadPlan, as_stored
from project_service.tables.plan.read import ReadPlanner
from project_service.tables.plan.write import WritePlan, plan_write
from project_service.tables.reply.outcome import History, Probe
from project_service.tables.request.body import Payload
from project_service.tables.request.query import EVERYTHING, parse_query, shape_of_query
from project_service.tables.request.request import (
    READING,
    Head,
    Pairs,
    RawRequest,
    Request,
    parse_head,
    range_of,
)
from project_service.tables.request.syntax import Operand, Query, Range
from project_service.tables.sql.statement import (
    Bounds,
    Statement,
    call_statement,
    read_statement,
    write_statement,
)
from project_service.tables.values import Key, Relation, Routine, SchemaCache, TablesConfig

# How many shapes are cached: enough for all distinct requests of an application, with little memory.
MAX_SHAPES = 1000
# Clients determine the shapes, so longer ones are not cached, nor are longer statements. In characters.
MAX_CACHED = 8192
# And of the statements of one shape: one or two, until the schema cache changes.
COMPILED_PER_SHAPE = 8

_APPLIED_TO_ALL = ("count", "handling", "timezone", "tx", "consistency")
_APPLIED_TO_CALLS = (*_APPLIED_TO_ALL, "max-affected")
_APPLIED = {
    "GET": _APPLIED_TO_ALL,
    "HEAD": _APPLIED_TO_ALL,
    "POST": (*_APPLIED_TO_ALL, "resolution", "missing", "return"),
    "PUT": (*_APPLIED_TO_ALL, "return"),
    "PATCH": (*_APPLIED_TO_ALL, "max-affected", "missing", "return"),
    "DELETE": (*_APPLIED_TO_ALL, "max-affected", "return"),
}


# How a transaction ends. BEGIN and COMMIT of our own are used only where the outcome decides whether to commit, since
# they cost round trips.
Ending = Literal["implicit", "commit", "rollback"]


@quick
class Planned:
    """A request and the statement that answers it.

    ``operands`` are this request's, in the order of the plan's slots. ``cached`` says that the plan was made by an
    earlier request, which makes it worth preparing. ``version`` is that of the schema cache.
    """

    request: Request
    compiled: Compiled
    operands: list[str]
    cached: bool
    version: int

    @property
    def body(self) -> str:
        return self.request.payload.text if self.request.payload is not None else ""

    @property
    def raw(self) -> bytes:
        return self.request.payload.raw if self.request.payload is not None else b""


@define(eq=False)
class Shape:
    """What all requests of one shape have in common: everything but the values that become parameters, and the body.

    ``compiled`` are their statements, by version of the schema cache, shape of the body and the role's ``max_rows``.
    """

    head: Head
    query: Query
    range: Range
    compiled: dict[Hashable, Compiled] = field(factory=dict)


@define
class Planner:
    """Pure but for what it caches. Raises ``TableError`` for what is invalid or unknown."""

    config: TablesConfig
    _shapes: LRUCache[Hashable, Shape] = field(factory=lambda: LRUCache(MAX_SHAPES), init=False)
    _probes: LRUCache[Hashable, Probe] = field(factory=lambda: LRUCache(MAX_SHAPES), init=False)

    def head(self, incoming: RawRequest) -> Head:
        """What path and headers say."""
        head = parse_head(incoming.method, incoming.segments, incoming.headers.decisive, self.config.schemas)
        asked = head.preferences.get("tx")
        if asked is None or self.config.tx_override:
            return head
        # A client that only wants to try a write must not find it committed.
        if head.method not in READING and head.preferences.strict and asked != self.config.tx_end:
            raise errors.invalid_preferences([f"tx={asked}"])
        return evolve(head, preferences=head.preferences.without("tx"))

    def shape(self, incoming: RawRequest, delegated: Head | None = None) -> tuple[Shape, list[str]]:
        """The request's shape and, in the order of the plan's slots, its operands. ``delegated`` replaces what path
        and headers say."""
        segments = incoming.segments
        is_call = delegated is not None or (len(segments) > 1 and segments[0] == "rpc")
        arguments = is_call and incoming.method in READING
        try:
            of_query, operands = shape_of_query(incoming.pairs, arguments)
        except TableError:
            if delegated is None:
                self.head(incoming)  # its errors come first
            raise
        key = (incoming.method, segments, incoming.headers.decisive, of_query, delegated)
        try:
            return self._shapes[key], operands
        except KeyError:
            head = delegated or self.head(incoming)
        query = parse_query(incoming.pairs, arguments)
        shape = Shape(head, query, range_of(head, query, incoming.pairs))
        if len(repr(key)) <= MAX_CACHED and len(repr(head)) + len(repr(query)) <= MAX_CACHED:
            self._shapes[key] = shape
        return shape, operands

    def plan(
        self,
        shape: Shape,
        pairs: Pairs,
        payload: Payload | None,
        operands: list[str],
        max_rows: int,
        cache: SchemaCache,
    ) -> Planned:
        """The request as it is to be run: compiled anew, or as it was for an earlier request of its shape.

        ``max_rows`` is how many rows the caller's role may read at once; 0 means no limit.
        """
        request = Request(shape.head, shape.query, shape.range, payload, pairs)
        of_body: Hashable = ()
        if payload is not None:
            if payload.kind != "json":
                # The body itself is part of the plan.
                compiled = self._compiled(cache, request, max_rows)
                return Planned(request, compiled, operands, False, cache.version)
            of_body = (payload.media, payload.keys, payload.is_array, payload.is_empty, payload.keys_match)
        key = (cache.version, of_body, max_rows)
        cached = shape.compiled.get(key)
        if cached is not None:
            return Planned(request, cached, operands, True, cache.version)
        if payload is not None:
            # A cached plan must not hold on to the body.
            without = evolve(payload, text="", raw=b"", arguments=())
            compiled = self._compiled(cache, evolve(request, payload=without), max_rows)
        else:
            compiled = self._compiled(cache, request, max_rows)
        if len(shape.compiled) >= COMPILED_PER_SHAPE:
            shape.compiled.clear()
        if _characters(compiled) <= MAX_CACHED:
            shape.compiled[key] = compiled
        return Planned(request, compiled, operands, False, cache.version)

    def _compiled(self, cache: SchemaCache, request: Request, max_rows: int) -> Compiled:
        """The compiled request, sharing its probe with other requests that select the same of the same relation: what
        they have learned about the size of rows holds for this one too."""
        compiled = compile_request(cache, evolve(self.config, max_rows=max_rows), request)
        head = request.head
        key = (head.kind, head.schema, head.name, request.query.select)
        if compiled.probe is None or len(repr(key)) > MAX_CACHED:
            return compiled
        return evolve(compiled, probe=self._probes.setdefault(key, compiled.probe))


def _characters(compiled: Compiled) -> int:
    """How many characters a plan holds: its SQL, and the operands of the request that it was made for."""
    sql = compiled.statement.sql
    return len(sql.text) + sum(len(value.text) for value in sql.parameters if isinstance(value, Operand))


@frozen(slots=False)
class Compiled:
    """What is to be run, and how to read its outcome, for all requests of one shape.

    ``plan`` is None for reading a relation. ``headers`` are those that all replies have. ``probe`` is set where the
    result may have to be streamed. ``shares`` allows it to run on a connection that reads share, once its ``history``
    shows that it is quick. ``named`` are the relations and functions that the request itself names, junctions
    included. ``max_rows`` is the role's limit (0: none), and ``cut_at`` the same if it is lower than what the request
    asks for. ``may_be_rejected`` says that ``response.check_outcome`` rejects some outcomes.
    """

    statement: Statement
    rendering: Rendering
    plan: WritePlan | CallPlan | None
    read_only: bool
    probe: Probe | None = None
    shares: bool = False
    headers: Headers = ()
    named: frozenset[Key] = frozenset()
    max_rows: int = 0
    cut_at: int = 0
    ending: Ending = "implicit"
    may_be_rejected: bool = False
    history: History = Factory(History)

    @cached_property
    def routine(self) -> Routine | None:
        return self.plan.routine if isinstance(self.plan, CallPlan) else None


def compile_request(cache: SchemaCache, config: TablesConfig, request: Request) -> Compiled:
    """The request compiled by the schema cache, in all stages from the plan to the SQL. Raises PGRST107, 205, 54001
    and what the planners raise."""
    if request.head.kind == "routine":
        compiled, read = _call(cache, config, request)
    else:
        relation = find_relation(cache, request.head)
        compile_ = _read if request.head.method in READING else _write
        compiled, read = compile_(cache, config, request, relation)
    renamed = read.renamed if read is not None else ()
    return evolve(
        compiled,
        headers=constant_headers(request.head, compiled, renamed),
        max_rows=config.max_rows,
        cut_at=_cut_at(config.max_rows, request, compiled),
        ending=_ending(config, request, compiled),
        may_be_rejected=_may_be_rejected(request, compiled),
        named=frozenset([(request.head.schema, request.head.name), *_named(read)]),
    )


def _cut_at(max_rows: int, request: Request, compiled: Compiled) -> int:
    if request.range.capped(max_rows) == request.range or isinstance(compiled.plan, WritePlan):
        return 0
    return max_rows if compiled.routine is None or compiled.routine.is_set else 0


def rolls_back(config: TablesConfig, request: Request) -> bool:
    """Whether a write is undone at its end, because the request or the database wants a trial only."""
    # The planner has left out a ``tx`` that is not allowed.
    return (request.head.preferences.get("tx") or config.tx_end).startswith("rollback")


def _ending(config: TablesConfig, request: Request, compiled: Compiled) -> Ending:
    if compiled.read_only:
        return "implicit"
    if rolls_back(config, request):
        return "rollback"
    return "commit" if _may_be_rejected(request, compiled) else "implicit"


def _may_be_rejected(request: Request, compiled: Compiled) -> bool:
    preferences = request.head.preferences
    return bool(
        compiled.rendering.singular
        or preferences.max_affected is not None
        # A range of a function's rows that begins after the last of them is rejected.
        or (compiled.routine is not None and request.range.offset > 0 and preferences.get("count"))
        or (isinstance(compiled.plan, WritePlan) and compiled.plan.may_be_undone)
    )


def _named(plan: ReadPlan | None) -> Iterator[Key]:
    """The relations and functions that a plan names besides its own relation, on all levels."""
    if plan is None:
        return
    yield from (computed.routine for computed in plan.computed.values())
    for embedded in plan.embeddings:
        relationship = embedded.relationship
        yield relationship.target
        if relationship.junction is not None:
            yield relationship.junction.key
        if relationship.routine is not None:
            yield relationship.routine
        yield from _named(embedded.plan)


def _read(
    cache: SchemaCache, config: TablesConfig, request: Request, relation: Relation
) -> tuple[Compiled, ReadPlan]:
    reader = ReadPlanner(cache, request.head.schema, config)
    plan = reader.plan(relation, request.query, request.range)
    rendering = _negotiated(cache, config, request, relation.key, None)
    plan = _rows_for(rendering, plan)
    rendering = evolve(rendering, records=plan.shows_records(plan.computed))
    bounds = _bounds(config, request, relation, read_only=True)
    if bounds.at_once and not relation.is_view and plan.names_one_row:
        # A single row is sent in one piece, however large it is.
        bounds = Bounds()
    count = request.head.preferences.get("count")
    statement = read_statement(plan, rendering, count, config.max_rows, bounds)
    shares = not (statement.count or rendering.handler or rendering.explain or plan.searches)
    probe = _probe(statement, bounds)
    return Compiled(statement, rendering, None, True, probe, shares), plan


def _write(
    cache: SchemaCache, config: TablesConfig, request: Request, relation: Relation
) -> tuple[Compiled, ReadPlan]:
    plan = plan_write(cache, config, relation, request)
    rendering = _negotiated(cache, config, request, relation.key, None)
    plan = evolve(plan, read=_rows_for(rendering, plan.read))
    rendering = evolve(rendering, records=plan.read.shows_records(plan.computed))
    return Compiled(write_statement(plan, rendering), rendering, plan, read_only=False), plan.read


def _call(cache: SchemaCache, config: TablesConfig, request: Request) -> tuple[Compiled, ReadPlan | None]:
    plan = plan_call(cache, config, request)
    routine, preferences = plan.routine, request.head.preferences
    rendering = _negotiated(cache, config, request, routine.returns, routine)
    if plan.read is not None:
        plan = evolve(plan, read=_rows_for(rendering, plan.read))
    records = plan.read is not None and plan.read.shows_records({**plan.read.computed, **plan.computed})
    rendering = evolve(rendering, records=records or routine.shows_records)
    if preferences.max_affected is not None and not routine.is_set:
        raise errors.max_affected_needs_rows()
    read_only = request.head.method in READING or routine.volatility != "v"
    relation = cache.relations.get(routine.returns) if routine.returns is not None else None
    bounds = _bounds(config, request, relation, read_only)
    if preferences.max_affected is not None:
        bounds = evolve(bounds, counts_all=True)
    range_ = request.range.capped(config.max_rows)
    statement = call_statement(plan, rendering, preferences.get("count"), range_, bounds)
    return Compiled(statement, rendering, plan, read_only, _probe(statement, bounds)), plan.read


def _negotiated(
    cache: SchemaCache, config: TablesConfig, request: Request, relation: Key | None, routine: Routine | None
) -> Rendering:
    whole_rows = request.query.select == EVERYTHING
    return negotiate(cache, request.head.accept, relation, routine, config.plan, whole_rows)


def _rows_for(rendering: Rendering, plan: ReadPlan) -> ReadPlan:
    return as_stored(plan) if rendering.takes_rows else plan


def _bounds(config: TablesConfig, request: Request, relation: Relation | None, read_only: bool) -> Bounds:
    if request.head.method == "HEAD":
        return Bounds(bodiless=True)
    if not read_only:
        return Bounds(to_the_end=True)
    row_bytes = relation.row_bytes if relation is not None else 0
    probe = Probe.first(row_bytes, config.stream_threshold_bytes)
    return Bounds(probe.rows, probe.threshold_bytes)


def _probe(statement: Statement, bounds: Bounds) -> Probe | None:
    return Probe(bounds.at_once, bounds.threshold_bytes) if statement.stream is not None else None


def constant_headers(head: Head, compiled: Compiled, renamed: tuple[tuple[str, str], ...] = ()) -> Headers:
    """The headers of all replies to requests of one shape. ``renamed`` are (name, alias) to warn about."""
    plan, rendering, preferences = compiled.plan, compiled.rendering, head.preferences
    headers: Headers = (("Content-Type", rendering.content_type),)
    if rendering.explain is None:
        bodiless = (
            plan.representation != "representation"
            if isinstance(plan, WritePlan)
            else plan is not None and plan.routine.is_void
        )
        applied = list(_APPLIED_TO_CALLS if head.kind == "routine" else _APPLIED[head.method])
        if isinstance(plan, WritePlan) and plan.merges is None and "resolution" in applied:
            applied.remove("resolution")
        profile = (("Content-Profile", as_utf8(head.schema)),) if head.profiled else ()
        headers = (*(() if bodiless else headers), *preferences.applied(applied), *profile)
    return (*headers, VARY, *((deprecated_names(renamed),) if renamed else ()))


def deprecated_names(renamed: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """The ``Warning`` for a request that refers to an embedded relation by the relation's name although it gave it an
    alias."""
    changes = ", ".join(f"`{target}` to `{alias}`" for target, alias in renamed)
    text = (
        "Embedded resource was referenced by relation name even though it has an alias. "
        "This is deprecated and will stop working in a future release. "
        f"Update {changes} in query string filters, orders or limits."
    )
    shown = "".join(c for c in text if c.isprintable()).replace("\\", "").replace('"', "")
    return ("Warning", f'299 PostgRESTv16 "{shown}"')
