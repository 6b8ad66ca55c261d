"""Counters of attempts. The logic is in functions of the database (``0002_auth.sql``), which see all attempts."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from project_service.auth.model import Account, Email
from project_service.auth.ports import Event, Limit, LoginReservation, Outcome, Reservation
from project_service.auth.sql.query import Query
from project_service.auth.sql.rows import ACCOUNT, RECORD, account, event_params
from project_service.database.pool import Pool

_RESERVE = Query(
    "reserve an attempt",
    """
select verdict, wait_seconds, mark
from auth.reserve_attempt(%(scope)s, %(subject)s, %(most)s, %(window)s, %(now)s)
""",
)
_SETTLE = "select auth.settle_attempt(%(scope)s, %(subject)s, %(mark)s, %(outcome)s)"
_SETTLE_QUIETLY = Query("settle an attempt", _SETTLE)
_SETTLE_ON_RECORD = Query("settle an attempt and record it", f"{_SETTLE};\n{RECORD}")
_RESERVE_LOGIN = Query(
    "reserve a login under both limits, and read the account in the same round trip",
    f"""
select r.verdict, r.wait_seconds, r.mark, r.address_mark, {ACCOUNT}
from auth.reserve_login(%(email)s, %(address)s, %(most)s, %(most_address)s, %(window)s, %(now)s) r
left join auth.users u on u.email_key = %(email)s
""",
)
_SETTLE_LOGIN = """
select auth.settle_attempt('login', %(email)s, %(mark)s, %(outcome)s),
    auth.settle_attempt('login_address', %(from_address)s, %(address_mark)s, %(address_outcome)s)
"""
_SETTLE_LOGIN_QUIETLY = Query("settle a login", _SETTLE_LOGIN)
_SETTLE_LOGIN_ON_RECORD = Query("settle a login and record it", f"{_SETTLE_LOGIN};\n{RECORD}")
_UNLOCK = Query(
    "forget the attempts at the password of an account, at the login and in its sessions",
    f"""
update auth.throttle set failed = '{{}}', pending = '{{}}'
    where (scope, subject) in (
        select 'login', email_key from auth.users where id = %(id)s::uuid
        union all select 'session', id::text from auth.sessions where user_id = %(id)s::uuid);
{RECORD}
""",
)


@frozen
class SqlAttempts:
    """Implements ``ports.Attempts``."""

    database: Pool

    async def reserve(self, scope: str, subject: str, limit: Limit, now: datetime) -> Reservation:
        row = await _RESERVE.one(
            self.database, scope=scope, subject=subject, most=limit.most, window=limit.window, now=now
        )
        assert row is not None
        return Reservation(*row)

    async def settle(
        self,
        scope: str,
        subject: str,
        mark: datetime | None,
        outcome: Outcome,
        event: Event | None = None,
    ) -> None:
        params = {"scope": scope, "subject": subject, "mark": mark, "outcome": outcome}
        if event is not None:
            await _SETTLE_ON_RECORD.run(self.database, **params, **event_params(event))
        elif mark is not None:
            await _SETTLE_QUIETLY.run(self.database, **params)

    async def reserve_login(
        self, email: Email, address: str, per_email: Limit, per_address: Limit, now: datetime
    ) -> LoginReservation:
        row = await _RESERVE_LOGIN.one(
            self.database,
            email=email.key,
            address=address,
            most=per_email.most,
            most_address=per_address.most,
            window=per_email.window,
            now=now,
        )
        assert row is not None
        found = None if row[4] is None else account(row[4:])
        return LoginReservation(row[0], row[1], row[2], row[3], found)

    async def settle_login(
        self, email: Email, address: str, held: LoginReservation, outcome: Outcome, event: Event | None
    ) -> None:
        query = _SETTLE_LOGIN_QUIETLY if event is None else _SETTLE_LOGIN_ON_RECORD
        await query.run(
            self.database,
            email=email.key,
            from_address=address,
            mark=held.mark,
            address_mark=held.address_mark,
            outcome=outcome,
            address_outcome="released" if outcome == "cleared" else outcome,
            **({} if event is None else event_params(event)),
        )

    async def unlock(self, account: Account, event: Event) -> None:
        await _UNLOCK.run(self.database, id=account.user.id, **event_params(event))
