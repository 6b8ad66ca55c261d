"""Authentication's database, hashes and notifications in memory. ``MemoryRepository`` is a verified fake: it has the
methods of ``Repository``, and passes ``tests/contracts/auth``."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from attrs import define, evolve, field
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.lookups import Entry, EntryFilter, Lookups, UserFilter
from project_service.auth.passwords import Bcrypt, Candidates
from project_service.auth.postgres import Repository
from project_service.auth.values import (
    ANSWERED,
    APP_METADATA,
    FOR_PASSWORDS,
    MAX_LISTED_SESSIONS,
    MAX_TRIES,
    OF_CHANGE,
    Account,
    Answer,
    AuthCode,
    ByProvider,
    Credential,
    Email,
    Factor,
    FactorProof,
    FactorType,
    Identity,
    Limit,
    Method,
    NewChallenge,
    NewSession,
    Outcome,
    OwnFactor,
    Passkey,
    Profile,
    Proof,
    Purpose,
    Raised,
    Redeemed,
    Reservation,
    Rotation,
    SessionInfo,
    User,
    email_of,
    folded,
    takes_over,
)
from project_service.database.listener import Listener
from project_service.errors import session_revoked

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
    factor_id: str | None = None


@define
class Counter:
    failed: list[datetime] = field(factory=list)
    pending: list[datetime] = field(factory=list)


@define
class Waiting:
    """A challenge that can be answered. ``user_id`` is None for an authorization code."""

    new: NewChallenge
    user_id: str | None
    purpose: Purpose
    data: dict[str, Any]
    tries: int = 0

    def is_for(self, answer: Answer, now: datetime) -> bool:
        sent = self.new.email and self.new.email.key == answer.email_key and self.new.code_hash
        return bool(
            self.purpose in answer.purposes
            and self.new.expires_at > now
            and answer.user_id in (None, self.user_id)
            and (
                self.new.digest == answer.digest
                or (answer.digest is None and sent and self.tries < MAX_TRIES)
            )
        )


def _goes_up(known: Credential, used: Credential) -> bool:
    return known.sign_count < used.sign_count or known.sign_count == used.sign_count == 0


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
        self.challenges: list[Waiting] = []
        self.invited: dict[str, datetime] = {}
        self.factors: dict[str, Factor] = {}
        # The secret of a factor's codes, and the last time step whose code was used.
        self.totp: dict[str, tuple[bytes, int]] = {}
        self.recovery_codes: dict[str, set[bytes]] = {}
        self.factor_keys: dict[str, Credential] = {}
        # Passkeys, by their ids.
        self.keys: dict[str, Passkey] = {}
        # Those of providers, and the users who have an address but no identity of it, since a provider brought it.
        self.identities: list[Identity] = []
        self.of_providers: set[str] = set()
        # Users to whom rows of the project's own refer.
        self.in_use: set[str] = set()
        self.counters: defaultdict[tuple[str, str], Counter] = defaultdict(Counter)
        self.ids: Iterator[int] = itertools.count(1)

    def _by_key(self, key: str) -> Account | None:
        for account in self.accounts.values():
            if key and folded(account.user.email) == key:
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
        email: Email | None,
        password_hash: bytes | None,
        metadata: Mapping[str, Any],
        confirmed: bool,
        session: NewSession | None,
        event: Event,
        user_id: str | None = None,
        app_metadata: Mapping[str, Any] = APP_METADATA,
        is_anonymous: bool = False,
        invited: bool = False,
    ) -> Account | None:
        if email is not None and self._by_key(email.key) is not None:
            self.events.append(evolve(event, result="email_taken"))
            return None
        if user_id in self.accounts:
            raise errors.id_taken()
        key = user_id or f"00000000-0000-4000-8000-{next(self.ids):012}"
        account = Account(
            User(
                key,
                "" if email is None else email.address,
                event.at,
                dict(metadata),
                dict(app_metadata),
                event.at,
                event.at if confirmed else None,
                session.created_at if session else None,
                is_anonymous,
            ),
            password_hash or b"",
        )
        self.accounts[key] = account
        if invited:
            self.invited[key] = event.at
        if session is not None:
            self._add(key, session)
        self.events.append(evolve(event, user_id=event.user_id or key))
        return account

    async def find_user(self, user_id: str) -> Account | None:
        return self.accounts.get(user_id)

    async def profile(self, user_id: str) -> Profile | None:
        account = self.accounts.get(user_id)
        return None if account is None else self._profile(account)

    def _profile(self, account: Account) -> Profile:
        user, waiting = account.user, [one for one in self.challenges if one.user_id == account.user.id]
        data = {
            "sub": user.id,
            "email": user.email,
            "email_verified": user.confirmed_at is not None,
            "phone_verified": False,
        }
        changed = user.updated_at or user.created_at
        key = str(uuid.uuid5(uuid.UUID(user.id), "email"))
        by_email = Identity(
            key, user.id, "email", user.id, data, user.last_login_at, user.created_at, changed
        )
        has_one = user.email and user.id not in self.of_providers
        others = [one for one in self.identities if one.user_id == user.id]
        identities = sorted(
            [*([by_email] if has_one else []), *others], key=lambda one: (one.created_at, one.provider)
        )
        return Profile(
            account,
            tuple(identities),
            tuple(sorted(self._factors_of(user.id), key=lambda one: (one.created_at, one.id))),
            {one.purpose: one.new.created_at for one in waiting},
            next((one.data["email"] for one in waiting if one.purpose in OF_CHANGE), ""),
            self.invited.get(user.id),
        )

    async def find_user_by_email(self, email: Email) -> Account | None:
        return self._by_key(email.key)

    async def list_users(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        ordered = sorted(self.accounts.values(), key=lambda one: (one.user.created_at, one.user.id))
        return [one for one in ordered if after is None or (one.user.created_at, one.user.id) > after][:limit]

    async def users_from(self, offset: int, limit: int) -> tuple[list[Profile], int]:
        ordered = sorted(
            self.accounts.values(), key=lambda one: (one.user.created_at, one.user.id), reverse=True
        )
        return [self._profile(one) for one in ordered[offset : offset + limit]], len(ordered)

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
        kept = [
            one
            for one in self.challenges
            if one.user_id == user_id and one.purpose in ("confirmation", "invitation")
        ]
        self._forget(user_id)
        self.challenges += kept
        self.counters["login", folded(account.user.email)].failed = []
        return self._changed(evolve(account, password_hash=password_hash), event)

    async def set_disabled(
        self, user_id: str, disabled: bool, event: Event, until: datetime | None = None
    ) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        if disabled:
            self._end_all(user_id, event.at)
        since = (account.disabled_at or event.at) if disabled else None
        return self._changed(
            evolve(account, disabled_at=since, disabled_until=until if disabled else None), event
        )

    def _proven(self, account: Account, proof: Proof | None) -> bool:
        if proof is None:
            return True
        session = self.session_rows.get(proof.session_id)
        is_current = account.disabled_at is None and not (session and session.ended)
        return is_current and account.password_hash == proof.password_hash

    async def delete_user(
        self,
        user_id: str,
        event: Event,
        proof: Proof | None = None,
        *,
        unused_since: datetime | None = None,
    ) -> bool:
        account = self.accounts.get(user_id)
        if account is None or not self._proven(account, proof):
            return False
        if unused_since is not None and user_id not in await self.unused_anonymous_users(unused_since):
            return False
        if user_id in self.in_use:
            raise errors.user_in_use()
        del self.accounts[user_id]
        self._end_all(user_id, event.at)
        self.session_rows = {key: one for key, one in self.session_rows.items() if one.user_id != user_id}
        self._forget(user_id)
        self._drop(self._factors_of(user_id))
        self.keys = {key: one for key, one in self.keys.items() if one.user_id != user_id}
        self.identities = [one for one in self.identities if one.user_id != user_id]
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

    async def record(self, event: Event) -> None:
        self.events.append(event)

    async def unlock(self, account: Account, event: Event) -> None:
        own = [key for key, one in self.session_rows.items() if one.user_id == account.user.id]
        for key in (("login", folded(account.user.email)), *(("session", one) for one in own)):
            self.counters.pop(key, None)
        self.events.append(event)

    # Challenges.

    def _forget(self, user_id: str, purpose: Purpose | None = None) -> None:
        self.challenges = [
            one
            for one in self.challenges
            if user_id not in (one.user_id, one.data.get("user")) or purpose not in (None, one.purpose)
        ]

    async def issue(
        self, challenge: NewChallenge, pause: timedelta, event: Event
    ) -> tuple[User, Purpose] | None:
        email, key = challenge.email, challenge.user_id
        account = self.accounts.get(key) if key is not None else self._by_key(email.key if email else "")
        self.events.append(evolve(event, user_id=account.user.id if account else None))
        if account is None or account.disabled_at:
            return None
        purpose = challenge.if_confirmed if account.confirmed_at else challenge.purpose
        same = [one for one in self.challenges if (one.user_id, one.purpose) == (account.user.id, purpose)]
        data = dict(challenge.data)
        for one in same:
            if "takes_over" in {**one.data, **data}:
                one.data["takes_over"] = data["takes_over"] = True
        if purpose is None or any(
            one.new.created_at > event.at - pause and one.data.get("email_key") == data.get("email_key")
            for one in same
        ):
            return None
        self._forget(account.user.id, purpose)
        self.challenges.append(Waiting(challenge, account.user.id, purpose, data))
        return account.user, purpose

    async def owner_of_token(
        self, digest: bytes, purposes: tuple[Purpose, ...], now: datetime
    ) -> User | None:
        for one in self.challenges:
            if one.new.digest == digest and one.purpose in purposes and one.new.expires_at > now:
                return self.accounts[one.user_id or ""].user
        return None

    async def pending(
        self,
        purposes: tuple[Purpose, ...],
        now: datetime,
        *,
        digest: bytes | None = None,
        email_key: str = "",
    ) -> tuple[str, Mapping[str, Any]] | None:
        for one in self.challenges:
            sent = digest is None and one.new.email is not None and one.new.email.key == email_key
            if one.purpose in purposes and one.new.expires_at > now and (one.new.digest == digest or sent):
                return one.user_id or "", dict(one.data)
        return None

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        met = self._use_up(Answer(FOR_PASSWORDS, digest), event.at)
        if met is None:
            return None
        account = self.accounts[met.user_id or ""]
        user = account.user
        self._end_all(user.id, event.at)
        self._forget(user.id)
        if account.confirmed_at is None:
            self._void_other_ways(user.id)
            account = self.accounts[user.id]
        self.counters["login", folded(user.email)].failed = []
        confirmed = account.confirmed_at or event.at
        self._changed(
            _with(evolve(account, password_hash=password_hash), confirmed_at=confirmed),
            evolve(event, user_id=user.id, email=user.email),
        )
        return user

    async def redeem(
        self, answer: Answer, session: NewSession | None, auth_code: AuthCode | None, event: Event
    ) -> Redeemed | None:
        met = self._use_up(answer, event.at)
        if met is None:
            if answer.digest is None:
                wrong = evolve(event, result="invalid_one_time_token", email=answer.email_key)
                self.events.append(wrong)
            return None
        account, purpose, data = self.accounts[met.user_id or ""], met.purpose, met.data
        user_id = account.user.id
        if account.disabled_at is not None:
            return None
        if purpose in OF_CHANGE:
            if data.get("both") and not data.get("half"):
                for one in self.challenges:
                    same = one.data.get("email_key") == data["email_key"]
                    if (one.user_id, one.purpose, same) == (user_id, OF_CHANGE[purpose], True):
                        one.data["half"] = True
                return Redeemed(purpose, account.user, data, half=True)
            if self._by_key(data["email_key"]) is not None:
                self.challenges.append(met)
                raise errors.email_taken()
            self._forget(user_id)
            account = _with(account, email=data["email"], is_anonymous=False, confirmed_at=event.at)
            self.accounts[user_id] = account
        elif takes_over(purpose, data, account.user):
            self._void(user_id, event.at)
            self._void_other_ways(user_id)
            account = self.accounts[user_id]
        keeps = auth_code is not None and "code_challenge" in data
        method: Method = "otp" if purpose == "magic_link" and answer.digest is None else ANSWERED[purpose][0]
        begun = None if session is None else evolve(session, method=method)
        if purpose != "reauthentication":
            account = _with(account, confirmed_at=account.confirmed_at or event.at)
        started = None if keeps else begun
        event = evolve(event, action=ANSWERED[purpose][1], user_id=user_id, email=account.user.email)
        user = self._enter(account, started, event)
        if keeps and auth_code is not None:
            code = NewChallenge("pkce", "pkce", auth_code.digest, event.at, auth_code.expires_at)
            self.challenges.append(Waiting(code, None, "pkce", {**data, "user": user_id, "method": method}))
        return Redeemed(purpose, user, data, started)

    def _enter(self, account: Account, session: NewSession | None, event: Event) -> User:
        if session is not None:
            account = _with(account, last_login_at=session.created_at)
            self._add(account.user.id, session)
        return self._changed(account, event).user

    async def change_email(self, user_id: str, email: Email, event: Event) -> Account | None:
        account = self.accounts.get(user_id)
        if account is None:
            return None
        if self._by_key(email.key) is not None:
            raise errors.email_taken()
        self._forget(user_id)
        return self._changed(
            _with(account, email=email.address, is_anonymous=False, confirmed_at=None), event
        )

    async def exchange(
        self, digest: bytes, challenges: tuple[str, ...], session: NewSession, event: Event
    ) -> Redeemed | None:
        for one in self.challenges:
            if (one.new.digest, one.purpose) == (digest, "pkce") and one.new.expires_at > event.at:
                if one.data["code_challenge"] not in challenges:
                    raise errors.bad_code_verifier()
                self.challenges.remove(one)
                account = self.accounts.get(one.data["user"])
                if account is None or account.disabled_at is not None:
                    return None
                started = evolve(session, method=one.data["method"])
                event = evolve(event, user_id=account.user.id, email=account.user.email)
                return Redeemed("pkce", self._enter(account, started, event), one.data, started)
        return None

    # Identities.

    def _identity_of(self, who: ByProvider) -> Identity | None:
        known = (one for one in self.identities if (one.provider, one.subject) == (who.provider, who.subject))
        return next(known, None)

    def _named(self, user_id: str) -> None:
        """Name the providers of a user's identities in ``app_metadata``, as a trigger does."""
        account = self.accounts[user_id]
        names = list(dict.fromkeys(one.provider for one in self._profile(account).identities))
        others = {
            name: value
            for name, value in account.user.app_metadata.items()
            if name not in ("provider", "providers")
        }
        named = {"provider": names[0], "providers": names} if names else {}
        self.accounts[user_id] = _with(account, app_metadata={**others, **named})

    def _add_identity(self, who: ByProvider, user_id: str, at: datetime) -> None:
        self.identities.append(
            Identity(str(uuid.uuid4()), user_id, who.provider, who.subject, dict(who.data), at, at, at)
        )
        self._named(user_id)

    async def enter(
        self, who: ByProvider, session: NewSession, auth_code: AuthCode | None, event: Event
    ) -> Redeemed | None:
        known, action = self._identity_of(who), "login_by_provider"
        account = None if known is None else self.accounts[known.user_id]
        if account is None and who.email is not None:
            account, action = self._by_key(who.email.key), "join_identity"
            if account is not None and not who.is_verified:
                raise errors.address_taken()
        if account is None:
            if who.new_id is None:
                return None
            account = await self.create_user(
                email=who.email,
                password_hash=None,
                metadata=who.metadata,
                confirmed=who.email is not None and who.is_verified,
                session=None,
                event=evolve(event, action="signup_by_provider"),
                user_id=who.new_id,
                app_metadata={},
            )
            assert account is not None
            action = "login_by_provider"
            if who.email is not None:
                self.of_providers.add(account.user.id)
        user_id = account.user.id
        if account.disabled_at is not None:
            raise errors.user_disabled()
        if known is not None:
            self.identities.remove(known)
            kept = evolve(known, data=dict(who.data), last_sign_in_at=event.at, updated_at=event.at)
            self.identities.append(kept)
        proven = who.is_verified and who.email is not None and who.email.key == email_of(account.user).key
        if proven and account.confirmed_at is None:
            self._take_over(user_id, who, event.at)
        if known is None:
            self._add_identity(who, user_id, event.at)
        account = self.accounts[user_id]
        if who.confirm and account.user.email and account.user.awaits_confirmation:
            return Redeemed("oauth", account.user, {})
        return self._let_in(user_id, session, auth_code, evolve(event, action=action))

    async def all_identities(self) -> list[Identity]:
        found = [one for account in self.accounts.values() for one in self._profile(account).identities]
        return sorted(found, key=lambda one: (one.created_at, one.provider))

    def _take_over(self, user_id: str, who: ByProvider, at: datetime) -> None:
        self._void(user_id, at)
        self._drop(self._factors_of(user_id))
        self.recovery_codes.pop(user_id, None)
        self.keys = {key: one for key, one in self.keys.items() if one.user_id != user_id}
        self.accounts[user_id] = _with(self.accounts[user_id], confirmed_at=at, updated_at=at)
        self.identities = [
            one
            for one in self.identities
            if one.user_id != user_id or (one.provider, one.subject) == (who.provider, who.subject)
        ]
        self._named(user_id)

    def _let_in(
        self, user_id: str, session: NewSession, auth_code: AuthCode | None, event: Event
    ) -> Redeemed:
        account = self.accounts[user_id]
        started = evolve(session, method="oauth") if auth_code is None else None
        user = self._enter(account, started, evolve(event, user_id=user_id, email=account.user.email))
        if auth_code is not None:
            code = NewChallenge("pkce", "pkce", auth_code.digest, event.at, auth_code.expires_at)
            data = {"user": user_id, "method": "oauth", **auth_code.data}
            self.challenges.append(Waiting(code, None, "pkce", data))
        return Redeemed("oauth", user, {}, started)

    async def link(
        self, who: ByProvider, proof: Proof, session: NewSession, auth_code: AuthCode | None, event: Event
    ) -> Redeemed:
        account = self.accounts.get(event.user_id or "")
        began = self.session_rows.get(proof.session_id)
        if account is None or account.disabled_at or began is None or began.ended:
            raise session_revoked()
        if began.user_id != account.user.id:
            raise session_revoked()
        if self._identity_of(who) is not None:
            raise errors.identity_taken()
        brings = who.email if who.is_verified and not account.user.email else None
        if brings is not None and self._by_key(brings.key) is not None:
            raise errors.address_taken()
        account = _with(account, is_anonymous=False)
        if brings is not None:
            account = _with(account, email=brings.address, confirmed_at=event.at)
        self.accounts[account.user.id] = account
        self._add_identity(who, account.user.id, event.at)
        return self._let_in(account.user.id, session, auth_code, event)

    async def unlink(self, user_id: str, identity_id: str, event: Event) -> None:
        known = {one.id: one.provider for one in self._profile(self.accounts[user_id]).identities}
        if identity_id not in known:
            raise errors.identity_not_found()
        if len(known) == 1:
            raise errors.last_identity()
        if known[identity_id] == "email":
            raise errors.address_identity()
        self.identities = [one for one in self.identities if one.id != identity_id]
        self._named(user_id)
        self.events.append(event)

    def _use_up(self, answer: Answer, now: datetime) -> Waiting | None:
        asked = [one for one in self.challenges if one.is_for(answer, now)]
        met = [one for one in asked if answer.digest or one.new.code_hash in answer.code_hashes]
        if met:
            first = min(met, key=lambda one: answer.purposes.index(one.purpose))
            self.challenges.remove(first)
            return first
        for one in asked:
            one.tries += 1
        return None

    # Further factors.

    def _factors_of(self, user_id: str) -> list[Factor]:
        return [one for one in self.factors.values() if one.user_id == user_id]

    def _own_factor(self, user_id: str, factor_id: str) -> Factor | None:
        factor = self.factors.get(factor_id)
        return factor if factor is not None and factor.user_id == user_id else None

    def _void(self, user_id: str, at: datetime) -> None:
        """End the password, the sessions and all that waits for an answer."""
        self.accounts[user_id] = evolve(self.accounts[user_id], password_hash=b"")
        self._end_all(user_id, at)
        self._forget(user_id)

    def _void_other_ways(self, user_id: str) -> None:
        """End passkeys and accounts with providers."""
        self.keys = {key: one for key, one in self.keys.items() if one.user_id != user_id}
        self.identities = [one for one in self.identities if one.user_id != user_id]
        self.of_providers.discard(user_id)
        self._named(user_id)

    def _drop(self, factors: list[Factor]) -> None:
        for factor in factors:
            del self.factors[factor.id]
            self.totp.pop(factor.id, None)
            self.factor_keys.pop(factor.id, None)
            for session in self.session_rows.values():
                if session.factor_id == factor.id:
                    session.factor_id = None
                    session.new = evolve(session.new, factor=None, factor_at=None)
            if not any(one.is_verified for one in self._factors_of(factor.user_id)):
                self.recovery_codes.pop(factor.user_id, None)

    def _active(self, user_id: str) -> Account:
        account = self.accounts.get(user_id)
        if account is None or account.disabled_at is not None:
            raise session_revoked()
        return account

    async def enrol_factor(
        self, factor: Factor, secret: bytes | None, stale: datetime, maximum: int, event: Event
    ) -> None:
        self._active(factor.user_id)
        own = self._factors_of(factor.user_id)
        self._drop([one for one in own if not one.is_verified and one.created_at <= stale])
        own = self._factors_of(factor.user_id)
        if any(one.name == factor.name for one in own):
            raise errors.factor_name_taken()
        if len(own) >= maximum:
            raise errors.too_many_factors()
        self.factors[factor.id] = factor
        if secret is not None:
            self.totp[factor.id] = secret, -1
        self.events.append(event)

    async def find_factor(self, user_id: str, factor_id: str) -> OwnFactor | None:
        factor = self._own_factor(user_id, factor_id)
        if factor is None:
            return None
        secret = self.totp[factor_id][0] if factor_id in self.totp else None
        return OwnFactor(factor.type, factor.is_verified, secret, self.factor_keys.get(factor_id))

    async def challenge_factor(
        self,
        user_id: str,
        session_id: str,
        factor_id: str,
        digest: bytes,
        at: datetime,
        expires_at: datetime,
        data: Mapping[str, Any] = {},
    ) -> FactorType | None:
        factor = self._own_factor(user_id, factor_id)
        if factor is None:
            return None
        kept = {**data, "factor": factor_id, "session": session_id}
        await self.keep_challenge("factor", digest, at, expires_at, kept)
        return factor.type

    async def prove_factor(self, proof: FactorProof, renewed: NewSession, event: Event) -> Raised:
        account = self._active(proof.user_id)
        of_it = {"factor": proof.factor_id, "session": proof.session_id}.items()
        met = [
            one
            for one in self.challenges
            if (one.new.digest, one.purpose) == (proof.challenge, "factor")
            and of_it <= one.data.items()
            and one.new.expires_at > event.at
        ]
        if not met:
            raise errors.factor_challenge_expired()
        self._check_proof(proof)
        factor = self._own_factor(proof.user_id, proof.factor_id)
        if factor is None:
            raise errors.factor_not_found()
        session = self.session_rows.get(proof.session_id)
        is_current = session is not None and session.user_id == proof.user_id and not session.ended
        if session is None or not is_current or session.expires_at <= event.at:
            raise session_revoked()
        self.challenges.remove(met[0])
        if proof.step is not None:
            self.totp[factor.id] = self.totp[factor.id][0], proof.step
        if proof.recovery is not None:
            self.recovery_codes[proof.user_id].remove(proof.recovery)
        if proof.credential is not None:
            self.factor_keys[factor.id] = proof.credential
        self.factors[factor.id] = evolve(factor, is_verified=True, updated_at=event.at)
        self._raise(session, proof, renewed, event.at)
        lesser = [
            one for one in self._factors_of(proof.user_id) if not one.is_verified and one.type == factor.type
        ]
        self._drop(lesser)
        ended = [
            self._end_one(one, event.at)
            for one in self.session_rows.values()
            if one.user_id == proof.user_id and not one.ended and one.new.factor is None
        ]
        self.events.append(event)
        return Raised(account.user, session.new.began, ended)

    def _check_proof(self, proof: FactorProof) -> None:
        if proof.credential is not None:
            known = self.factor_keys.get(proof.factor_id)
            if known is None and self._is_known(proof.credential.id):
                raise errors.passkey_taken()
            if known is not None and not _goes_up(known, proof.credential):
                raise errors.passkey_verification_failed()
            return
        factor, secret = self.factors.get(proof.factor_id), self.totp.get(proof.factor_id)
        if proof.recovery is None:
            is_right = secret is not None and proof.step is not None and secret[1] < proof.step
        else:
            kept = self.recovery_codes.get(proof.user_id, set())
            is_right = factor is not None and factor.is_verified and proof.recovery in kept
        if not is_right:
            raise errors.factor_verification_failed()

    def _is_known(self, credential_id: bytes) -> bool:
        keys = [*self.factor_keys.values(), *(one.credential for one in self.keys.values())]
        return any(one.id == credential_id for one in keys)

    def _raise(self, session: SessionRow, proof: FactorProof, renewed: NewSession, at: datetime) -> None:
        session.new = evolve(session.new, factor=proof.method, factor_at=at)
        session.factor_id = proof.factor_id
        session.previous, session.current, session.salt = session.current, renewed.digest, b""
        session.rotated_at = session.refreshed_at = at
        session.expires_at, session.address = renewed.expires_at, renewed.origin.address
        session.access_expires_at = max(session.access_expires_at, renewed.access_expires_at)
        self.by_digest[renewed.digest] = session.id
        self.issued[renewed.digest] = at

    async def delete_factors(self, user_id: str, event: Event, factor_id: str | None = None) -> int:
        gone = [one for one in self._factors_of(user_id) if factor_id in (None, one.id)]
        self._drop(gone)
        if gone:
            self.events.append(event)
        return len(gone)

    async def replace_recovery_codes(self, user_id: str, digests: list[bytes], event: Event) -> None:
        self._active(user_id)
        self.recovery_codes[user_id] = set(digests)
        self.events.append(event)

    async def needs_factor(self, user_id: str, session_id: str) -> bool:
        session = self.session_rows.get(session_id)
        is_shown = session is not None and not session.ended and session.new.factor is not None
        return not is_shown and any(one.is_verified for one in self._factors_of(user_id))

    async def all_factors(self) -> list[Factor]:
        return sorted(self.factors.values(), key=lambda one: (one.created_at, one.id))

    # Passkeys.

    async def passkeys(self, user_id: str) -> list[Passkey]:
        own = [one for one in self.keys.values() if one.user_id == user_id]
        return sorted(own, key=lambda one: (one.created_at, one.id))

    async def find_passkey(self, credential_id: bytes) -> Passkey | None:
        return next((one for one in self.keys.values() if one.credential.id == credential_id), None)

    async def add_passkey(self, passkey: Passkey, maximum: int, event: Event) -> None:
        self._active(passkey.user_id)
        if len(await self.passkeys(passkey.user_id)) >= maximum:
            raise errors.too_many_passkeys()
        if self._is_known(passkey.credential.id):
            raise errors.passkey_taken()
        self.keys[passkey.id] = passkey
        self.events.append(event)

    async def rename_passkey(self, user_id: str, passkey_id: str, name: str, event: Event) -> Passkey | None:
        passkey = self.keys.get(passkey_id)
        if passkey is None or passkey.user_id != user_id:
            return None
        self.keys[passkey_id] = evolve(passkey, name=name)
        self.events.append(event)
        return self.keys[passkey_id]

    async def delete_passkey(self, user_id: str, passkey_id: str, event: Event) -> bool:
        passkey = self.keys.get(passkey_id)
        if passkey is None or passkey.user_id != user_id:
            return False
        del self.keys[passkey_id]
        self.events.append(event)
        return True

    async def begin_by_passkey(self, passkey: Passkey, session: NewSession, event: Event) -> User | None:
        account = self.accounts.get(passkey.user_id)
        if account is None or account.disabled_at is not None:
            return None
        known = self.keys.get(passkey.id)
        if known is None or known.user_id != passkey.user_id:
            raise errors.passkey_verification_failed()
        if not _goes_up(known.credential, passkey.credential):
            raise errors.passkey_verification_failed()
        counted = evolve(known.credential, sign_count=passkey.credential.sign_count)
        self.keys[passkey.id] = evolve(known, credential=counted, last_used_at=event.at)
        event = evolve(event, user_id=account.user.id, email=account.user.email)
        return self._enter(account, session, event)

    async def keep_challenge(
        self, purpose: Purpose, digest: bytes, at: datetime, expires_at: datetime, data: Mapping[str, Any]
    ) -> None:
        challenge = NewChallenge(purpose, purpose, digest, at, expires_at)
        self.challenges.append(Waiting(challenge, None, purpose, dict(data)))

    async def take_challenge(
        self, purpose: Purpose, digest: bytes, now: datetime, browser: str = ""
    ) -> Mapping[str, Any] | None:
        for one in self.challenges:
            is_it = (one.purpose, one.new.digest) == (purpose, digest) and one.new.expires_at > now
            if is_it and one.data.get("browser", "") == browser:
                self.challenges.remove(one)
                return one.data
        return None

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
        self.challenges = [one for one in self.challenges if one.new.expires_at >= now]
        for account in list(self.accounts.values()):
            if account.disabled_until is not None and account.disabled_until < now:
                self.accounts[account.user.id] = evolve(account, disabled_at=None, disabled_until=None)
        self.ended = {key: ended for key, ended in self.ended.items() if ended[0] >= now.timestamp()}
        self.events = [event for event in self.events if event.at >= audit_before]
        return True

    async def unused_anonymous_users(self, before: datetime) -> list[str]:
        recent = {
            one.user_id for one in self.session_rows.values() if not one.ended and one.refreshed_at >= before
        }
        return [
            key
            for key, one in self.accounts.items()
            if one.user.is_anonymous
            and (one.user.last_login_at or one.user.created_at) < before
            and key not in recent
        ]


def in_place_of_sql(fake: MemoryRepository) -> Repository:
    """The fake for who takes the SQL class. ``tests/unit/service/test_fakes.py`` sees to it that both have the same
    methods, which is why mypy may be told so."""
    return cast(Repository, fake)


def lookups_of(repository: MemoryRepository) -> Lookups:
    return cast(Lookups, MemoryLookups(repository))


class InlineHashes:
    """``Hashes`` without threads. ``checks`` counts the checks, ``work`` them and the hashes; ``failure`` is raised,
    and ``gate`` waited for, if set."""

    def __init__(self, cost: int = 4) -> None:
        self.bcrypt = Bcrypt(cost)
        self.checks: list[tuple[Candidates, bytes | None]] = []
        self.work = 0
        self.failure: Exception | None = None
        self.gate: Deferred[None] | None = None

    async def hash(self, password: bytes) -> bytes:
        if self.failure is not None:
            raise self.failure
        if self.gate is not None:
            await self.gate
        self.work += 1
        return self.bcrypt.hash(password)

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        if self.failure is not None:
            raise self.failure
        self.checks.append((passwords, stored))
        self.work += 1
        if self.gate is not None:
            await self.gate
        return self.bcrypt.matches(passwords, stored)

    def outdated(self, stored: bytes) -> bool:
        return self.bcrypt.outdated(stored)


class MemoryLookups:
    """What a ``MemoryRepository`` has, as ``Lookups`` finds it; and entries of the audit."""

    def __init__(self, repository: MemoryRepository) -> None:
        self.repository = repository

    def _users(self, wanted: UserFilter) -> Iterator[Account]:
        for account in self.repository.accounts.values():
            user = account.user
            waits = user.confirmed_at is None and user.email != ""
            if (
                wanted.disabled in (None, account.disabled_at is not None)
                and wanted.anonymous in (None, user.is_anonymous)
                and {None: True, True: user.confirmed_at is not None, False: waits}[wanted.email_confirmed]
            ):
                yield account

    async def users(
        self,
        wanted: UserFilter,
        after: tuple[datetime, str] | None,
        limit: int,
        *,
        newest_first: bool = False,
    ) -> list[Account]:
        def place(account: Account) -> tuple[datetime, str]:
            return account.user.created_at, account.user.id

        ordered = sorted(self._users(wanted), key=place, reverse=newest_first)
        if after is not None:
            ordered = [one for one in ordered if (place(one) < after if newest_first else place(one) > after)]
        return ordered[:limit]

    async def users_by_address(self, wanted: UserFilter, after: str, limit: int) -> list[Account]:
        found = {folded(one.user.email): one for one in self._users(wanted) if one.user.email}
        keys = sorted(key for key in found if wanted.email in key and key > after)
        return [found[key] for key in keys[:limit]]

    async def entries(
        self, wanted: EntryFilter, before: tuple[datetime, int] | None, limit: int
    ) -> list[Entry]:
        entries = [
            Entry(
                number,
                one.at,
                one.actor,
                None,
                one.user_id,
                one.email,
                one.subject,
                one.action,
                one.result,
                one.origin.address,
                one.origin.user_agent,
                one.origin.request_id,
            )
            for number, one in enumerate(self.repository.events, start=1)
            if wanted.user_id in (None, one.user_id)
            and wanted.action in (None, one.action)
            and (wanted.subject is None or wanted.subject == one.subject != "")
        ]
        entries.sort(key=lambda one: (one.at, one.id), reverse=True)
        return [one for one in entries if before is None or (one.at, one.id) < before][:limit]


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
