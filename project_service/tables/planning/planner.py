"""Turns requests into compiled statements, and keeps the work for later requests of the same shape."""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, evolve, field, frozen

from project_service.tables import errors
from project_service.tables.bounded_cache import BoundedCache
from project_service.tables.config import TablesConfig
from project_service.tables.incoming import Incoming
from project_service.tables.model import SchemaCache
from project_service.tables.parse.query import parse_query
from project_service.tables.parse.request import (
    READING,
    Head,
    Request,
    parse_head,
    takes_arguments,
)
from project_service.tables.planning.compile import Compiled, compile_request
from project_service.tables.planning.probe import Probe
from project_service.tables.planning.shape import shape_of_payload, shape_of_query
from project_service.tables.syntax import Operand, Query

# How many are kept of each: enough for all distinct requests of an application, with little memory.
KEPT = 1000


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


@define
class Planner:
    """Pure but for what it remembers. Raises ``TableError`` for what cannot be understood or found."""

    config: TablesConfig
    _heads: BoundedCache[Head] = field(
        factory=lambda: BoundedCache[Head](KEPT, lambda head: len(repr(head))), init=False
    )
    _queries: BoundedCache[Query] = field(
        factory=lambda: BoundedCache[Query](KEPT, lambda query: len(repr(query))), init=False
    )
    _plans: BoundedCache[Compiled] = field(factory=lambda: BoundedCache[Compiled](KEPT, _weight), init=False)
    _probes: BoundedCache[Probe] = field(factory=lambda: BoundedCache[Probe](KEPT), init=False)

    def head(self, incoming: Incoming) -> tuple[Head, Hashable]:
        decisive = incoming.headers.decisive
        key = (incoming.method, incoming.segments, decisive)
        return self._heads.made(key, lambda: self._parsed(incoming)), key

    def _parsed(self, incoming: Incoming) -> Head:
        head = parse_head(incoming.method, incoming.segments, incoming.headers.decisive, self.config.schemas)
        asked = head.preferences.get("tx")
        if asked is None or self.config.tx_override:
            return head
        # A client that only wants to try a write must not find it committed.
        if head.method not in READING and head.preferences.strict and asked != self.config.tx_end:
            raise errors.invalid_preferences([f"tx={asked}"])
        return evolve(head, preferences=head.preferences.without("tx"))

    def query(self, incoming: Incoming, head: Head) -> tuple[Hashable, Query, list[str]]:
        """The query with its shape and, in the order of the plan's slots, its operands."""
        arguments = takes_arguments(head)
        shape, operands = shape_of_query(incoming.pairs, arguments)
        query = self._queries.made((arguments, shape), lambda: parse_query(incoming.pairs, arguments))
        return shape, query, operands

    def plan(
        self, cache: SchemaCache, head_key: Hashable, shape: Hashable, request: Request, operands: list[str]
    ) -> Planned:
        body_shape = shape_of_payload(request.payload)
        if body_shape is None:
            return Planned(request, self._compiled(cache, request), operands, False, cache.version)
        key = (cache.version, head_key, shape, body_shape)
        known = self._plans.get(key)
        if known is not None:
            return Planned(request, known, operands, True, cache.version)
        made = self._plans.made(key, lambda: self._compiled(cache, _without_body(request)))
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
    """``request`` without its body, so that a kept plan does not hold on to it."""
    if request.payload is None:
        return request
    return evolve(request, payload=evolve(request.payload, text="", raw=b"", arguments=()))
