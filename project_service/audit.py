"""Entries of ``auth.audit``: who did what to whom or to what, from where, and with what result.

A change and its entry belong into one transaction: put ``RECORD`` into the statement of the change as a CTE, or run
it in the same message or transaction, with ``params`` among its parameters::

    with b as (delete from storage.buckets where name = %(name)s returning name), a as ({RECORD} from b)
    select name from b

Where that cannot be, because the change is not one of the system database, ``record`` writes an entry by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, Protocol

from attrs import field, frozen

from project_service.http.caller import digest, presented_key
from project_service.http.request import Request

Actor = Literal["anonymous", "user", "service", "operator"]
# How much of a User-Agent the audit and the list of sessions keep.
USER_AGENT_CHARACTERS = 256

# Writes one entry. ``{user_id}`` and ``{result}`` are SQL expressions; what may follow is ``from`` and ``where``.
AUDIT = """insert into auth.audit
        (at, actor, actor_id, user_id, email, subject, action, result, address, user_agent, request_id)
    select %(at)s, %(actor)s, (select id from auth.project_keys where sha256 = %(actor_key)s::bytea), {user_id},
        %(audit_email)s, %(audit_subject)s, %(action)s, {result}, %(address)s, %(user_agent)s, %(request_id)s"""
RECORD = AUDIT.format(user_id="%(audit_user)s::uuid", result="%(result)s")


class Rows(Protocol):
    """A pool, or a transaction."""

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]: ...


@frozen
class Origin:
    """Where a request came from, for the limits, the list of sessions and the audit. ``languages`` is its
    ``Accept-Language``, for e-mails, and ``captcha_token`` what its client has to show for a captcha, for hooks; they
    are not stored. ``service_key`` is the digest of the service key, if that came with it."""

    address: str = ""
    user_agent: str = ""
    request_id: str = ""
    languages: str = ""
    captcha_token: str = field(default="", repr=False)
    service_key: bytes = field(default=b"", repr=False)


@frozen
class Event:
    """An entry. ``actor`` is who did it: somebody anonymous, a user, ``service`` (with ``origin``'s service key), or
    ``operator`` (at the command line). It is about the user of ``user_id`` with ``email``, or else about ``subject``,
    which is the name or id of what was changed: of a bucket, a key, a database. ``result`` is "ok" or the code of an
    error."""

    at: datetime
    action: str
    result: str = "ok"
    actor: Actor = "anonymous"
    user_id: str | None = None
    email: str | None = None
    origin: Origin = field(factory=Origin)
    subject: str = ""


# Makes the entry for what somebody does, of its action and subject; ``partial(by_service, request, now)`` is one.
By = Callable[[str, str], Event]


def origin_of(request: Request) -> Origin:
    agent = (request.headers.text(b"user-agent") or "")[:USER_AGENT_CHARACTERS].replace("\0", "")
    languages = request.headers.text(b"accept-language") or ""
    key = request.headers.derived(presented_key) if request.caller.is_service else None
    service_key = b"" if key is None else digest(key)
    return Origin(request.client_address, agent, request.request_id, languages, service_key=service_key)


def by_service(request: Request, now: datetime, action: str, subject: str, result: str = "ok") -> Event:
    """The entry for what is done by a ``request`` with the service key."""
    return Event(now, action, result, actor="service", origin=origin_of(request), subject=subject)


def params(event: Event) -> dict[str, Any]:
    """The parameters of ``AUDIT`` and ``RECORD``."""
    return {
        "at": event.at,
        "actor": event.actor,
        "actor_key": (event.origin.service_key if event.actor == "service" else b"") or None,
        "audit_user": event.user_id,
        "audit_email": event.email,
        "audit_subject": event.subject,
        "action": event.action,
        "result": event.result,
        "address": event.origin.address,
        "user_agent": event.origin.user_agent,
        "request_id": event.origin.request_id,
    }


async def record(rows: Rows, event: Event) -> None:
    """Write an entry by itself. Raises what the query raises."""
    await rows.query(RECORD, params(event))
