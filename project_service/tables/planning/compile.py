"""Makes the statement that answers a parsed request: its plan, and the plan's SQL. No I/O."""

from __future__ import annotations

from functools import cached_property

from attrs import Factory, evolve, frozen

from project_service.tables import errors
from project_service.tables.config import TablesConfig
from project_service.tables.model import Key, Relation, Routine, SchemaCache
from project_service.tables.parse.request import READING, Request
from project_service.tables.parse.select import EVERYTHING
from project_service.tables.plan.call import CallPlan, plan_call
from project_service.tables.plan.media import Rendering, negotiate
from project_service.tables.plan.nodes import ReadPlan
from project_service.tables.plan.outputs import as_stored
from project_service.tables.plan.read import Reader
from project_service.tables.plan.relation import find_relation
from project_service.tables.plan.write import WritePlan, plan_write
from project_service.tables.planning.probe import LastTime, Pace, Probe, first_probe
from project_service.tables.sql.statement import (
    Bounds,
    Statement,
    call_statement,
    read_statement,
    write_statement,
)


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
    reader = Reader(cache, request.head.schema, config.plan_options)
    plan = reader.plan(relation, request.query, request.range)
    rendering = _negotiated(cache, config, request, relation.key, None)
    plan = _rows_for(rendering, plan)
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
