"""The parts of a plan: what a request asks for, with all names looked up in the schema cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from attrs import field, frozen

from project_service.tables.syntax import Field, Filter, Range
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
