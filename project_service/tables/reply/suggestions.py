"""Which names a hint may suggest: where the description at the root shows only what the caller may use, so do they.

A plan knows nothing of rights. So its error comes with the hint that all names give, and with how to choose another
one from fewer names. Only if there is one, PostgreSQL is asked once more, as the caller.
"""

from __future__ import annotations

import re

from project_service.tables.errors import Suggestion
from project_service.tables.sql.fragment import Sql, parameter

# PostgreSQL's own hints with names. They are about SQL behind the request, as the names in a request are looked up
# before.
NAMES_BEHIND = re.compile(r'Perhaps you meant to reference the (?:table alias|column) "')

_MAY_USE_RELATION = (
    "pg_has_role(c.relowner, 'USAGE') "
    "or has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') "
    "or has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
)
# Rights are looked up only for what is in the schema. PostgreSQL might look at all of its own functions first.
_SCHEMA_OID = "(SELECT oid FROM pg_namespace WHERE nspname = "


def usable_sql(suggestion: Suggestion) -> Sql:
    """A query for one row: the names for ``suggestion`` that the current role may use, as a JSON array."""
    schema, name = suggestion.schema, suggestion.name
    if suggestion.kind == "relations":
        return "SELECT " + usable_relations(schema)
    if suggestion.kind == "functions":
        return "SELECT " + usable_functions(schema)
    return "SELECT " + (
        _usable_overloads(schema, name) if suggestion.kind == "overloads" else _usable_columns(schema, name)
    )


def usable_relations(schema: str) -> Sql:
    """The names of the relations that the current role may use, as a JSON array in a fixed order."""
    return (
        "(SELECT coalesce(json_agg(c.relname ORDER BY c.oid), '[]') FROM pg_class c "
        "WHERE CASE WHEN c.relkind IN ('r', 'v', 'm', 'f', 'p') AND c.relnamespace = "
        + _SCHEMA_OID
        + parameter(schema)
        + f") THEN {_MAY_USE_RELATION} END)::text"
    )


def usable_functions(schema: str) -> Sql:
    """The names of the functions that the current role may use, as a JSON array in a fixed order."""
    return (
        "(SELECT coalesce(json_agg(DISTINCT p.proname), '[]') FROM pg_proc p WHERE CASE WHEN p.pronamespace = "
        + _SCHEMA_OID
        + parameter(schema)
        + ") THEN has_function_privilege(p.oid, 'EXECUTE') END)::text"
    )


def _usable_overloads(schema: str, name: str) -> Sql:
    return (
        "(SELECT CASE WHEN bool_and(has_function_privilege(p.oid, 'EXECUTE')) THEN json_agg(DISTINCT p.proname) "
        "ELSE '[]' END FROM pg_proc p WHERE p.pronamespace = "
        + _SCHEMA_OID
        + parameter(schema)
        + ") AND p.proname = "
        + parameter(name)
        + ")::text"
    )


def _usable_columns(schema: str, relation: str) -> Sql:
    return (
        "(SELECT coalesce(json_agg(a.attname), '[]') FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relname = "
        + parameter(relation)
        + " AND c.relnamespace = "
        + _SCHEMA_OID
        + parameter(schema)
        + ") AND (pg_has_role(c.relowner, 'USAGE') "
        "OR has_column_privilege(c.oid, a.attnum, 'SELECT, INSERT, UPDATE, REFERENCES')))::text"
    )
