"""What a JSON Path (RFC 9535) is made of: selectors, which lead from a value to others, and conditions of a value.

Each is given the whole document as well, for what begins with ``$``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

Select = Callable[[Any, Any], Iterable[Any]]
Condition = Callable[[Any, Any], bool]
Operand = Callable[[Any, Any], Any]

# What a path that leads nowhere is in a comparison.
NOTHING = object()


def member(name: str) -> Select:
    return lambda _, node: (node[name],) if isinstance(node, dict) and name in node else ()


def element(index: int) -> Select:
    def select(_: Any, node: Any) -> Iterable[Any]:
        return (node[index],) if isinstance(node, list) and -len(node) <= index < len(node) else ()

    return select


def part(cut: slice) -> Select:
    """Elements of an array, or a piece of a text: that PostgREST took before version 16."""

    def select(_: Any, node: Any) -> Iterable[Any]:
        if isinstance(node, str):
            return (node[cut],) if node[cut] else ()
        return node[cut] if isinstance(node, list) and cut.step != 0 else ()

    return select


def every(_: Any, node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def those(condition: Condition) -> Select:
    return lambda root, node: [found for found in every(root, node) if condition(root, found)]


def several(selects: tuple[Select, ...]) -> Select:
    if len(selects) == 1:
        return selects[0]
    return lambda root, node: chain.from_iterable(select(root, node) for select in selects)


def within(select: Select) -> Select:
    return lambda root, node: chain.from_iterable(select(root, found) for found in _descendants(root, node))


def _descendants(root: Any, node: Any) -> Iterator[Any]:
    """``node`` itself and whatever is in it. A token's claims are no deeper than their parser goes."""
    yield node
    for found in every(root, node):
        yield from _descendants(root, found)


def followed(steps: Iterable[Select], root: Any, node: Any) -> list[Any]:
    nodes = [node]
    for step in steps:
        nodes = [found for each in nodes for found in step(root, each)]
    return nodes


def value_at(steps: tuple[Select, ...], absolute: bool) -> Operand:
    """The one value at the end of steps that lead to one at most, or ``NOTHING``."""

    def read(root: Any, node: Any) -> Any:
        return next(iter(followed(steps, root, root if absolute else node)), NOTHING)

    return read


def exists(steps: tuple[Select, ...], absolute: bool) -> Condition:
    return lambda root, node: bool(followed(steps, root, root if absolute else node))


def compared(left: Operand, sign: str, right: Operand) -> Condition:
    compare = COMPARISONS[sign]
    return lambda root, node: compare(left(root, node), right(root, node))


def matches(operand: Operand, pattern: re.Pattern[str], whole: bool) -> Condition:
    find = pattern.fullmatch if whole else pattern.search

    def test(root: Any, node: Any) -> bool:
        text = operand(root, node)
        return isinstance(text, str) and find(text) is not None

    return test


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)
    return bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool], equal: bool) -> Callable[[Any, Any], bool]:
    """Only numbers, and only texts, have an order among themselves."""

    def test(left: Any, right: Any) -> bool:
        if equal and _equal(left, right):
            return True
        comparable = _kind(left) is not None and _kind(left) is _kind(right)
        return comparable and compare(left, right)

    return test


def _kind(value: Any) -> type | None:
    if isinstance(value, str):
        return str
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _texts(test: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: isinstance(left, str) and isinstance(right, str) and test(left, right)


# The last three are PostgREST's own, from before version 16.
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _ordered(operator.lt, False),
    ">": _ordered(operator.gt, False),
    "<=": _ordered(operator.lt, True),
    ">=": _ordered(operator.gt, True),
    "^==": _texts(str.startswith),
    "==^": _texts(str.endswith),
    "*==": _texts(operator.contains),
}
