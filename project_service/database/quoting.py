"""Names and values as SQL text. Pure."""

from __future__ import annotations


def ident(name: str) -> str:
    """A quoted identifier."""
    return '"' + name.replace('"', '""').replace("\0", "") + '"'


def literal(text: str) -> str:
    """A quoted literal, for values that belong to a statement's shape (such as the keys of JSON paths). Other values
    are parameters."""
    quoted = text.replace("\0", "").replace("'", "''")
    if "\\" in quoted:
        return " E'" + quoted.replace("\\", "\\\\") + "'"
    return f"'{quoted}'"
