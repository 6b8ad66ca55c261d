"""Plans a read: the tree of embedded relations with each one's columns, conditions, order and range.

The request's ``select`` becomes a tree of ``Node``; filters, orders and ranges are attached to the nodes that their
paths lead to; then each node becomes a ``ReadPlan``, from the top down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from attrs import Factory, define, evolve, field

from project_service.tables import errors
from project_service.tables.plan.names import find_relationship, unknown_column
from project_service.tables.plan.nodes import (
    AllColumns,
    Embedded,
    EmbedIsNull,
    Hoisted,
    LogicTree,
    Order,
    Output,
    PlannedCondition,
    ReadPlan,
    filtered_names,
    sql_alias,
)
from project_service.tables.request.syntax import (
    Condition,
    Field,
    Is,
    Logic,
    OrderTerm,
    Path,
    Query,
    Range,
    SelectAll,
    SelectColumn,
    SelectEmbed,
    SelectItem,
)
from project_service.tables.values import (
    SCALAR,
    Column,
    Computed,
    Key,
    Relation,
    Relationship,
    Routine,
    SchemaCache,
    TablesConfig,
)

# PostgreSQL takes half a second to plan a hundred, and half a minute for eight hundred.
MAX_EMBEDDED = 100
# What PostgreSQL keeps with each row of a table, and ``*`` does not contain.
_SYSTEM_COLUMNS = ("ctid", "tableoid", "xmin", "xmax", "cmin", "cmax")
# The aggregate, as clients wrote it before it had brackets.
_COUNT = Field("count")


@define
class Node:
    """One relation of the tree while it is being put together.

    ``names`` are those of its columns; ``row`` is the type of its rows, if that has a name. The computed columns that
    the request names are gathered in ``computed``. Error messages call it ``shown``.
    """

    key: Key
    relation: Relation | None
    alias: str
    shown: str
    names: Collection[str]
    row: Key | None
    items: list[SelectColumn | SelectAll | Node] = Factory(list)
    embed: SelectEmbed | None = None
    relationship: Relationship | None = None
    joined: str = ""
    depth: int = 0
    filters: list[Condition] = Factory(list)
    order: tuple[OrderTerm, ...] = ()
    range: Range = Factory(Range)
    computed: dict[str, Computed] = Factory(dict)

    @property
    def name(self) -> str:
        assert self.embed is not None
        return self.embed.alias or self.embed.target

    @property
    def children(self) -> Iterator[Node]:
        return (item for item in self.items if isinstance(item, Node))

    @property
    def to_one(self) -> bool:
        return self.relationship is not None and self.relationship.to_one

    @property
    def spreads_one(self) -> bool:
        return self.embed is not None and self.embed.spread and self.to_one

    @property
    def spreads_many(self) -> bool:
        return self.embed is not None and self.embed.spread and not self.to_one

    def column(self, name: str) -> Column | None:
        return self.relation.columns.get(name) if self.relation is not None else None


@define
class ReadPlanner:
    """Plans one read. Embedded relations are those of ``schema``."""

    cache: SchemaCache
    schema: str
    config: TablesConfig
    _count: int = field(default=0, init=False)
    _renamed: dict[str, str] = field(factory=dict, init=False)

    def plan(self, relation: Relation, query: Query, range_: Range) -> ReadPlan:
        """The plan of reading ``relation``.

        Raises PGRST108, 118, 120, 123, 127, 200, 201 and 204, 42703 and 42712.
        """
        return self._plan(_root(relation), query, range_)

    def plan_written(self, relation: Relation, query: Query) -> ReadPlan:
        """The plan of reading the rows that a statement wrote. All of them are read. Raises what ``plan`` raises."""
        return evolve(self._plan(_root(relation), query, None), key=None)

    def plan_called(self, routine: Routine, query: Query, range_: Range) -> ReadPlan:
        """The plan of reading the rows that ``routine`` returned. Raises what ``plan`` raises."""
        row, key = routine.returns, routine.returns or routine.key
        names: Collection[str] = (SCALAR,) if routine.is_scalar else routine.columns
        if row is not None:
            names = self._columns_of(row)
        relation = self.cache.relations.get(row) if row is not None else None
        root = Node(key, relation, key[1], routine.name, names, row)
        return evolve(self._plan(root, query, range_), key=None, inlined=routine.may_be_inlined)

    def _plan(self, root: Node, query: Query, range_: Range | None) -> ReadPlan:
        """The plan of the tree whose root is ``root``. ``range_`` None is for all rows, whatever ``max_rows``
        says."""
        root.items = self._items(root, query.select)
        self._attach(root, query)
        if range_ is not None:
            self._cap(root)
            range_ = range_.capped(self.config.max_rows)
        plan, _ = self._plan_of(root)
        return evolve(plan, range=range_ or Range(), renamed=tuple(self._renamed.items()))

    def _columns_of(self, row: Key) -> Collection[str]:
        """The columns of rows that a function returns."""
        relation = self.cache.relations.get(row)
        return relation.columns if relation is not None else self.cache.row_columns.get(row, ())

    # The tree of nodes.

    def _items(self, parent: Node, items: tuple[SelectItem, ...]) -> list[SelectColumn | SelectAll | Node]:
        return [self._child(parent, item) if isinstance(item, SelectEmbed) else item for item in items]

    def _child(self, parent: Node, item: SelectEmbed) -> Node:
        relationship = find_relationship(self.cache, parent.key, self.schema, item.target, item.hint)
        target = relationship.target
        relation = self.cache.relations.get(target)
        by_function = relation is None or relationship.routine is not None
        # PostgreSQL's messages show the alias, so it ends with the depth. Relations at the same depth may share one,
        # being in separate subqueries. It must differ from the parent's, whose own name may end like that.
        depth = parent.depth + 1
        alias = sql_alias(target[1], depth)
        if alias == parent.alias:
            alias = sql_alias(target[1], depth + 1)
        child = Node(
            target,
            relation,
            alias,
            alias,
            self._columns_of(target) if relation is None or by_function else _names_of(relation),
            target,
            embed=item,
            relationship=relationship,
            joined=sql_alias(f"{parent.key[1]}_{item.alias or item.target}", self._next()),
            depth=depth,
        )
        child.items = self._items(child, item.items)
        return child

    def _next(self) -> int:
        self._count += 1
        if self._count > MAX_EMBEDDED:
            raise errors.statement_too_large(MAX_EMBEDDED, "embedded relations")
        return self._count

    def _attach(self, root: Node, query: Query) -> None:
        for path, condition in query.filters:
            self._at(root, path).filters.append(condition)
        for path, order in query.orders:
            node = self._at(root, path)
            # Of several orders the first one counts.
            node.order = node.order or order
        for path, range_ in query.ranges:
            self._at(root, path).range = range_

    def _at(self, root: Node, path: Path) -> Node:
        node = root
        for name in path:
            node = self._embedded(node, name)
        return node

    def _embedded(self, node: Node, name: str) -> Node:
        for child in node.children:
            if child.name == name:
                return child
        for child in node.children:
            assert child.embed is not None
            if child.embed.target == name:
                if not self.config.legacy_target_names:
                    raise errors.not_embedded(name, child.embed.alias)
                # No relation is embedded by this name, so this one has an alias.
                self._renamed[name] = child.name
                return child
        raise errors.not_embedded(name)

    def _cap(self, node: Node) -> None:
        """Apply ``max_rows`` to embedded relations. Not to to-one relations, which have one row; a needless LIMIT
        would keep PostgreSQL from using their indexes."""
        for child in node.children:
            if not child.to_one:
                child.range = child.range.capped(self.config.max_rows)
            self._cap(child)

    # From nodes to plans.

    def _plan_of(self, node: Node) -> tuple[ReadPlan, tuple[Hoisted, ...]]:
        """The plan of a node, and the aggregates that its parent computes."""
        embedded_names, tested = self._embedded_names(node), dict[str, str]()
        conditions = tuple(_condition(node, one, embedded_names, tested) for one in node.filters)
        self._renamed.update((name, shown) for name, shown in tested.items() if name != shown)
        for name in filtered_names(conditions):
            self._column(node, name)
        # Before the embedded relations are planned, whose computed columns may be ordered by.
        order = tuple(self._order(node, term) for term in node.order)
        outputs: list[Output | AllColumns | Embedded] = []
        hoisted: list[Hoisted] = []
        for item in node.items:
            if isinstance(item, SelectAll):
                outputs.append(_all_columns(node))
            elif isinstance(item, SelectColumn):
                outputs.append(self._output(node, item, hoisted))
            else:
                embedded = self._embedding(node, item, item.name in tested.values())
                outputs.append(embedded)
                hoisted.extend(embedded.hoisted if node.spreads_one else ())
        _reject_equal_names(node, outputs)
        plan = ReadPlan(
            node.key,
            node.alias,
            node.relation,
            tuple(outputs),
            conditions,
            order,
            node.range,
            computed=node.computed,
        )
        return plan, tuple(hoisted)

    def _column(self, node: Node, name: str) -> Column | None:
        """The column that the request calls ``name``; None if it is a computed one, or one of an unknown type.

        Raises 42703. The name must not get into SQL then: PostgreSQL would take it for any function or aggregate that
        can be called with a row.
        """
        if not self._has_column(node, name):
            columns = node.relation.columns if node.relation is not None else node.names
            key = None if node.relation is None else node.relation.key
            raise unknown_column(node.shown, name, columns, key)
        return node.column(name)

    def _has_column(self, node: Node, name: str) -> bool:
        """Whether there is such a column. A computed one is noted."""
        if name in node.names:
            return True
        path = (self.schema, *self.config.extra_search_path)
        is_row = SCALAR not in node.names
        computed = self.cache.computed_column(node.row, name, path) if is_row else None
        if computed is not None:
            node.computed[name] = computed
        return computed is not None

    def _embedded_names(self, node: Node) -> dict[str, str]:
        """The names that a condition may use for embedded relations, with the relations' names.

        That includes the target of one with an alias, unless the relation has a column of that name, which is meant
        then.
        """
        names = {child.name: child.name for child in node.children}
        columns = node.relation.columns if node.relation is not None else ()
        for child in node.children if self.config.legacy_target_names else ():
            assert child.embed is not None
            if child.embed.target not in columns:
                names.setdefault(child.embed.target, child.name)
        return names

    def _output(self, node: Node, item: SelectColumn, hoisted: list[Hoisted]) -> Output:
        output = self._selected(node, item)
        if output.aggregate is None:
            return output
        if not self.config.aggregates:
            raise errors.aggregates_disabled()
        if node.spreads_many:
            raise _no_aggregates()
        if not node.spreads_one:
            return output
        carrier = sql_alias("pgrst_agg", self._next())
        hoisted.append(Hoisted(carrier, output.name, output.aggregate, output.aggregate_cast))
        return evolve(output, name=carrier, aggregate=None, aggregate_cast=None)

    def _selected(self, node: Node, item: SelectColumn) -> Output:
        """A selected column as it is in the result. Raises 42703, and PGRST204 for what PostgreSQL would take for a
        function or an aggregate."""
        if item.field is None:
            return _output_of(item, None)
        if not self._has_column(node, item.field.name):
            if item.field == _COUNT and item.aggregate is None:
                count = SelectColumn(None, item.alias, aggregate="count", aggregate_cast=item.cast)
                return _output_of(count, None)
            if node.relation is not None and item.field.name in self.cache.row_functions:
                raise errors.no_column(item.field.name, node.relation.name)
        return _output_of(item, self._column(node, item.field.name))

    def _embedding(self, parent: Node, child: Node, tested: bool) -> Embedded:
        assert child.embed is not None and child.relationship is not None
        plan, hoisted = self._plan_of(child)
        if hoisted and parent.spreads_many:
            raise _no_aggregates()
        return Embedded(
            name=child.name,
            plan=plan,
            relationship=child.relationship,
            alias=child.joined,
            join=child.embed.join or "left",
            spread=child.embed.spread,
            tested=tested,
            hoisted=hoisted,
            carries=parent.spreads_one,
        )

    def _order(self, node: Node, term: OrderTerm) -> Order:
        if term.relation is None and term.field == _COUNT and not self._has_column(node, "count"):
            if not self.config.aggregates:
                raise errors.aggregates_disabled()
            return Order(term.field, term.direction, term.nulls, counts=True)
        if term.relation is None:
            return Order(term.field, term.direction, term.nulls, self._column(node, term.field.name))
        child = self._embedded(node, term.relation)
        if not child.to_one:
            raise errors.related_order(node.key[1], term.relation)
        own = self._has_column(child, term.field.name)
        column = child.column(term.field.name) if own else None
        return Order(term.field, term.direction, term.nulls, column, child.name, own)


def _root(relation: Relation) -> Node:
    return Node(relation.key, relation, relation.name, relation.name, _names_of(relation), relation.key)


def _names_of(relation: Relation) -> Collection[str]:
    """The columns that a relation's rows have where they are read from it, and not returned by a function."""
    return (*relation.columns, *_SYSTEM_COLUMNS) if relation.has_system_columns else relation.columns


def _condition(
    node: Node, condition: Condition, embedded: Mapping[str, str], tested: dict[str, str]
) -> PlannedCondition:
    """The condition, in which tests whether an embedded relation has rows are distinguished from filters on columns.
    Raises PGRST120.

    ``embedded`` maps the names that a filter may use for an embedded relation to its name. Those that it tests are
    added to ``tested``.
    """
    if isinstance(condition, Logic):
        terms = tuple(_condition(node, term, embedded, tested) for term in condition.terms)
        return LogicTree(condition.operator, terms, condition.negated)
    name, operation = condition.field.name, condition.operation
    if condition.field.path or name not in embedded:
        return condition
    if isinstance(operation, Is) and operation.value in ("null", "not_null"):
        tested[name] = embedded[name]
        return EmbedIsNull(embedded[name], condition.negated != (operation.value == "not_null"))
    if node.relation is None or name in node.relation.columns:
        return condition
    raise errors.not_a_null_filter(name)


def _all_columns(node: Node) -> AllColumns:
    names = node.relation.columns if node.relation is not None else node.names
    columns = tuple(_output_of(SelectColumn(Field(name)), node.column(name)) for name in names)
    return AllColumns(columns, any(column.format for column in columns))


def _output_of(item: SelectColumn, column: Column | None) -> Output:
    """``column`` is the one that ``item`` names; None for a computed column and for one of an unknown type."""
    plain = item.field is not None and not item.field.path
    return Output(
        _output_name(item),
        item.field,
        column,
        item.cast,
        item.aggregate,
        item.aggregate_cast,
        column.representation.to_json if plain and column is not None else None,
    )


def _output_name(item: SelectColumn) -> str:
    """The alias, else the aggregate, else the last key of the JSON path that is a word, else the column."""
    if item.alias is not None:
        return item.alias
    if item.aggregate is not None:
        return item.aggregate
    assert item.field is not None
    for step in reversed(item.field.path):
        if isinstance(step.key, str):
            return step.key
    return item.field.name


def _reject_equal_names(node: Node, outputs: list[Output | AllColumns | Embedded]) -> None:
    """Raise 42712 for two embedded relations with the same name: a client would see only one of them in the JSON."""
    seen: set[str] = set()
    for output in outputs:
        if isinstance(output, Embedded) and output.plan.shows:
            if output.name in seen:
                raise errors.same_name(f"{node.key[1]}_{output.name}_{node.depth + 1}")
            seen.add(output.name)


def _no_aggregates() -> errors.TableError:
    return errors.not_implemented("Aggregates are not implemented for one-to-many or many-to-many spreads.")
