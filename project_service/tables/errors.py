"""The error responses of the table API, with the codes, statuses and texts of PostgREST (its reference, "Errors").

First our own, in PostgREST's groups: a function for each, named for what is meant, as the codes are numbers. Then
PostgreSQL's; last, which of them ``/openapi.json`` lists for which requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Literal

import orjson
import psycopg2
from attrs import frozen

from project_service import whole_numbers
from project_service.database.connection import DatabaseGone
from project_service.database.errors import describe
from project_service.errors import RETRY_AFTER, ApiError, Headers
from project_service.http import head
from project_service.http.describe import ANY, STRING, Named, obj
from project_service.http.response import OURS, ErrorForm, Reply, error_reply

# On errors too, since they depend on these headers as much (PostgREST's reference, "Vary Header").
VARY = ("Vary", "Accept, Prefer, Range")

# What a token must not contain (RFC 9110 section 5.6.2).
_NO_TOKEN = re.compile(rf"[^{head.TCHAR}]+")
_HEADER_NAME = re.compile(rf"[{head.TCHAR}]+")
_HEADER_VALUE = re.compile(rf"[^{head.CONTROL}]*")


@frozen
class Suggestion:
    """How a hint is chosen.

    ``choose`` gives the hint for the names that the caller may use: of relations or functions in ``schema``; of
    columns of the relation ``name``; or ``name`` itself, a function, if the caller may use all of its overloads.
    """

    kind: Literal["relations", "functions", "overloads", "columns"]
    schema: str
    choose: Callable[[Container[str]], str | None]
    name: str = ""


class TableError(ApiError):
    """An error with PostgREST's four members: ``code``, ``message``, ``details`` and ``hint``.

    ``details`` may be any JSON, unlike in ``ApiError``, so they are kept in ``json_details``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Any = None,
        hint: str | None = None,
        headers: Headers = (),
        *,
        counted: bool = False,
    ) -> None:
        # A code that SQL raises may be any text.
        proxy = _proxy_status(_NO_TOKEN.sub("", code))
        super().__init__(status, code, message, None, (*headers, proxy), counted=counted)
        self.json_details = details
        self.hint = hint
        # How the hint is chosen if only some names may be in it.
        self.suggestion: Suggestion | None = None
        self.terse = False

    def body(self) -> bytes:
        """The four members; only code and message if ``terse`` is set (``error_verbosity = "minimal"``)."""
        if self.terse:
            return orjson.dumps({"code": self.code, "message": self.message})
        return orjson.dumps(
            {"code": self.code, "details": self.json_details, "hint": self.hint, "message": self.message}
        )


def _proxy_status(code: str) -> tuple[str, str]:
    """The header in which PostgREST's clients look for the code: the response to a HEAD has no body."""
    return "Proxy-Status", f"PostgREST; error={code}"


# What to do about errors that all parts share.
_HINTS = {
    "payload_too_large": (
        "POST the rows as CSV or NDJSON, which may be larger, or in several requests, or load them from a file with "
        r"psql's \copy: "
        "see 'Import and export many rows' in the documentation. An operator may raise the limit."
    )
}
# The errors that all parts share, if PostgREST has a code of its own for them.
_POSTGREST_CODES = {"database_unavailable": "PGRST000"}
_TABLE_ERROR = Named(
    "TableError",
    obj(
        ("code", "message"),
        code={"type": "string", "description": "PostgREST's, PostgreSQL's (SQLSTATE) or the service's."},
        message=STRING,
        details={**ANY, "description": "Text, or JSON where it lists choices."},
        hint={"type": ["string", "null"]},
    ),
)
# SQLSTATEs and PostgREST's codes come in greater number than a list could hold.
_TABLE_CODE = "[0-9A-Z]{5}|PGRST[0-9]{3}"


def _reply(error: ApiError) -> Reply:
    if isinstance(error, TableError):
        return error_reply(error)
    code = _POSTGREST_CODES.get(error.code, error.code)
    headers = (("Content-Type", error.content_type), *error.headers, _proxy_status(code))
    body = {"code": code, "message": error.message, "details": None, "hint": _HINTS.get(code)}
    return Reply(error.status, headers, orjson.dumps(body), error.reason)


def _schema(codes: Sequence[str]) -> Any:
    # One pattern: generators cannot narrow a string to alternatives.
    known = "|".join([_TABLE_CODE, *(code for code in codes if code.islower())])
    narrowed = {"code": {"type": "string", "pattern": f"^({known})$"}}
    return {"allOf": [_TABLE_ERROR, {"properties": narrowed}]}


# How the table API's paths answer with any error: with PostgREST's four members.
FORM = ErrorForm(_reply, _schema)


# Group 1: the request (raised by parse and respond).


def unreadable(what: str, column: int, details: str) -> TableError:
    """PGRST100: a query parameter does not follow the grammar. ``column`` counts from 1."""
    return TableError(400, "PGRST100", f'"failed to parse {what}" (line 1, column {column})', details)


def invalid_parameter(message: str) -> TableError:
    """PGRST100 for a parameter that is wrong as a whole."""
    return TableError(400, "PGRST100", message)


def unsupported_method(method: str, allowed: tuple[str, ...]) -> TableError:
    headers = (("Allow", ",".join(allowed)),)
    return TableError(405, "PGRST117", f"Unsupported HTTP method: {method}", headers=headers)


def routine_method(method: str, allowed: tuple[str, ...]) -> TableError:
    headers = (("Allow", ",".join(allowed)),)
    return TableError(405, "PGRST101", f"Cannot use the {method} method on RPC", headers=headers)


def invalid_body(message: str) -> TableError:
    return TableError(400, "PGRST102", message)


def several_objects() -> TableError:
    message = "PATCH writes one object to all rows that the filters select, and the body has several"
    hint = (
        "Send one object. To change each row in its own way, POST the array "
        "with 'Prefer: resolution=merge-duplicates'."
    )
    return TableError(400, "PGRST102", message, hint=hint)


def body_too_deep(levels: int) -> TableError:
    message = f"The body is nested {levels} levels deep, which is more than PostgreSQL can read"
    return TableError(400, "PGRST102", message)


def keys_differ() -> TableError:
    return invalid_body("All object keys must match")


def fields_differ() -> TableError:
    return invalid_body("All lines must have same number of fields")


def names_too_long() -> TableError:
    return invalid_body("The names of the columns are too long for so many lines")


def row_too_large(limit: int) -> TableError:
    return invalid_body(f"A row is larger than {limit} bytes")


def at_line(error: TableError, line: int) -> TableError:
    """``error`` itself, with the line of the body that it is about in its details."""
    where, details = f"Line {line} of the body", error.json_details
    if details is None:
        error.json_details = where
    elif isinstance(details, str):
        error.json_details = f"{where}: {details}"
    return error


def payload_too_large_to_return(limit: int) -> TableError:
    """413: ``return=representation`` or a plan for a body of more than ``limit`` bytes, which is written as it
    arrives."""
    message = f"The rows of a body of more than {limit} bytes are not returned"
    hint = "Leave out 'Prefer: return=representation' and execution plans, or split the body."
    return TableError(413, "payload_too_large", message, hint=hint)


def unsatisfiable_range(details: str, content_range: str | None = None) -> TableError:
    headers = (("Content-Range", content_range),) if content_range else ()
    return TableError(416, "PGRST103", "Requested range not satisfiable", details, headers=headers)


def invalid_upsert_filters() -> TableError:
    """A 405, for which the service adds ``Allow``."""
    message = "Filters must include all and only primary key columns with 'eq' operators"
    return TableError(405, "PGRST105", message)


def unacceptable_schema(asked: str, schemas: tuple[str, ...]) -> TableError:
    hint = "Only the following schemas are exposed: " + ", ".join(schemas)
    return TableError(406, "PGRST106", f"Invalid schema: {asked}", hint=hint)


def unacceptable_media(media: list[str]) -> TableError:
    return TableError(406, "PGRST107", "None of these media types are available: " + ", ".join(media))


def not_embedded(name: str, alias: str | None = None) -> TableError:
    message = f"'{name}' is not an embedded resource in this request"
    if alias is not None:
        details = "Target names are not allowed in filters if they have an alias"
        hint = f"Change '{name}' to '{alias}' in filters, orders or limits."
        return TableError(400, "PGRST108", message, details, hint)
    hint = f"Verify that '{name}' is included in the 'select' query parameter."
    return TableError(400, "PGRST108", message, hint=hint)


def invalid_response_headers() -> TableError:
    message = (
        "response.headers guc must be a JSON array composed of objects with a single key and a string value"
    )
    return TableError(500, "PGRST111", message)


def invalid_response_status() -> TableError:
    return TableError(500, "PGRST112", "response.status guc must be a valid status code")


def put_with_range() -> TableError:
    return TableError(400, "PGRST114", "limit/offset querystring parameters are not allowed for PUT")


def put_mismatch() -> TableError:
    return TableError(400, "PGRST115", "Payload values do not match URL in primary key column(s)")


def not_singular(rows: int) -> TableError:
    message = "Cannot coerce the result to a single JSON object"
    return TableError(406, "PGRST116", message, f"The result contains {rows} rows")


def limit_without_order() -> TableError:
    hint = "Apply an 'order' using unique column(s)"
    return TableError(400, "PGRST109", "A 'limit' was applied without an explicit 'order'", hint=hint)


def related_order(origin: str, target: str) -> TableError:
    details = f"'{origin}' and '{target}' do not form a many-to-one or one-to-one relationship"
    return TableError(400, "PGRST118", f"A related order on '{target}' is not possible", details)


def not_a_null_filter(target: str) -> TableError:
    details = "Only is null or not is null filters are allowed on embedded resources"
    return TableError(400, "PGRST120", f"Bad operator on the '{target}' embedded resource", details)


def unreadable_raise(details: str, hint: str) -> TableError:
    return TableError(
        500, "PGRST121", "Could not parse JSON in the \"RAISE SQLSTATE 'PGRST'\" error", details, hint
    )


def invalid_preferences(names: list[str]) -> TableError:
    details = "Invalid preferences: " + ", ".join(names)
    return TableError(400, "PGRST122", "Invalid preferences given with handling=strict", details)


def aggregates_disabled() -> TableError:
    return TableError(400, "PGRST123", "Use of aggregate functions is not allowed")


def max_affected_exceeded(rows: int) -> TableError:
    message = "Query result exceeds max-affected preference constraint"
    return TableError(400, "PGRST124", message, f"The query affects {rows} rows")


def invalid_path(hint: str | None = None) -> TableError:
    return TableError(404, "PGRST125", "Invalid path specified in request URL", hint=hint)


def no_database() -> TableError:
    """PGRST125 for a path of no database. It belongs to none, so ``error_hints`` of none decides about the hint."""
    return invalid_path(
        "The path is /{stage}/db/{database}/rest/{table}, and this service has no such stage or database."
    )


def no_client_database() -> TableError:
    """PGRST125 at ``/rest/v1`` while no database is at that path."""
    return invalid_path(
        "The setting server.client_database names the database at this path, as in dev/main; without it that is the "
        "only one there is."
    )


def root_disabled() -> TableError:
    return TableError(404, "PGRST126", "Root endpoint metadata is disabled")


def not_implemented(details: str) -> TableError:
    return TableError(400, "PGRST127", "Feature not implemented", details)


def max_affected_needs_rows() -> TableError:
    message = "Function must return SETOF or TABLE when max-affected preference is used with handling=strict"
    return TableError(400, "PGRST128", message)


def unfiltered_write(method: str) -> TableError:
    """SQLSTATE 21000, as of ``pg-safeupdate``: by default this service wants a filter."""
    verb = "UPDATE" if method == "PATCH" else "DELETE"
    hint = 'Add a filter, or set unfiltered_writes = "allow" for this database.'
    return TableError(400, "21000", f"{verb} requires a WHERE clause", hint=hint)


# Group 2: the schema cache (raised by plan).


def no_relationship(
    origin: str, target: str, hint_used: str | None, schema: str, hint: str | None
) -> TableError:
    using = f" using the hint '{hint_used}'" if hint_used else ""
    details = (
        f"Searched for a foreign key relationship between '{origin}' and '{target}'{using} "
        f"in the schema '{schema}', but no matches were found."
    )
    message = f"Could not find a relationship between '{origin}' and '{target}' in the schema cache"
    return TableError(400, "PGRST200", message, details, hint)


def ambiguous_relationship(origin: str, target: str, choices: list[dict[str, str]], hint: str) -> TableError:
    message = f"Could not embed because more than one relationship was found for '{origin}' and '{target}'"
    return TableError(300, "PGRST201", message, choices, hint)


def no_routine(message: str, details: str, hint: str | None) -> TableError:
    return TableError(404, "PGRST202", message, details, hint)


def ambiguous_routine(choices: list[str]) -> TableError:
    hint = (
        "Try renaming the parameters or the function itself in the database "
        "so function overloading can be resolved"
    )
    message = "Could not choose the best candidate function between: " + ", ".join(choices)
    return TableError(300, "PGRST203", message, hint=hint)


def statement_too_large(limit: int, of: str = "characters") -> TableError:
    """A short request can ask for a long statement, by nested conditions and embeddings."""
    details = f"It would have more than {limit} {of}."
    return TableError(400, "54001", "The statement for this request is too large", details)


def name_too_long(name: str, limit: int, of: str | None = None) -> TableError:
    """name_too_long. PostgreSQL itself would use the beginning of the name. ``of`` is what has the name, where it is
    not something that is selected."""
    message = f"The name '{name}' is longer than the {limit} bytes that PostgreSQL allows"
    hint = f"There is no {of} of that name." if of is not None else "Give what is selected a shorter alias."
    return TableError(400, "42622", message, hint=hint)


def same_name(name: str) -> TableError:
    """PostgreSQL's own error for two joined relations of the same name."""
    return TableError(400, "42712", f'table name "{name}" specified more than once')


def no_column(column: str, relation: str) -> TableError:
    message = f"Could not find the '{column}' column of '{relation}' in the schema cache"
    return TableError(400, "PGRST204", message)


def unknown_column(relation: str | None, column: str, near: Sequence[str] = ()) -> TableError:
    """SQLSTATE 42703 in PostgreSQL's own words: names are looked up here, so that none is taken for a function."""
    hint = None
    if near:
        columns = " or the column ".join(f'"{relation}.{name}"' for name in near)
        hint = f"Perhaps you meant to reference the column {columns}."
    shown = f'"{column}"' if relation is None else f"{relation}.{column}"
    return TableError(400, "42703", f"column {shown} does not exist", hint=hint)


def no_table(schema: str, name: str, near: str | None) -> TableError:
    hint = f"Perhaps you meant the table '{schema}.{near}'" if near else None
    message = f"Could not find the table '{schema}.{name}' in the schema cache"
    return TableError(404, "PGRST205", message, hint=hint)


# Group 0: connecting.


def database_away() -> TableError:
    """No connection can be made. 503, for which PostgREST's clients try again."""
    message = "Database connection error. Retrying the connection."
    return TableError(503, "PGRST000", message, counted=True)


def database_unreachable() -> TableError:
    message = "Database connection error. Retrying the connection."
    return TableError(503, "PGRST001", message, counted=True)


def schema_cache_missing() -> TableError:
    message = "Could not query the database for the schema cache. Retrying."
    return TableError(503, "PGRST002", message, counted=True)


def pool_timeout() -> TableError:
    # PostgREST sends no Retry-After with this one, but it is as useful as with the others.
    message = "Timed out acquiring connection from connection pool."
    return TableError(504, "PGRST003", message, headers=(RETRY_AFTER,), counted=True)


# Errors of group 3: tokens, and who may do without one.


def no_jwt_secret() -> TableError:
    return TableError(500, "PGRST300", "Server lacks JWT secret")


def _challenge(message: str) -> Headers:
    return (("WWW-Authenticate", f'Bearer error="invalid_token", error_description="{message}"'),)


def undecodable_token(message: str, details: str | None = None) -> TableError:
    return TableError(401, "PGRST301", message, details, headers=_challenge(message))


def no_key(details: str) -> TableError:
    return undecodable_token("No suitable key or wrong key type", details)


def anonymous_disabled() -> TableError:
    return TableError(
        401, "PGRST302", "Anonymous access is disabled", headers=(("WWW-Authenticate", "Bearer"),)
    )


def invalid_claims(message: str) -> TableError:
    return TableError(401, "PGRST303", message, headers=_challenge(message))


# PostgreSQL's errors, and what SQL may set for a response.


READ_ONLY = "25006"  # read_only_sql_transaction

# Statuses by SQLSTATE, or by its class, the first two characters; 400 for all others.
_STATUSES = {
    400: "P0001",
    403: "0L 0P 28",
    404: "42883 42P01",
    405: READ_ONLY,
    # PostgreSQL 18 has 23001 and 23P01 for what was 23503 and 23505: ON DELETE RESTRICT, and keys WITHOUT OVERLAPS.
    409: "23001 23P01 23503 23505",
    500: "09 21000 25 2D 38 39 3B 40 42P17 53400 54 55 57 58 F0 HV P0 XX",
    503: "08 53 57P01",
}
_BY_SQLSTATE = {code: status for status, codes in _STATUSES.items() for code in codes.split()}
_MESSAGE_HINT = (
    "MESSAGE must be a JSON object with obligatory keys: 'code', 'message' "
    "and optional keys: 'details', 'hint'."
)
_DETAIL_HINT = (
    "DETAIL must be a JSON object with obligatory keys: 'status', 'headers' and optional key: 'status_text'."
)
# idle_session_timeout: says nothing of the request, which came at the same moment.
_WAS_IDLE = "57P05"
# The beginnings of SQLSTATEs that come from an application's own functions: those that choose the response, that of
# RAISE in PL/pgSQL, and those of functions in other languages.
_RAISED_BY_FUNCTIONS = ("PT", "PGRST", "P0", "38")


def from_postgres(error: psycopg2.Error | DatabaseGone, authenticated: bool) -> TableError:
    """The response to an error of PostgreSQL, or to the loss of its connection.

    A 5xx gets a reason for the log, ``why``, unless a function of the application chose that response.
    """
    if isinstance(error, DatabaseGone) and error.reason is not None and error.reason.pgcode != _WAS_IDLE:
        error = error.reason
    if isinstance(error, DatabaseGone) or error.pgcode is None:
        response = database_unreachable()
        # libpq's own text contains addresses, which do not belong in the log.
        response.why = str(error) if isinstance(error, DatabaseGone) else type(error).__name__
        return response
    diag = error.diag
    response = from_sqlstate(
        error.pgcode, diag.message_primary or "", diag.message_detail, diag.message_hint, authenticated
    )
    if response.status >= 500 and not error.pgcode.startswith(_RAISED_BY_FUNCTIONS):
        response.why = describe(error)
    return response


def from_sqlstate(
    code: str,
    message: str,
    details: str | None = None,
    hint: str | None = None,
    authenticated: bool = True,
) -> TableError:
    """The response to an error of PostgreSQL. A missing right is 403, or 401 without ``authenticated``."""
    if code == "PGRST":
        return _raised_as_json(message, details)
    error = TableError(_status(code, message, authenticated), code, message, details, hint)
    if code == f"PT{error.status}":
        error.reason = message
    return error


def _status(code: str, message: str, authenticated: bool) -> int:
    if code.startswith("PT"):
        return status_of(whole_numbers.from_digits(code[2:])) or 500
    if code == "42501":
        return 403 if authenticated else 401
    if code == "22023" and message.startswith('role "'):
        return 401
    if code == "21000" and message.endswith("WHERE clause"):
        return 400
    if code == "42883" and message.startswith("function xmlagg("):
        return 406
    return _BY_SQLSTATE.get(code) or _BY_SQLSTATE.get(code[:2], 400)


def _raised_as_json(message: str, details: str | None) -> TableError:
    """``RAISE SQLSTATE 'PGRST'``: message and detail are JSON objects that describe the response."""
    body = _object(message)
    if body is None or not _are_texts(body, ("code", "message"), ("details", "hint")):
        return unreadable_raise(f"Invalid JSON value for MESSAGE: '{message}'", _MESSAGE_HINT)
    if details is None:
        return unreadable_raise("DETAIL is missing in the RAISE statement", _DETAIL_HINT)
    head = _object(details) or {}
    status, given = status_of(head.get("status")), head.get("headers")
    if (
        status is None
        or not isinstance(given, dict)
        or not all(is_header(name, value) for name, value in given.items())
        or not _are_texts(head, (), ("status_text",))
    ):
        return unreadable_raise(f"Invalid JSON value for DETAIL: '{details}'", _DETAIL_HINT)
    types = [value for name, value in given.items() if name.lower() == "content-type"]
    headers = settable(pair for pair in given.items() if pair[0].lower() != "content-type")
    error = TableError(status, body["code"], body["message"], body.get("details"), body.get("hint"), headers)
    if types:
        error.content_type = as_utf8(types[0])
    error.reason = head.get("status_text")
    return error


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _are_texts(given: dict[str, Any], needed: tuple[str, ...], optional: tuple[str, ...]) -> bool:
    names = (*needed, *(name for name in optional if given.get(name) is not None))
    return all(isinstance(given.get(name), str) for name in names)


def status_of(value: object) -> int | None:
    """The status of a final response, if the JSON ``value`` is one."""
    number = whole_numbers.from_json(value)
    return number if number is not None and 200 <= number <= 599 else None


def is_header(name: str, value: object) -> bool:
    """Whether SQL may set this header: nothing in it may start another header line or end the head."""
    return (
        isinstance(value, str) and bool(_HEADER_NAME.fullmatch(name)) and bool(_HEADER_VALUE.fullmatch(value))
    )


def settable(headers: Iterable[tuple[str, str]]) -> Headers:
    """``headers`` without those that only the service may set; SQL never decides where a body ends."""
    return tuple((name, as_utf8(value)) for name, value in headers if name.lower() not in OURS)


def as_utf8(value: str) -> str:
    """``value`` encoded as UTF-8, with one character for each byte: the edge writes headers as Latin-1."""
    return value if value.isascii() else value.encode().decode("latin-1")


# The errors that ``/openapi.json`` lists, by what a request does.


ANY_REQUEST: tuple[ApiError, ...] = (
    unreadable("…", 1, "…"),
    invalid_preferences([]),
    unacceptable_schema("…", ()),
    invalid_path(),
    undecodable_token("…"),
    anonymous_disabled(),
    invalid_claims("…"),
    no_jwt_secret(),
    unsupported_method("…", ()),
    database_away(),
    database_unreachable(),
    schema_cache_missing(),
    pool_timeout(),
    invalid_response_headers(),
    invalid_response_status(),
    unreadable_raise("…", "…"),
    from_sqlstate("42501", "The role lacks a right (a role that a token claims, or the service's)."),
    from_sqlstate("42501", "The role lacks a right (nobody is signed in).", authenticated=False),
    from_sqlstate("22023", 'role "…" does not exist'),
    from_sqlstate("25006", "The transaction is read-only."),
    from_sqlstate("22P02", "A value is not of its column's type; other data exceptions likewise."),
    from_sqlstate("57014", "The statement took longer than it may."),
)
SELECTING: tuple[ApiError, ...] = (
    unsatisfiable_range("…"),
    unacceptable_media([]),
    not_singular(2),
    not_embedded("…"),
    related_order("…", "…"),
    not_a_null_filter("…"),
    aggregates_disabled(),
    not_implemented("…"),
    no_relationship("…", "…", None, "…", None),
    ambiguous_relationship("…", "…", [], "…"),
    no_column("…", "…"),
    unknown_column("…", "…"),
    same_name("…"),
    name_too_long("…", 63),
    statement_too_large(1),
    from_sqlstate("42883", "There is no such operator for these types."),
)
ON_RELATION: tuple[ApiError, ...] = (no_table("…", "…", None), *SELECTING)
CHANGING: tuple[ApiError, ...] = (
    max_affected_exceeded(2),
    from_sqlstate("23001", "A foreign key with RESTRICT does not allow it (PostgreSQL 18)."),
    from_sqlstate("23503", "A foreign key does not allow it."),
    from_sqlstate("23505", "A row with that key is there already."),
    from_sqlstate(
        "23P01", "A row that an exclusion constraint or a key WITHOUT OVERLAPS excludes is there already."
    ),
    from_sqlstate("23502", "A column must not be null; other constraints likewise."),
)
FILTERED = (unfiltered_write("PATCH"), limit_without_order())
CALLING: tuple[ApiError, ...] = (
    routine_method("…", ()),
    no_routine("…", "…", None),
    ambiguous_routine([]),
    max_affected_needs_rows(),
    *SELECTING,
    *CHANGING,
)
