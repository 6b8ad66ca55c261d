"""The plan of a read: the tree of relations that a request reads, with all names looked up in the schema cache.

``read`` makes these values, and ``sql`` makes the statement of them. What follows from a plan, such as the names of
the columns of its result, is here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from attrs import evolve, field, frozen

from project_service.tables.request.syntax import Field, Filter, Range
from project_service.tables.values import Column, Computed, Key, Relation, Relationship

# PostgreSQL truncates longer names, and two that are truncated may become equal.
NAME_BYTES = 63


def sql_alias(name: str, number: int) -> str:
    """A name for a relation within one statement, unique by ``number`` and never cut by PostgreSQL."""
    suffix = f"_{number}"
    return name.encode()[: NAME_BYTES - len(suffix)].decode(errors="ignore") + suffix


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
class AllColumns:
    """All columns of the relation. ``columns`` lists them, except for plain values, which have none; ``formatted``
    says that one has a ``format``."""

    columns: tuple[Output, ...] = ()
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

    ``tested`` says that a condition tests whether it has rows, so that it is joined even if nothing of it is
    selected. With ``carries`` the parent is spread itself, and passes the hoisted aggregates on to its own parent.
    ``row_columns`` are the columns of which to make the parent's row for a computed relationship, where its source
    has others besides (see ``with_columns_listed``).
    """

    name: str
    plan: ReadPlan
    relationship: Relationship
    alias: str
    join: Literal["inner", "left"] = "left"
    spread: bool = False
    tested: bool = False
    hoisted: tuple[Hoisted, ...] = ()
    carries: bool = False
    row_columns: tuple[str, ...] = ()

    @property
    def to_one(self) -> bool:
        return self.relationship.to_one

    @property
    def decides(self) -> bool:
        """Whether the embedding decides which rows the parent shows."""
        return self.tested or self.join == "inner"

    @property
    def is_read(self) -> bool:
        """Whether the parent's SELECT reads its rows."""
        return self.plan.shows or self.decides

    @property
    def carriers(self) -> frozenset[str]:
        return frozenset(hoisted.carrier for hoisted in self.hoisted)


@frozen
class EmbedIsNull:
    """The condition that an embedded relation has no rows, or with ``negated`` that it has some."""

    embedded: str
    negated: bool


@frozen
class LogicTree:
    operator: Literal["and", "or"]
    terms: tuple[PlannedCondition, ...]
    negated: bool = False


PlannedCondition = Filter | LogicTree | EmbedIsNull


def filters_of(conditions: Iterable[PlannedCondition]) -> Iterator[Filter]:
    """The filters in conditions, those in their trees included."""
    for condition in conditions:
        if isinstance(condition, Filter):
            yield condition
        elif isinstance(condition, LogicTree):
            yield from filters_of(condition.terms)


def filtered_names(conditions: Iterable[PlannedCondition]) -> Iterator[str]:
    """The names of the columns that conditions look at. Tests of embedded relations name none."""
    return (one.field.name for one in filters_of(conditions))


def tested_names(conditions: Iterable[PlannedCondition]) -> Iterator[str]:
    """The names of the embedded relations that conditions test."""
    for condition in conditions:
        if isinstance(condition, LogicTree):
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
    outputs: tuple[Output | AllColumns | Embedded, ...] = ()
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
            if not isinstance(output, AllColumns)
        )

    @property
    def names_one_row(self) -> bool:
        """Whether every column of the primary key has to equal a value. In a view that may still be several rows."""
        key = self.relation.primary_key if self.relation is not None else ()
        equal = {one.field.name for one in self.conditions if isinstance(one, Filter) and one.is_equality}
        return bool(key) and equal.issuperset(key)

    @property
    def searches(self) -> bool:
        """Whether a filter, here or in an embedded relation, searches (``syntax.Operator``)."""
        return any(one.searches for one in filters_of(self.conditions)) or any(
            one.plan.searches for one in self.embeddings
        )

    @property
    def embeddings(self) -> Iterator[Embedded]:
        return (output for output in self.outputs if isinstance(output, Embedded))

    @property
    def deciding(self) -> Iterator[Embedded]:
        """The embedded relations that decide which rows are shown."""
        return (embedded for embedded in self.embeddings if embedded.decides)

    def shows_records(self, computed: Mapping[str, Computed]) -> bool:
        """Whether the result may hold rows without a declared type. ``computed`` are the plan's computed columns,
        also those that its source has made."""
        if any(column.is_record for column in computed.values()):
            return True
        return any(one.plan.shows_records(one.plan.computed) for one in self.embeddings)

    def embedding(self, name: str) -> Embedded | None:
        return next((embedded for embedded in self.embeddings if embedded.name == name), None)

    def column(self, name: str) -> Column | None:
        return self.relation.columns.get(name) if self.relation is not None else None


def as_stored(plan: ReadPlan) -> ReadPlan:
    """The plan without the functions that represent values in JSON, for an aggregate that takes the relation's
    rows."""

    def stored(output: Output | AllColumns | Embedded) -> Output | AllColumns | Embedded:
        if isinstance(output, AllColumns):
            return AllColumns(tuple(evolve(column, format=None) for column in output.columns))
        return evolve(output, format=None) if isinstance(output, Output) else output

    return evolve(plan, outputs=tuple(map(stored, plan.outputs)))


def needed_columns(plan: ReadPlan) -> tuple[bool, tuple[str, ...]]:
    """What a statement must return so that the plan can be read from it: whether all columns, and the names of those
    that are selected, ordered by or embedded on (computed ones included)."""
    everything, names = False, list[str]()
    for output in plan.outputs:
        if isinstance(output, AllColumns):
            everything = True
        elif isinstance(output, Embedded):
            everything = everything or output.relationship.routine is not None
            names.extend(name for name, _ in output.relationship.origin_pairs)
        elif output.field is not None:
            names.append(output.field.name)
    names.extend(one.field.name for one in plan.order if one.embedded is None and not one.counts)
    return everything, tuple(dict.fromkeys(names))


def with_columns_listed(plan: ReadPlan, needed: Iterable[str]) -> ReadPlan:
    """The plan with ``*``, and rows passed to functions, replaced by the list of the relation's own columns.

    That is necessary where computed or system columns are among ``needed``: the statement's source then has more
    columns than the relation.
    """
    relation = plan.relation
    if relation is None:
        return plan
    plan = evolve(plan, computed={})
    if all(name in relation.columns for name in needed):
        return plan
    own = tuple(relation.columns)
    outputs: list[Output | AllColumns | Embedded] = []
    for output in plan.outputs:
        if isinstance(output, AllColumns):
            outputs.extend(output.columns)
        else:
            outputs.append(evolve(output, row_columns=own) if isinstance(output, Embedded) else output)
    return evolve(plan, outputs=tuple(outputs))


def result_columns(plan: ReadPlan) -> dict[str, bool]:
    """The names of the columns of a plan's result, in order and with carriers: True for JSON that is made for it,
    which has no order and no equality. Of several with one name the last counts.

    Computed for all columns at once, because a caller may ask about every selected name on every level.
    """
    columns: dict[str, bool] = {}
    for output in plan.outputs:
        if isinstance(output, Embedded):
            if output.spread:
                columns.update(spread_columns(output))
            elif output.plan.shows:
                columns[output.name] = True
        else:
            for column in output.columns if isinstance(output, AllColumns) else (output,):
                columns[column.name] = column.format is not None
    return columns


def spread_columns(embedded: Embedded) -> list[tuple[str, bool]]:
    """The columns that a spread relation adds to its parent's, as in ``result_columns``."""
    columns, carriers, to_many = result_columns(embedded.plan), embedded.carriers, not embedded.to_one
    names = [name for name in columns if name not in carriers]
    names.extend(hoisted.carrier if embedded.carries else hoisted.name for hoisted in embedded.hoisted)
    return [(name, to_many or columns.get(name, False)) for name in names]


def repeated_names(plan: ReadPlan) -> frozenset[str]:
    """The names that several columns of a plan's result have."""
    names: Counter[str] = Counter()
    for output in plan.outputs:
        if isinstance(output, AllColumns):
            names.update(column.name for column in output.columns)
        elif isinstance(output, Embedded) and output.spread:
            names.update(name for name, _ in spread_columns(output))
        else:
            names[output.name] += 1
    return frozenset(name for name, times in names.items() if times > 1)
