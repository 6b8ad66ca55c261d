"""What database errors mean to authentication and storage: 503 for a database that is away or busy (PostgreSQL's
manual, appendix A), or a status that the project's own SQL has chosen."""

from __future__ import annotations

import re

import psycopg2

from project_service import errors
from project_service.database.connection import DatabaseGone
from project_service.errors import ApiError, Away

# Longer than PostgreSQL's own messages. A function may raise an error with a text that its caller sent.
MAX_MESSAGE_CHARS = 1000

# As in PostgREST: SQLSTATE PT and the status.
_CHOSEN = re.compile(r"PT4[0-9]{2}\Z")

# SQLSTATEs, and how those of a class begin.
_AWAY = (
    "08",  # connection exception
    "25006",  # read_only_sql_transaction: a standby, or a failover under way
    "25P03",  # idle_in_transaction_session_timeout
    "25P04",  # transaction_timeout (PostgreSQL 17)
    "53",  # insufficient resources
    "57014",  # query_canceled: statement_timeout
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P05",  # idle_session_timeout
    "58",  # system error
    "XX",  # internal error of the server, corrupted data
)
_BUSY = (
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available
)


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
    if failure.pgcode.startswith(_AWAY):
        return _because(errors.database_unavailable(), describe(failure))
    return _because(errors.overloaded(), describe(failure)) if failure.pgcode in _BUSY else None


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
