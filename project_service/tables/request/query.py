"""Parses the whole query string: what it selects, filters, orders and limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NoReturn

from attrs import define, field

from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.request import scanning
from project_service.tables.request.filters import Operands, looks_like_filter, parse_filter, parse_logic
from project_service.tables.request.scanning import END, Scanner
from project_service.tables.request.syntax import (
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

# The ``select`` parameter. PostgREST's reference: "Vertical Filtering", "Resource Embedding".


EVERYTHING: tuple[SelectItem, ...] = (SelectAll(),)

_CAST = re.compile(r"[\w ]+(?:\[\])?")
_AGGREGATES = ("sum", "avg", "count", "max", "min")
_ALIAS = re.compile(r'\s*(?:"(?:[^"\\]|\\.)*"|[\w$ ]+(?:-(?!>)[\w$ ]+)*):(?!:)')
_COUNTS = re.compile(r"count\((?!\))")
_OPENS_EMBED = re.compile(r'\s*(?:"(?:[^"\\]|\\.)*"|[\w$ ]+(?:-(?!>)[\w$ ]+)*)[!(]')


def parse_select(text: str) -> tuple[SelectItem, ...]:
    """Columns and embedded relations; an empty text is ``*``."""
    if not text.strip():
        return EVERYTHING
    scanner = Scanner(text, "select parameter", text)
    items = _items(scanner)
    scanner.end_past_brackets()
    return items


def _items(scanner: Scanner) -> tuple[SelectItem, ...]:
    found = [_item(scanner)]
    while scanner.take(","):
        found.append(_item(scanner))
    return tuple(found)


def _item(scanner: Scanner) -> SelectItem:
    scanner.spaces()
    if scanner.take("..."):
        return _embed(scanner, spread=True)
    if scanner.take("*", label=scanning.FIELD_NAME):
        scanner.spaces()
        return SelectAll()
    scanner.expecting('"*"', '"count()"')
    alias = _alias(scanner)
    # ``count()`` is the aggregate; with anything in its brackets it is not an embedded relation either.
    if _OPENS_EMBED.match(scanner.text, scanner.pos) and not _COUNTS.match(scanner.text, scanner.pos):
        return _embed_or_count(scanner, alias)
    return _column(scanner, alias)


def _alias(scanner: Scanner) -> str | None:
    if not _ALIAS.match(scanner.text, scanner.pos):
        return None
    alias = scanning.name(scanner)
    scanner.need(":")
    scanner.spaces()
    return alias


def _column(scanner: Scanner, alias: str | None) -> SelectColumn:
    field = scanning.field(scanner)
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
    found = scanner.match(_CAST)
    if found is None or not found.strip():
        scanner.fail("cast type")
    return found.strip()


def _embed_or_count(scanner: Scanner, alias: str | None) -> SelectItem:
    embed = _embed(scanner, spread=False, alias=alias)
    if embed.target == "count" and not embed.items and embed.hint is None and embed.join is None:
        cast = _cast(scanner)
        return SelectColumn(None, alias, aggregate="count", aggregate_cast=cast)
    return embed


def _embed(scanner: Scanner, spread: bool, alias: str | None = None) -> SelectEmbed:
    target = scanning.name(scanner)
    hint: str | None = None
    join: Join | None = None
    while scanner.take("!"):
        word = scanning.name(scanner)
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


# The ``order`` parameter: ``a.desc.nullslast,b->>c,relation(d).asc``. PostgREST's reference: "Ordering".


_DELIMITER = "delimiter (.)"


def parse_order(text: str) -> tuple[OrderTerm, ...]:
    scanner = Scanner(text, "order", text)
    found = [_term(scanner)]
    while scanner.take(","):
        found.append(_term(scanner))
    scanner.end()
    return tuple(found)


def _term(scanner: Scanner) -> OrderTerm:
    scanner.spaces()
    field = scanning.field(scanner)
    relation: str | None = None
    if not field.path and scanner.peek("("):
        relation, field = field.name, _related(scanner)
    direction: Literal["asc", "desc"] | None = None
    nulls: Literal["nullsfirst", "nullslast"] | None = None
    if scanner.take(".", _DELIMITER):
        direction = "asc" if scanner.take("asc") else "desc" if scanner.take("desc") else None
        if direction is None or scanner.take(".", _DELIMITER):
            nulls = _nulls(scanner)
    scanner.spaces()
    return OrderTerm(field, direction, nulls, relation)


def _related(scanner: Scanner) -> Field:
    """The field in brackets after a relation's name. Raises PGRST100 at the opening bracket if there is none."""
    inside = Scanner(scanner.text, scanner.what, scanner.shown, scanner.pos + 1)
    try:
        found = scanning.field(inside)
        inside.need(")")
    except TableError:
        scanner.fail(_DELIMITER, '","', END)
    scanner.pos = inside.pos
    return found


def _nulls(scanner: Scanner) -> Literal["nullsfirst", "nullslast"]:
    if scanner.take("nullsfirst"):
        return "nullsfirst"
    if scanner.take("nullslast"):
        return "nullslast"
    return scanner.fail()


# The ``Range`` header, counted in rows. PostgREST's reference: "Limits and Pagination".


_RANGE = re.compile(r"([0-9]+)-([0-9]+)?")


def parse_range(header: str | None) -> Range:
    """The rows from first to last, both included. A header in another form asks for every row."""
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None:
        return Range()
    first, last = (from_digits(digits or "") for digits in found.groups())
    assert first is not None
    if last is None:
        return Range(first)
    if last < first:
        raise errors.unsatisfiable_range(
            "The lower boundary must be lower than or equal to the upper boundary in the Range header."
        )
    return Range(first, last - first + 1)


def limited(limit: int | None) -> Range:
    """The first ``limit`` rows, or all for None. Raises PGRST103 where it is negative."""
    if limit is not None and limit < 0:
        refuse()
    return Range(0, limit)


def window(offset: int, limit: int) -> Range | None:
    """The rows from ``offset`` on, ``limit`` of them, without those at negative positions. None if no row is left,
    except that an offset and limit of 0 are a valid (empty) range."""
    if offset == limit == 0:
        return Range(0, 0)
    first, end = max(0, offset), offset + limit
    return Range(first, end - first) if end > first else None


def intersect(a: Range, b: Range) -> Range:
    """The rows that are in both ranges. Raises PGRST103 where there can be none, unless none were asked for."""
    offset = max(a.offset, b.offset)
    ends = [r.offset + r.limit for r in (a, b) if r.limit is not None]
    if not ends:
        return Range(offset)
    end = min(ends)
    if offset and end <= offset:
        refuse()
    return Range(offset, end - offset)


def refuse() -> NoReturn:
    raise errors.unsatisfiable_range("Limit should be greater than or equal to zero.")


# What HTTP libraries append to the name of a parameter that is a list: ``x[0]=gt.1&x[1]=lt.9`` or ``x[]=gt.1``.
_LISTED = re.compile(r"\[[0-9]*\]$")


@define
class _Gathered:
    whole: set[str] = field(factory=set)
    select: tuple[SelectItem, ...] = EVERYTHING
    filters: list[tuple[Path, Condition]] = field(factory=list)
    orders: list[tuple[Path, tuple[OrderTerm, ...]]] = field(factory=list)
    limits: dict[Path, int | None] = field(factory=dict)
    offsets: dict[Path, int | None] = field(factory=dict)
    columns: tuple[str, ...] | None = None
    on_conflict: tuple[str, ...] | None = None
    arguments: list[tuple[str, Operand]] = field(factory=list)
    operands: Operands = field(factory=Operands)


def parse_query(pairs: Sequence[tuple[str, str]], arguments: bool = False) -> Query:
    """The parameters sorted out. With ``arguments``, values without an operator are arguments of a function."""
    found = _Gathered()
    for name, value in pairs:
        refuse_nul(name, value)
        _sort(found, name, value, arguments)
    paths = [*found.limits, *(path for path in found.offsets if path not in found.limits)]
    ranges = tuple((path, _range(found, path)) for path in paths)
    return Query(
        found.select,
        tuple(found.filters),
        tuple(found.orders),
        ranges,
        found.columns,
        found.on_conflict,
        tuple(found.arguments),
    )


def refuse_nul(name: str, value: str) -> None:
    """Raise PGRST100 for a parameter with a NUL character, which PostgreSQL's text cannot hold."""
    if "\0" in name or "\0" in value:
        raise errors.invalid_parameter("A parameter holds a NUL character")


def refuse_no_numbers(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise PGRST100 for a ``limit`` or ``offset`` that is not a number. For writes, which must not ignore it: more
    rows than the client meant would be written."""
    for name, value in pairs:
        if name in ("limit", "offset") and _integer(value) is None:
            raise errors.invalid_parameter(f"The {name} of a write has to be a number")


def _integer(value: str) -> int | None:
    # In a URL a plus is a space: ``limit=+5``.
    return from_digits(value.strip())


def _range(found: _Gathered, path: Path) -> Range:
    if path not in found.offsets:
        return limited(found.limits[path])
    if path not in found.limits:
        return Range(max(0, found.offsets[path] or 0))
    range_ = window(found.offsets[path] or 0, found.limits[path] or 0)
    # An empty window is an error for the requested relation, and no rows for an embedded one.
    return range_ or (refuse() if path == () else Range(0, 0))


def _sort(found: _Gathered, name: str, value: str, arguments: bool) -> None:
    if name in scanning.REQUEST_PARAMETERS:
        # The first one counts; later ones are not even parsed.
        if name not in found.whole:
            found.whole.add(name)
            _sort_whole(found, name, value)
    elif arguments and is_argument(name, value):
        found.arguments.append((name, found.operands.add(value)))
    else:
        _sort_by_path(found, name, value)


def _sort_whole(found: _Gathered, name: str, value: str) -> None:
    if name == "select":
        found.select = parse_select(value)
    elif name == "columns":
        found.columns = _names(value, "columns parameter")
    else:
        found.on_conflict = _names(value, "on_conflict parameter")


def is_argument(name: str, value: str) -> bool:
    """Whether a parameter of a function's URL is an argument rather than a filter on its result."""
    last = name.rpartition(".")[2]
    reserved = last in ("order", "limit", "offset") or (last in ("and", "or") and value.startswith("("))
    return not reserved and "." not in name and "->" not in name and not looks_like_filter(value)


def _sort_by_path(found: _Gathered, name: str, value: str) -> None:
    path, _, last = name.rpartition(".")
    if last == "order":
        found.orders.append((_path(path), parse_order(value)))
    elif last in ("limit", "offset"):
        _cut(found, last, _path(path), value)
    elif last in ("and", "or"):
        negated = path == "not" or path.endswith(".not")
        where = path.removesuffix("not").removesuffix(".") if negated else path
        found.filters.append((_path(where), parse_logic(last, negated, value)))
    else:
        where_, target = _target(name)
        found.filters.append((where_, parse_filter(target, value, found.operands)))


def _cut(found: _Gathered, which: str, path: Path, value: str) -> None:
    """Note a ``limit`` or ``offset``; the last one counts.

    One that is not a number is noted as None. For an offset that means 0; for a limit it means none, or, where there
    is an offset too, 0 (see ``_range``).
    """
    numbers = found.offsets if which == "offset" else found.limits
    numbers[path] = _integer(value)


def _path(text: str) -> Path:
    if not text:
        return ()
    scanner = Scanner(text, "tree path", text)
    found = [scanning.name(scanner)]
    while scanner.take("."):
        found.append(scanning.name(scanner))
    scanner.end()
    return tuple(found)


def _target(text: str) -> tuple[Path, Field]:
    """Splits ``a.b.column->>key`` into the path to an embedded relation and the field there.

    An index behind it (``[0]``) is dropped: all filters on a field hold anyway. react-admin's provider for PostgREST
    writes ranges that way.
    """
    scanner = Scanner(text, "tree path", text)
    found = [scanning.name(scanner)]
    while scanner.take("."):
        found.append(scanning.name(scanner))
    steps = scanning.json_path(scanner)
    scanner.match(_LISTED)
    scanner.end()
    return tuple(found[:-1]), Field(found[-1], steps)


def _names(text: str, what: str) -> tuple[str, ...]:
    scanner = Scanner(text, what, text)
    found = []
    while True:
        scanner.spaces()
        found.append(scanning.name(scanner))
        if not scanner.take(","):
            scanner.end()
            return tuple(found)
