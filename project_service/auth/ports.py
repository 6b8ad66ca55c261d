"""What accounts need of a store of users: implemented by ``sql``, and by a verified fake in the tests.

Every method takes the time it is to count with, so that limits and lifetimes can be tested on a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from attrs import field, frozen

from project_service.auth.model import Account, Email, Origin, SessionInfo, User

Actor = Literal["anonymous", "user", "service", "operator"]
Verdict = Literal["free", "busy", "refused"]
Outcome = Literal["failed", "released", "cleared"]
Purpose = Literal["recovery", "confirmation"]


@frozen
class Event:
    """A line of the audit: who did what to whom, from where, with what result ("ok" or an error's code)."""

    at: datetime
    action: str
    result: str = "ok"
    actor: Actor = "anonymous"
    user_id: str | None = None
    email: str | None = None
    origin: Origin = field(factory=Origin)


@frozen
class NewSession:
    """A session to be stored. ``digest`` is its first refresh token's."""

    id: str
    digest: bytes = field(repr=False)
    created_at: datetime
    expires_at: datetime
    access_expires_at: datetime
    origin: Origin = field(factory=Origin)


@frozen
class Limit:
    """At most ``most`` failures in ``window``; 0 is no limit."""

    most: int
    window: timedelta


@frozen
class Reservation:
    """The answer to an attempt: reserved under ``mark`` where ``verdict`` is "free"."""

    verdict: Verdict
    wait_seconds: float = 0.0
    mark: datetime | None = None


@frozen
class LoginReservation:
    """Both counters of a login, and the account that goes with the email."""

    verdict: Verdict
    wait_seconds: float = 0.0
    mark: datetime | None = None
    address_mark: datetime | None = None
    account: Account | None = None


@frozen
class Rotation:
    """What became of a refresh token.

    ``rotated``: the successor is active. ``repeated``: it was replaced a moment ago, and ``salts``, by the digests
    of the tokens that they go with, lead to the active one. ``stolen``: a late reuse, and the session has been ended.
    """

    outcome: Literal["rotated", "repeated", "stolen"]
    session_id: str
    user: User
    salts: Mapping[bytes, bytes] = field(factory=dict, repr=False)


class Attempts(Protocol):
    async def reserve(self, scope: str, subject: str, limit: Limit, now: datetime) -> Reservation: ...

    async def settle(self, scope: str, subject: str, mark: datetime | None, outcome: Outcome) -> None: ...

    async def reserve_login(
        self, email: Email, address: str, per_email: Limit, per_address: Limit, now: datetime
    ) -> LoginReservation: ...

    async def settle_login(
        self, email: Email, address: str, held: LoginReservation, outcome: Outcome, event: Event | None
    ) -> None:
        """The account's counter takes ``outcome``; the address's is cleared of no failure but this one."""


@frozen
class Proof:
    """On what a user may change his account: the hash of the password that he knew, and the session he is in."""

    password_hash: bytes = field(repr=False)
    session_id: str


class Users(Protocol):
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
        """The new account, with ``session`` as its first; None where the email is taken."""

    async def find(self, user_id: str) -> Account | None: ...

    async def find_by_email(self, email: Email) -> Account | None: ...

    async def page(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]: ...

    async def set_metadata(
        self, user_id: str, metadata: Mapping[str, Any], event: Event
    ) -> Account | None: ...

    async def set_password(
        self, user_id: str, password_hash: bytes, proof: Proof | None, event: Event
    ) -> Account | None:
        """Ends every session but the ``proof``'s.

        With a proof that does not hold any more nothing is changed: while he was at it the password was changed, the
        user disabled or the session ended.
        """

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        """Disabling ends every session."""

    async def delete(self, user_id: str, event: Event, proof: Proof | None = None) -> bool:
        """``proof`` as of ``set_password``. Raises ``user_in_use`` where a table of the project's keeps him."""


class Sessions(Protocol):
    async def start(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        """Store a session after a login; None where the account was disabled or changed meanwhile."""

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
        """One message; None for a token that is unknown, expired or of an ended session."""

    async def alive(self, user_id: str, now: datetime) -> list[SessionInfo]: ...

    async def end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        """End sessions of a user: all, ``only`` one or all ``but`` one.

        Returned are their ids with the Unix time their access tokens end; the reason is the event's action.
        """

    async def revoked(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        """Ended sessions whose access tokens may still be valid: all, or those that ended after ``since``."""


class OneTimeTokens(Protocol):
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
        """A token for the user of ``email``, replacing his older one; None where there is nobody to mail to.

        That is: no such user, a disabled one, a confirmed one (for confirmation), one whose token is younger
        than ``pause``.
        """

    async def owner(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None: ...

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        """Consume a recovery token: the password is set and every session ended. None: not valid any more."""

    async def confirm(self, digest: bytes, session: NewSession, event: Event) -> User | None:
        """Consume a confirmation token: the address is confirmed and ``session`` begins."""


class Housekeeping(Protocol):
    async def clean(
        self, now: datetime, salt_before: datetime, tokens_before: datetime, audit_before: datetime
    ) -> bool:
        """Delete what has expired; False where another worker is at it.

        ``tokens_before``: of refresh tokens issued before only a session's last two are kept.
        """


@frozen
class Stores:
    """Everything authentication keeps, as one value."""

    users: Users
    sessions: Sessions
    attempts: Attempts
    tokens: OneTimeTokens
    housekeeping: Housekeeping
