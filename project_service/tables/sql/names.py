"""Identifiers, literals and type names in SQL text."""

from __future__ import annotations

from project_service.tables import errors
from project_service.tables.model import Key
from project_service.tables.plan.aliases import NAME_BYTES

# Types whose names are key words of SQL; any other name is quoted as an identifier.
_KEYWORD_TYPES = {
    *("int", "integer", "smallint", "bigint", "real", "float", "double precision"),
    *("decimal", "dec", "numeric", "boolean", "bit", "bit varying"),
    *("character", "char", "varchar", "character varying", "nchar"),
    *("time", "time with time zone", "time without time zone", "interval"),
    *("timestamp", "timestamp with time zone", "timestamp without time zone"),
}


def ident(name: str) -> str:
    """A quoted identifier. Raises 42622 for a name that PostgreSQL would cut."""
    refuse_long_name(name)
    return '"' + name.replace('"', '""').replace("\0", "") + '"'


def refuse_long_name(name: str) -> None:
    """Raise 42622 for a name that PostgreSQL would cut. Two names might become one, or one that of something else."""
    if len(name.encode("utf-8")) > NAME_BYTES:
        raise errors.name_too_long(name, NAME_BYTES)


def qualified(key: Key) -> str:
    return f"{ident(key[0])}.{ident(key[1])}"


def literal(text: str) -> str:
    """A quoted literal, for values that belong to a statement's shape (such as the keys of JSON paths). Other values
    are parameters."""
    quoted = text.replace("\0", "").replace("'", "''")
    if "\\" in quoted:
        return " E'" + quoted.replace("\\", "\\\\") + "'"
    return f"'{quoted}'"


def cast_type(name: str) -> str:
    """The type of a cast, as the client named it: key words as they are, everything else as a quoted identifier."""
    folded = " ".join(name.lower().split())
    array = folded.endswith("[]")
    base = folded.removesuffix("[]").strip()
    spelt = base if base in _KEYWORD_TYPES else ident(base)
    return spelt + ("[]" if array else "")
