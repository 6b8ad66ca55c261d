"""Finding the relationship that an embedding means. PostgREST's reference: "Resource Embedding"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from project_service.tables import errors
from project_service.tables.model import Key, Relationship, SchemaCache
from project_service.tables.plan.hints import nearest

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
