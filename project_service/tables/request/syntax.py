"""The syntax of a request's query: each type stands for a piece of what clients write, which its docstring shows.

``request`` makes these values and ``plan`` reads them. Names are as the client wrote them; nothing has been looked up
in the schema cache. ``OPERATORS`` is the one table of operators.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

Join = Literal["inner", "left"]
Quantifier = Literal["any", "all"]


@frozen
class Operand:
    """A value from the request. It reaches PostgreSQL as a parameter only.

    ``slot`` is its index among the request's operands, so that a cached plan can be run with the operands of another
    request. It is -1 for a value that is part of the request's shape; lower numbers stand for other values than
    operands (see ``sql.fragment``).
    """

    text: str
    slot: int = field(default=-1, eq=False)


@frozen
class JsonStep:
    """``->key``, or ``->>key`` with ``as_text``; a number as ``key`` is an index into an array."""

    key: str | int
    as_text: bool


@frozen
class Field:
    """``name->step->>step``"""

    name: str
    path: tuple[JsonStep, ...] = ()


@frozen
class SelectColumn:
    """``alias:name->path::cast.aggregate()::aggregate_cast``; a bare ``count()`` has no field."""

    field: Field | None
    alias: str | None = None
    cast: str | None = None
    aggregate: str | None = None
    aggregate_cast: str | None = None


@frozen
class SelectAll:
    """``*``: all columns of the relation, without computed ones."""


@frozen
class SelectEmbed:
    """``alias:target!hint!inner(items)``; with ``spread``, ``...target(items)``, its columns become the parent's."""

    target: str
    items: tuple[SelectItem, ...]
    alias: str | None = None
    hint: str | None = None
    join: Join | None = None
    spread: bool = False


SelectItem = SelectColumn | SelectAll | SelectEmbed


@frozen
class Operator:
    """An operator of filters.

    ``sql`` is PostgreSQL's operator; for full-text search it is the function that makes the tsquery.
    ``quantified_sql`` is the operator before ``ANY (array)`` and ``ALL (array)``, None if the modifiers ``any`` and
    ``all`` are not allowed. ``operand`` is what follows the dot: a single value, which passes the column's data
    representation; a pattern of LIKE, in which ``*`` stands for ``%`` (regular expressions, in which it has a meaning
    of its own, are values); a list in brackets; one of the key words of ``Is``; or the words
    to search for. ``searches``: how long it takes depends on the operand above all, so that no request tells anything
    of the next: a pattern may be looked up, or compared with all texts.
    """

    name: str
    sql: str
    quantified_sql: str | None = None
    operand: Literal["value", "pattern", "list", "keyword", "search"] = "value"
    searches: bool = False


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("eq", "=", "="),
        Operator("neq", "<>"),
        Operator("gt", ">", ">"),
        Operator("gte", ">=", ">="),
        Operator("lt", "<", "<"),
        Operator("lte", "<=", "<="),
        Operator("like", "LIKE", "LIKE", "pattern", searches=True),
        Operator("ilike", "ILIKE", "ILIKE", "pattern", searches=True),
        Operator("match", "~", "~", searches=True),
        Operator("imatch", "~*", "~*", searches=True),
        Operator("in", "= ANY", operand="list"),
        Operator("is", "IS", operand="keyword"),
        Operator("isdistinct", "IS DISTINCT FROM"),
        Operator("fts", "to_tsquery", operand="search", searches=True),
        Operator("plfts", "plainto_tsquery", operand="search", searches=True),
        Operator("phfts", "phraseto_tsquery", operand="search", searches=True),
        Operator("wfts", "websearch_to_tsquery", operand="search", searches=True),
        Operator("cs", "@>"),
        Operator("cd", "<@"),
        Operator("ov", "&&"),
        Operator("sl", "<<"),
        Operator("sr", ">>"),
        Operator("nxr", "&<"),
        Operator("nxl", "&>"),
        Operator("adj", "-|-"),
    )
}


@frozen
class Compare:
    """``operator.operand``, or with ``quantifier`` ``operator(any).{operand,operand}``; ``operator`` is a name."""

    operator: str
    operand: Operand
    quantifier: Quantifier | None = None


@frozen
class In:
    """``in.(value,value)``; ``operand`` is an array literal, so that any number of values takes one parameter."""

    operand: Operand


@frozen
class Is:
    """``is.value``"""

    value: Literal["null", "not_null", "true", "false", "unknown"]


@frozen
class Search:
    """``operator(language).operand``: full-text search. The language is the name of a text search configuration."""

    operator: str
    operand: Operand
    language: str | None = None


Operation = Compare | In | Is | Search


@frozen
class Filter:
    """``field=not.operation``, or ``field.not.operation`` within a logic tree."""

    field: Field
    operation: Operation
    negated: bool = False

    @property
    def is_equality(self) -> bool:
        """Whether a whole column is compared with one value: ``column=eq.value``."""
        operation = self.operation
        return (
            isinstance(operation, Compare)
            and operation.operator == "eq"
            and operation.quantifier is None
            and not self.negated
            and not self.field.path
        )

    @property
    def searches(self) -> bool:
        operation = self.operation
        return isinstance(operation, Compare | Search) and OPERATORS[operation.operator].searches


@frozen
class Logic:
    """``not.and(term,term)``"""

    operator: Literal["and", "or"]
    terms: tuple[Filter | Logic, ...]
    negated: bool = False


Condition = Filter | Logic


@frozen
class OrderTerm:
    """``field.desc.nullslast``, or ``relation(field).desc.nullslast`` for a column of an embedded to-one relation."""

    field: Field
    direction: Literal["asc", "desc"] | None = None
    nulls: Literal["nullsfirst", "nullslast"] | None = None
    relation: str | None = None


@frozen
class Range:
    """The rows from ``offset`` up to ``offset + limit``; with ``limit`` None all from ``offset`` on."""

    offset: int = 0
    limit: int | None = None

    @property
    def whole(self) -> bool:
        return self.offset == 0 and self.limit is None

    def capped(self, max_rows: int) -> Range:
        """The same range with at most ``max_rows`` rows (0: no limit)."""
        if max_rows <= 0:
            return self
        return Range(self.offset, max_rows if self.limit is None else min(self.limit, max_rows))


Path = tuple[str, ...]


@frozen
class Query:
    """The parsed query string. A path names the embedded relations that lead from the requested relation to the one
    that something applies to; it is empty for the requested relation itself."""

    select: tuple[SelectItem, ...]
    filters: tuple[tuple[Path, Condition], ...] = ()
    orders: tuple[tuple[Path, tuple[OrderTerm, ...]], ...] = ()
    ranges: tuple[tuple[Path, Range], ...] = ()
    columns: tuple[str, ...] | None = None
    on_conflict: tuple[str, ...] | None = None
    arguments: tuple[tuple[str, Operand], ...] = ()
