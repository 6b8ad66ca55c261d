"""Finding the relation that a request names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from math import inf, sqrt

from project_service.tables import errors
from project_service.tables.request.request import Head
from project_service.tables.values import Key, Relation, Relationship, SchemaCache

# Finds the known name that is most like an unknown one, for the hints in error messages.
#
# The algorithm is that of the fuzzy string sets that PostgREST's hints come from. Names that share groups of three
# letters with the wanted one are scored by edit distance; if there are none, those that share groups of two.


# The least scores. For tables and functions it is high, so that nobody can list them by guessing. For the few
# relationships of a relation, and the arguments of a function, it may be lower.
TABLE_SCORE = 0.75
NAME_SCORE = 0.33
# Among more names than these no hint is looked for: the search would cost more than it is worth.
MAX_NAMES = 500
# PostgreSQL suggests no column with more differences, or with differences in more than half of the name.
_COLUMN_DISTANCE = 3
_CANDIDATES = 50
_SIZES = (3, 2)
_NO_LETTER = re.compile(r"[^\w, ]|_")


def nearest(name: str, known: Iterable[str], least: float = NAME_SCORE) -> str | None:
    """The one of ``known`` most like ``name``, if it scores ``least`` (1 is equal) and is not ``name`` itself."""
    names = list(islice(known, MAX_NAMES))
    if len(names) == MAX_NAMES:
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
    for column in islice(columns, MAX_NAMES):
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


# Finding the relationship that an embedding means. PostgREST's reference: "Resource Embedding".


_CARDINALITIES = {"m2o": "many-to-one", "o2m": "one-to-many", "o2o": "one-to-one", "m2m": "many-to-many"}


def find_relationship(
    cache: SchemaCache, origin: Key, schema: str, target: str, hint: str | None
) -> Relationship:
    """The relationship that leads from ``origin`` to ``target``, which names a relation, a foreign key or its column.

    Raises PGRST200 where there is none and PGRST201 where there are several.
    """
    known = cache.relationships.get(origin)
    ways = [way for way in known or () if _reaches(way, schema)]
    computed = [way for way in ways if way.routine is not None and way.routine[1] == target]
    if computed:
        # Another schema may have a function of the same name, as another version of this one does.
        return min(computed, key=lambda way: way.routine != (schema, target))
    found = [way for way in ways if way.routine is None and _is_meant(way, target, hint)]
    found = _tables_first(_own_junctions_first(found, schema))
    if not found:
        suggestion = _suggest(ways, target, hint) if ways or known == () else _other(cache, schema, origin)
        raise errors.no_relationship(origin[1], target, hint, schema, suggestion)
    if len(found) > 1:
        raise _ambiguous(origin[1], target, found)
    return found[0]


def _reaches(way: Relationship, schema: str) -> bool:
    return way.routine is not None or way.target[0] == schema


def _is_meant(way: Relationship, target: str, hint: str | None) -> bool:
    return _by_name(way, target, hint) or (hint is None and _by_key(way, target))


def _by_name(way: Relationship, target: str, hint: str | None) -> bool:
    """Whether ``target`` is the name of the target. In a relation that refers to itself that means its children."""
    if way.target[1] != target:
        return False
    if way.is_self and not way.is_parent:
        return False
    return hint is None or _hinted(way, hint)


def _hinted(way: Relationship, hint: str) -> bool:
    if way.junction is not None:
        return hint == way.junction.key[1]
    if hint == way.constraint:
        return True
    return len(way.pairs) == 1 and hint in way.pairs[0]


def _by_key(way: Relationship, target: str) -> bool:
    """Whether ``target`` names the foreign key, or its only column on this side. That never leads to a view.

    In a relation that refers to itself, and may be a view, it leads to the parent.
    """
    if way.junction is not None or (way.is_parent if way.is_self else way.target_is_view):
        return False
    return way.constraint == target or (len(way.pairs) == 1 and way.pairs[0][0] == target)


def _own_junctions_first(found: list[Relationship], schema: str) -> list[Relationship]:
    """Junctions of other schemas, which may be another version of this one, are meant where it has none itself, or by
    a hint."""
    if not any(way.junction is not None and way.junction.key[0] == schema for way in found):
        return found
    return [way for way in found if way.junction is None or way.junction.key[0] == schema]


def _tables_first(found: list[Relationship]) -> list[Relationship]:
    if len(found) < 2:
        return found
    return [way for way in found if not way.target_is_view] or found


def _suggest(ways: Sequence[Relationship], target: str, hint: str | None) -> str | None:
    if hint is not None and any(way.target[1] == target for way in ways):
        return None
    return _instead(target, (way.target[1] for way in ways))


def _other(cache: SchemaCache, schema: str, origin: Key) -> str | None:
    """A hint for an origin that nothing is related to: a similar relation that has relationships to visible ones."""
    shown = (pair for pair in cache.relationships.items() if pair[0][0] == schema)
    return _instead(origin[1], (key[1] for key, ways in shown if any(_reaches(way, schema) for way in ways)))


def _instead(name: str, known: Iterable[str]) -> str | None:
    near = nearest(name, dict.fromkeys(known))
    return f"Perhaps you meant '{near}' instead of '{name}'." if near else None


def _ambiguous(origin: str, target: str, found: list[Relationship]) -> errors.TableError:
    choices = [
        {
            "cardinality": _CARDINALITIES[way.cardinality],
            "embedding": f"{origin} with {way.target[1]}",
            "relationship": _described(way),
        }
        for way in found
    ]
    hints = ", ".join(f"'{target}!{_distinguishing(way)}'" for way in found)
    hint = (
        f"Try changing '{target}' to one of the following: {hints}. "
        "Find the desired relationship in the 'details' key."
    )
    return errors.ambiguous_relationship(origin, target, choices, hint)


def _distinguishing(way: Relationship) -> str:
    return way.junction.key[1] if way.junction is not None else way.constraint


def _described(way: Relationship) -> str:
    if way.junction is None:
        ours, theirs = (", ".join(names) for names in zip(*way.pairs, strict=True))
        return f"{way.constraint} using {way.origin[1]}({ours}) and {way.target[1]}({theirs})"
    junction = way.junction
    origin_columns = ", ".join(column for _, column in junction.origin_pairs)
    target_columns = ", ".join(column for column, _ in junction.target_pairs)
    return (
        f"{junction.key[1]} using {junction.to_origin}({origin_columns}) "
        f"and {junction.to_target}({target_columns})"
    )


def find_relation(cache: SchemaCache, head: Head) -> Relation:
    """Raises PGRST205."""
    found = cache.relations.get((head.schema, head.name))
    if found is None:
        names = [name for schema, name in cache.relations if schema == head.schema]
        raise errors.no_table(head.schema, head.name, nearest(head.name, names, TABLE_SCORE))
    return found
