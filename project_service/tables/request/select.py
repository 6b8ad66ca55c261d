"""The ``select`` parameter. PostgREST's reference: "Vertical Filtering", "Resource Embedding"."""

from __future__ import annotations

import re

from project_service.tables.request import scanning
from project_service.tables.request.scanning import END, Scanner
from project_service.tables.syntax import Join, SelectAll, SelectColumn, SelectEmbed, SelectItem

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
