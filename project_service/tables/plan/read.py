"""Reading: the tree of embedded relations with each one's columns, conditions, order and range."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import Factory, define, evolve, field

from project_service.tables import errors
from project_service.tables.model import Key, Relation, Relationship, SchemaCache
from project_service.tables.plan.aliases import alias as sql_alias
from project_service.tables.plan.conditions import plan_conditions
from project_service.tables.plan.nodes import Embedded, Everything, Hoisted, Order, Output, ReadPlan
from project_service.tables.plan.options import PlanOptions
from project_service.tables.plan.outputs import plan_column, result_names
from project_service.tables.plan.relationships import find_relationship
from project_service.tables.syntax import (
    Condition,
    OrderTerm,
    Path,
    Query,
    Range,
    SelectColumn,
    SelectEmbed,
    SelectItem,
)

# PostgreSQL takes half a second to plan a hundred, and half a minute for eight hundred.
MOST_EMBEDDED = 100


@define
class Node:
    """One relation of the tree while it is being put together."""

    key: Key
    relation: Relation | None
    alias: str
    items: list[SelectColumn | Node]
    embed: SelectEmbed | None = None
    relationship: Relationship | None = None
    joined: str = ""
    depth: int = 0
    filters: list[Condition] = Factory(list)
    order: tuple[OrderTerm, ...] = ()
    range: Range = Factory(Range)

    @property
    def name(self) -> str:
        assert self.embed is not None
        return self.embed.alias or self.embed.target

    @property
    def children(self) -> Iterator[Node]:
        return (item for item in self.items if isinstance(item, Node))

    @property
    def spreads_one(self) -> bool:
        return self.embed is not None and self.embed.spread and self._to_one

    @property
    def spreads_many(self) -> bool:
        return self.embed is not None and self.embed.spread and not self._to_one

    @property
    def _to_one(self) -> bool:
        return self.relationship is not None and self.relationship.to_one


@define
class Reader:
    """Plans one reading. ``schema`` is where embedded relations are looked for."""

    cache: SchemaCache
    schema: str
    options: PlanOptions
    _count: int = field(default=0, init=False)
    _renamed: dict[str, str] = field(factory=dict, init=False)

    def plan(
        self, key: Key, query: Query, range_: Range, from_source: bool = False, capped: bool = True
    ) -> ReadPlan:
        """The plan of reading ``key``; ``from_source`` reads its rows from what the statement wrote or called.

        Raises PGRST108, 118, 120, 123, 127, 200, 201 and 204, and 42712.
        """
        root = Node(key, self.cache.relations.get(key), key[1], [])
        root.items = self._items(root, query.select)
        self._attach(root, query)
        if capped:
            self._cap(root)
            range_ = range_.capped(self.options.max_rows)
        plan, _ = self._frozen(root)
        renamed = tuple(self._renamed.items())
        return evolve(plan, key=None if from_source else key, range=range_, renamed=renamed)

    def _items(self, parent: Node, items: tuple[SelectItem, ...]) -> list[SelectColumn | Node]:
        return [item if isinstance(item, SelectColumn) else self._child(parent, item) for item in items]

    def _child(self, parent: Node, item: SelectEmbed) -> Node:
        way = find_relationship(self.cache, parent.key, self.schema, item.target, item.hint)
        depth = parent.depth + 1
        child = Node(
            way.target,
            self.cache.relations.get(way.target),
            _alias(way.target[1], depth, parent.alias),
            [],
            item,
            way,
            sql_alias(f"{parent.key[1]}_{item.alias or item.target}", self._next()),
            depth,
        )
        child.items = self._items(child, item.items)
        return child

    def _next(self) -> int:
        self._count += 1
        if self._count > MOST_EMBEDDED:
            raise errors.statement_too_large(MOST_EMBEDDED, "embedded relations")
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
                if not self.options.legacy_target_names:
                    raise errors.not_embedded(name, child.embed.alias)
                # It was not found by its name above, so it has an alias.
                self._renamed[name] = child.name
                return child
        raise errors.not_embedded(name)

    def _cap(self, node: Node) -> None:
        """Apply ``max_rows`` to embedded relations. Not to to-one relations, which have one row; a needless LIMIT
        would keep PostgreSQL from using their indexes."""
        for child in node.children:
            if child.relationship is None or not child.relationship.to_one:
                child.range = child.range.capped(self.options.max_rows)
            self._cap(child)

    # From nodes to plans.

    def _frozen(self, node: Node) -> tuple[ReadPlan, tuple[Hoisted, ...]]:
        conditions, tested = plan_conditions(node.filters, node.relation, self._names(node))
        self._renamed.update((name, shown) for name, shown in tested.items() if name != shown)
        outputs: list[Output | Everything | Embedded] = []
        hoisted: list[Hoisted] = []
        for item in node.items:
            if isinstance(item, SelectColumn):
                outputs.append(self._column(node, item, hoisted))
            else:
                embedded = self._embedding(node, item, item.name in tested.values())
                outputs.append(embedded)
                hoisted.extend(embedded.hoisted if node.spreads_one else ())
        _refuse_namesakes(node, outputs)
        order = tuple(self._order(node, term) for term in node.order)
        plan = ReadPlan(node.key, node.alias, node.relation, tuple(outputs), conditions, order, node.range)
        return plan, tuple(hoisted)

    def _names(self, node: Node) -> dict[str, str]:
        """The names that a condition may use for embedded relations, with the relations' names.

        That includes the target of one with an alias, unless the relation has a column of that name, which is meant
        then.
        """
        names = {child.name: child.name for child in node.children}
        columns = node.relation.columns if node.relation is not None else ()
        for child in node.children if self.options.legacy_target_names else ():
            assert child.embed is not None
            if child.embed.target not in columns:
                names.setdefault(child.embed.target, child.name)
        return names

    def _column(self, node: Node, item: SelectColumn, hoisted: list[Hoisted]) -> Output | Everything:
        output = plan_column(node.relation, item)
        if isinstance(output, Everything) or output.aggregate is None:
            return output
        if not self.options.aggregates:
            raise errors.aggregates_disabled()
        if node.spreads_many:
            raise _no_aggregates()
        if not node.spreads_one:
            return output
        carrier = sql_alias("pgrst_agg", self._next())
        hoisted.append(Hoisted(carrier, output.name, output.aggregate, output.aggregate_cast))
        return evolve(output, name=carrier, aggregate=None, aggregate_cast=None)

    def _embedding(self, parent: Node, child: Node, tested: bool) -> Embedded:
        assert child.embed is not None and child.relationship is not None
        plan, hoisted = self._frozen(child)
        if hoisted and parent.spreads_many:
            raise _no_aggregates()
        if child.spreads_many and result_names(plan) is None:
            raise errors.not_implemented(
                f"The columns of '{child.name}' are not known: name those that are to be spread."
            )
        return Embedded(
            name=child.name,
            plan=plan,
            relationship=child.relationship,
            alias=child.joined,
            join=child.embed.join or "left",
            spread=child.embed.spread,
            needed=tested,
            hoisted=hoisted,
            carries=parent.spreads_one,
        )

    def _order(self, node: Node, term: OrderTerm) -> Order:
        if term.relation is None:
            column = node.relation.columns.get(term.field.name) if node.relation is not None else None
            return Order(term.field, term.direction, term.nulls, column)
        child = self._embedded(node, term.relation)
        assert child.relationship is not None
        if not child.relationship.to_one:
            raise errors.related_order(node.key[1], term.relation)
        column = child.relation.columns.get(term.field.name) if child.relation is not None else None
        return Order(term.field, term.direction, term.nulls, column, child.name)


def _alias(name: str, depth: int, above: str) -> str:
    """An SQL alias that ends with the depth, since PostgreSQL's messages show it. Relations at the same depth may
    share one, being in separate subqueries. It must differ from the parent's, whose own name may end like that."""
    found = sql_alias(name, depth)
    return found if found != above else sql_alias(name, depth + 1)


def _refuse_namesakes(node: Node, outputs: list[Output | Everything | Embedded]) -> None:
    """Raise 42712 for two embedded relations with the same name: a client would see only one of them in the JSON."""
    seen: set[str] = set()
    for output in outputs:
        if isinstance(output, Embedded) and output.plan.shows:
            if output.name in seen:
                raise errors.same_name(f"{node.key[1]}_{output.name}_{node.depth + 1}")
            seen.add(output.name)


def _no_aggregates() -> errors.TableError:
    return errors.not_implemented("Aggregates are not implemented for one-to-many or many-to-many spreads.")
