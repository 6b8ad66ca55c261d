"""The errors that ``/openapi.json`` lists for the routes of the table API, by what a route does."""

from __future__ import annotations

from project_service.errors import ApiError
from project_service.tables import errors
from project_service.tables.access import errors as token_errors
from project_service.tables.failures import from_sqlstate


def _sqlstate(code: str, message: str, authenticated: bool = True) -> ApiError:
    return from_sqlstate(code, message, None, None, authenticated)


ANY_REQUEST: tuple[ApiError, ...] = (
    errors.unreadable("…", 1, "…"),
    errors.invalid_preferences([]),
    errors.unacceptable_schema("…", ()),
    errors.invalid_path(),
    token_errors.undecodable_token("…"),
    token_errors.anonymous_disabled(),
    token_errors.invalid_claims("…"),
    token_errors.no_jwt_secret(),
    errors.method_not_allowed("…", ()),
    errors.database_away(),
    errors.database_unreachable(),
    errors.schema_cache_missing(),
    errors.pool_timeout(),
    errors.invalid_response_headers(),
    errors.invalid_response_status(),
    errors.unreadable_raise("…", "…"),
    _sqlstate("42501", "The role lacks a right (a role that a token claims, or the service's).", True),
    _sqlstate("42501", "The role lacks a right (nobody is signed in).", False),
    _sqlstate("22023", 'role "…" does not exist'),
    _sqlstate("25006", "The transaction is read-only."),
    _sqlstate("22P02", "A value is not of its column's type; other data exceptions likewise."),
    _sqlstate("57014", "The statement took longer than it may."),
)
SELECTING: tuple[ApiError, ...] = (
    errors.unsatisfiable_range("…"),
    errors.unacceptable_media([]),
    errors.not_singular(2),
    errors.not_embedded("…"),
    errors.related_order("…", "…"),
    errors.not_a_null_filter("…"),
    errors.aggregates_disabled(),
    errors.not_implemented("…"),
    errors.no_relationship("…", "…", None, "…", None),
    errors.ambiguous_relationship("…", "…", [], "…"),
    errors.no_column("…", "…"),
    errors.unknown_column("…", "…"),
    errors.same_name("…"),
    errors.name_too_long("…", 63),
    errors.statement_too_large(1),
    _sqlstate("42883", "There is no such operator for these types."),
)
ON_RELATION: tuple[ApiError, ...] = (errors.no_table("…", "…", None), *SELECTING)
CHANGING: tuple[ApiError, ...] = (
    errors.max_affected_exceeded(2),
    _sqlstate("23001", "A foreign key with RESTRICT does not allow it (PostgreSQL 18)."),
    _sqlstate("23503", "A foreign key does not allow it."),
    _sqlstate("23505", "A row with that key is there already."),
    _sqlstate(
        "23P01", "A row that an exclusion constraint or a key WITHOUT OVERLAPS excludes is there already."
    ),
    _sqlstate("23502", "A column must not be null; other constraints likewise."),
)
FILTERED = (errors.unfiltered_write("PATCH"), errors.limit_without_order())
CALLING: tuple[ApiError, ...] = (
    errors.routine_method("…", ()),
    errors.no_routine("…", "…", None),
    errors.ambiguous_routine([]),
    errors.max_affected_needs_rows(),
    *SELECTING,
    *CHANGING,
)
