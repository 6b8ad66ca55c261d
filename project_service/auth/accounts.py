"""Sign-up and login."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import orjson
from attrs import evolve, frozen

from project_service.auth import context, errors, mail, passwords
from project_service.auth.context import Context
from project_service.auth.limits import Attempt, Throttle
from project_service.auth.passwords import Candidates, Hashes
from project_service.auth.repository import Event, NewSession, OneTimeTokens, Proof, Purpose, Sessions, Users
from project_service.auth.values import Account, Email, IssuedSession, Origin, User, email_of
from project_service.errors import (
    ApiError,
    refuse_unknown,
    require_text,
    require_texts,
    session_revoked,
    validation_failed,
)
from project_service.http.caller import Claims
from project_service.lifecycle import shield

# What is done by mail: setting a new password and confirming an address.
#
# No GET uses up a token, because mail programs and virus scanners follow links.


LIFETIME = timedelta(hours=1)
# An address gets at most one letter in this time. Whoever asks more often gets the same response.
PAUSE = timedelta(minutes=1)


@frozen
class Letters:
    """Mails one-time tokens. ``post`` is None if no mail server is configured."""

    tokens: OneTimeTokens
    post: mail.Post | None
    throttle: Throttle
    context: Context

    def require(self) -> mail.Post:
        """The post. Raises ``email_not_configured`` if there is none."""
        if self.post is None:
            raise errors.email_not_configured()
        return self.post

    async def requested(self, email: object, purpose: Purpose, origin: Origin) -> None:
        """As ``send``, for anybody who asks, and therefore limited by client address. Raises ``rate_limited`` and
        ``validation_failed`` too."""
        self.require()
        address = Email.parse(email)
        attempt = await self.throttle.reserve_by_address("mail", origin, self.context.per_address())
        await attempt.settle("failed")
        await self.send(address, purpose, origin)

    async def send(self, email: Email, purpose: Purpose, origin: Origin) -> None:
        """Mail a token to ``email`` if there is a user of that address who may have one. The caller cannot tell: the
        letter is sent after the response, so that this takes the same time either way. Raises
        ``email_not_configured``.
        """
        post = self.require()
        token, now = context.fresh(self.context.randomness), self.context.now()
        user = await self.tokens.issue(
            email=email,
            purpose=purpose,
            digest=token.digest,
            pause=PAUSE,
            expires_at=now + LIFETIME,
            event=Event(now, f"mail_{purpose}", email=email.address, origin=origin),
        )
        if user is None:
            return
        settings = self.context.settings
        url = settings.recover_url if purpose == "recovery" else settings.verify_url
        hours = int(LIFETIME.total_seconds()) // 3600
        post.post(lambda: mail.compose(purpose, user.email, token.text, url, hours))


@frozen
class Recovery:
    letters: Letters
    tokens: OneTimeTokens
    hashes: Hashes
    context: Context

    async def recover(self, email: object, origin: Origin) -> None:
        """Mail a token for a new password. Raises what ``Letters.requested`` raises."""
        await self.letters.requested(email, "recovery", origin)

    async def resend(self, email: object, origin: Origin) -> None:
        """Mail another token for the confirmation of an address. Raises what ``Letters.requested`` raises."""
        await self.letters.requested(email, "confirmation", origin)

    async def reset(self, token: object, password: object, origin: Origin) -> None:
        """Set a new password and end all sessions.

        Raises ``invalid_one_time_token``, and ``weak_password``, after which the token can still be used.
        """
        require_texts({"token": token, "password": password})
        digest = _digest(token)
        owner = await self.tokens.owner(digest, "recovery", self.context.now())
        if owner is None:
            raise errors.invalid_one_time_token()
        minimum = self.context.settings.password_min_bytes
        raw = passwords.acceptable(password, email_of(owner), minimum)
        hashed = await self.hashes.hash(raw)
        event = Event(self.context.now(), "reset_password", origin=origin)
        if await self.tokens.reset_password(digest, hashed, event) is None:
            raise errors.invalid_one_time_token()

    async def verify(self, token: object, origin: Origin) -> IssuedSession:
        """Confirm an address and log its owner in. Raises ``invalid_one_time_token``."""
        session, refresh = self.context.new_session(origin)
        event = Event(session.created_at, "confirm_email", origin=origin)
        user = await self.tokens.confirm(_digest(token), session, event)
        if user is None:
            raise errors.invalid_one_time_token()
        return self.context.issued(user, session.id, refresh, session.created_at)


def _digest(token: object) -> bytes:
    # A token that is copied from a letter may have white space around it.
    digest = context.digest(require_text("token", token).strip())
    if digest is None:
        raise errors.invalid_one_time_token()
    return digest


# Checks what a user's metadata may contain.


MAX_BYTES = 16 * 1024


def checked(value: object) -> dict[str, Any]:
    """The metadata, an object of at most ``MAX_BYTES`` as JSON that PostgreSQL can store; None means an empty one.
    Raises ``validation_failed``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise validation_failed({"metadata": "must be an object"})
    if not all(_survives(number) for number in _numbers(value)):
        raise validation_failed({"metadata": "must not contain a number beyond 64 bits"})
    text = orjson.dumps(value)
    if len(text) > MAX_BYTES:
        raise validation_failed({"metadata": f"must be at most {MAX_BYTES} bytes as JSON"})
    # After an escaped backslash these six characters are ordinary text.
    if rb"\u0000" in text.replace(rb"\\", b""):
        raise validation_failed({"metadata": "must not contain NUL"})
    return value


def loaded(text: str) -> dict[str, Any]:
    """The metadata in the database, as something that can be sent. If it was written by SQL it may contain any
    number: an integer beyond 64 bits becomes the nearest float, and one beyond all floats infinity, which is sent as
    null.
    """
    value: dict[str, Any]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        # It has a number beyond all floats. The standard library can read it, but is too slow for all users'
        # metadata.
        value = json.loads(text, parse_int=_integer)
    return value


def _integer(digits: str) -> int | float:
    # Python refuses to convert very long texts to integers.
    number = int(digits) if len(digits) <= 20 else float(digits)
    return number if _fits(number) else float(number)


def _fits(number: float) -> bool:
    """Whether orjson can write it as an integer: it takes 64 bits, signed or unsigned."""
    return -(2**63) <= number < 2**64


def _survives(number: float) -> bool:
    """Whether the number can be read back. PostgreSQL stores decimals, and returns a large float as an integer with
    all its digits."""
    if isinstance(number, int):
        return _fits(number)
    return math.isfinite(number) and (abs(number) < 2**63 or not number.is_integer())


def _numbers(value: object) -> list[float]:
    """All numbers in the value, at any depth."""
    found: list[float] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
        elif isinstance(item, int | float):
            found.append(item)
    return found


T = TypeVar("T")


@frozen
class Accounts:
    users: Users
    sessions: Sessions
    throttle: Throttle
    hashes: Hashes
    letters: Letters
    context: Context

    async def sign_up(
        self, email: object, password: object, metadata: object, origin: Origin
    ) -> IssuedSession | User:
        """Create a user. Returns his first session, or only the user if his address has to be confirmed first.

        Raises ``signup_disabled``, ``validation_failed``, ``weak_password``, ``email_taken``, ``rate_limited``,
        ``overloaded`` and, if addresses have to be confirmed but there is no mail server, ``email_not_configured``.
        """
        settings = self.context.settings
        if not settings.allow_signup:
            raise errors.signup_disabled()
        require_texts({"email": email, "password": password})
        address = Email.parse_new(email)
        raw = passwords.acceptable(password, address, settings.password_min_bytes)
        if settings.confirm_email:
            self.letters.require()
        return await shield(self._sign_up(address, raw, checked(metadata), origin))

    async def _sign_up(
        self, email: Email, password: bytes, metadata: Mapping[str, Any], origin: Origin
    ) -> IssuedSession | User:
        attempt = await self.throttle.reserve_by_address("signup", origin, self.context.signups())
        hashed = await attempt.during(self.hashes.hash(password))
        confirm = self.context.settings.confirm_email
        session, refresh = self.context.new_session(origin)
        event = Event(session.created_at, "signup", email=email.address, origin=origin)
        account = await self.users.create(
            email=email,
            password_hash=hashed,
            metadata=metadata,
            confirmed=False,
            session=None if confirm else session,
            event=event,
        )
        # An attempt with a taken address counts too, because it tells who has an account.
        await attempt.settle("failed")
        if account is None:
            raise errors.email_taken()
        if confirm:
            await self.letters.send(email, "confirmation", origin)
            return account.user
        return self.context.issued(account.user, session.id, refresh, session.created_at)

    async def log_in(self, email: object, password: object, origin: Origin) -> IssuedSession:
        """Start a new session of an existing user.

        Raises ``invalid_credentials`` for an unknown email as for a wrong password, after the same time;
        ``user_disabled`` and ``email_not_confirmed``, but only to those who know the password; ``rate_limited``,
        ``overloaded`` and ``validation_failed``.
        """
        require_texts({"email": email, "password": password})
        address = Email.parse(email)
        candidates = passwords.candidates(password)
        # Shielded, so that an attempt is counted even if the client hangs up.
        return await shield(self._log_in(address, candidates, origin))

    async def _log_in(self, email: Email, password: Candidates, origin: Origin) -> IssuedSession:
        attempt = await self.throttle.reserve_login(email, origin)
        failure = self._event("login", email, attempt.account, origin, "invalid_credentials")
        account = await self.check_password(password, attempt.account, attempt, failure)
        refusal = self._refusal(account)
        if refusal is not None:
            await attempt.settle("released", self._event("login", email, account, origin, refusal.code))
            raise refusal
        session, refresh = self.context.new_session(origin)
        event = self._event("login", email, account, origin)
        user = await attempt.during(self._begun(account, password, session, event))
        await attempt.settle("cleared" if user is not None else "released")
        if user is None:
            raise errors.invalid_credentials()
        return self.context.issued(user, session.id, refresh, session.created_at)

    async def _begun(
        self, account: Account, password: Candidates, session: NewSession, event: Event
    ) -> User | None:
        """Start the session, with the password hashed again if its hash is outdated. None as ``with_password``."""

        async def start(known: Account) -> User | None:
            new_hash = None
            if self.hashes.outdated(known.password_hash):
                new_hash = await self.hashes.hash(password[0])
            return await self.sessions.start(known, new_hash, session, event)

        return await self.with_password(password, account, start)

    async def with_password(
        self, password: Candidates, account: Account, change: Callable[[Account], Awaitable[T]]
    ) -> T | None:
        """What ``change`` returns. It is given the account as it was when ``password`` was checked, and has to return
        nothing if the hash has changed since, or the user was disabled or deleted.

        It is called once more if only the hash is new: another login may have replaced an outdated one.
        """
        made = await change(account)
        if made:
            return made
        again = await self.users.find(account.user.id)
        if again is None or not await self.hashes.matches(password, again.password_hash):
            return None
        return await change(again)

    async def check_password(
        self, password: Candidates, account: Account | None, attempt: Attempt, failure: Event
    ) -> Account:
        """The account, if the password is right; the caller has to settle the attempt. Otherwise it is settled as
        ``failure``, and ``invalid_credentials`` is raised. Raises ``overloaded`` too."""
        stored = account.password_hash if account else None
        right = await attempt.during(self.hashes.matches(password, stored))
        if account is None or not right:
            await attempt.settle("failed", failure)
            raise errors.invalid_credentials()
        return account

    def _refusal(self, account: Account) -> ApiError | None:
        if account.disabled_at is not None:
            return errors.user_disabled()
        # Users who have logged in before ``confirm_email`` was switched on are not locked out by it.
        unconfirmed = account.confirmed_at is None and account.last_login_at is None
        if self.context.settings.confirm_email and unconfirmed:
            return errors.email_not_confirmed()
        return None

    def _event(
        self, action: str, email: Email, account: Account | None, origin: Origin, result: str = "ok"
    ) -> Event:
        return Event(
            at=self.context.now(),
            action=action,
            result=result,
            user_id=account.user.id if account else None,
            email=email.address,
            origin=origin,
        )


# What a signed-in user may do with his own account.


CHANGEABLE = ("password", "current_password", "metadata")


@frozen
class Profile:
    users: Users
    accounts: Accounts
    hashes: Hashes
    context: Context

    async def read(self, caller: Claims) -> User:
        """Raises ``session_revoked`` if the user has been deleted or disabled, of which this worker may not have
        heard yet."""
        return (await self._account(caller)).user

    async def change(self, caller: Claims, wanted: Mapping[str, Any], origin: Origin) -> User:
        """Set ``metadata``, or ``password``, or both. A password needs ``current_password``, and ends the other
        sessions.

        Raises ``validation_failed``, ``weak_password``, ``invalid_credentials`` and ``rate_limited``.
        """
        refuse_unknown(wanted, CHANGEABLE, "cannot be changed here")
        # Shielded, so that of two changes not only one is made if the client hangs up.
        return (await shield(self._change(caller, wanted, origin))).user

    async def _change(self, caller: Claims, wanted: Mapping[str, Any], origin: Origin) -> Account:
        account = await self._account(caller)
        metadata = checked(wanted["metadata"]) if "metadata" in wanted else None
        if "password" in wanted:
            email = email_of(account.user)
            raw = passwords.acceptable(wanted["password"], email, self.context.settings.password_min_bytes)
            account = await self._set_password(caller, account, wanted.get("current_password"), raw, origin)
        elif "current_password" in wanted:
            raise validation_failed({"current_password": "goes with a new password"})
        if metadata is not None:
            account = self._there(
                await self.users.set_metadata(
                    caller.sub, metadata, self.context.done_by("set_metadata", caller, origin)
                )
            )
        return account

    async def _set_password(
        self, caller: Claims, account: Account, current: object, new: bytes, origin: Origin
    ) -> Account:
        async def change(proof: Proof) -> Account | None:
            hashed = await self.hashes.hash(new)
            event = self.context.done_by("set_password", caller, origin)
            return await self.users.set_password(caller.sub, hashed, proof, event)

        return self._there(await self._proven(caller, account, current, "set_password", origin, change))

    async def delete(self, caller: Claims, current: object, origin: Origin) -> None:
        """Delete the account and all its sessions.

        Raises ``invalid_credentials``, ``rate_limited`` and ``user_in_use``.
        """
        account = await self._account(caller)

        async def change(proof: Proof) -> bool:
            event = self.context.done_by("delete_user", caller, origin)
            return await self.users.delete(caller.sub, event, proof)

        await shield(self._proven(caller, account, current, "delete_user", origin, change))

    async def _proven(
        self,
        caller: Claims,
        account: Account,
        current: object,
        action: str,
        origin: Origin,
        change: Callable[[Proof], Awaitable[T]],
    ) -> T:
        """What ``change`` returns, once the caller has proven that he knows his password ``current``. Failures are
        limited as those of a login are, because a stolen access token must not be enough.

        ``change`` is made on condition of a proof, because the password may be changed while it is being checked, and
        then the old one must not be enough either. If ``change`` returns nothing, this raises ``session_revoked`` if
        the user is deleted or disabled, otherwise ``invalid_credentials``.
        """
        candidates = passwords.candidates(current, "current_password")
        attempt = await self.accounts.throttle.reserve_by_session(caller.sid)
        failure = evolve(self.context.done_by(action, caller, origin), result="invalid_credentials")
        await self.accounts.check_password(candidates, account, attempt, failure)
        await attempt.settle("cleared")
        made = await self.accounts.with_password(
            candidates, account, lambda known: change(Proof(known.password_hash, caller.sid))
        )
        if not made:
            await self._account(caller)
            raise errors.invalid_credentials()
        return made

    async def _account(self, caller: Claims) -> Account:
        return self._there(await self.users.find(caller.sub))

    @staticmethod
    def _there(account: Account | None) -> Account:
        if account is None or account.disabled_at is not None:
            raise session_revoked()
        return account
