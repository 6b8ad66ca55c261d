"""Plans a write: what is inserted, updated or deleted, and what of it is returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import evolve, frozen

from project_service.tables import errors
from project_service.tables.plan.nodes import (
    Embedded,
    PlannedCondition,
    ReadPlan,
    needed_columns,
    with_columns_listed,
)
from project_service.tables.plan.read import ReadPlanner
from project_service.tables.request.body import Payload
from project_service.tables.request.headers import Representation
from project_service.tables.request.request import Request
from project_service.tables.request.syntax import Filter, Range
from project_service.tables.values import Column, Computed, Relation, SchemaCache, TablesConfig

Verb = Literal["insert", "update", "delete"]
_VERBS: dict[str, Verb] = {"POST": "insert", "PUT": "insert", "PATCH": "update", "DELETE": "delete"}


@frozen
class WritePlan:
    """What is written, and what of it is returned.

    ``key_filters`` are the filters of a PUT. ``conflict`` are the columns of ON CONFLICT; ``merges`` says whether it
    updates (True) or ignores (False) rows that exist, None where there is no such clause. ``fills_defaults`` gives
    missing members their column's default. ``everything`` and ``returning`` are the columns that ``read`` needs.
    ``computed`` are the computed columns that the request names, which ``read`` finds made. ``limited`` is the range
    of a limited UPDATE or DELETE.
    """

    verb: Verb
    relation: Relation
    columns: tuple[Column, ...]
    payload: Payload | None
    fills_defaults: bool
    conditions: tuple[PlannedCondition, ...]
    conflict: tuple[str, ...]
    merges: bool | None
    key_filters: tuple[Filter, ...]
    read: ReadPlan
    representation: Representation
    everything: bool
    returning: tuple[str, ...]
    computed: Mapping[str, Computed]
    limited: Range

    @property
    def is_put(self) -> bool:
        return bool(self.key_filters)

    @property
    def may_write_more(self) -> bool:
        """Whether a limited write may hit more rows than it chose: several rows of a view may have the same key."""
        return self.relation.is_view and not self.limited.whole

    @property
    def may_be_undone(self) -> bool:
        """Whether the write is undone for some numbers of written rows."""
        return self.is_put or self.may_write_more

    @property
    def location(self) -> tuple[str, ...]:
        """The primary key's columns in the table's order, if a Location was asked for; else none."""
        if self.representation != "headers-only":
            return ()
        return tuple(name for name in self.relation.columns if name in self.relation.primary_key)


def plan_write(cache: SchemaCache, config: TablesConfig, relation: Relation, request: Request) -> WritePlan:
    """The plan of an insert, update, upsert or delete. Raises PGRST105, 109, 204 and those of ``ReadPlanner.plan``;
    21000 for a write without a filter."""
    method, preferences = request.head.method, request.head.preferences
    key_filters = _key_filters(request, relation) if method == "PUT" else ()
    conditions, read = _conditions_and_read(cache, config, relation, request)
    filtered = bool(conditions) or _omits_rows(read)
    if method in ("PATCH", "DELETE") and not filtered and config.unfiltered_writes != "allow":
        raise errors.unfiltered_write(method)
    representation = _representation(method, preferences.get("return"))
    everything, returning = False, relation.primary_key if representation == "headers-only" else ()
    if representation == "representation":
        everything, returning = needed_columns(read)
    conflict, merges = _conflict(relation, request)
    limited = request.range if method in ("PATCH", "DELETE") else Range()
    if not limited.whole and not read.order:
        raise errors.limit_without_order()
    if not limited.whole and relation.is_view and not relation.primary_key:
        raise errors.not_implemented("A limited write to a view needs the primary key of its table.")
    return WritePlan(
        verb=_VERBS[method],
        relation=relation,
        columns=_columns(relation, request.payload),
        payload=request.payload,
        fills_defaults=preferences.get("missing") == "default" and method != "PUT",
        conditions=conditions,
        conflict=conflict,
        merges=merges,
        key_filters=key_filters,
        read=with_columns_listed(read, returning),
        representation=representation,
        everything=everything,
        returning=returning,
        computed=read.computed,
        limited=limited,
    )


def _conditions_and_read(
    cache: SchemaCache, config: TablesConfig, relation: Relation, request: Request
) -> tuple[tuple[PlannedCondition, ...], ReadPlan]:
    """The conditions that choose what a PATCH or DELETE writes, planned as those of a GET, and the plan for reading
    what was written. That has none of them: a row is returned even if it no longer meets them."""
    query = request.query
    if request.head.method not in ("PATCH", "DELETE"):
        query = evolve(query, filters=tuple(one for one in query.filters if one[0] != ()))
    plan = ReadPlanner(cache, relation.schema, config).plan_written(relation, query)
    outputs = tuple(evolve(one, tested=False) if isinstance(one, Embedded) else one for one in plan.outputs)
    return plan.conditions, evolve(plan, conditions=(), outputs=outputs)


def _omits_rows(read: ReadPlan) -> bool:
    """Whether filters on embedded relations leave out rows, which are not written then."""
    inner = (embedded.plan for embedded in read.embeddings if embedded.join == "inner")
    return any(plan.conditions or _omits_rows(plan) for plan in inner)


def _representation(method: str, asked: str | None) -> Representation:
    """What the reply contains. "headers-only" means something for POST alone, which answers with a Location."""
    if asked == "representation":
        return "representation"
    return "headers-only" if asked == "headers-only" and method == "POST" else "minimal"


def _columns(relation: Relation, payload: Payload | None) -> tuple[Column, ...]:
    names = payload.keys if payload is not None else ()
    for name in names:
        if name not in relation.columns:
            raise errors.no_column(name, relation.name)
    return tuple(relation.columns[name] for name in names)


def _conflict(relation: Relation, request: Request) -> tuple[tuple[str, ...], bool | None]:
    """ON CONFLICT's target and whether it merges (True), ignores (False) or does not apply (None)."""
    if request.head.method == "PUT":
        return relation.primary_key, True
    resolution = request.head.preferences.get("resolution")
    if resolution is None:
        return (), None
    target = request.query.on_conflict or relation.primary_key
    for name in target:
        # PostgreSQL would take the relation's own name for its whole row.
        if name not in relation.columns:
            raise errors.unknown_column(None, name)
    return (target, resolution == "merge-duplicates") if target else ((), None)


def _key_filters(request: Request, relation: Relation) -> tuple[Filter, ...]:
    """The filters of a PUT. Raises PGRST105 unless they compare each column of the primary key, and no other."""
    filters: list[Filter] = []
    for path, condition in request.query.filters:
        if path == ():
            if not isinstance(condition, Filter) or not condition.is_equality:
                raise errors.invalid_upsert_filters()
            filters.append(condition)
    names = {condition.field.name for condition in filters}
    if not names or names != set(relation.primary_key):
        raise errors.invalid_upsert_filters()
    return tuple(filters)
