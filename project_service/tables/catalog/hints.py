"""The nearest name to one that is not there: compared by shared letter groups, scored by edit distance."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

# A name of its own has to be close, so that guessing does not enumerate what there is; one among a relation's few
# relationships may be further off.
TABLE_SCORE = 0.75
NAME_SCORE = 0.33
# With so many names the search costs more than a hint is worth.
MOST_NAMES = 500
ARGUMENTS_SCORE = 0.2
_CANDIDATES = 50


def nearest(name: str, known: Iterable[str], least: float = NAME_SCORE) -> str | None:
    """The one of ``known`` most like ``name``, if it scores ``least`` (1 is equal) and is not ``name`` itself."""
    names = list(islice(known, MOST_NAMES))
    if len(names) == MOST_NAMES:
        return None
    wanted = name.lower()
    grams = _grams(wanted)
    # Edits are at least as many as the lengths differ: most names are out by that alone.
    near = (other for other in names if _can_score(len(wanted), len(other), least))
    shared = ((len(grams & _grams(other.lower())), other) for other in near)
    ranked = sorted((pair for pair in shared if pair[0]), key=lambda pair: -pair[0])[:_CANDIDATES]
    best, found = 0.0, None
    for _, other in ranked:
        score = _score(wanted, other.lower())
        if score > best:
            best, found = score, other
    return found if found != name and best >= least else None


def _can_score(a: int, b: int, least: float) -> bool:
    return abs(a - b) <= (1 - least) * max(a, b)


def _grams(text: str) -> set[str]:
    padded = f"-{text}-"
    return {padded[at : at + 2] for at in range(len(padded) - 1)}


def _score(a: str, b: str) -> float:
    longest = max(len(a), len(b))
    return 1.0 if longest == 0 else 1 - _distance(a, b) / longest


def _distance(a: str, b: str) -> int:
    """Levenshtein's, one row at a time."""
    previous = list(range(len(b) + 1))
    for row, left in enumerate(a, 1):
        current = [row]
        for column, right in enumerate(b, 1):
            cost = previous[column - 1] + (left != right)
            current.append(min(previous[column] + 1, current[-1] + 1, cost))
        previous = current
    return previous[-1]
