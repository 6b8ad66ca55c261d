"""What a request says, as values: the trees that ``parse`` makes and ``plan`` reads.

Names are as the client wrote them; nothing here has been looked up in the schema cache.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

Join = Literal["inner", "left"]
Quantifier = Literal["any", "all"]


@frozen
class Operand:
    """A value from the request: reaches PostgreSQL as a parameter only.

    ``slot`` is its place among the request's operands, so that a kept plan can be run with others; -1 for one
    that is part of the request's shape (and less for what is no operand: see ``sql.fragment``).
    """

    text: str
    slot: int = field(default=-1, eq=False)


@frozen
class JsonStep:
    """``->key``, ``->>key`` (``as_text``) or the same with an index into an array."""

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
class SelectEmbed:
    """``alias:target!hint!inner(items)``; with ``spread`` its columns join the parent's."""

    target: str
    items: tuple[SelectItem, ...]
    alias: str | None = None
    hint: str | None = None
    join: Join | None = None
    spread: bool = False


SelectItem = SelectColumn | SelectEmbed


@frozen
class Compare:
    """An operator with one operand; ``quantifier`` turns it into ``op ANY/ALL (array)``."""

    operator: str
    operand: Operand
    quantifier: Quantifier | None = None


@frozen
class In:
    """``operand`` is the list as an array literal, so that any number of values is one parameter."""

    operand: Operand


@frozen
class Is:
    value: Literal["null", "not_null", "true", "false", "unknown"]


@frozen
class Search:
    """Full-text search: ``function`` makes the tsquery, ``language`` is its configuration."""

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
    """``relation`` names an embedded to-one relation whose column is ordered by."""

    field: Field
    direction: Literal["asc", "desc"] | None = None
    nulls: Literal["nullsfirst", "nullslast"] | None = None
    relation: str | None = None


@frozen
class Range:
    """Rows ``offset`` to ``offset + limit``; ``limit`` None is all of them."""

    offset: int = 0
    limit: int | None = None

    @property
    def whole(self) -> bool:
        return self.offset == 0 and self.limit is None

    def capped(self, most: int) -> Range:
        """The same, never more than ``most`` rows (0: no limit)."""
        if most <= 0:
            return self
        return Range(self.offset, most if self.limit is None else min(self.limit, most))


Path = tuple[str, ...]


@frozen
class Query:
    """The query string, sorted out. Paths lead from the requested relation through embedded ones."""

    select: tuple[SelectItem, ...]
    filters: tuple[tuple[Path, Condition], ...] = ()
    orders: tuple[tuple[Path, tuple[OrderTerm, ...]], ...] = ()
    ranges: tuple[tuple[Path, Range], ...] = ()
    columns: tuple[str, ...] | None = None
    on_conflict: tuple[str, ...] | None = None
    arguments: tuple[tuple[str, Operand], ...] = ()
