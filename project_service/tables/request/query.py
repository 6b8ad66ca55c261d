"""The query string: what a request selects, filters, orders and limits, and its shape; and the ``Range`` header.

PostgREST's reference: "Vertical Filtering", "Resource Embedding", "Ordering", "Limits and Pagination".
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Literal, NoReturn

from attrs import define, field

from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.request.filters import (
    Operands,
    looks_like_filter,
    parse_filter,
    parse_logic,
    shape_of_filter,
)
from project_service.tables.request.scanning import (
    DELIMITER,
    END,
    FIELD_NAME,
    PATH_PARAMETERS,
    REQUEST_PARAMETERS,
    Scanner,
)
from project_service.tables.request.syntax import (
    OPERATORS,
    Condition,
    Field,
    Join,
    Operand,
    OrderTerm,
    Path,
    Query,
    Range,
    SelectAll,
    SelectColumn,
    SelectEmbed,
    SelectItem,
)
from project_service.whole_numbers import from_digits

EVERYTHING: tuple[SelectItem, ...] = (SelectAll(),)

_CAST = re.compile(r"[\w ]+(?:\[\])?")
_AGGREGATES = ("sum", "avg", "count", "max", "min")
_NAME = r'\s*(?:"(?:[^"\\]|\\.)*"|[\w$ ]+(?:-(?!>)[\w$ ]+)*)'
_ALIAS = re.compile(_NAME + r":(?!:)")
_EMBED = re.compile(_NAME + r"[!(]")
# ``count()`` is the aggregate. With anything in its brackets it is an error, not an embedded relation.
_COUNT = re.compile(r"count\((?!\))")
_RANGE = re.compile(r"([0-9]+)-([0-9]+)?")
# What a filter begins with.
_OPERATOR = re.compile(r"(?:not\.)?([a-z]+)(?:\((?:any|all)\))?\.")
# What HTTP libraries append to the name of a parameter that is a list: ``x[0]=gt.1&x[1]=lt.9`` or ``x[]=gt.1``.
_LIST_INDEX = re.compile(r"\[[0-9]*\]$")


def shape_of_query(pairs: Sequence[tuple[str, str]], arguments: bool) -> tuple[Hashable, list[str]]:
    """The query without its operands and arguments, and these in the order in which ``parse_query`` numbers them:
    requests of one shape have the same plan. Raises PGRST100.

    ``arguments``: parameters may be arguments of a function.
    """
    shape: list[tuple[str, str]] = []
    operands: list[str] = []
    for name, value in pairs:
        if "\0" in value or "\0" in name:
            _reject_nul()
        if name in REQUEST_PARAMETERS:
            shape.append((name, value))
        elif arguments and is_argument(name, value):
            shape.append((name, "="))
            operands.append(value)
        elif name.rpartition(".")[2] in PATH_PARAMETERS:
            shape.append((name, value))
        elif (plain := shape_of_filter(value)) is None:
            shape.append((name, "." + value))
        else:
            shape.append((name, plain[0]))
            operands.append(plain[1])
    return tuple(shape), operands


def parse_query(pairs: Sequence[tuple[str, str]], arguments: bool = False) -> Query:
    """The parameters by their meaning. With ``arguments``, values without an operator are arguments of a function.
    Raises PGRST100, and PGRST103 for a negative limit."""
    parser = _QueryParser(arguments)
    for name, value in pairs:
        if "\0" in value or "\0" in name:
            _reject_nul()
        parser.add(name, value)
    return parser.query()


def outline_of_query(pairs: Sequence[tuple[str, str]]) -> str:
    """The query without its operands and arguments, for people: what is selected, by what it is filtered and ordered,
    and how many rows are asked for."""
    return "&".join([f"{name}={_outlined(name, value)}" for name, value in pairs])


def _outlined(name: str, value: str) -> str:
    last = name.rpartition(".")[2]
    if name in REQUEST_PARAMETERS or last == "order" or (last in ("limit", "offset") and value.isdecimal()):
        return value
    operator = _OPERATOR.match(value)
    return f"{operator[0]}$" if operator is not None and operator[1] in OPERATORS else "$"


def is_argument(name: str, value: str) -> bool:
    """Whether a parameter of a function's URL is an argument rather than a filter on its result."""
    last = name.rpartition(".")[2]
    reserved = last in ("order", "limit", "offset") or (last in ("and", "or") and value.startswith("("))
    return not reserved and "." not in name and "->" not in name and not looks_like_filter(value)


def _reject_nul() -> NoReturn:
    # PostgreSQL's text cannot hold it.
    raise errors.invalid_parameter("A parameter holds a NUL character")


@define
class _QueryParser:
    """Gathers the parameters. Limits and offsets that are not numbers are None: that means an offset of 0, and no
    limit or, where there is an offset too, a limit of 0."""

    arguments_allowed: bool
    given: set[str] = field(factory=set)
    select: tuple[SelectItem, ...] = EVERYTHING
    filters: list[tuple[Path, Condition]] = field(factory=list)
    orders: list[tuple[Path, tuple[OrderTerm, ...]]] = field(factory=list)
    limits: dict[Path, int | None] = field(factory=dict)
    offsets: dict[Path, int | None] = field(factory=dict)
    columns: tuple[str, ...] | None = None
    on_conflict: tuple[str, ...] | None = None
    arguments: list[tuple[str, Operand]] = field(factory=list)
    operands: Operands = field(factory=Operands)

    def add(self, name: str, value: str) -> None:
        if name in REQUEST_PARAMETERS:
            # The first one counts; later ones are not even parsed.
            if name not in self.given:
                self.given.add(name)
                self._add_to_request(name, value)
        elif self.arguments_allowed and is_argument(name, value):
            self.arguments.append((name, self.operands.add(value)))
        else:
            self._add_at_path(name, value)

    def _add_to_request(self, name: str, value: str) -> None:
        if name == "select":
            self.select = parse_select(value)
        elif name == "columns":
            self.columns = _names(value, "columns parameter")
        else:
            self.on_conflict = _names(value, "on_conflict parameter")

    def _add_at_path(self, name: str, value: str) -> None:
        path, _, last = name.rpartition(".")
        if last == "order":
            self.orders.append((_path(path), parse_order(value)))
        elif last in ("limit", "offset"):
            # The last one counts.
            numbers = self.offsets if last == "offset" else self.limits
            numbers[_path(path)] = _integer(value)
        elif last in ("and", "or"):
            negated = path == "not" or path.endswith(".not")
            path = path.removesuffix("not").removesuffix(".") if negated else path
            self.filters.append((_path(path), parse_logic("and" if last == "and" else "or", negated, value)))
        else:
            target, filtered = _filter_target(name)
            self.filters.append((target, parse_filter(filtered, value, self.operands)))

    def query(self) -> Query:
        paths = [*self.limits, *(path for path in self.offsets if path not in self.limits)]
        return Query(
            self.select,
            tuple(self.filters),
            tuple(self.orders),
            tuple((path, self._range(path)) for path in paths),
            self.columns,
            self.on_conflict,
            tuple(self.arguments),
        )

    def _range(self, path: Path) -> Range:
        """The rows that limit and offset ask for. Raises PGRST103 for a negative limit, and for a range of the
        requested relation that can hold no row, except for one that is empty from the first row on."""
        if path not in self.offsets:
            limit = self.limits[path]
            if limit is not None and limit < 0:
                _reject_range()
            return Range(0, limit)
        offset = self.offsets[path] or 0
        if path not in self.limits:
            return Range(max(0, offset))
        end = offset + (self.limits[path] or 0)
        # Positions before the first row have none.
        first = max(0, offset)
        if end > first:
            return Range(first, end - first)
        if path == () and not offset == end == 0:
            _reject_range()
        return Range(0, 0)


def _integer(value: str) -> int | None:
    # In a URL a plus is a space: ``limit=+5``.
    return from_digits(value.strip())


def _path(text: str) -> Path:
    if not text:
        return ()
    scanner = Scanner(text, "tree path", text)
    path = scanner.names()
    scanner.end()
    return tuple(path)


def _filter_target(text: str) -> tuple[Path, Field]:
    """Splits ``a.b.column->>key`` into the path to an embedded relation and the field there.

    An index behind it (``[0]``) is dropped: all filters on a field hold anyway. react-admin's provider for PostgREST
    writes ranges that way.
    """
    scanner = Scanner(text, "tree path", text)
    *path, name = scanner.names()
    steps = scanner.json_path()
    scanner.match(_LIST_INDEX)
    scanner.end()
    return tuple(path), Field(name, steps)


def _names(text: str, parameter: str) -> tuple[str, ...]:
    scanner = Scanner(text, parameter, text)
    names = []
    while True:
        scanner.spaces()
        names.append(scanner.name())
        if not scanner.take(","):
            scanner.end()
            return tuple(names)


# select=alias:name->path::cast,alias:target!hint(…),...target(…),*,count()


def parse_select(text: str) -> tuple[SelectItem, ...]:
    """Columns and embedded relations; an empty text is ``*``."""
    if not text.strip():
        return EVERYTHING
    scanner = Scanner(text, "select parameter", text)
    items = _items(scanner)
    scanner.end_past_brackets()
    return items


def _items(scanner: Scanner) -> tuple[SelectItem, ...]:
    items = [_item(scanner)]
    while scanner.take(","):
        items.append(_item(scanner))
    return tuple(items)


def _item(scanner: Scanner) -> SelectItem:
    scanner.spaces()
    if scanner.take("..."):
        return _embed(scanner, spread=True)
    if scanner.take("*", label=FIELD_NAME):
        scanner.spaces()
        return SelectAll()
    scanner.expect('"*"', '"count()"')
    alias: str | None = None
    if _ALIAS.match(scanner.text, scanner.pos):
        alias = scanner.name()
        scanner.need(":")
        scanner.spaces()
    if not _EMBED.match(scanner.text, scanner.pos) or _COUNT.match(scanner.text, scanner.pos):
        return _column(scanner, alias)
    embed = _embed(scanner, alias=alias)
    if embed == SelectEmbed("count", (), alias):
        return SelectColumn(None, alias, aggregate="count", aggregate_cast=_cast(scanner))
    return embed


def _column(scanner: Scanner, alias: str | None) -> SelectColumn:
    field = scanner.field()
    cast = _cast(scanner)
    aggregate = _aggregate(scanner)
    aggregate_cast = _cast(scanner) if aggregate else None
    scanner.spaces()
    if not scanner.at_end and scanner.text[scanner.pos] not in "),":
        scanner.fail('")"', '","', END)
    return SelectColumn(field, alias, cast, aggregate, aggregate_cast)


def _aggregate(scanner: Scanner) -> str | None:
    if not scanner.take("."):
        return None
    for name in _AGGREGATES:
        if scanner.take(name):
            scanner.need("()")
            return name
    return scanner.fail()


def _cast(scanner: Scanner) -> str | None:
    if not scanner.take("::"):
        return None
    cast = (scanner.match(_CAST) or "").strip()
    return cast or scanner.fail("cast type")


def _embed(scanner: Scanner, spread: bool = False, alias: str | None = None) -> SelectEmbed:
    target = scanner.name()
    hint: str | None = None
    join: Join | None = None
    while scanner.take("!"):
        word = scanner.name()
        if word in ("inner", "left") and join is None:
            join = "inner" if word == "inner" else "left"
        else:
            hint = word
    scanner.need("(")
    scanner.deeper()
    scanner.spaces()
    items: tuple[SelectItem, ...] = () if scanner.peek(")") else _items(scanner)
    scanner.need(")")
    scanner.depth -= 1
    scanner.spaces()
    return SelectEmbed(target, items, alias, hint, join, spread)


# order=a.desc.nullslast,b->>c,relation(d).asc


def parse_order(text: str) -> tuple[OrderTerm, ...]:
    scanner = Scanner(text, "order", text)
    terms = [_order_term(scanner)]
    while scanner.take(","):
        terms.append(_order_term(scanner))
    scanner.end()
    return tuple(terms)


def _order_term(scanner: Scanner) -> OrderTerm:
    scanner.spaces()
    field = scanner.field()
    relation: str | None = None
    if not field.path and scanner.peek("("):
        relation, field = field.name, _field_of_relation(scanner)
    direction: Literal["asc", "desc"] | None = None
    nulls: Literal["nullsfirst", "nullslast"] | None = None
    if scanner.take(".", DELIMITER):
        direction = "asc" if scanner.take("asc") else "desc" if scanner.take("desc") else None
        if direction is None or scanner.take(".", DELIMITER):
            nulls = _nulls(scanner)
    scanner.spaces()
    return OrderTerm(field, direction, nulls, relation)


def _field_of_relation(scanner: Scanner) -> Field:
    """The field in brackets after a relation's name. Raises PGRST100 at the opening bracket if there is none."""
    inside = Scanner(scanner.text, scanner.parameter, scanner.shown, scanner.pos + 1)
    try:
        field = inside.field()
        inside.need(")")
    except TableError:
        scanner.fail(DELIMITER, '","', END)
    scanner.pos = inside.pos
    return field


def _nulls(scanner: Scanner) -> Literal["nullsfirst", "nullslast"]:
    if scanner.take("nullsfirst"):
        return "nullsfirst"
    return "nullslast" if scanner.take("nullslast") else scanner.fail()


# Ranges of rows: the ``Range`` header, and what it has in common with limit and offset.


def parse_range(header: str | None) -> Range:
    """The rows from first to last, both included. A header in another form asks for every row. Raises PGRST103."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None:
        return Range()
    first, last = (from_digits(digits or "") for digits in match.groups())
    assert first is not None
    if last is None:
        return Range(first)
    if last < first:
        raise errors.unsatisfiable_range(
            "The lower boundary must be lower than or equal to the upper boundary in the Range header."
        )
    return Range(first, last - first + 1)


def intersect(a: Range, b: Range) -> Range:
    """The rows that are in both ranges. Raises PGRST103 where there can be none, unless none were asked for."""
    offset = max(a.offset, b.offset)
    ends = [r.offset + r.limit for r in (a, b) if r.limit is not None]
    if not ends:
        return Range(offset)
    end = min(ends)
    if offset and end <= offset:
        _reject_range()
    return Range(offset, end - offset)


def reject_limits_without_number(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise PGRST100 for a ``limit`` or ``offset`` that is not a number. For writes, which must not ignore it: more
    rows than the client meant would be written."""
    for name, value in pairs:
        if name in ("limit", "offset") and _integer(value) is None:
            raise errors.invalid_parameter(f"The {name} of a write has to be a number")


def _reject_range() -> NoReturn:
    raise errors.unsatisfiable_range("Limit should be greater than or equal to zero.")
