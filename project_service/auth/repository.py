"""What authentication needs of its database. ``postgres`` implements it, and the tests have a verified fake.

Methods take the current time, so that limits and lifetimes can be tested with a clock of the test's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from attrs import field, frozen

from project_service.auth.values import Account, Email, Origin, SessionInfo, User

Actor = Literal["anonymous", "user", "service", "operator"]
Verdict = Literal["free", "busy", "refused"]
Outcome = Literal["failed", "released", "cleared"]
Purpose = Literal["recovery", "confirmation"]
# Sessions of one user that are listed. Each login starts one, for a month, so a client that never refreshes has any
# number of them.
MAX_LISTED_SESSIONS = 1000


@frozen
class Event:
    """An entry of the audit: who did what to whom, from where, and with what result ("ok" or the code of an
    error)."""

    at: datetime
    action: str
    result: str = "ok"
    actor: Actor = "anonymous"
    user_id: str | None = None
    email: str | None = None
    origin: Origin = field(factory=Origin)


@frozen
class NewSession:
    """A session to be stored. ``digest`` is that of its first refresh token."""

    id: str
    digest: bytes = field(repr=False)
    created_at: datetime
    expires_at: datetime
    access_expires_at: datetime
    origin: Origin = field(factory=Origin)


@frozen
class Limit:
    """Up to ``maximum`` failures within ``window``; 0 means no limit."""

    maximum: int
    window: timedelta


@frozen
class Reservation:
    """Whether an attempt may begin, and what identifies it.

    If ``verdict`` is "free" it is reserved. It is "busy" if attempts that are not finished yet use up the limit,
    "refused" if failures do; then the next attempt is possible after ``wait_seconds``.

    ``mark`` identifies the attempt in the counter of ``scope`` and ``subject``; None if there is no limit. A login
    has a second counter, by client address, and ``account`` is the one with its e-mail address.
    """

    verdict: Verdict
    wait_seconds: float
    mark: datetime | None
    scope: str
    subject: str
    address: str = ""
    address_mark: datetime | None = None
    account: Account | None = None

    @property
    def is_counted(self) -> bool:
        return self.mark is not None or self.address_mark is not None


@frozen
class Rotation:
    """What happened to a refresh token that was presented.

    ``rotated``: its successor is active now. ``repeated``: it was replaced a moment ago, or its successor was never
    used; ``salts``, by the digest of the token that each belongs to, lead to the active one. ``stolen``: it was used
    again otherwise, and the session has been ended.
    """

    outcome: Literal["rotated", "repeated", "stolen"]
    session_id: str
    user: User
    salts: Mapping[bytes, bytes] = field(factory=dict, repr=False)


@frozen
class Proof:
    """Why a user may change their account: the hash of the password that was sent, and the session that was used."""

    password_hash: bytes = field(repr=False)
    session_id: str


class Repository(Protocol):
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
    ) -> Account | None:
        """Create an account, with ``session`` as its first if there is one. None if the address is taken. Raises
        ``id_taken`` if somebody has the ``user_id`` that is given."""

    async def find_user(self, user_id: str) -> Account | None: ...

    async def find_user_by_email(self, email: Email) -> Account | None: ...

    async def list_users(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        """Users in the order in which they were created, those ``after`` the one created then with that id."""

    async def set_metadata(
        self, user_id: str, metadata: Mapping[str, Any], event: Event
    ) -> Account | None: ...

    async def set_password(
        self,
        user_id: str,
        password_hash: bytes,
        proof: Proof | None,
        event: Event,
        *,
        keep_sessions: bool = False,
    ) -> Account | None:
        """Set the password, forget failed logins of the account, and end all sessions except the ``proof``'s, unless
        they are kept.

        Nothing is changed and None is returned if the proof does not hold any more: the password was changed, the
        user disabled, or the session ended since.
        """

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        """Disable the user, which ends all sessions, or enable them again."""

    async def delete_user(self, user_id: str, event: Event, proof: Proof | None = None) -> bool:
        """False if there is no such user or the ``proof`` does not hold any more, as for ``set_password``. Raises
        ``user_in_use`` if rows of the project's own tables refer to the user."""

    async def start_session(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        """Store a session after a login, and ``new_hash`` if there is one. None if the account was disabled, or its
        password changed, since ``account`` was read."""

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
        """Replace a refresh token by its ``successor``, or find out that it has been replaced before. None if the
        token is unknown or expired, or its session has ended."""

    async def list_sessions(
        self, user_id: str, now: datetime, maximum: int = MAX_LISTED_SESSIONS
    ) -> list[SessionInfo]:
        """The newest sessions of a user that have neither ended nor expired, the newest first."""

    async def end_sessions(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        """End sessions of a user: all, ``only`` one, or all ``but`` one. The event's action is the recorded reason.

        Returns their ids, each with the Unix time until which access tokens of it may be valid.
        """

    async def ended_sessions(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        """The ended sessions whose access tokens may still be valid, as ``end_sessions`` returns them: all, or those
        that ended after ``since``."""

    async def reserve_attempt(self, scope: str, subject: str, limit: Limit, now: datetime) -> Reservation: ...

    async def reserve_login(
        self, email: Email, address: str, per_email: Limit, per_address: Limit, now: datetime
    ) -> Reservation:
        """As ``reserve_attempt``, under both limits, with the account of ``email``."""

    async def record_outcome(
        self, reservation: Reservation, outcome: Outcome, event: Event | None = None
    ) -> None:
        """Store the outcome of an attempt (login, sign-up, e-mail) that counts against a limit, and the ``event`` if
        there is one.

        "failed" counts the attempt as a failure, "released" does not count it, and "cleared" clears the counter; in
        the counter of a login's address it is the same as "released".
        """

    async def unlock(self, account: Account, event: Event) -> None:
        """Forget all attempts at the password of ``account``, those of its sessions too."""

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
        """Store a token for the user of ``email``, in place of an older one. None if there is nobody to mail it to:
        no such user, a disabled one, one whose address is confirmed already (for confirmation), or one whose last
        token is younger than ``pause``.
        """

    async def owner_of_token(self, digest: bytes, purpose: Purpose, now: datetime) -> User | None: ...

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        """Use up a recovery token: set the password and end all sessions. None if the token is not valid."""

    async def confirm_email(self, digest: bytes, session: NewSession, event: Event) -> User | None:
        """Use up a confirmation token: the address is confirmed and ``session`` starts. None if the token is not
        valid."""

    async def delete_expired(
        self, now: datetime, salt_before: datetime, tokens_before: datetime, audit_before: datetime
    ) -> bool:
        """Delete what has expired. False if another worker is doing so.

        Salts of refresh tokens that were replaced before ``salt_before`` are deleted, except those of the active
        tokens' parents. Of refresh tokens issued before ``tokens_before`` only the last two of each session are kept.
        """
