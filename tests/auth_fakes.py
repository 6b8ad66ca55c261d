"""Users, sessions and counters in memory: a verified fake, it passes ``tests/contracts/test_user*.py``."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import define, evolve, field
from twisted.internet.defer import Deferred

from project_service.auth.mail import Letter
from project_service.auth.model import Account, Email, Origin, SessionInfo, User, folded
from project_service.auth.passwords import Bcrypt
from project_service.auth.ports import (
    Event,
    Limit,
    LoginReservation,
    NewSession,
    Outcome,
    Purpose,
    Reservation,
    Rotation,
    Stores,
)

MINUTE = timedelta(minutes=1)


@define
class _Session:
    id: str
    user_id: str
    new: NewSession
    current: bytes
    expires_at: datetime
    access_expires_at: datetime
    rotated_at: datetime
    refreshed_at: datetime
    previous: bytes | None = None
    salt: bytes = b""
    ended: bool = False


@define
class Counter:
    failed: list[datetime] = field(factory=list)
    pending: list[datetime] = field(factory=list)


@define
class _Letter:
    digest: bytes
    user_id: str
    purpose: Purpose
    created_at: datetime
    expires_at: datetime


class MemoryStore:
    """Implements every port of ``auth.ports``; ``events`` is the audit, ``ended`` what workers are told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended: dict[str, float] = {}
        self.on_ended: Callable[[str, float], None] = lambda session_id, until: None
        self.accounts: dict[str, Account] = {}
        self._sessions: dict[str, _Session] = {}
        self._tokens: dict[bytes, str] = {}
        self._letters: list[_Letter] = []
        self._counters: dict[tuple[str, str], Counter] = {}
        self._ids: Iterator[int] = itertools.count(1)

    def stores(self) -> Stores:
        return Stores(self, self, self, self, self)

    # Users.

    async def create(
        self,
        *,
        email: Email,
        password_hash: bytes | None,
        metadata: Mapping[str, Any],
        confirmed: bool,
        session: NewSession | None,
        event: Event,
    ) -> Account | None:
        if self._by_key(email.key) is not None:
            self.events.append(evolve(event, result="email_taken"))
            return None
        key = f"00000000-0000-4000-8000-{next(self._ids):012}"
        account = Account(
            User(key, email.address, event.at, dict(metadata)),
            password_hash or b"",
            confirmed_at=event.at if confirmed else None,
            last_login_at=session.created_at if session else None,
        )
        self.accounts[key] = account
        if session is not None:
            self._add(key, session)
        self.events.append(evolve(event, user_id=event.user_id or key))
        return account

    async def find(self, user_id: str) -> Account | None:
        return self.accounts.get(user_id)

    async def find_by_email(self, email: Email) -> Account | None:
        return self._by_key(email.key)

    async def page(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        ordered = sorted(self.accounts.values(), key=lambda one: (one.user.created_at, one.user.id))
        return [one for one in ordered if after is None or (one.user.created_at, one.user.id) > after][:limit]

    async def set_metadata(self, user_id: str, metadata: Mapping[str, Any], event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        return self._changed(evolve(account, user=evolve(account.user, metadata=dict(metadata))), event)

    async def set_password(
        self, user_id: str, password_hash: bytes, keep_session: str | None, event: Event
    ) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        self._end_all(user_id, but=keep_session)
        self._letters = [one for one in self._letters if (one.user_id, one.purpose) != (user_id, "recovery")]
        return self._changed(evolve(account, password_hash=password_hash), event)

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        if disabled:
            self._end_all(user_id)
        return self._changed(evolve(account, disabled_at=event.at if disabled else None), event)

    async def delete(self, user_id: str, event: Event) -> bool:
        if self.accounts.pop(user_id, None) is None:
            return False
        self._end_all(user_id)
        self._sessions = {key: one for key, one in self._sessions.items() if one.user_id != user_id}
        self._letters = [one for one in self._letters if one.user_id != user_id]
        self.events.append(event)
        return True

    # Sessions.

    async def start(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        known = self.accounts.get(account.user.id)
        if known is None or known.disabled_at or known.password_hash != account.password_hash:
            return None
        hashed = new_hash or known.password_hash
        self._changed(evolve(known, password_hash=hashed, last_login_at=session.created_at), event)
        self._add(known.user.id, session)
        return known.user

    async def rotate(
        self,
        *,
        digest: bytes,
        successor: bytes,
        salt: bytes,
        now: datetime,
        reuse_window: timedelta,
        expires_at: datetime,
        access_expires_at: datetime,
        origin: Origin,
    ) -> Rotation | None:
        session = self._sessions.get(self._tokens.get(digest, ""))
        if session is None or session.ended or session.expires_at <= now:
            return None
        account = self.accounts[session.user_id]
        if account.disabled_at is not None:
            return None
        session.access_expires_at = max(session.access_expires_at, access_expires_at)
        if session.current == digest:
            session.previous, session.current, session.salt = digest, successor, salt
            session.rotated_at, session.refreshed_at, session.expires_at = now, now, expires_at
            self._tokens[successor] = session.id
            return Rotation("rotated", session.id, account.user)
        if session.previous == digest and session.salt and session.rotated_at > now - reuse_window:
            return Rotation("repeated", session.id, account.user, session.salt)
        self._end(session)
        event = Event(now, "refresh", "refresh_token_reused", user_id=session.user_id, origin=origin)
        self.events.append(evolve(event, email=account.user.email))
        return Rotation("stolen", session.id, account.user)

    async def alive(self, user_id: str, now: datetime) -> list[SessionInfo]:
        found = [one for one in self._sessions.values() if one.user_id == user_id]
        living = [one for one in found if not one.ended and one.expires_at > now]
        return [
            SessionInfo(
                one.id,
                one.new.created_at,
                one.refreshed_at,
                one.expires_at,
                one.new.origin.user_agent,
                one.new.origin.address,
            )
            for one in sorted(living, key=lambda one: one.new.created_at, reverse=True)
        ]

    async def end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        self.events.append(event)
        return self._end_all(user_id, only=only, but=but)

    async def revoked(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        return [(key, until) for key, until in self.ended.items() if until > now.timestamp()]

    # Attempts.

    def counter(self, scope: str, subject: str) -> Counter:
        return self._counters.setdefault((scope, subject), Counter())

    async def reserve(self, scope: str, subject: str, limit: Limit, now: datetime) -> Reservation:
        if limit.most <= 0:
            return Reservation("free")
        counter = self.counter(scope, subject)
        abandoned = [at for at in counter.pending if at <= now - MINUTE]
        failed = sorted(at for at in counter.failed + abandoned if at > now - limit.window)
        pending = sorted(at for at in counter.pending if at > now - MINUTE)
        if len(failed) >= limit.most:
            wait = failed[len(failed) - limit.most] + limit.window - now
            return Reservation("refused", wait.total_seconds())
        if len(failed) + len(pending) >= limit.most:
            return Reservation("busy")
        mark = max(now, pending[-1] + timedelta(microseconds=1)) if pending else now
        counter.failed, counter.pending = failed, [*pending, mark]
        return Reservation("free", 0.0, mark)

    async def settle(self, scope: str, subject: str, mark: datetime | None, outcome: Outcome) -> None:
        counter = self._counters.get((scope, subject))
        if mark is None or counter is None:
            return
        counter.pending = [at for at in counter.pending if at != mark]
        if outcome == "failed":
            counter.failed.append(mark)
        elif outcome == "cleared":
            counter.failed = []

    async def reserve_login(
        self, email: Email, address: str, per_email: Limit, per_address: Limit, now: datetime
    ) -> LoginReservation:
        account = self._by_key(email.key)
        held = await self.reserve("login", email.key, per_email, now)
        if held.verdict != "free":
            return LoginReservation(held.verdict, held.wait_seconds, account=account)
        place = await self.reserve("login_address", address, per_address, now)
        if place.verdict != "free":
            await self.settle("login", email.key, held.mark, "released")
            return LoginReservation(place.verdict, place.wait_seconds, account=account)
        return LoginReservation("free", 0.0, held.mark, place.mark, account)

    async def settle_login(
        self, email: Email, address: str, held: LoginReservation, outcome: Outcome, event: Event | None
    ) -> None:
        await self.settle("login", email.key, held.mark, outcome)
        there: Outcome = "released" if outcome == "cleared" else outcome
        await self.settle("login_address", address, held.address_mark, there)
        if event is not None:
            self.events.append(event)

    # One-time tokens.

    async def issue(
        self,
        *,
        email: Email,
        purpose: Purpose,
        digest: bytes,
        pause: timedelta,
        expires_at: datetime,
        event: Event,
    ) -> User | None:
        account = self._by_key(email.key)
        self.events.append(evolve(event, user_id=account.user.id if account else None))
        if account is None or account.disabled_at or (purpose == "confirmation" and account.confirmed_at):
            return None
        same = [one for one in self._letters if (one.user_id, one.purpose) == (account.user.id, purpose)]
        if any(one.created_at > event.at - pause for one in same):
            return None
        self._letters = [one for one in self._letters if one not in same]
        self._letters.append(_Letter(digest, account.user.id, purpose, event.at, expires_at))
        return account.user

    async def owner(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        for one in self._letters:
            if one.digest == digest and one.purpose == purpose and one.expires_at > now:
                return self.accounts[one.user_id].user
        return None

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        user = await self._consumed(digest, "recovery", event.at)
        if user is None:
            return None
        account = self.accounts[user.id]
        self._end_all(user.id)
        self._counters.pop(("login", folded(user.email)), None)
        confirmed = account.confirmed_at or event.at
        self._changed(
            evolve(account, password_hash=password_hash, confirmed_at=confirmed),
            evolve(event, user_id=user.id, email=user.email),
        )
        return user

    async def confirm(self, digest: bytes, session: NewSession, event: Event) -> User | None:
        user = await self._consumed(digest, "confirmation", event.at)
        if user is None or self.accounts[user.id].disabled_at is not None:
            return None
        account = evolve(self.accounts[user.id], confirmed_at=event.at, last_login_at=session.created_at)
        self._changed(account, evolve(event, user_id=user.id, email=user.email))
        self._add(user.id, session)
        return user

    # Housekeeping.

    async def clean(self, now: datetime, salt_before: datetime, audit_before: datetime) -> bool:
        for session in self._sessions.values():
            if session.rotated_at < salt_before:
                session.salt = b""
        self._sessions = {key: one for key, one in self._sessions.items() if one.expires_at >= now}
        self._letters = [one for one in self._letters if one.expires_at >= now]
        self.ended = {key: until for key, until in self.ended.items() if until >= now.timestamp()}
        self.events = [event for event in self.events if event.at >= audit_before]
        return True

    def _by_key(self, key: str) -> Account | None:
        for account in self.accounts.values():
            if folded(account.user.email) == key:
                return account
        return None

    def _changed(self, account: Account, event: Event) -> Account:
        self.accounts[account.user.id] = account
        self.events.append(event)
        return account

    def _add(self, user_id: str, new: NewSession) -> None:
        self._sessions[new.id] = _Session(
            new.id,
            user_id,
            new,
            new.digest,
            new.expires_at,
            new.access_expires_at,
            new.created_at,
            new.created_at,
        )
        self._tokens[new.digest] = new.id

    def _end(self, session: _Session) -> tuple[str, float]:
        session.ended = True
        until = (session.access_expires_at + MINUTE).timestamp()
        self.ended[session.id] = until
        self.on_ended(session.id, until)
        return session.id, until

    def _end_all(
        self, user_id: str, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        return [
            self._end(session)
            for session in self._sessions.values()
            if session.user_id == user_id
            and not session.ended
            and only in (None, session.id)
            and session.id != but
        ]

    async def _consumed(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        user = await self.owner(digest, purpose, now)
        self._letters = [one for one in self._letters if one.digest != digest]
        return user


class InlineHashes:
    """``Hashes`` without threads; ``checks`` counts what was spent, ``failure`` is raised and ``gate`` waited for."""

    def __init__(self, cost: int = 4) -> None:
        self.bcrypt = Bcrypt(cost)
        self.checks: list[tuple[bytes | None, bytes | None]] = []
        self.failure: Exception | None = None
        self.gate: Deferred[None] | None = None

    async def hash(self, password: bytes) -> bytes:
        if self.failure is not None:
            raise self.failure
        return self.bcrypt.hash(password)

    async def matches(self, password: bytes | None, stored: bytes | None) -> bool:
        if self.failure is not None:
            raise self.failure
        self.checks.append((password, stored))
        if self.gate is not None:
            await self.gate
        return self.bcrypt.matches(password, stored)

    def outdated(self, stored: bytes) -> bool:
        return self.bcrypt.outdated(stored)


class FakeListener:
    """A listener whose connection a test can lose and bring back."""

    def __init__(self) -> None:
        self.current = True
        self.heard: dict[str, Callable[[str], None]] = {}
        self.gaps: list[Callable[[], Awaitable[None]]] = []

    def subscribe(
        self, channel: str, on_payload: Callable[[str], None], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        self.heard[channel] = on_payload
        self.gaps.append(on_gap)


class KeptPost:
    """``Post`` that keeps the letters."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []

    def post(self, write: Callable[[], Letter]) -> None:
        self.letters.append(write())
