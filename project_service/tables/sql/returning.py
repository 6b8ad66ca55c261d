"""The list of columns that a write or a call returns: all of the relation's, or those that are needed."""

from __future__ import annotations

from project_service.tables.model import Relation
from project_service.tables.sql.names import ident


def returned(alias: str, relation: Relation | None, everything: bool, names: tuple[str, ...]) -> str:
    """``everything`` asks for ``*``, beside which ``names`` adds computed columns, since ``*`` does not contain them.
    The constant 1 if nothing is needed."""
    source = ident(alias)
    found = [f"{source}.*"] if everything else []
    for name in names:
        if name == "*" or (everything and (relation is None or name in relation.columns)):
            continue
        found.append(f"{source}.{ident(name)}")
    return ", ".join(found) or "1"
