"""Authentication's database, hashes and notifications in memory. ``MemoryRepository`` is a verified fake: it has the
methods of ``Repository``, and passes ``tests/contracts/auth``."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from attrs import define, evolve, field
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from project_service.auth import errors
from project_service.auth.passwords import Bcrypt, Candidates
from project_service.auth.postgres import Repository
from project_service.auth.values import (
    APP_METADATA,
    MAX_LISTED_SESSIONS,
    Account,
    Email,
    Event,
    Limit,
    NewSession,
    Origin,
    Outcome,
    Proof,
    Purpose,
    Reservation,
    Rotation,
    SessionInfo,
    User,
    folded,
)
from project_service.database.listener import Listener

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
class OneTimeToken:
    digest: bytes
    user_id: str
    purpose: Purpose
    created_at: datetime
    expires_at: datetime


def _with(account: Account, **changes: Any) -> Account:
    return evolve(account, user=evolve(account.user, **changes))


class MemoryRepository:
    """``events`` is the audit. ``ended`` are the ended sessions that workers are notified of: until when
    access tokens of theirs may be valid, and when the entry was added."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended: dict[str, tuple[float, datetime]] = {}
        self.on_ended: Callable[[str, float], None] = lambda session_id, until: None
        self.accounts: dict[str, Account] = {}
        self.session_rows: dict[str, SessionRow] = {}
        self.by_digest: dict[bytes, str] = {}
        self.issued: dict[bytes, datetime] = {}
        self.one_time_tokens: list[OneTimeToken] = []
        self.counters: defaultdict[tuple[str, str], Counter] = defaultdict(Counter)
        self.ids: Iterator[int] = itertools.count(1)

    def _by_key(self, key: str) -> Account | None:
        for account in self.accounts.values():
            if folded(account.user.email) == key:
                return account
        return None

    def _changed(self, account: Account, event: Event) -> Account:
        account = _with(account, updated_at=event.at)
        self.accounts[account.user.id] = account
        self.events.append(event)
        return account

    def _add(self, user_id: str, new: NewSession) -> None:
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

    def _end_one(self, session: SessionRow, at: datetime) -> tuple[str, float]:
        session.ended = True
        until = (session.access_expires_at + MINUTE).timestamp()
        self.ended[session.id] = until, at
        self.on_ended(session.id, until)
        return session.id, until

    def _end_all(
        self, user_id: str, at: datetime, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        return [
            self._end_one(session, at)
            for session in self.session_rows.values()
            if session.user_id == user_id
            and not session.ended
            and only in (None, session.id)
            and session.id != but
        ]

    # Users.

    async def create_user(
        self,
        *,
        email: Email,
        password_hash: bytes | None,
        metadata: Mapping[str, Any],
        confirmed: bool,
        session: NewSession | None,
        event: Event,
        user_id: str | None = None,
        app_metadata: Mapping[str, Any] = APP_METADATA,
    ) -> Account | None:
        if self._by_key(email.key) is not None:
            self.events.append(evolve(event, result="email_taken"))
            return None
        if user_id in self.accounts:
            raise errors.id_taken()
        key = user_id or f"00000000-0000-4000-8000-{next(self.ids):012}"
        account = Account(
            User(
                key,
                email.address,
                event.at,
                dict(metadata),
                dict(app_metadata),
                event.at,
                event.at if confirmed else None,
                session.created_at if session else None,
            ),
            password_hash or b"",
        )
        self.accounts[key] = account
        if session is not None:
            self._add(key, session)
        self.events.append(evolve(event, user_id=event.user_id or key))
        return account

    async def find_user(self, user_id: str) -> Account | None:
        return self.accounts.get(user_id)

    async def find_user_by_email(self, email: Email) -> Account | None:
        return self._by_key(email.key)

    async def list_users(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        ordered = sorted(self.accounts.values(), key=lambda one: (one.user.created_at, one.user.id))
        return [one for one in ordered if after is None or (one.user.created_at, one.user.id) > after][:limit]

    async def users_from(self, offset: int, limit: int) -> tuple[list[Account], int]:
        ordered = sorted(
            self.accounts.values(), key=lambda one: (one.user.created_at, one.user.id), reverse=True
        )
        return ordered[offset : offset + limit], len(ordered)

    async def set_metadata(self, user_id: str, metadata: Mapping[str, Any], event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        return self._changed(_with(account, metadata=dict(metadata)), event)

    async def revise(self, user_id: str, revise: Callable[[User], User], event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        user = revise(account.user)
        kept = {"metadata": dict(user.metadata), "app_metadata": dict(user.app_metadata)}
        return self._changed(_with(account, **kept, confirmed_at=user.confirmed_at), event)

    async def set_password(
        self,
        user_id: str,
        password_hash: bytes,
        proof: Proof | None,
        event: Event,
        *,
        keep_sessions: bool = False,
    ) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None or not self._proven(account, proof):
            return None
        if not keep_sessions:
            self._end_all(user_id, event.at, but=proof.session_id if proof else None)
        self.one_time_tokens = [
            one for one in self.one_time_tokens if (one.user_id, one.purpose) != (user_id, "recovery")
        ]
        self.counters["login", folded(account.user.email)].failed = []
        return self._changed(evolve(account, password_hash=password_hash), event)

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        if disabled:
            self._end_all(user_id, event.at)
        since = (account.disabled_at or event.at) if disabled else None
        return self._changed(evolve(account, disabled_at=since), event)

    def _proven(self, account: Account, proof: Proof | None) -> bool:
        if proof is None:
            return True
        session = self.session_rows.get(proof.session_id)
        is_current = account.disabled_at is None and not (session and session.ended)
        return is_current and account.password_hash == proof.password_hash

    async def delete_user(self, user_id: str, event: Event, proof: Proof | None = None) -> bool:
        account = self.accounts.get(user_id)
        if account is None or not self._proven(account, proof):
            return False
        del self.accounts[user_id]
        self._end_all(user_id, event.at)
        self.session_rows = {key: one for key, one in self.session_rows.items() if one.user_id != user_id}
        self.one_time_tokens = [one for one in self.one_time_tokens if one.user_id != user_id]
        self.events.append(event)
        return True

    # Sessions and their refresh tokens.

    async def start_session(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        known = self.accounts.get(account.user.id)
        if known is None or known.disabled_at or known.password_hash != account.password_hash:
            return None
        hashed = new_hash or known.password_hash
        started = _with(evolve(known, password_hash=hashed), last_login_at=session.created_at)
        self._add(known.user.id, session)
        return self._changed(started, event).user

    async def rotate_refresh_token(
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
            return Rotation("rotated", session.id, account.user, session.new.began)
        if (session.previous == digest and session.salt) or session.older.get(digest, (b"", since))[
            1
        ] > since:
            if session.previous == digest and session.rotated_at <= since:
                session.rotated_at = session.refreshed_at = now
                session.expires_at, session.address = max(session.expires_at, expires_at), origin.address
            salts = {one: kept[0] for one, kept in session.older.items() if kept[1] > since - reuse_window}
            if session.previous and session.salt:
                salts[session.previous] = session.salt
            return Rotation("repeated", session.id, account.user, session.new.began, salts)
        self._end_one(session, now)
        event = Event(now, "refresh", "refresh_token_reused", user_id=session.user_id, origin=origin)
        self.events.append(evolve(event, email=account.user.email))
        return Rotation("stolen", session.id, account.user, session.new.began)

    async def list_sessions(
        self, user_id: str, now: datetime, maximum: int = MAX_LISTED_SESSIONS
    ) -> list[SessionInfo]:
        own = [one for one in self.session_rows.values() if one.user_id == user_id]
        active = [one for one in own if not one.ended and one.expires_at > now]
        return [
            SessionInfo(
                one.id,
                one.new.created_at,
                one.refreshed_at,
                one.expires_at,
                one.new.origin.user_agent,
                one.address,
            )
            for one in sorted(active, key=lambda one: one.new.created_at, reverse=True)[:maximum]
        ]

    async def end_sessions(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        self.events.append(event)
        return self._end_all(user_id, event.at, only=only, but=but)

    async def ended_sessions(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        return [
            (key, until)
            for key, (until, at) in self.ended.items()
            if until > now.timestamp() and (since is None or at > since)
        ]

    # Counters of attempts.

    async def reserve_attempt(self, scope: str, subject: str, limit: Limit, now: datetime) -> Reservation:
        if limit.maximum <= 0:
            return Reservation("free", 0.0, None, scope, subject)
        counter = self.counters[scope, subject]
        abandoned = [at for at in counter.pending if at <= now - MINUTE]
        failed = sorted(at for at in counter.failed + abandoned if at > now - limit.window)
        pending = sorted(at for at in counter.pending if at > now - MINUTE)
        if len(failed) >= limit.maximum:
            wait = failed[len(failed) - limit.maximum] + limit.window - now
            return Reservation("refused", wait.total_seconds(), None, scope, subject)
        if len(failed) + len(pending) >= limit.maximum:
            return Reservation("busy", 0.0, None, scope, subject)
        mark = max(now, pending[-1] + timedelta(microseconds=1)) if pending else now
        counter.failed, counter.pending = failed, [*pending, mark]
        return Reservation("free", 0.0, mark, scope, subject)

    async def reserve_login(
        self, email: Email, address: str, per_email: Limit, per_address: Limit, now: datetime
    ) -> Reservation:
        account = self._by_key(email.key)
        by_email = await self.reserve_attempt("login", email.key, per_email, now)
        by_email = evolve(by_email, address=address, account=account)
        if by_email.verdict != "free":
            return by_email
        by_address = await self.reserve_attempt("login_address", address, per_address, now)
        if by_address.verdict == "free":
            return evolve(by_email, address_mark=by_address.mark)
        self._finish("login", email.key, by_email.mark, "released")
        return evolve(by_email, verdict=by_address.verdict, wait_seconds=by_address.wait_seconds, mark=None)

    async def record_outcome(
        self, reservation: Reservation, outcome: Outcome, event: Event | None = None
    ) -> None:
        self._finish(reservation.scope, reservation.subject, reservation.mark, outcome)
        at_address: Outcome = "released" if outcome == "cleared" else outcome
        self._finish("login_address", reservation.address, reservation.address_mark, at_address)
        if event is not None:
            self.events.append(event)

    def _finish(self, scope: str, subject: str, mark: datetime | None, outcome: Outcome) -> None:
        counter = self.counters.get((scope, subject))
        if mark is None or counter is None:
            return
        counter.pending = [at for at in counter.pending if at != mark]
        if outcome == "failed":
            counter.failed.append(mark)
        elif outcome == "cleared":
            counter.failed = []

    async def unlock(self, account: Account, event: Event) -> None:
        own = [key for key, one in self.session_rows.items() if one.user_id == account.user.id]
        for key in (("login", folded(account.user.email)), *(("session", one) for one in own)):
            self.counters.pop(key, None)
        self.events.append(event)

    # One-time tokens.

    async def issue_one_time_token(
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
        same = [
            one for one in self.one_time_tokens if (one.user_id, one.purpose) == (account.user.id, purpose)
        ]
        if any(one.created_at > event.at - pause for one in same):
            return None
        self.one_time_tokens = [one for one in self.one_time_tokens if one not in same]
        self.one_time_tokens.append(OneTimeToken(digest, account.user.id, purpose, event.at, expires_at))
        return account.user

    async def owner_of_token(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        for one in self.one_time_tokens:
            if one.digest == digest and one.purpose == purpose and one.expires_at > now:
                return self.accounts[one.user_id].user
        return None

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        user = await self._use_up(digest, "recovery", event.at)
        if user is None:
            return None
        account = self.accounts[user.id]
        self._end_all(user.id, event.at)
        self.one_time_tokens = [one for one in self.one_time_tokens if one.user_id != user.id]
        self.counters["login", folded(user.email)].failed = []
        confirmed = account.confirmed_at or event.at
        self._changed(
            _with(evolve(account, password_hash=password_hash), confirmed_at=confirmed),
            evolve(event, user_id=user.id, email=user.email),
        )
        return user

    async def confirm_email(self, digest: bytes, session: NewSession, event: Event) -> User | None:
        user = await self._use_up(digest, "confirmation", event.at)
        if user is None or self.accounts[user.id].disabled_at is not None:
            return None
        times = {"confirmed_at": event.at, "last_login_at": session.created_at}
        account = _with(self.accounts[user.id], **times)
        self._add(user.id, session)
        return self._changed(account, evolve(event, user_id=user.id, email=user.email)).user

    async def _use_up(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        user = await self.owner_of_token(digest, purpose, now)
        if user is not None:
            self.one_time_tokens = [one for one in self.one_time_tokens if one.digest != digest]
        return user

    # What has expired.

    async def delete_expired(
        self, now: datetime, salt_before: datetime, tokens_before: datetime, audit_before: datetime
    ) -> bool:
        last = {one for session in self.session_rows.values() for one in (session.current, session.previous)}
        for digest in [one for one, at in self.issued.items() if at < tokens_before and one not in last]:
            del self.issued[digest], self.by_digest[digest]
        for session in self.session_rows.values():
            session.older = {key: kept for key, kept in session.older.items() if kept[1] >= salt_before}
        self.session_rows = {key: one for key, one in self.session_rows.items() if one.expires_at >= now}
        self.one_time_tokens = [one for one in self.one_time_tokens if one.expires_at >= now]
        self.ended = {key: ended for key, ended in self.ended.items() if ended[0] >= now.timestamp()}
        self.events = [event for event in self.events if event.at >= audit_before]
        return True


def in_place_of_sql(fake: MemoryRepository) -> Repository:
    """The fake for who takes the SQL class. ``tests/unit/service/test_fakes.py`` sees to it that both have the same
    methods, which is why mypy may be told so."""
    return cast(Repository, fake)


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


class FakeListener(Listener):
    """A listener without a connection: a test says what it hears, and when there was a gap."""

    def __init__(self) -> None:
        super().__init__(Deferred, Clock())

    def hear(self, channel: str, payload: str) -> None:
        for one in self._subscriptions:
            if one.channel == channel:
                one.on_payload(payload)

    async def reconnect(self) -> None:
        for one in self._subscriptions:
            await one.on_gap()
