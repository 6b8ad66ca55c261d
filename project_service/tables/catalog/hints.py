"""The nearest name to one that is not there: found by shared groups of letters, scored by edit distance.

As fuzzy string sets do it, whose scores PostgREST's hints follow: groups of three letters decide who is compared, and
groups of two where those find nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from math import inf, sqrt

# A name of its own has to be close, so that guessing does not enumerate what there is; one among a relation's few
# relationships, or a function's arguments, may be further off.
TABLE_SCORE = 0.75
NAME_SCORE = 0.33
# With so many names the search costs more than a hint is worth.
MOST_NAMES = 500
_CANDIDATES = 50
_SIZES = (3, 2)
_NO_LETTER = re.compile(r"[^\w, ]|_")


def nearest(name: str, known: Iterable[str], least: float = NAME_SCORE) -> str | None:
    """The one of ``known`` most like ``name``, if it scores ``least`` (1 is equal) and is not ``name`` itself."""
    names = list(islice(known, MOST_NAMES))
    if len(names) == MOST_NAMES:
        return None
    wanted = name.lower()
    # Edits are at least as many as the lengths differ: most names are out by that alone.
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


def _can_score(a: int, b: int, least: float) -> bool:
    return abs(a - b) <= (1 - least) * max(a, b)


def _alike(wanted: str, names: Iterable[str], size: int) -> list[str]:
    """Who shares groups of ``size`` letters with ``wanted``, the most alike of them first."""
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
    """Of a name of the database only: what clients ask for may be long, and is not remembered."""
    return _counted(known, size)


def _counted(text: str, size: int) -> tuple[Counter[str], float]:
    """How often each group of letters is in ``text``, and how long that makes its vector."""
    padded = f"-{_NO_LETTER.sub('', text)}-".ljust(size, "-")
    found = Counter(padded[at : at + size] for at in range(len(padded) - size + 1))
    return found, sqrt(sum(count * count for count in found.values()))


def _score(a: str, b: str, least: float) -> float:
    """1 where they are equal; 0 for any score below ``least``."""
    longest = max(len(a), len(b))
    score = 1 - _distance(a, b, (1 - least) * longest) / longest
    return score if score >= least else 0.0


def _distance(a: str, b: str, most: float) -> float:
    """Levenshtein's, one row at a time; infinite as soon as it will be more than ``most``."""
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
