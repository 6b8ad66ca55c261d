"""The state that the fakes of authentication share, and how it changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from attrs import define, field

from project_service.auth.repository import Event, NewSession, Purpose
from project_service.auth.values import Account, folded

MINUTE = timedelta(minutes=1)


@define
class SessionRow:
    id: str
    user_id: str
    new: NewSession
    current: bytes
    expires_at: datetime
    access_expires_at: datetime
    rotated_at: datetime
    refreshed_at: datetime
    address: str
    previous: bytes | None = None
    salt: bytes = b""
    # For tokens older than the previous one: the salt, and when the token was replaced.
    older: dict[bytes, tuple[bytes, datetime]] = field(factory=dict)
    ended: bool = False


@define
class Counter:
    failed: list[datetime] = field(factory=list)
    pending: list[datetime] = field(factory=list)


@define
class LetterRow:
    digest: bytes
    user_id: str
    purpose: Purpose
    created_at: datetime
    expires_at: datetime


class State:
    """``events`` is the audit. ``ended`` are the ended sessions that workers are told of: until when access tokens of
    theirs may be valid, and when the entry was added."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended: dict[str, tuple[float, datetime]] = {}
        self.on_ended: Callable[[str, float], None] = lambda session_id, until: None
        self.accounts: dict[str, Account] = {}
        self.session_rows: dict[str, SessionRow] = {}
        self.by_digest: dict[bytes, str] = {}
        self.issued: dict[bytes, datetime] = {}
        self.letter_rows: list[LetterRow] = []
        self.counters: dict[tuple[str, str], Counter] = {}
        self.ids: Iterator[int] = itertools.count(1)

    def by_key(self, key: str) -> Account | None:
        for account in self.accounts.values():
            if folded(account.user.email) == key:
                return account
        return None

    def changed(self, account: Account, event: Event) -> Account:
        self.accounts[account.user.id] = account
        self.events.append(event)
        return account

    def add(self, user_id: str, new: NewSession) -> None:
        self.session_rows[new.id] = SessionRow(
            new.id,
            user_id,
            new,
            new.digest,
            new.expires_at,
            new.access_expires_at,
            new.created_at,
            new.created_at,
            new.origin.address,
        )
        self.by_digest[new.digest] = new.id
        self.issued[new.digest] = new.created_at

    def end_one(self, session: SessionRow, at: datetime) -> tuple[str, float]:
        session.ended = True
        until = (session.access_expires_at + MINUTE).timestamp()
        self.ended[session.id] = until, at
        self.on_ended(session.id, until)
        return session.id, until

    def end_all(
        self, user_id: str, at: datetime, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        return [
            self.end_one(session, at)
            for session in self.session_rows.values()
            if session.user_id == user_id
            and not session.ended
            and only in (None, session.id)
            and session.id != but
        ]
