"""PostgREST's names for the settings of a database of the table API (its documentation, "Configuration").

Whoever comes from PostgREST may keep using them, with dashes or underscores.
"""

from __future__ import annotations

from collections.abc import Container

_PREFIXES = ("", "db_", "server_", "client_", "url_use_")
_SUFFIX = "_enabled"
_OTHERS = {
    "uri": "dsn",
    "pool": "pool_size",
    "schema": "schemas",
    "prepared_statements": "prepare",
    "jwt_role_claim_key": "role_claim",
    "role_claim_key": "role_claim",
    "openapi_mode": "openapi",
}


def own_name(name: str, known: Container[str]) -> str:
    """The name in ``known`` that ``name`` stands for, or ``name`` itself if there is none."""
    whole = name.replace("-", "_").removesuffix(_SUFFIX)
    for prefix in _PREFIXES:
        plain = whole.removeprefix(prefix)
        plain = _OTHERS.get(plain, plain)
        if plain in known:
            return plain
    return name
