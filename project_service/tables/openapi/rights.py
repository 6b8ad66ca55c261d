"""Asks PostgreSQL what the current role may use."""

from __future__ import annotations

from project_service.tables.sql.fragment import Sql, parameter

_RELATION = (
    "pg_has_role(c.relowner, 'USAGE') "
    "or has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') "
    "or has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
)


# Rights are looked up only for what is in the schema. PostgreSQL might look at all of its own functions first.
_SCHEMA = "(SELECT oid FROM pg_namespace WHERE nspname = "


def rights_sql(schema: str) -> Sql:
    """A query for one row: the names of the relations and of the functions that the current role may use, as JSON
    arrays in a fixed order."""
    return (
        "SELECT (SELECT coalesce(json_agg(c.relname ORDER BY c.oid), '[]') FROM pg_class c "
        "WHERE CASE WHEN c.relkind IN ('r', 'v', 'm', 'f', 'p') AND c.relnamespace = "
        + _SCHEMA
        + parameter(schema)
        + f") THEN {_RELATION} END)::text, "
        + "(SELECT coalesce(json_agg(DISTINCT p.proname), '[]') FROM pg_proc p WHERE CASE WHEN p.pronamespace = "
        + _SCHEMA
        + parameter(schema)
        + ") THEN has_function_privilege(p.oid, 'EXECUTE') END)::text"
    )
