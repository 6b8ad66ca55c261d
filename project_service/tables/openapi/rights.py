"""Asks PostgreSQL what the current role may use."""

from __future__ import annotations

from project_service.tables.sql.fragment import Sql, parameter

_RELATION = (
    "pg_has_role(c.relowner, 'USAGE') "
    "or has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') "
    "or has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
)


def rights_sql(schema: str) -> Sql:
    """A query for one row: the names of the relations and of the functions that the current role may use, as JSON
    arrays."""
    return (
        "SELECT (SELECT coalesce(json_agg(c.relname), '[]') FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND n.nspname = "
        + parameter(schema)
        + f" AND ({_RELATION}))::text, "
        + "(SELECT coalesce(json_agg(DISTINCT p.proname), '[]') FROM pg_proc p "
        + "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = "
        + parameter(schema)
        + " AND has_function_privilege(p.oid, 'EXECUTE'))::text"
    )
