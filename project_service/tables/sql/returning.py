"""The list of columns that a write or a call returns: all of the relation's, or those that are needed."""

from __future__ import annotations

from collections.abc import Mapping

from project_service.tables.model import Computed, Relation
from project_service.tables.sql.fields import computed_sql
from project_service.tables.sql.names import ident


def returned(
    alias: str,
    relation: Relation | None,
    everything: bool,
    names: tuple[str, ...],
    computed: Mapping[str, Computed],
) -> str:
    """``everything`` asks for ``*``, beside which ``names`` adds computed and system columns, since ``*`` does not
    contain them. The constant 1 if nothing is needed."""
    source = ident(alias)
    found = [f"{source}.*"] if everything else []
    for name in names:
        if name in computed:
            found.append(f"{computed_sql(alias, computed[name])} AS {ident(name)}")
        elif not everything or (relation is not None and name not in relation.columns):
            found.append(f"{source}.{ident(name)}")
    return ", ".join(found) or "1"
