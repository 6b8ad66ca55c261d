"""The values that ``parse`` makes of a request and that ``plan`` reads.

Names are as the client wrote them; nothing has been looked up in the schema cache.
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
class Compare:
    """An operator with one operand; ``quantifier`` turns it into ``op ANY/ALL (array)``."""

    operator: str
    operand: Operand
    quantifier: Quantifier | None = None


@frozen
class In:
    """``operand`` is the list as an array literal, so that any number of values takes one parameter."""

    operand: Operand


@frozen
class Is:
    value: Literal["null", "not_null", "true", "false", "unknown"]


@frozen
class Search:
    """Full-text search: ``function`` makes the tsquery, ``language`` names the text search configuration."""

    function: str
    operand: Operand
    language: str | None = None


Operation = Compare | In | Is | Search


@frozen
class Filter:
    field: Field
    operation: Operation
    negated: bool = False

    @property
    def is_equality(self) -> bool:
        """Whether a whole column is compared with one value: ``column=eq.value``."""
        found = self.operation
        plain = not self.negated and not self.field.path
        return plain and isinstance(found, Compare) and found.operator == "=" and found.quantifier is None


@frozen
class Logic:
    operator: Literal["and", "or"]
    terms: tuple[Filter | Logic, ...]
    negated: bool = False


Condition = Filter | Logic


@frozen
class OrderTerm:
    """``relation`` names the embedded to-one relation that ``field`` belongs to, if it is not the plan's own."""

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

    def capped(self, most: int) -> Range:
        """The same range with at most ``most`` rows (0: no limit)."""
        if most <= 0:
            return self
        return Range(self.offset, most if self.limit is None else min(self.limit, most))


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
