"""Users, sessions and counters in memory. The fakes are verified: they pass ``tests/contracts/test_user*.py``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred

from project_service.auth import errors
from project_service.auth.mail import Letter
from project_service.auth.passwords import Bcrypt, Candidates
from project_service.auth.repository import MOST_LISTED, Event, NewSession, Proof, Rotation, Stores
from project_service.auth.values import Account, Email, Origin, SessionInfo, User, folded
from tests.fakes.auth_limits import MemoryAttempts, MemoryTokens
from tests.fakes.auth_state import Counter, State


class MemoryUsers(State):
    """``auth.ports.Users``."""

    async def create(
        self,
        *,
        email: Email,
        password_hash: bytes | None,
        metadata: Mapping[str, Any],
        confirmed: bool,
        session: NewSession | None,
        event: Event,
        user_id: str | None = None,
    ) -> Account | None:
        if self.by_key(email.key) is not None:
            self.events.append(evolve(event, result="email_taken"))
            return None
        if user_id in self.accounts:
            raise errors.id_taken()
        key = user_id or f"00000000-0000-4000-8000-{next(self.ids):012}"
        account = Account(
            User(key, email.address, event.at, dict(metadata)),
            password_hash or b"",
            confirmed_at=event.at if confirmed else None,
            last_login_at=session.created_at if session else None,
        )
        self.accounts[key] = account
        if session is not None:
            self.add(key, session)
        self.events.append(evolve(event, user_id=event.user_id or key))
        return account

    async def find(self, user_id: str) -> Account | None:
        return self.accounts.get(user_id)

    async def find_by_email(self, email: Email) -> Account | None:
        return self.by_key(email.key)

    async def page(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        ordered = sorted(self.accounts.values(), key=lambda one: (one.user.created_at, one.user.id))
        return [one for one in ordered if after is None or (one.user.created_at, one.user.id) > after][:limit]

    async def set_metadata(self, user_id: str, metadata: Mapping[str, Any], event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        return self.changed(evolve(account, user=evolve(account.user, metadata=dict(metadata))), event)

    async def set_password(
        self, user_id: str, password_hash: bytes, proof: Proof | None, event: Event
    ) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None or not self._proven(account, proof):
            return None
        self.end_all(user_id, event.at, but=proof.session_id if proof else None)
        self.letter_rows = [
            one for one in self.letter_rows if (one.user_id, one.purpose) != (user_id, "recovery")
        ]
        self.counters.get(("login", folded(account.user.email)), Counter()).failed = []
        return self.changed(evolve(account, password_hash=password_hash), event)

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        if disabled:
            self.end_all(user_id, event.at)
        since = (account.disabled_at or event.at) if disabled else None
        return self.changed(evolve(account, disabled_at=since), event)

    def _proven(self, account: Account, proof: Proof | None) -> bool:
        if proof is None:
            return True
        session = self.session_rows.get(proof.session_id)
        in_force = account.disabled_at is None and not (session and session.ended)
        return in_force and account.password_hash == proof.password_hash

    async def delete(self, user_id: str, event: Event, proof: Proof | None = None) -> bool:
        account = self.accounts.get(user_id)
        if account is None or not self._proven(account, proof):
            return False
        del self.accounts[user_id]
        self.end_all(user_id, event.at)
        self.session_rows = {key: one for key, one in self.session_rows.items() if one.user_id != user_id}
        self.letter_rows = [one for one in self.letter_rows if one.user_id != user_id]
        self.events.append(event)
        return True


class MemorySessions(State):
    """``auth.ports.Sessions``."""

    async def start(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        known = self.accounts.get(account.user.id)
        if known is None or known.disabled_at or known.password_hash != account.password_hash:
            return None
        hashed = new_hash or known.password_hash
        self.changed(evolve(known, password_hash=hashed, last_login_at=session.created_at), event)
        self.add(known.user.id, session)
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
        session = self.session_rows.get(self.by_digest.get(digest, ""))
        if session is None or session.ended or session.expires_at <= now:
            return None
        account = self.accounts[session.user_id]
        if account.disabled_at is not None:
            return None
        session.access_expires_at = max(session.access_expires_at, access_expires_at)
        since = now - reuse_window
        if session.current == digest:
            if session.previous and session.salt:
                session.older[session.previous] = session.salt, session.rotated_at
            session.previous, session.current, session.salt = digest, successor, salt
            session.rotated_at, session.refreshed_at, session.expires_at = now, now, expires_at
            session.address = origin.address
            self.by_digest[successor] = session.id
            self.issued[successor] = now
            return Rotation("rotated", session.id, account.user)
        if (session.previous == digest and session.salt) or session.older.get(digest, (b"", since))[
            1
        ] > since:
            if session.previous == digest and session.rotated_at <= since:
                session.rotated_at = session.refreshed_at = now
                session.expires_at, session.address = max(session.expires_at, expires_at), origin.address
            salts = {one: kept[0] for one, kept in session.older.items() if kept[1] > since - reuse_window}
            if session.previous and session.salt:
                salts[session.previous] = session.salt
            return Rotation("repeated", session.id, account.user, salts)
        self.end_one(session, now)
        event = Event(now, "refresh", "refresh_token_reused", user_id=session.user_id, origin=origin)
        self.events.append(evolve(event, email=account.user.email))
        return Rotation("stolen", session.id, account.user)

    async def alive(self, user_id: str, now: datetime, most: int = MOST_LISTED) -> list[SessionInfo]:
        found = [one for one in self.session_rows.values() if one.user_id == user_id]
        living = [one for one in found if not one.ended and one.expires_at > now]
        return [
            SessionInfo(
                one.id,
                one.new.created_at,
                one.refreshed_at,
                one.expires_at,
                one.new.origin.user_agent,
                one.address,
            )
            for one in sorted(living, key=lambda one: one.new.created_at, reverse=True)[:most]
        ]

    async def end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        self.events.append(event)
        return self.end_all(user_id, event.at, only=only, but=but)

    async def revoked(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        return [
            (key, until)
            for key, (until, at) in self.ended.items()
            if until > now.timestamp() and (since is None or at > since)
        ]


class MemoryStore(MemoryUsers, MemorySessions, MemoryAttempts, MemoryTokens):
    """Implements every port of ``auth.ports``."""

    def stores(self) -> Stores:
        return Stores(self, self, self, self, self, self)

    async def clean(
        self, now: datetime, salt_before: datetime, tokens_before: datetime, audit_before: datetime
    ) -> bool:
        last = {one for session in self.session_rows.values() for one in (session.current, session.previous)}
        for digest in [one for one, at in self.issued.items() if at < tokens_before and one not in last]:
            del self.issued[digest], self.by_digest[digest]
        for session in self.session_rows.values():
            session.older = {key: kept for key, kept in session.older.items() if kept[1] >= salt_before}
        self.session_rows = {key: one for key, one in self.session_rows.items() if one.expires_at >= now}
        self.letter_rows = [one for one in self.letter_rows if one.expires_at >= now]
        self.ended = {key: ended for key, ended in self.ended.items() if ended[0] >= now.timestamp()}
        self.events = [event for event in self.events if event.at >= audit_before]
        return True


class InlineHashes:
    """``Hashes`` without threads. ``checks`` counts the checks; ``failure`` is raised, and ``gate`` waited for, if
    set."""

    def __init__(self, cost: int = 4) -> None:
        self.bcrypt = Bcrypt(cost)
        self.checks: list[tuple[Candidates, bytes | None]] = []
        self.failure: Exception | None = None
        self.gate: Deferred[None] | None = None

    async def hash(self, password: bytes) -> bytes:
        if self.failure is not None:
            raise self.failure
        if self.gate is not None:
            await self.gate
        return self.bcrypt.hash(password)

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        if self.failure is not None:
            raise self.failure
        self.checks.append((passwords, stored))
        if self.gate is not None:
            await self.gate
        return self.bcrypt.matches(passwords, stored)

    def outdated(self, stored: bytes) -> bool:
        return self.bcrypt.outdated(stored)


class FakeListener:
    """A listener whose connection a test can break and restore."""

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
    """A ``Post`` that only keeps the letters."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []

    def post(self, write: Callable[[], Letter]) -> None:
        self.letters.append(write())
