"""Finds out which base column each column of a view shows, from the rule that defines the view.

PostgreSQL stores a view's rule as a ``pg_node_tree`` text. Each entry of its outermost target list names the relation
and column that it comes from (``resorigtbl``, ``resorigcol``), which may belong to a view again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

Origin = tuple[int, int]

_BRACKET = re.compile(r"\\.|[(){}]", re.DOTALL)
_ENTRY = re.compile(r":resno (\d+) .*:resorigtbl (\d+) :resorigcol (\d+) :resjunk false\}?$", re.DOTALL)
# In "({QUERY … :targetList ({TARGETENTRY …" the fourth bracket opens an entry.
_ENTRY_DEPTH = 4


def target_list(rule: str) -> dict[int, Origin]:
    """For each column of the view, by number, that shows another unchanged: that column's (relation, number)."""
    found: dict[int, Origin] = {}
    depth, opened = 0, -1
    for bracket in _BRACKET.finditer(rule):
        found_one = bracket.group()
        if found_one in "({":
            depth += 1
            if depth == _ENTRY_DEPTH and rule.startswith("{TARGETENTRY", bracket.start()):
                opened = bracket.start()
        elif found_one in ")}":
            if depth == _ENTRY_DEPTH and opened >= 0:
                _note(found, rule[opened : bracket.end()])
                opened = -1
            depth -= 1
    return found


def _note(found: dict[int, Origin], entry: str) -> None:
    parsed = _ENTRY.search(entry)
    if parsed is not None and parsed.group(2) != "0":
        found[int(parsed.group(1))] = (int(parsed.group(2)), int(parsed.group(3)))


def base_columns(rules: Mapping[int, str]) -> dict[int, dict[Origin, list[int]]]:
    """For each view: by base column, (relation, number), the numbers of the view's columns that show it, directly or
    through other views."""
    direct = {view: target_list(rule) for view, rule in rules.items()}
    found: dict[int, dict[Origin, list[int]]] = {}
    for view, columns in direct.items():
        shown: dict[Origin, list[int]] = defaultdict(list)
        for number, origin in columns.items():
            base = _resolve(direct, origin)
            if base is not None:
                shown[base].append(number)
        found[view] = dict(shown)
    return found


def _resolve(direct: Mapping[int, Mapping[int, Origin]], origin: Origin) -> Origin | None:
    seen = set()
    current: Origin | None = origin
    while current is not None and current[0] in direct:
        if current in seen:
            return None
        seen.add(current)
        current = direct[current[0]].get(current[1])
    return current
