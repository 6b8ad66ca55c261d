"""The parts of a plan: what a request asks for, with all names looked up in the schema cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from attrs import evolve, field, frozen

from project_service.tables.request.syntax import Field, Filter, Range
from project_service.tables.values import Column, Computed, Key, Relation, Relationship


@frozen
class Output:
    """One column of a result. ``field`` is None for a bare ``count()``. ``column`` is None for computed columns and
    those of unknown types. ``format`` is the function that represents the column's type in JSON."""

    name: str
    field: Field | None
    column: Column | None = None
    cast: str | None = None
    aggregate: str | None = None
    aggregate_cast: str | None = None
    format: Key | None = None


@frozen
class Everything:
    """All columns of the relation. ``named`` lists them, except for plain values, which have none; ``formatted`` says
    that one has a ``format``."""

    named: tuple[Output, ...] = ()
    formatted: bool = False


@frozen
class Hoisted:
    """An aggregate that was selected in a spread to-one relation, and is computed over the rows of its parent.

    ``carrier`` is the column in which the relation's subquery passes the aggregate's argument to the parent.
    """

    carrier: str
    name: str
    aggregate: str
    cast: str | None = None


@frozen
class Embedded:
    """A relation embedded in another as ``name``; ``alias`` is the alias of its joined subquery.

    ``needed`` says that a condition tests it, so that it is joined even if nothing of it is selected. With
    ``carries`` the parent is spread itself, and passes the hoisted aggregates on to its own parent. ``row_columns``
    are the columns of which to make the parent's row for a computed relationship, where its source has others besides
    (see ``needs.spelled_out``).
    """

    name: str
    plan: ReadPlan
    relationship: Relationship
    alias: str
    join: Literal["inner", "left"] = "left"
    spread: bool = False
    needed: bool = False
    hoisted: tuple[Hoisted, ...] = ()
    carries: bool = False
    row_columns: tuple[str, ...] = ()

    @property
    def to_one(self) -> bool:
        return self.relationship.to_one


@frozen
class EmbedIsNull:
    """The condition that an embedded relation has no rows, or with ``negated`` that it has some."""

    embedded: str
    negated: bool


@frozen
class Tree:
    operator: Literal["and", "or"]
    terms: tuple[PlannedCondition, ...]
    negated: bool = False


PlannedCondition = Filter | Tree | EmbedIsNull


def filtered_names(conditions: Iterable[PlannedCondition]) -> Iterator[str]:
    """The names of the columns that conditions look at. Tests of embedded relations name none."""
    for condition in conditions:
        if isinstance(condition, Filter):
            yield condition.field.name
        elif isinstance(condition, Tree):
            yield from filtered_names(condition.terms)


def tested_names(conditions: Iterable[PlannedCondition]) -> Iterator[str]:
    """The names of the embedded relations that conditions test."""
    for condition in conditions:
        if isinstance(condition, Tree):
            yield from tested_names(condition.terms)
        elif isinstance(condition, EmbedIsNull):
            yield condition.embedded


@frozen
class Order:
    """``embedded`` names the to-one embedding whose column is ordered by. If that is not a column of its relation
    (``own``), it has to be one of those selected there. ``counts`` is for the number of rows in a group."""

    field: Field
    direction: Literal["asc", "desc"] | None
    nulls: Literal["nullsfirst", "nullslast"] | None
    column: Column | None = None
    embedded: str | None = None
    own: bool = True
    counts: bool = False


@frozen
class ReadPlan:
    """How a relation is read. ``key`` None reads from the statement's own source: the rows written or returned by a
    function.

    ``renamed`` are embedded relations that the request refers to by their target although they have an alias, as
    pairs of both. ``computed`` are the computed columns that the plan names. Where its source has made them, it is
    empty: they are columns like others there. ``inlined`` says that the source is a function that PostgreSQL may
    replace by its query, so that it knows how many rows there are.
    """

    key: Key | None
    alias: str
    relation: Relation | None = None
    outputs: tuple[Output | Everything | Embedded, ...] = ()
    conditions: tuple[PlannedCondition, ...] = ()
    order: tuple[Order, ...] = ()
    range: Range = field(factory=Range)
    renamed: tuple[tuple[str, str], ...] = ()
    computed: Mapping[str, Computed] = field(factory=dict)
    inlined: bool = False

    @property
    def shows(self) -> bool:
        """Whether anything is selected, here or in an embedded relation."""
        return any(not isinstance(output, Embedded) or output.plan.shows for output in self.outputs)

    @property
    def grouped(self) -> bool:
        """Whether the rows are aggregated: one row may stand for several, or for none."""
        return any(
            bool(output.hoisted) and not output.carries if isinstance(output, Embedded) else output.aggregate
            for output in self.outputs
            if not isinstance(output, Everything)
        )

    @property
    def names_one_row(self) -> bool:
        """Whether every column of the primary key has to equal a value. In a view that may still be several rows."""
        key = self.relation.primary_key if self.relation is not None else ()
        equal = {
            found.field.name for found in self.conditions if isinstance(found, Filter) and found.is_equality
        }
        return bool(key) and equal.issuperset(key)

    @property
    def embeddings(self) -> Iterator[Embedded]:
        return (output for output in self.outputs if isinstance(output, Embedded))

    @property
    def calls(self) -> bool:
        """Whether reading may call functions: through a view, a computed column or a computed relationship."""
        if self.relation is None or self.relation.is_view or self.computed:
            return True
        return any(way.relationship.routine is not None or way.plan.calls for way in self.embeddings)

    def shows_records(self, computed: Mapping[str, Computed]) -> bool:
        """Whether the result may hold rows without a declared type. ``computed`` are the plan's computed columns,
        also those that its source has made."""
        if any(column.is_record for column in computed.values()):
            return True
        return any(way.plan.shows_records(way.plan.computed) for way in self.embeddings)

    def embedding(self, name: str) -> Embedded | None:
        return next((found for found in self.embeddings if found.name == name), None)

    def column(self, name: str) -> Column | None:
        return self.relation.columns.get(name) if self.relation is not None else None


def as_stored(plan: ReadPlan) -> ReadPlan:
    """The plan without the functions that represent values in JSON, for an aggregate that takes the relation's
    rows."""
    return evolve(plan, outputs=tuple(_stored(output) for output in plan.outputs))


def _stored(output: Output | Everything | Embedded) -> Output | Everything | Embedded:
    if isinstance(output, Everything):
        return Everything(tuple(evolve(named, format=None) for named in output.named))
    return evolve(output, format=None) if isinstance(output, Output) else output


def result_names(plan: ReadPlan) -> list[str]:
    """The names of the columns of a plan's result, in order and with carriers."""
    found: list[str] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            found.append(output.name)
        elif isinstance(output, Everything):
            found.extend(named.name for named in output.named)
        elif output.spread:
            found.extend(spread_names(output))
        elif output.plan.shows:
            found.append(output.name)
    return list(dict.fromkeys(found))


def spread_names(embedded: Embedded) -> list[str]:
    """The names that a spread relation adds to its parent's columns."""
    carriers = {hoisted.carrier for hoisted in embedded.hoisted}
    plain = [name for name in result_names(embedded.plan) if name not in carriers]
    return plain + [hoisted.carrier if embedded.carries else hoisted.name for hoisted in embedded.hoisted]


def repeated_names(plan: ReadPlan) -> frozenset[str]:
    """The names that several columns of a plan's result have."""
    found: Counter[str] = Counter()
    for output in plan.outputs:
        if isinstance(output, Everything):
            found.update(named.name for named in output.named)
        elif isinstance(output, Embedded) and output.spread:
            found.update(spread_names(output))
        else:
            found[output.name] += 1
    return frozenset(name for name, times in found.items() if times > 1)


def made_columns(plan: ReadPlan) -> dict[str, bool]:
    """The columns of a plan's result: True for JSON made for it, which has no order and no equality. Of several with
    one name the last counts.

    Computed for all columns at once, because a caller may ask about every selected name on every level.
    """
    made: dict[str, bool] = {}
    for output in plan.outputs:
        if isinstance(output, Embedded) and output.spread:
            inner = made_columns(output.plan) if output.to_one else {}
            known = {**{hoisted.name: False for hoisted in output.hoisted}, **inner}
            for name in spread_names(output):
                made[name] = known.get(name, not output.to_one)
        elif isinstance(output, Embedded):
            if output.plan.shows:
                made[output.name] = True
        else:
            for shown in output.named if isinstance(output, Everything) else (output,):
                made[shown.name] = shown.format is not None
    return made
