"""Looks up the relations and relationships that a request names, and suggests similar names for unknown ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from math import inf, sqrt
from typing import Literal

from project_service.tables import errors
from project_service.tables.errors import Suggestion
from project_service.tables.request.request import Head
from project_service.tables.values import Key, Relation, Relationship, SchemaCache

# The least scores for a suggestion. For tables and functions it is high, so that nobody can list them by guessing.
# For the few relationships of a relation, and the arguments of a function, it may be lower.
TABLE_SCORE = 0.75
NAME_SCORE = 0.33
# Among more names than these nothing is suggested: the search would cost more than it is worth.
MAX_NAMES = 500
# PostgreSQL suggests no column with more differences, or with differences in more than half of the name.
_COLUMN_DISTANCE = 3
_CANDIDATES = 50
_SIZES = (3, 2)
_NO_LETTER = re.compile(r"[^\w, ]|_")
_CARDINALITIES = {"m2o": "many-to-one", "o2m": "one-to-many", "o2o": "one-to-one", "m2m": "many-to-many"}


def find_relation(cache: SchemaCache, head: Head) -> Relation:
    """The relation that the request names. Raises PGRST205."""
    relation = cache.relations.get((head.schema, head.name))
    if relation is None:
        names = [name for schema, name in cache.relations if schema == head.schema]

        def error(known: Iterable[str]) -> errors.TableError:
            return errors.no_table(head.schema, head.name, nearest(head.name, known, TABLE_SCORE))

        raise _suggesting(error, "relations", head.schema, names)
    return relation


# Relationships. PostgREST's reference: "Resource Embedding".


def find_relationship(
    cache: SchemaCache, origin: Key, schema: str, target: str, hint: str | None
) -> Relationship:
    """The relationship that leads from ``origin`` to ``target``, which names a relation, a foreign key or its column.

    Raises PGRST200 where there is none and PGRST201 where there are several.
    """
    known = cache.relationships.get(origin)
    visible = [one for one in known or () if _is_visible(one, schema)]
    computed = [one for one in visible if one.routine is not None and one.routine[1] == target]
    if computed:
        # Another schema may have a function of the same name, as another version of this one does.
        return min(computed, key=lambda one: one.routine != (schema, target))
    meant = [
        one
        for one in visible
        if one.routine is None
        and (_is_named(one, target, hint) or (hint is None and _is_named_by_key(one, target)))
    ]
    # Junctions of other schemas, which may be another version of this one, are meant where it has none itself, or by
    # a hint.
    if any(one.junction is not None and one.junction.key[0] == schema for one in meant):
        meant = [one for one in meant if one.junction is None or one.junction.key[0] == schema]
    if len(meant) > 1:
        meant = [one for one in meant if not one.target_is_view] or meant
    if not meant:
        by_target = bool(visible) or known == ()
        names = _targets(visible, target, hint) if by_target else _origins(cache, schema)

        def error(usable: Iterable[str]) -> errors.TableError:
            suggestion = _suggest(target if by_target else origin[1], usable)
            return errors.no_relationship(origin[1], target, hint, schema, suggestion)

        raise _suggesting(error, "relations", schema, names)
    if len(meant) > 1:
        raise _ambiguous(origin[1], target, meant)
    return meant[0]


def _is_visible(relationship: Relationship, schema: str) -> bool:
    return relationship.routine is not None or relationship.target[0] == schema


def _is_named(relationship: Relationship, target: str, hint: str | None) -> bool:
    """Whether ``target`` is the name of the target, and the hint fits. In a relation that refers to itself the name
    means its children."""
    if relationship.target[1] != target or (relationship.is_self and not relationship.is_parent):
        return False
    if hint is None:
        return True
    if relationship.junction is not None:
        return hint == relationship.junction.key[1]
    pairs = relationship.pairs
    return hint == relationship.constraint or (len(pairs) == 1 and hint in pairs[0])


def _is_named_by_key(relationship: Relationship, target: str) -> bool:
    """Whether ``target`` names the foreign key, or its only column on this side. That never leads to a view.

    In a relation that refers to itself, and may be a view, it leads to the parent.
    """
    wrong_end = relationship.is_parent if relationship.is_self else relationship.target_is_view
    if relationship.junction is not None or wrong_end:
        return False
    pairs = relationship.pairs
    return relationship.constraint == target or (len(pairs) == 1 and pairs[0][0] == target)


def _targets(visible: Sequence[Relationship], target: str, hint: str | None) -> list[str]:
    if hint is not None and any(one.target[1] == target for one in visible):
        return []
    return list(dict.fromkeys(one.target[1] for one in visible))


def _origins(cache: SchemaCache, schema: str) -> list[str]:
    """What an origin that nothing is related to may stand for: relations with relationships to visible ones."""
    return [
        name
        for (of, name), relationships in cache.relationships.items()
        if of == schema and any(_is_visible(one, schema) for one in relationships)
    ]


def _suggesting(
    error: Callable[[Iterable[str]], errors.TableError],
    kind: Literal["relations", "functions", "columns"],
    schema: str,
    names: Sequence[str],
    relation: str = "",
) -> errors.TableError:
    """The error whose hint is the best of ``names``, and that can be given the best of those a caller may use."""
    raised = error(names)
    raised.suggestion = Suggestion(
        kind, schema, lambda usable: error([name for name in names if name in usable]).hint, relation
    )
    return raised


def unknown_column(
    shown: str | None, name: str, columns: Iterable[str], relation: Key | None
) -> errors.TableError:
    """42703, with similar names of ``columns``, which are those of ``relation`` if there is one."""
    names = list(columns)

    def error(known: Iterable[str]) -> errors.TableError:
        return errors.unknown_column(shown, name, similar_columns(name, known))

    return (
        error(names) if relation is None else _suggesting(error, "columns", relation[0], names, relation[1])
    )


def unknown_function(
    error: Callable[[str | None], errors.TableError], cache: SchemaCache, schema: str, name: str
) -> errors.TableError:
    """``error``, with the function of the schema that is named like ``name``, if there is one."""
    names = [known for of, known in cache.routines if of == schema]
    return _suggesting(lambda known: error(nearest(name, known, TABLE_SCORE)), "functions", schema, names)


def _suggest(name: str, known: Iterable[str]) -> str | None:
    near = nearest(name, dict.fromkeys(known))
    return f"Perhaps you meant '{near}' instead of '{name}'." if near else None


def _ambiguous(origin: str, target: str, candidates: list[Relationship]) -> errors.TableError:
    choices = [
        {
            "cardinality": _CARDINALITIES[one.cardinality],
            "embedding": f"{origin} with {one.target[1]}",
            "relationship": _described(one),
        }
        for one in candidates
    ]
    names = (one.junction.key[1] if one.junction is not None else one.constraint for one in candidates)
    hints = ", ".join(f"'{target}!{name}'" for name in names)
    hint = (
        f"Try changing '{target}' to one of the following: {hints}. "
        "Find the desired relationship in the 'details' key."
    )
    return errors.ambiguous_relationship(origin, target, choices, hint)


def _described(relationship: Relationship) -> str:
    junction = relationship.junction
    if junction is None:
        ours, theirs = (", ".join(names) for names in zip(*relationship.pairs, strict=True))
        origin, target = relationship.origin[1], relationship.target[1]
        return f"{relationship.constraint} using {origin}({ours}) and {target}({theirs})"
    origin_columns = ", ".join(column for _, column in junction.origin_pairs)
    target_columns = ", ".join(column for column, _ in junction.target_pairs)
    return (
        f"{junction.key[1]} using {junction.to_origin}({origin_columns}) "
        f"and {junction.to_target}({target_columns})"
    )


# Similar names. The algorithm is that of the fuzzy string sets that PostgREST's hints come from: names that share
# groups of three letters with the wanted one are scored by edit distance; if there are none, those that share groups
# of two.


def nearest(name: str, known: Iterable[str], least: float = NAME_SCORE) -> str | None:
    """The one of ``known`` most like ``name``, if it scores ``least`` (1 is equal) and is not ``name`` itself."""
    names = list(islice(known, MAX_NAMES))
    if len(names) == MAX_NAMES:
        return None
    wanted = name.lower()
    # The edit distance is at least the difference in length, which rules most names out.
    near = [one for one in names if abs(len(wanted) - len(one)) <= (1 - least) * max(len(wanted), len(one))]
    for size in _SIZES if near else ():
        best, best_name = least, None
        for other in _alike(wanted, near, size):
            score = _score(wanted, other.lower(), best)
            if score > best or (score == best and best_name is None):
                best, best_name = score, other
        if best_name is not None:
            return best_name if best_name != name else None
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


def _alike(wanted: str, names: Iterable[str], size: int) -> list[str]:
    """The names that share groups of ``size`` letters with ``wanted``, the most similar first."""
    groups, _ = _count_groups(wanted, size)
    similar: list[tuple[float, str]] = []
    for name in names:
        others, length = _groups_of_known(name.lower(), size)
        both = groups.keys() & others.keys()
        if both:
            similar.append((sum(groups[group] * others[group] for group in both) / length, name))
    similar.sort(key=lambda pair: -pair[0])
    return [name for _, name in similar[:_CANDIDATES]]


def _count_groups(text: str, size: int) -> tuple[Counter[str], float]:
    """How often each group of letters is in ``text``, and the length of that vector."""
    padded = f"-{_NO_LETTER.sub('', text)}-".ljust(size, "-")
    groups = Counter(padded[at : at + size] for at in range(len(padded) - size + 1))
    return groups, sqrt(sum(count * count for count in groups.values()))


# Cached only for names in the database: those that clients send may be long.
_groups_of_known = lru_cache(maxsize=2048)(_count_groups)


def _score(a: str, b: str, least: float) -> float:
    """How similar two names are, from 0 to 1, which means equal. Any score below ``least`` is 0."""
    longest = max(len(a), len(b))
    score = 1 - _distance(a, b, (1 - least) * longest) / longest
    return score if score >= least else 0.0


def _distance(a: str, b: str, limit: float) -> float:
    """The Levenshtein distance, computed row by row; infinite as soon as it is sure to exceed ``limit``."""
    previous = list(range(len(b) + 1))
    for row, left in enumerate(a, 1):
        current = [row]
        for column, right in enumerate(b, 1):
            cost = previous[column - 1] + (left != right)
            current.append(min(previous[column] + 1, current[-1] + 1, cost))
        if min(current) > limit + 1e-9:
            return inf
        previous = current
    return previous[-1]
