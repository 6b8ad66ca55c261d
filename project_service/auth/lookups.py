"""What operators look up in the tables of authentication: users by what they are, and the audit. Queries that the
service itself never runs.

They stay quick with a million users. A page in the order of creation is read from an index, which for those who may
be few among many (disabled, unconfirmed, anonymous) has nobody else: some milliseconds. A part of an address is
looked for in the index of addresses alone, a fifth of the table: half a second if it is nobody's, less if it is
many's.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from attrs import frozen

from project_service.auth.postgres import ACCOUNT, account_of
from project_service.auth.values import Account
from project_service.database.pool import Pool
from project_service.lifecycle import timestamp


@frozen
class UserFilter:
    """Which users: those whose address contains ``email``, which is folded (``values.folded``), who are disabled or
    not, whose address is confirmed or waits for that, who are anonymous or not. None means either."""

    email: str = ""
    disabled: bool | None = None
    email_confirmed: bool | None = None
    anonymous: bool | None = None


_CONDITIONS = {
    ("disabled", True): "u.disabled_at is not null",
    ("disabled", False): "u.disabled_at is null",
    ("email_confirmed", True): "u.confirmed_at is not null",
    ("email_confirmed", False): "u.confirmed_at is null and u.email is not null",
    ("anonymous", True): "u.is_anonymous",
    ("anonymous", False): "not u.is_anonymous",
}


def _conditions(wanted: UserFilter) -> list[str]:
    return [sql for (name, value), sql in _CONDITIONS.items() if getattr(wanted, name) is value]


# LIKE rather than strpos(), since the planner knows better how many these are.
_CONTAINS = "u.email_key like %(pattern)s and u.email_key > %(after)s"
_WILD, _ESCAPED = re.compile(r"[%_\\]"), r"\\\g<0>"
# The addresses first, of which only those of the page are looked up in the table.
_BY_ADDRESS_ALONE = f"""
with page as materialized (
    select u.email_key from auth.users u where {_CONTAINS} order by u.email_key limit %(limit)s)
select {ACCOUNT} from page join auth.users u on u.email_key = page.email_key order by u.email_key
"""


@frozen
class Entry:
    """An entry of the audit, as it was written. ``actor_id`` is the project key that ``service`` had, or the user who
    did it to another one, by SQL."""

    id: int
    at: datetime
    actor: str
    actor_id: str | None
    user_id: str | None
    email: str | None
    subject: str
    action: str
    result: str
    address: str
    user_agent: str
    request_id: str

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "at": timestamp(self.at),
            "actor": self.actor,
            "actor_id": self.actor_id,
            "user_id": self.user_id,
            "email": self.email,
            "subject": self.subject,
            "action": self.action,
            "result": self.result,
            "address": self.address,
            "user_agent": self.user_agent,
            "request_id": self.request_id,
        }


@frozen
class EntryFilter:
    """Which entries: those about a user, of an action, about a subject. None means any."""

    user_id: str | None = None
    action: str | None = None
    subject: str | None = None


@frozen
class Lookups:
    """``tests/fakes/auth.py`` has the same in memory."""

    database: Pool

    async def users(
        self,
        wanted: UserFilter,
        after: tuple[datetime, str] | None,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> list[Account]:
        """Users in the order in which they were created, or the newest first; those ``after`` the one created then
        with that id. The filter's ``email`` is left aside."""
        than, order = ("<", "desc") if newest_first else (">", "asc")
        conditions = _conditions(wanted)
        if after is not None:
            conditions.append(f"(u.created_at, u.id) {than} (%(after)s::timestamptz, %(after_id)s::uuid)")
        created, user_id = after or (None, None)
        sql = f"""select {ACCOUNT} from auth.users u {_where(conditions)}
            order by u.created_at {order}, u.id {order} limit %(limit)s"""
        params = {"after": created, "after_id": user_id, "limit": limit}
        return _accounts(await self.database.query(sql, params))

    async def users_by_address(self, wanted: UserFilter, after: str, limit: int) -> list[Account]:
        """Users whose address contains the filter's ``email``, in the order of the folded addresses, those behind
        ``after``; "" is before all of them."""
        conditions = _conditions(wanted)
        sql = _BY_ADDRESS_ALONE
        if conditions:
            sql = f"""select {ACCOUNT} from auth.users u {_where([_CONTAINS, *conditions])}
                order by u.email_key limit %(limit)s"""
        params = {"pattern": f"%{_WILD.sub(_ESCAPED, wanted.email)}%", "after": after, "limit": limit}
        return _accounts(await self.database.query(sql, params))

    async def entries(
        self, wanted: EntryFilter, before: tuple[datetime, int] | None, limit: int
    ) -> list[Entry]:
        """Entries of the audit, the newest first; those before the one of that time and id."""
        conditions = [
            sql
            for value, sql in (
                (wanted.user_id, "user_id = %(user)s::uuid"),
                (wanted.action, "action = %(action)s"),
                # As its index has it.
                (wanted.subject, "subject = %(subject)s and subject <> ''"),
                (before, "(at, id) < (%(at)s::timestamptz, %(id)s)"),
            )
            if value is not None
        ]
        at, number = before or (None, None)
        sql = f"""select id, at, actor, actor_id::text, user_id::text, email, subject, action, result, address,
            user_agent, request_id from auth.audit {_where(conditions)}
            order by at desc, id desc limit %(limit)s"""
        params = {
            "user": wanted.user_id,
            "action": wanted.action,
            "subject": wanted.subject,
            "at": at,
            "id": number,
            "limit": limit,
        }
        return [Entry(*row) for row in await self.database.query(sql, params)]


def _where(conditions: list[str]) -> str:
    return f"where {' and '.join(conditions)}" if conditions else ""


def _accounts(rows: list[tuple[Any, ...]]) -> list[Account]:
    return [account for row in rows if (account := account_of(row))]
