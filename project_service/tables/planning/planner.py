"""Turns requests into compiled statements, and keeps the work for later requests of the same shape."""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, evolve, field, frozen

from project_service.tables import errors
from project_service.tables.bounded_cache import MOST, BoundedCache
from project_service.tables.config import TablesConfig
from project_service.tables.errors import TableError
from project_service.tables.incoming import Incoming, Pairs
from project_service.tables.model import SchemaCache
from project_service.tables.parse.payload import Payload
from project_service.tables.parse.query import parse_query
from project_service.tables.parse.request import READING, Head, Request, parse_head, range_of
from project_service.tables.planning.compile import Compiled, compile_request
from project_service.tables.planning.probe import Probe
from project_service.tables.planning.shape import shape_of_payload, shape_of_query
from project_service.tables.syntax import Operand, Query, Range

# How many are kept of each: enough for all distinct requests of an application, with little memory.
KEPT = 1000
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
    _shapes: BoundedCache[Shape] = field(
        factory=lambda: BoundedCache[Shape](KEPT, lambda shape: shape.weight), init=False
    )
    _probes: BoundedCache[Probe] = field(factory=lambda: BoundedCache[Probe](KEPT), init=False)

    def head(self, incoming: Incoming) -> Head:
        """What path and headers say."""
        head = parse_head(incoming.method, incoming.segments, incoming.headers.decisive, self.config.schemas)
        asked = head.preferences.get("tx")
        if asked is None or self.config.tx_override:
            return head
        # A client that only wants to try a write must not find it committed.
        if head.method not in READING and head.preferences.strict and asked != self.config.tx_end:
            raise errors.invalid_preferences([f"tx={asked}"])
        return evolve(head, preferences=head.preferences.without("tx"))

    def shape(self, incoming: Incoming, delegated: Head | None = None) -> tuple[Shape, list[str]]:
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
        found = self._shapes.get(key)
        if found is None:
            head = delegated or self.head(incoming)
            query = parse_query(incoming.pairs, arguments)
            made = Shape(head, query, range_of(head, query, incoming.pairs))
            found = self._shapes.made(key, lambda: made)
        return found, operands

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
        if _weight(made) <= MOST:
            shape.compiled[key] = made
        return Planned(request, made, operands, False, cache.version)

    def _compiled(self, cache: SchemaCache, request: Request) -> Compiled:
        """The compiled request, sharing its probe with other requests that select the same of the same relation: what
        they have learnt about the size of rows holds for this one too."""
        compiled = compile_request(cache, self.config, request)
        first = compiled.probe
        if first is None:
            return compiled
        head = request.head
        key = (head.kind, head.schema, head.name, request.query.select)
        return evolve(compiled, probe=self._probes.made(key, lambda: first))


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
