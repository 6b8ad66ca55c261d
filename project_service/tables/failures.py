"""PostgreSQL's errors as responses. PostgREST's reference: "Errors", the table of statuses."""

from __future__ import annotations

from typing import Any

import orjson
import psycopg2

from project_service.database.connection import DatabaseGone
from project_service.database.errors import describe
from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.response import as_utf8, is_header, settable, status_of
from project_service.whole_numbers import from_digits

READ_ONLY = "25006"  # read_only_sql_transaction

_EXACT = {
    # PostgreSQL 18 has these two for what was 23503 and 23505: ON DELETE RESTRICT, and keys WITHOUT OVERLAPS.
    "23001": 409,
    "23P01": 409,
    "23503": 409,
    "23505": 409,
    READ_ONLY: 405,
    "42883": 404,
    "42P01": 404,
    "42P17": 500,
    "53400": 500,
    "57P01": 503,
    "P0001": 400,
    "21000": 500,
}
_CLASSES = {
    "08": 503,
    "09": 500,
    "0L": 403,
    "0P": 403,
    "25": 500,
    "28": 403,
    "2D": 500,
    "38": 500,
    "39": 500,
    "3B": 500,
    "40": 500,
    "53": 503,
    "54": 500,
    "55": 500,
    "57": 500,
    "58": 500,
    "F0": 500,
    "HV": 500,
    "P0": 500,
    "XX": 500,
}
_MESSAGE_HINT = (
    "MESSAGE must be a JSON object with obligatory keys: 'code', 'message' "
    "and optional keys: 'details', 'hint'."
)
_DETAIL_HINT = (
    "DETAIL must be a JSON object with obligatory keys: 'status', 'headers' and optional key: 'status_text'."
)
# The beginnings of SQLSTATEs that come from an application's own functions: those that choose the response, that of
# RAISE in PL/pgSQL, and those of functions in other languages.
_SAID_BY_SQL = ("PT", "PGRST", "P0", "38")


def failure(fault: psycopg2.Error | DatabaseGone, authenticated: bool) -> TableError:
    """The error response for a connection that is lost, or for what PostgreSQL refuses.

    A 5xx gets a reason for the log, ``why``, unless an application's own function chose that response.
    """
    if isinstance(fault, DatabaseGone) or fault.pgcode is None:
        error = errors.database_unreachable()
        # libpq's own text contains addresses, which do not belong in the log.
        error.why = str(fault) if isinstance(fault, DatabaseGone) else type(fault).__name__
        return error
    diagnosis = fault.diag
    error = from_sqlstate(
        fault.pgcode,
        diagnosis.message_primary or "",
        diagnosis.message_detail,
        diagnosis.message_hint,
        authenticated,
    )
    if error.status >= 500 and not fault.pgcode.startswith(_SAID_BY_SQL):
        error.why = describe(fault)
    return error


def from_sqlstate(
    code: str, message: str, details: str | None, hint: str | None, authenticated: bool
) -> TableError:
    """The response to an error of the database. Where a right is missing, ``authenticated`` decides on 403 or 401."""
    if code == "PGRST":
        return _raised_as_json(message, details)
    status = _status(code, message)
    if code == "42501":
        status = 403 if authenticated else 401
    elif code == "22023" and message.startswith('role "'):
        status = 401
    error = TableError(status, code, message, details, hint)
    if code == f"PT{status}":
        error.reason = message
    return error


def has_nul() -> TableError:
    """The error that PostgreSQL gives for a text with a NUL, which psycopg2 refuses to send in the first place."""
    return from_sqlstate("22021", 'invalid byte sequence for encoding "UTF8": 0x00', None, None, True)


def _status(code: str, message: str) -> int:
    if code.startswith("PT"):
        return status_of(from_digits(code[2:])) or 500
    if code == "21000" and message.endswith("WHERE clause"):
        return 400
    if code == "42883" and message.startswith("function xmlagg("):
        return 406
    return _EXACT.get(code) or _CLASSES.get(code[:2], 400)


def _raised_as_json(message: str, details: str | None) -> TableError:
    """``RAISE SQLSTATE 'PGRST'``: message and detail are JSON that makes the response."""
    said = _object(message)
    if said is None or not _are_texts(said, ("code", "message"), ("details", "hint")):
        return errors.unreadable_raise(f"Invalid JSON value for MESSAGE: '{message}'", _MESSAGE_HINT)
    if details is None:
        return errors.unreadable_raise("DETAIL is missing in the RAISE statement", _DETAIL_HINT)
    shape = _object(details) or {}
    status = status_of(shape.get("status"))
    if status is None or not (_are_headers(shape.get("headers")) and _are_texts(shape, (), ("status_text",))):
        return errors.unreadable_raise(f"Invalid JSON value for DETAIL: '{details}'", _DETAIL_HINT)
    types = [value for name, value in shape["headers"].items() if name.lower() == "content-type"]
    headers = settable(pair for pair in shape["headers"].items() if pair[0].lower() != "content-type")
    error = TableError(status, said["code"], said["message"], said.get("details"), said.get("hint"), headers)
    if types:
        error.content_type = as_utf8(types[0])
    error.reason = shape.get("status_text")
    return error


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _are_texts(found: dict[str, Any], needed: tuple[str, ...], optional: tuple[str, ...]) -> bool:
    given = (*needed, *(key for key in optional if found.get(key) is not None))
    return all(isinstance(found.get(key), str) for key in given)


def _are_headers(found: object) -> bool:
    return isinstance(found, dict) and all(is_header(name, value) for name, value in found.items())
