"""Plans: requests whose names have been looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from attrs import field, frozen

from project_service.tables.catalog.model import Column, Key, Relation, Relationship
from project_service.tables.syntax import Field, Filter, Range


@frozen
class Output:
    """One column of a result. ``format`` is the function that represents its type in JSON."""

    name: str
    field: Field | None
    column: Column | None = None
    cast: str | None = None
    aggregate: str | None = None
    aggregate_cast: str | None = None
    format: Key | None = None


@frozen
class Everything:
    """All columns of the relation; ``named`` lists them where the schema cache knows them."""

    named: tuple[Output, ...] = ()
    formatted: bool = False


@frozen
class Hoisted:
    """An aggregate asked for inside a spread relation: it groups the rows of the parent.

    ``carrier`` is the column in which the relation's subquery hands its argument up.
    """

    carrier: str
    name: str
    aggregate: str
    cast: str | None = None


@frozen
class Embedded:
    """A relation embedded in another as ``name``; ``alias`` is its joined subquery's.

    ``needed`` says that a condition looks at it even if nothing of it is selected; with ``carries`` its hoisted
    aggregates are handed on to a parent that is spread itself. ``row_columns`` are those of the parent's relation,
    where what a function of its row is given has computed ones beside them.
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
    """Whether an embedded relation has no rows."""

    embedded: str
    negated: bool


@frozen
class Tree:
    operator: Literal["and", "or"]
    terms: tuple[Condition, ...]
    negated: bool = False


Condition = Filter | Tree | EmbedIsNull


def filtered_names(conditions: Iterable[Condition]) -> Iterator[str]:
    """The columns that conditions look at; an embedded relation that one tests is none."""
    for condition in conditions:
        if isinstance(condition, Filter):
            yield condition.field.name
        elif isinstance(condition, Tree):
            yield from filtered_names(condition.terms)


@frozen
class Order:
    """``embedded`` names the to-one embedding whose column is ordered by."""

    field: Field
    direction: Literal["asc", "desc"] | None
    nulls: Literal["nullsfirst", "nullslast"] | None
    column: Column | None = None
    embedded: str | None = None


@frozen
class ReadPlan:
    """``key`` None reads from the statement's own source: what was written, or what a function returned.

    ``renamed`` are embedded relations that the request named by their target although they have an alias.
    """

    key: Key | None
    alias: str
    relation: Relation | None = None
    outputs: tuple[Output | Everything | Embedded, ...] = ()
    conditions: tuple[Condition, ...] = ()
    order: tuple[Order, ...] = ()
    range: Range = field(factory=Range)
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def shows(self) -> bool:
        """False where nothing is selected, nor in anything that is embedded."""
        return any(not isinstance(output, Embedded) or output.plan.shows for output in self.outputs)

    @property
    def grouped(self) -> bool:
        """True where the rows are aggregated."""
        return any(
            bool(output.hoisted) and not output.carries if isinstance(output, Embedded) else output.aggregate
            for output in self.outputs
            if not isinstance(output, Everything)
        )

    @property
    def names_one_row(self) -> bool:
        """Whether the whole primary key is compared with values; of a view that may still be several rows."""
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
        """Whether something else than columns of tables may be read: a view, or what a function makes of a row."""
        if self.relation is None or self.relation.is_view:
            return True
        for found in self.outputs:
            if isinstance(found, Output) and found.field is not None and found.column is None:
                return True
        if any(order.column is None for order in self.order):
            return True
        if any(name not in self.relation.columns for name in filtered_names(self.conditions)):
            return True
        return any(way.relationship.routine is not None or way.plan.calls for way in self.embeddings)

    def embedding(self, name: str) -> Embedded | None:
        return next((found for found in self.embeddings if found.name == name), None)

    def column(self, name: str) -> Column | None:
        return self.relation.columns.get(name) if self.relation is not None else None
