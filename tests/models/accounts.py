"""What authentication must know of ways in and second factors, as a few objects, written from ``docs/auth.rst``.
Times are Unix seconds. What there was once is kept, so that it can be shown again."""

from __future__ import annotations

import pyotp
from attrs import define, field

MAIL_LIFETIME, MAIL_PAUSE, STATE_LIFETIME = 3600.0, 60.0, 600.0
FACTOR_CHALLENGE_LIFETIME, ENROLMENT_LIFETIME, STEP = 300.0, 300.0, 30

# A provider, and what it calls somebody.
Subject = tuple[str, str]


@define
class Factor:
    """``used`` is the last time step whose code was used."""

    name: str
    secret: str = field(repr=False)
    enrolled: float
    verified: bool = False
    used: int = -1

    def step_of(self, code: str, now: float) -> int | None:
        """Which step the code is of, of this one and those beside it."""
        this = int(now) // STEP
        steps = (this, this - 1, this + 1)
        return next((one for one in steps if pyotp.TOTP(self.secret).generate_otp(one) == code), None)


@define
class Person:
    """``proven``: somebody has shown that the address is theirs. ``by_provider``: a provider brought the address,
    which is no identity of its own therefore. A password is empty if there is none. ``spent`` are recovery codes that
    are void."""

    email: str
    proven: bool = False
    password: str = ""
    by_provider: bool = False
    subjects: set[Subject] = field(factory=set)
    factors: dict[str, Factor] = field(factory=dict)
    recovery_codes: list[str] = field(factory=list)
    spent: list[str] = field(factory=list)

    @property
    def identities(self) -> set[Subject]:
        """With the address as that of provider "email"."""
        by_email = self.email and not self.by_provider
        return self.subjects | ({("email", "")} if by_email else set())

    @property
    def verified(self) -> set[str]:
        return {key for key, one in self.factors.items() if one.verified}

    def void_recovery_codes(self) -> None:
        self.spent += self.recovery_codes
        self.recovery_codes = []


@define(eq=False)
class Session:
    """``token`` is an access token, which says ``says`` and was issued at ``issued``; ``factor`` the one that the
    session was shown by. ``before`` is the refresh token that ended with that."""

    person: str
    token: str = field(repr=False)
    refresh: str = field(repr=False)
    issued: float
    says: str
    factor: str = ""
    before: str = field(default="", repr=False)
    ended: bool = False

    @property
    def aal(self) -> str:
        return "aal2" if self.factor else "aal1"


@define
class Mail:
    """Whoever has the token recovers the account, or moves it to ``new_email`` if there is one."""

    person: str
    token: str = field(repr=False)
    written: float
    new_email: str = ""
    kept: bool = True


@define
class FactorChallenge:
    id: str
    factor: str
    session: Session = field(repr=False)
    issued: float
    kept: bool = True


@define
class Said:
    """What a provider says of somebody."""

    subject: Subject
    email: str
    verified: bool


@define
class Model:
    people: dict[str, Person] = field(factory=dict)
    sessions: list[Session] = field(factory=list)
    mails: list[Mail] = field(factory=list)
    challenges: list[FactorChallenge] = field(factory=list)

    def named(self, email: str) -> str | None:
        return next((key for key, one in self.people.items() if email and one.email == email), None)

    def owner(self, subject: Subject) -> str | None:
        return next((key for key, one in self.people.items() if subject in one.subjects), None)

    def last_session(self, person: str) -> Session | None:
        return next((one for one in reversed(self.sessions) if one.person == person), None)

    def needs_factor(self, session: Session) -> bool:
        return not session.factor and bool(self.people[session.person].verified)

    # Mails.

    def due(self, person: str, now: float, new_email: str = "") -> bool:
        return not any(
            one.kept and (one.person, one.new_email) == (person, new_email) and now < one.written + MAIL_PAUSE
            for one in self.mails
        )

    def mail(self, mail: Mail) -> None:
        for one in self.mails:
            if one.person == mail.person and bool(one.new_email) == bool(mail.new_email):
                one.kept = False
        self.mails.append(mail)

    def forget_mails(self, person: str) -> None:
        for one in self.mails:
            one.kept = one.kept and one.person != person

    def answer(self, mail: Mail, now: float) -> str:
        """Why not, or nothing: then a session begins."""
        if not mail.kept or now >= mail.written + MAIL_LIFETIME:
            return "otp_expired"
        if mail.new_email and self.named(mail.new_email) is not None:
            return "user_already_exists"
        mail.kept = False
        person = self.people[mail.person]
        if mail.new_email:
            self.forget_mails(mail.person)
            person.email = mail.new_email
        elif not person.proven:
            # Whoever has signed up with the address may be somebody else. Factors stay.
            self._void(mail.person)
            person.subjects, person.by_provider = set(), False
        person.proven = True
        return ""

    def _void(self, person: str) -> None:
        self.people[person].password = ""
        self.end(person)
        self.forget_mails(person)

    def end(self, person: str, but: Session | None = None) -> None:
        for one in self.sessions:
            one.ended = one.ended or (one.person == person and one is not but)

    # Providers.

    def enter(self, said: Said) -> str | None:
        """Who comes; None for somebody new."""
        known = self.owner(said.subject)
        person = known or self.named(said.email)
        if person is None:
            return None
        one = self.people[person]
        if said.verified and said.email and said.email == one.email and not one.proven:
            self._void(person)
            self.drop(person, set(one.factors))
            one.subjects, one.proven = set(), True
        one.subjects.add(said.subject)
        return person

    def refuses(self, said: Said) -> str:
        """An address that the provider has not checked opens no account that there is."""
        is_new = self.owner(said.subject) is None
        return "email_exists" if is_new and not said.verified and self.named(said.email) else ""

    def link(self, person: str, said: Said) -> str:
        """Why not, or nothing: then the subject is added."""
        one = self.people[person]
        if self.owner(said.subject) is not None:
            return "identity_already_exists"
        if said.verified and said.email and not one.email:
            if self.named(said.email) is not None:
                return "email_exists"
            one.email, one.proven = said.email, True
        one.subjects.add(said.subject)
        return ""

    # Factors.

    def drop(self, person: str, factors: set[str]) -> None:
        one = self.people[person]
        for key in factors:
            del one.factors[key]
        for session in self.sessions:
            if session.factor in factors:
                session.factor = ""
        if not one.verified:
            one.void_recovery_codes()

    def verify(self, session: Session, challenge: FactorChallenge, code: str, now: float) -> str:
        """Why not, or nothing: then the session is at aal2."""
        one = self.people[session.person]
        factor = one.factors.get(challenge.factor)
        if factor is None:
            return "mfa_factor_not_found"
        if not factor.verified and self.needs_factor(session):
            return "insufficient_aal"
        step = factor.step_of(code, now) if code.isdigit() else None
        if code.isdigit() and step is None:
            return "mfa_verification_failed"
        is_open = challenge.kept and now < challenge.issued + FACTOR_CHALLENGE_LIFETIME
        if not is_open or challenge.session is not session:
            return "mfa_challenge_expired"
        if step is not None and step > factor.used:
            factor.used = step
        elif step is None and factor.verified and code in one.recovery_codes:
            one.recovery_codes.remove(code)
            one.spent.append(code)
        else:
            return "mfa_verification_failed"
        challenge.kept, factor.verified, session.factor = False, True, challenge.factor
        self.drop(session.person, set(one.factors) - one.verified)
        for other in self.sessions:
            other.ended = other.ended or (other.person == session.person and not other.factor)
        return ""
