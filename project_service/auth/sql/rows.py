"""Converts between rows and values."""

from __future__ import annotations

from typing import Any

from project_service.auth.metadata import loaded
from project_service.auth.model import Account, User
from project_service.auth.ports import Event, NewSession
from project_service.database.session import Row

# The columns that ``account`` takes, and ``user``, from a table or a subquery called u.
ACCOUNT = """u.id::text, u.email, u.created_at, u.metadata::text,
    u.password_hash, u.disabled_at, u.confirmed_at, u.last_login_at"""
USER = "u.id::text, u.email, u.created_at, u.metadata::text"

# Writes one entry of the audit. ``{who}`` and ``{result}`` are SQL expressions.
AUDIT = """insert into auth.audit (at, actor, user_id, email, action, result, address, user_agent, request_id)
    select %(at)s, %(actor)s, {who}, %(audit_email)s, %(action)s, {result}, %(address)s, %(user_agent)s,
        %(request_id)s"""
RECORD = AUDIT.format(who="%(audit_user)s::uuid", result="%(result)s")


def user(row: Row) -> User:
    key, email, created_at, metadata = row[:4]
    return User(key, email, created_at, loaded(metadata))


def account(row: Row) -> Account:
    return Account(user(row), (row[4] or "").encode("ascii"), *row[5:8])


def event_params(event: Event) -> dict[str, Any]:
    return {
        "at": event.at,
        "actor": event.actor,
        "audit_user": event.user_id,
        "audit_email": event.email,
        "action": event.action,
        "result": event.result,
        "address": event.origin.address,
        "user_agent": event.origin.user_agent,
        "request_id": event.origin.request_id,
    }


def session_params(session: NewSession | None) -> dict[str, Any]:
    """The parameters of ``ADD_SESSION``. Without a session all are None, and nothing is inserted."""
    return {
        "sid": session and session.id,
        "digest": session and session.digest,
        "started": session and session.created_at,
        "expires": session and session.expires_at,
        "access_expires": session and session.access_expires_at,
    }


# CTEs, to follow one called u that has the user's id, which insert a session and its first refresh token.
ADD_SESSION = """s as (
    insert into auth.sessions (id, user_id, created_at, refreshed_at, rotated_at, expires_at,
        access_expires_at, current_hash, user_agent, address)
    select %(sid)s::uuid, u.id, %(started)s, %(started)s, %(started)s, %(expires)s, %(access_expires)s,
        %(digest)s::bytea, %(user_agent)s, %(address)s
    from u where %(sid)s is not null
    returning id, current_hash, created_at),
t as (insert into auth.refresh_tokens (token_hash, session_id, issued_at)
    select current_hash, id, created_at from s)"""
