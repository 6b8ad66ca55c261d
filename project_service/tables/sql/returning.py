"""The columns a statement hands on, as a list: all of the relation's, or those that are needed."""

from __future__ import annotations

from project_service.tables.catalog.model import Relation
from project_service.tables.sql.names import ident


def returned(alias: str, relation: Relation | None, everything: bool, names: tuple[str, ...]) -> str:
    """Computed columns are asked for by name beside ``*``; nothing needed is the constant 1."""
    source = ident(alias)
    found = [f"{source}.*"] if everything else []
    for name in names:
        if name == "*" or (everything and (relation is None or name in relation.columns)):
            continue
        found.append(f"{source}.{ident(name)}")
    return ", ".join(found) or "1"
