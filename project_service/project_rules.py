"""What failures in the database mean to authentication and storage: besides the database's own (``database.errors``),
those that the project's rules on their tables cause, which are constraints and errors that triggers raise."""

from __future__ import annotations

import psycopg2

from project_service import errors
from project_service.database.errors import MAX_MESSAGE_CHARS, describe
from project_service.database.errors import translate as translate_database
from project_service.errors import ApiError

_STATUSES = {
    "23502": 422,  # not_null_violation
    "23514": 422,  # check_violation
    "P0001": 400,  # raise_exception, as in PostgREST
}
_CLASSES = {
    "22": 422,  # data exception
    "23": 409,  # integrity constraint violation: unique, exclusion and foreign keys
}


def translate(failure: BaseException) -> ApiError | None:
    """As ``database.errors.translate``; and for what a rule of the project refuses, ``refused_by_project`` with
    PostgreSQL's message, which names the constraint. What the service itself expects of its own constraints has been
    caught before.

    The reason is logged as well, since a rule that refuses may be at fault itself.
    """
    error = translate_database(failure)
    if error is not None or not isinstance(failure, psycopg2.Error) or failure.pgcode is None:
        return error
    status = _STATUSES.get(failure.pgcode) or _CLASSES.get(failure.pgcode[:2])
    if status is None:
        return None
    refused = errors.refused_by_project(status, _message(failure)[:MAX_MESSAGE_CHARS])
    refused.why = describe(failure)
    return refused


def _message(failure: psycopg2.Error) -> str:
    message = failure.diag.message_primary or "A rule of the project refuses this change."
    constraint = failure.diag.constraint_name
    # A trigger may give a constraint's name apart from its message.
    return message if constraint is None or constraint in message else f"{message} ({constraint})"
