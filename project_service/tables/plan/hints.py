"""Finds the known name that is most like an unknown one, for the hints in error messages.

The algorithm is that of the fuzzy string sets that PostgREST's hints come from. Names that share groups of three
letters with the wanted one are scored by edit distance; if there are none, those that share groups of two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from math import inf, sqrt

# The least scores. For tables and functions it is high, so that nobody can list them by guessing. For the few
# relationships of a relation, and the arguments of a function, it may be lower.
TABLE_SCORE = 0.75
NAME_SCORE = 0.33
# Among more names than these no hint is looked for: the search would cost more than it is worth.
MOST_NAMES = 500
# PostgreSQL suggests no column with more differences, or with differences in more than half of the name.
_COLUMN_DISTANCE = 3
_CANDIDATES = 50
_SIZES = (3, 2)
_NO_LETTER = re.compile(r"[^\w, ]|_")


def nearest(name: str, known: Iterable[str], least: float = NAME_SCORE) -> str | None:
    """The one of ``known`` most like ``name``, if it scores ``least`` (1 is equal) and is not ``name`` itself."""
    names = list(islice(known, MOST_NAMES))
    if len(names) == MOST_NAMES:
        return None
    wanted = name.lower()
    # The edit distance is at least the difference in length, which rules most names out.
    near = [other for other in names if _can_score(len(wanted), len(other), least)]
    if not near:
        return None
    for size in _SIZES:
        best, found = least, None
        for other in _alike(wanted, near, size):
            score = _score(wanted, other.lower(), best)
            if score > best or (score == best and found is None):
                best, found = score, other
        if found is not None:
            return found if found != name else None
    return None


def similar_columns(name: str, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that PostgreSQL suggests for one that does not exist: the one or two nearest by edit distance."""
    similar: list[str] = []
    least = float(min(_COLUMN_DISTANCE, len(name) // 2))
    for column in islice(columns, MOST_NAMES):
        if abs(len(column) - len(name)) > least:
            continue
        distance = _distance(column, name, least)
        if distance < least:
            similar, least = [], distance
        if distance == least:
            similar.append(column)
    return tuple(similar) if len(similar) <= 2 else ()


def _can_score(a: int, b: int, least: float) -> bool:
    return abs(a - b) <= (1 - least) * max(a, b)


def _alike(wanted: str, names: Iterable[str], size: int) -> list[str]:
    """The names that share groups of ``size`` letters with ``wanted``, the most similar first."""
    groups, _ = _counted(wanted, size)
    found: list[tuple[float, str]] = []
    for name in names:
        others, length = _groups(name.lower(), size)
        both = groups.keys() & others.keys()
        if both:
            found.append((sum(groups[group] * others[group] for group in both) / length, name))
    found.sort(key=lambda pair: -pair[0])
    return [name for _, name in found[:_CANDIDATES]]


@lru_cache(maxsize=2048)
def _groups(known: str, size: int) -> tuple[Counter[str], float]:
    """``_counted``, remembered. Only for names in the database: those that clients send may be long."""
    return _counted(known, size)


def _counted(text: str, size: int) -> tuple[Counter[str], float]:
    """How often each group of letters is in ``text``, and the length of that vector."""
    padded = f"-{_NO_LETTER.sub('', text)}-".ljust(size, "-")
    found = Counter(padded[at : at + size] for at in range(len(padded) - size + 1))
    return found, sqrt(sum(count * count for count in found.values()))


def _score(a: str, b: str, least: float) -> float:
    """From 0 to 1, which means equal. Any score below ``least`` is 0."""
    longest = max(len(a), len(b))
    score = 1 - _distance(a, b, (1 - least) * longest) / longest
    return score if score >= least else 0.0


def _distance(a: str, b: str, most: float) -> float:
    """The Levenshtein distance, computed row by row; infinite as soon as it is sure to exceed ``most``."""
    previous = list(range(len(b) + 1))
    for row, left in enumerate(a, 1):
        current = [row]
        for column, right in enumerate(b, 1):
            cost = previous[column - 1] + (left != right)
            current.append(min(previous[column] + 1, current[-1] + 1, cost))
        if min(current) > most + 1e-9:
            return inf
        previous = current
    return previous[-1]
