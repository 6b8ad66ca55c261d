"""What database errors mean to authentication and storage: 503 for a database that is away or busy (PostgreSQL's
manual, appendix A), or a status that the project's own SQL has chosen."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg2

from project_service import errors
from project_service.database.connection import DatabaseGone
from project_service.errors import ApiError, Away

# Longer than PostgreSQL's own messages. A function may raise an error with a text that its caller sent.
MAX_MESSAGE_CHARS = 1000

# As in PostgREST: SQLSTATE PT and the status.
_CHOSEN = re.compile(r"PT4[0-9]{2}\Z")

_EXACT: dict[str, Callable[[], ApiError]] = {
    "57014": errors.database_unavailable,  # query_canceled: statement_timeout
    "57P01": errors.database_unavailable,  # admin_shutdown
    "57P02": errors.database_unavailable,  # crash_shutdown
    "57P03": errors.database_unavailable,  # cannot_connect_now
    "57P05": errors.database_unavailable,  # idle_session_timeout
    "25006": errors.database_unavailable,  # read_only_sql_transaction: a standby, or a failover under way
    "25P03": errors.database_unavailable,  # idle_in_transaction_session_timeout
    "25P04": errors.database_unavailable,  # transaction_timeout (PostgreSQL 17)
    "55P03": errors.overloaded,  # lock_not_available
    "40001": errors.overloaded,  # serialization_failure
    "40P01": errors.overloaded,  # deadlock_detected
}

_CLASSES: dict[str, Callable[[], ApiError]] = {
    "08": errors.database_unavailable,  # connection exception
    "53": errors.database_unavailable,  # insufficient resources
    "58": errors.database_unavailable,  # system error
    "XX": errors.database_unavailable,  # internal error of the server, corrupted data
}


def translate(failure: BaseException) -> ApiError | None:
    """503 for a database that is away or overloaded, with the reason for the log; the status 4xx that a trigger
    raised as SQLSTATE ``PT4xx``; None for any other failure."""
    if isinstance(failure, DatabaseGone):
        return _because(errors.database_unavailable(), str(failure))
    if not isinstance(failure, psycopg2.Error) or failure.pgcode is None:
        return None
    if _CHOSEN.match(failure.pgcode):
        message = failure.diag.message_primary or "A trigger of the project refused this change."
        return errors.refused_by_project(int(failure.pgcode[2:]), message[:MAX_MESSAGE_CHARS])
    made = _EXACT.get(failure.pgcode) or _CLASSES.get(failure.pgcode[:2])
    return _because(made(), describe(failure)) if made is not None else None


def outage_of(failure: BaseException) -> str | None:
    """The name, for the log, of a failure because a server is away or overloaded; None for any other failure."""
    failure = translate(failure) or failure
    if isinstance(failure, ApiError) and failure.status == 503:
        return failure.code if failure.why is None else f"{failure.code}, {failure.why}"
    return type(failure).__name__ if isinstance(failure, Away) else None


def describe(refusal: psycopg2.Error) -> str:
    """PostgreSQL's message and SQLSTATE, for the log. Details and context are left out, as they may show values."""
    message = refusal.diag.message_primary if refusal.diag is not None else None
    return f"{(message or 'no reason given')[:MAX_MESSAGE_CHARS]} ({refusal.pgcode})"


def _because(error: ApiError, why: str) -> ApiError:
    error.why = why
    return error
