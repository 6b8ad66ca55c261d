"""Attempts and one-time tokens in memory."""

from __future__ import annotations

from datetime import datetime, timedelta

from attrs import evolve

from project_service.auth.repository import (
    Event,
    Limit,
    LoginReservation,
    NewSession,
    Outcome,
    Purpose,
    Reservation,
)
from project_service.auth.values import Account, Email, User, folded
from tests.fakes.auth_state import MINUTE, Counter, LetterRow, State


class MemoryAttempts(State):
    """``auth.ports.Attempts``."""

    def counter(self, scope: str, subject: str) -> Counter:
        return self.counters.setdefault((scope, subject), Counter())

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

    async def settle(
        self,
        scope: str,
        subject: str,
        mark: datetime | None,
        outcome: Outcome,
        event: Event | None = None,
    ) -> None:
        if event is not None:
            self.events.append(event)
        counter = self.counters.get((scope, subject))
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
        account = self.by_key(email.key)
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

    async def unlock(self, account: Account, event: Event) -> None:
        own = [key for key, one in self.session_rows.items() if one.user_id == account.user.id]
        for key in (("login", folded(account.user.email)), *(("session", one) for one in own)):
            self.counters.pop(key, None)
        self.events.append(event)


class MemoryTokens(State):
    """``auth.ports.OneTimeTokens``."""

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
        account = self.by_key(email.key)
        self.events.append(evolve(event, user_id=account.user.id if account else None))
        if account is None or account.disabled_at or (purpose == "confirmation" and account.confirmed_at):
            return None
        same = [one for one in self.letter_rows if (one.user_id, one.purpose) == (account.user.id, purpose)]
        if any(one.created_at > event.at - pause for one in same):
            return None
        self.letter_rows = [one for one in self.letter_rows if one not in same]
        self.letter_rows.append(LetterRow(digest, account.user.id, purpose, event.at, expires_at))
        return account.user

    async def owner(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        for one in self.letter_rows:
            if one.digest == digest and one.purpose == purpose and one.expires_at > now:
                return self.accounts[one.user_id].user
        return None

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        user = await self._consumed(digest, "recovery", event.at)
        if user is None:
            return None
        account = self.accounts[user.id]
        self.end_all(user.id, event.at)
        self.letter_rows = [one for one in self.letter_rows if one.user_id != user.id]
        self.counters.get(("login", folded(user.email)), Counter()).failed = []
        confirmed = account.confirmed_at or event.at
        self.changed(
            evolve(account, password_hash=password_hash, confirmed_at=confirmed),
            evolve(event, user_id=user.id, email=user.email),
        )
        return user

    async def confirm(self, digest: bytes, session: NewSession, event: Event) -> User | None:
        user = await self._consumed(digest, "confirmation", event.at)
        if user is None or self.accounts[user.id].disabled_at is not None:
            return None
        account = evolve(self.accounts[user.id], confirmed_at=event.at, last_login_at=session.created_at)
        self.changed(account, evolve(event, user_id=user.id, email=user.email))
        self.add(user.id, session)
        return user

    async def _consumed(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None:
        user = await self.owner(digest, purpose, now)
        if user is not None:
            self.letter_rows = [one for one in self.letter_rows if one.digest != digest]
        return user
