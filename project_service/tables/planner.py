"""Turns requests into compiled statements, and keeps the work for later requests of the same shape."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

from attrs import Factory, define, evolve, field, frozen
from cachetools import LRUCache

from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.plan.call import CallPlan, plan_call
from project_service.tables.plan.media import Rendering, negotiate
from project_service.tables.plan.names import find_relation
from project_service.tables.plan.nodes import ReadPlan, as_stored
from project_service.tables.plan.read import ReadPlanner
from project_service.tables.plan.write import WritePlan, plan_write
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
from project_service.tables.response import Outcome
from project_service.tables.sql.statement import (
    Bounds,
    Statement,
    call_statement,
    read_statement,
    write_statement,
)
from project_service.tables.values import Key, Relation, Routine, SchemaCache, TablesConfig

# How many rows to read at once, to see whether a result fits into one reply. What does not fit is streamed.
#
# PostgreSQL makes a body of at most so many rows, and returns it if it is not too large; so one statement answers
# whatever fits. The number follows from the size of rows, which is learnt from earlier results: for a relation and
# what is selected of it, and not for each request.


# PostgreSQL needs longer to make one body of more rows than these than to open a cursor.
MOST_ROWS = 10_000
# The first number where nothing is known of the size: for views, partitioned and foreign tables, or before ANALYZE.
UNKNOWN_ROWS = 100


@define
class Probe:
    """``rows`` are read at once; a body of more than ``threshold_bytes`` is left out."""

    rows: int
    threshold_bytes: int

    def fits(self, outcome: Outcome, asked: int) -> bool:
        """Whether ``outcome`` has the whole result, given that ``asked`` rows were allowed."""
        return outcome.rows <= asked and outcome.size <= self.threshold_bytes

    def again(self, outcome: Outcome, asked: int) -> bool:
        """Learn from an outcome that did not fit. True where it is worth running the statement again, because many
        more rows than ``asked`` would have fitted."""
        likely = self.threshold_bytes * outcome.rows // max(outcome.size, 1)
        # A quarter more, since rows differ, but never more than ``asked`` where those were too large.
        likely = max(1, min(MOST_ROWS, likely + likely // 4))
        if outcome.size > self.threshold_bytes:
            self.rows = min(asked, likely)
            return False
        self.rows = max(asked, likely)
        return likely >= 2 * asked


# A statement is quick once so many runs in a row took at most so long and made at most so large a body; it is no more
# after one that took longer, held others up, or failed.
QUICK_RUNS = 3
QUICK_SECONDS = 0.002
SMALL_BYTES = 64 * 1024


@define
class Pace:
    """How long the runs of a statement take the server."""

    is_quick: bool = field(default=False, init=False)
    _runs: int = field(default=0, init=False)

    def ran(self, seconds: float, size: int) -> None:
        """A run took ``seconds`` and made ``size`` bytes."""
        if seconds > QUICK_SECONDS or size > SMALL_BYTES:
            self.failed()
        else:
            self._runs += 1
            self.is_quick = self._runs >= QUICK_RUNS

    def failed(self) -> None:
        """A run was refused, or was slow where others wait behind it."""
        self._runs, self.is_quick = 0, False


@define
class LastTime:
    """How the last request of a shape was answered."""

    streamed: bool = False


def first_probe(row_bytes: int, threshold_bytes: int) -> Probe:
    """``row_bytes`` is what the catalogue says of a row's size, 0 where it says nothing."""
    most = MOST_ROWS if row_bytes else UNKNOWN_ROWS
    return Probe(max(1, min(most, threshold_bytes // max(row_bytes, 1))), threshold_bytes)


# Makes the statement that answers a parsed request: its plan, and the plan's SQL. No I/O.


@frozen(slots=False)
class Compiled:
    """What is to be run, and how to read its outcome. It is kept and used again for requests of the same shape.

    ``plan`` is None for reading a relation. ``renamed`` are embedded relations to warn about. ``probe`` is set where
    the result may have to be streamed, and ``last`` remembers whether it was. ``leaves_things`` says that running it
    may leave more than settings behind on the connection. ``shares`` allows it to run on a connection that reads
    share, once its ``pace`` is known to be quick.
    """

    statement: Statement
    rendering: Rendering
    plan: WritePlan | CallPlan | None
    read_only: bool
    renamed: tuple[tuple[str, str], ...] = ()
    probe: Probe | None = None
    leaves_things: bool = False
    shares: bool = False
    last: LastTime = Factory(LastTime)
    pace: Pace = Factory(Pace)

    @cached_property
    def routine(self) -> Routine | None:
        return self.plan.routine if isinstance(self.plan, CallPlan) else None


def compile_request(cache: SchemaCache, config: TablesConfig, request: Request) -> Compiled:
    """Raises PGRST107, 205, 54001 and what the planners raise."""
    found = _compiled(cache, config, request)
    # Functions run here if the request calls one, as triggers of a write, or before each request. The functions that
    # a read may call are ``_read``'s concern.
    calls = config.pre_request is not None or found.routine is not None or not found.read_only
    return evolve(found, leaves_things=True) if cache.leaves_things and calls else found


def _compiled(cache: SchemaCache, config: TablesConfig, request: Request) -> Compiled:
    if request.head.kind == "routine":
        return _call(cache, config, request)
    relation = find_relation(cache, request.head)
    if request.head.method in READING:
        return _read(cache, config, request, relation)
    plan = plan_write(cache, config.plan_options, relation, request)
    rendering = _negotiated(cache, config, request, relation.key, None)
    plan = evolve(plan, read=_rows_for(rendering, plan.read))
    rendering = evolve(rendering, records=plan.read.shows_records(plan.computed))
    statement = write_statement(plan, rendering)
    return Compiled(statement, rendering, plan, read_only=False, renamed=plan.read.renamed)


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
    probe = first_probe(row_bytes, config.stream_threshold_bytes)
    return Bounds(probe.rows, probe.threshold_bytes)


def _probe(statement: Statement, bounds: Bounds) -> Probe | None:
    return Probe(bounds.at_once, bounds.threshold_bytes) if statement.stream is not None else None


def _is_by_key(plan: ReadPlan) -> bool:
    """Whether the conditions name at most one row of a table."""
    return plan.relation is not None and not plan.relation.is_view and plan.names_one_row


def _read(cache: SchemaCache, config: TablesConfig, request: Request, relation: Relation) -> Compiled:
    reader = ReadPlanner(cache, request.head.schema, config.plan_options)
    plan = reader.plan(relation, request.query, request.range)
    rendering = _negotiated(cache, config, request, relation.key, None)
    plan = _rows_for(rendering, plan)
    rendering = evolve(rendering, records=plan.shows_records(plan.computed))
    count = request.head.preferences.get("count")
    bounds = _bounds(config, request, relation, True)
    if bounds.at_once and _is_by_key(plan):
        # A single row is sent in one piece, however large it is.
        bounds = Bounds()
    statement = read_statement(plan, rendering, count, config.max_rows, bounds)
    leaves = cache.leaves_by_reading and (plan.calls or rendering.handler is not None)
    return Compiled(
        statement,
        rendering,
        plan=None,
        read_only=True,
        renamed=plan.renamed,
        probe=_probe(statement, bounds),
        leaves_things=leaves,
        shares=statement.count is None
        and rendering.handler is None
        and rendering.explain is None
        and not leaves,
    )


def _call(cache: SchemaCache, config: TablesConfig, request: Request) -> Compiled:
    plan = plan_call(cache, config.plan_options, request)
    routine = plan.routine
    rendering = _negotiated(cache, config, request, routine.returns, routine)
    if plan.read is not None:
        plan = evolve(plan, read=_rows_for(rendering, plan.read))
    records = plan.read is not None and plan.read.shows_records({**plan.read.computed, **plan.computed})
    rendering = evolve(rendering, records=records or routine.shows_records)
    if request.head.preferences.max_affected is not None and not routine.is_set:
        raise errors.max_affected_needs_rows()
    range_ = request.range.capped(config.max_rows)
    count = request.head.preferences.get("count")
    read_only = request.head.method in READING or routine.volatility != "v"
    relation = cache.relations.get(routine.returns) if routine.returns is not None else None
    bounds = _bounds(config, request, relation, read_only)
    if request.head.preferences.max_affected is not None:
        bounds = evolve(bounds, counts_all=True)
    statement = call_statement(plan, rendering, count, range_, bounds)
    renamed = plan.read.renamed if plan.read is not None else ()
    return Compiled(
        statement,
        rendering,
        plan,
        read_only,
        renamed=renamed,
        probe=_probe(statement, bounds),
    )


# The shape of a request: everything but the operands of its filters, the values of its arguments, and its body.
#
# Requests of one shape have the same plan; only the parameters differ.


def shape_of_payload(payload: Payload | None) -> Hashable | None:
    """The payload's part of the shape; None where the body itself is part of the plan, which then is not kept."""
    if payload is None:
        return ()
    if payload.kind != "json":
        return None
    return (payload.media, payload.keys, payload.is_array, payload.is_empty, payload.keys_match)


# How many shapes are cached: enough for all distinct requests of an application, with little memory.
MAX_SHAPES = 1000
# Clients determine the shapes, so longer ones are not cached, nor are longer statements. In characters.
MAX_CACHED = 8192
# And of the statements of one shape: one or two, until the schema cache changes.
COMPILED_PER_SHAPE = 8


@frozen
class Planned:
    """A request and the statement that answers it.

    ``operands`` are this request's, in the order of the plan's slots. ``kept`` says that the plan was made by an
    earlier request, which makes it worth preparing. ``version`` is that of the schema cache.
    """

    request: Request
    compiled: Compiled
    operands: list[str]
    kept: bool
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

    ``compiled`` are their statements, by version of the schema cache and shape of the body.
    """

    head: Head
    query: Query
    range: Range
    compiled: dict[Hashable, Compiled] = field(factory=dict)

    @property
    def weight(self) -> int:
        return len(repr(self.head)) + len(repr(self.query))


@define
class Planner:
    """Pure but for what it remembers. Raises ``TableError`` for what cannot be understood or found."""

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
        """The request's shape and, in the order of the plan's slots, its operands. ``delegated`` is another head than
        path and headers say."""
        segments = incoming.segments
        is_call = delegated is not None or (len(segments) > 1 and segments[0] == "rpc")
        arguments = is_call and incoming.method in READING
        try:
            shape, operands = shape_of_query(incoming.pairs, arguments)
        except TableError:
            if delegated is None:
                self.head(incoming)  # whose faults come first
            raise
        key = (incoming.method, incoming.segments, incoming.headers.decisive, shape, delegated)
        try:
            return self._shapes[key], operands
        except KeyError:
            head = delegated or self.head(incoming)
        query = parse_query(incoming.pairs, arguments)
        made = Shape(head, query, range_of(head, query, incoming.pairs))
        if len(repr(key)) <= MAX_CACHED and made.weight <= MAX_CACHED:
            self._shapes[key] = made
        return made, operands

    def plan(
        self, cache: SchemaCache, shape: Shape, pairs: Pairs, payload: Payload | None, operands: list[str]
    ) -> Planned:
        request = Request(shape.head, shape.query, shape.range, payload, pairs)
        body_shape = shape_of_payload(payload) if payload is not None else ()
        if body_shape is None:
            return Planned(request, self._compiled(cache, request), operands, False, cache.version)
        key = (cache.version, body_shape)
        known = shape.compiled.get(key)
        if known is not None:
            return Planned(request, known, operands, True, cache.version)
        made = self._compiled(cache, _without_body(request))
        if len(shape.compiled) >= COMPILED_PER_SHAPE:
            shape.compiled.clear()
        if _weight(made) <= MAX_CACHED:
            shape.compiled[key] = made
        return Planned(request, made, operands, False, cache.version)

    def _compiled(self, cache: SchemaCache, request: Request) -> Compiled:
        """The compiled request, sharing its probe with other requests that select the same of the same relation: what
        they have learnt about the size of rows holds for this one too."""
        compiled, head = compile_request(cache, self.config, request), request.head
        key = (head.kind, head.schema, head.name, request.query.select)
        if compiled.probe is None or len(repr(key)) > MAX_CACHED:
            return compiled
        return evolve(compiled, probe=self._probes.setdefault(key, compiled.probe))


def _weight(compiled: Compiled) -> int:
    """How many characters a kept plan holds: its SQL, and the operands of the request that it was made for."""
    sql = compiled.statement.sql
    operands = (found.text for found in sql.parameters if isinstance(found, Operand))
    return len(sql.text) + sum(len(text) for text in operands)


def _without_body(request: Request) -> Request:
    """``request`` without its body and its values, so that a kept plan does not hold on to them."""
    if request.payload is None:
        return request
    return evolve(request, payload=evolve(request.payload, text="", raw=b"", arguments=()))
