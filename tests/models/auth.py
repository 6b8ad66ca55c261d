"""What authentication must know, as a few dictionaries, written from ``docs/auth.rst``. Times are Unix seconds.

Nothing is ever removed except users, so that whatever was issued once can be asked for again.
"""

from __future__ import annotations

from attrs import define, field

ACCESS_SECONDS, LEEWAY_SECONDS, REUSE_SECONDS, REFRESH_SECONDS = 3600.0, 30.0, 10.0, 30 * 86400.0
MAIL_SECONDS, MAIL_PAUSE = 3600.0, 60.0
# Settings of the service that is compared: so low that a few steps reach the limits.
FAILURES_MAX, FAILURES_MAX_PER_CLIENT, FAILURES_WINDOW = 3, 6, 900.0


@define
class User:
    email: str
    password: str
    disabled: bool = False


@define
class Session:
    user: str
    used: float
    ended: bool = False


@define
class Refresh:
    session: str
    successor: str | None = None
    replaced: float = 0.0


@define
class Access:
    session: str
    expires: float


@define
class Mail:
    user: str
    written: float
    void: bool = False


@define
class Model:
    """``failures`` are the times of failed logins, by address of mail or of a client, and of wrong current passwords,
    by session."""

    users: dict[str, User] = field(factory=dict)
    sessions: dict[str, Session] = field(factory=dict)
    refreshes: dict[str, Refresh] = field(factory=dict)
    accesses: dict[str, Access] = field(factory=dict)
    mails: dict[str, Mail] = field(factory=dict)
    failures: dict[str, list[float]] = field(factory=dict)

    def named(self, email: str) -> str | None:
        """The id of the user with this address."""
        return next((key for key, user in self.users.items() if user.email.lower() == email.lower()), None)

    def active(self, user: str, now: float) -> set[str]:
        return {key for key, one in self.sessions.items() if one.user == user and self._lives(key, now)}

    def _lives(self, session: str, now: float) -> bool:
        one = self.sessions[session]
        return not one.ended and now < one.used + REFRESH_SECONDS

    def worth(self, access: str, now: float) -> str:
        """The error code for an access token; "" if it is good."""
        token = self.accesses[access]
        if now > token.expires + LEEWAY_SECONDS:
            return "invalid_token"
        return "session_revoked" if self.sessions[token.session].ended else ""

    def refused(self, refresh: str, now: float) -> str:
        """The error code for a refresh token; "" if it is exchanged."""
        token = self.refreshes.get(refresh)
        if token is None or not self._lives(token.session, now):
            return "invalid_refresh_token"
        if token.successor is None or now < token.replaced + REUSE_SECONDS:
            return ""
        if self.refreshes[token.successor].successor is None:
            return ""
        expired = now >= token.replaced + REFRESH_SECONDS
        return "invalid_refresh_token" if expired else "refresh_token_reused"

    def current(self, refresh: str) -> str:
        """The last of the tokens that have replaced this one."""
        successor = self.refreshes[refresh].successor
        return refresh if successor is None else self.current(successor)

    def begin(self, session: str, user: str, refresh: str, access: str, now: float) -> None:
        self.sessions[session] = Session(user, now)
        self.refreshes[refresh] = Refresh(session)
        self.allow(session, access, now)

    def allow(self, session: str, access: str, now: float) -> None:
        self.accesses[access] = Access(session, int(now) + ACCESS_SECONDS)

    def rotate(self, refresh: str, successor: str, now: float) -> None:
        token = self.refreshes[refresh]
        token.successor, token.replaced = successor, now
        self.refreshes[successor] = Refresh(token.session)
        self.sessions[token.session].used = now

    def repeat(self, refresh: str, now: float) -> None:
        """If the answer to the first use was lost, it is given now."""
        token = self.refreshes[refresh]
        if now >= token.replaced + REUSE_SECONDS:
            token.replaced = self.sessions[token.session].used = now

    def end(self, user: str, but: str | None = None) -> None:
        for key, session in self.sessions.items():
            if session.user == user and key != but:
                session.ended = True

    def forget(self, user: str) -> None:
        self.end(user)
        del self.users[user]

    # Mails

    def is_good(self, token: str, now: float) -> bool:
        mail = self.mails[token]
        return not mail.void and mail.user in self.users and now < mail.written + MAIL_SECONDS

    def gets_a_mail(self, user: str, now: float) -> bool:
        own = [mail for mail in self.mails.values() if mail.user == user]
        recent = any(not mail.void and now < mail.written + MAIL_PAUSE for mail in own)
        return not (self.users[user].disabled or recent)

    def void_mails(self, user: str) -> None:
        for mail in self.mails.values():
            mail.void = mail.void or mail.user == user

    # Limits

    def is_limited(self, email: str, client: str, now: float) -> bool:
        """Whether logins are refused, be the password right or wrong."""
        limits = ((email.lower(), FAILURES_MAX), (client, FAILURES_MAX_PER_CLIENT))
        return any(self._recent(subject, now) >= most for subject, most in limits)

    def is_session_limited(self, session: str, now: float) -> bool:
        """Whether its user's current password is refused, be it right or wrong."""
        return self._recent(session, now) >= FAILURES_MAX

    def _recent(self, subject: str, now: float) -> int:
        return sum(at > now - FAILURES_WINDOW for at in self.failures.get(subject, []))

    def failed(self, *subjects: str, now: float) -> None:
        for subject in subjects:
            self.failures.setdefault(subject.lower(), []).append(now)

    def succeeded(self, subject: str) -> None:
        self.failures.pop(subject.lower(), None)
