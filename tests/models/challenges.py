"""What authentication must know of challenges, as a few dictionaries, written from ``docs/supabase.rst``. Times are
Unix seconds. What was issued once is never removed, so that it can be asked for again."""

from __future__ import annotations

from attrs import define, field

LIFETIME, PAUSE, AUTH_CODE_LIFETIME, TRIES = 3600.0, 60.0, 300.0, 5
# Which purposes an answer of each type may be for, the first ones first.
TYPES = {
    "signup": ("confirmation",),
    "email": ("confirmation", "magic_link"),
    "magiclink": ("magic_link", "confirmation"),
    "recovery": ("recovery",),
    "email_change": ("email_change", "email_change_current"),
}


@define
class Person:
    email: str
    confirmed: bool = False
    banned: bool = False


@define
class Challenge:
    """``kept`` is False as soon as nothing can answer it any more but for its age. ``new_email`` is what a change of
    address is to; ``both`` that two addresses have to confirm it, and ``half`` that the other one has. ``takes_over``
    says that somebody has asked for it who did not sign up."""

    person: str
    purpose: str
    sent_to: str
    code: str
    token: str
    written: float
    kept: bool = True
    tries: int = 0
    new_email: str = ""
    both: bool = False
    half: bool = False
    takes_over: bool = False

    def is_open(self, now: float) -> bool:
        return self.kept and now < self.written + LIFETIME


@define
class Model:
    people: dict[str, Person] = field(factory=dict)
    challenges: list[Challenge] = field(factory=list)
    # Authorization codes: whose, until when, and whether they have been exchanged.
    auth_codes: dict[str, tuple[str, float, bool]] = field(factory=dict)

    def named(self, email: str) -> str | None:
        return next((key for key, one in self.people.items() if one.email == email), None)

    def due(self, person: str, purpose: str, now: float, new_email: str = "") -> bool:
        """Whether this person is mailed such a challenge now."""
        one = self.people[person]
        if one.banned or (purpose == "confirmation" and one.confirmed):
            return False
        return not any(
            now < each.written + PAUSE and each.new_email == new_email for each in self._kept(person, purpose)
        )

    def _kept(self, person: str, purpose: str) -> list[Challenge]:
        return [
            each
            for each in self.challenges
            if (each.person, each.purpose, each.kept) == (person, purpose, True)
        ]

    def let_take_over(self, person: str) -> None:
        """Whoever asks for a code to sign in may be somebody else than who signed up."""
        for each in self._kept(person, "confirmation"):
            each.takes_over = True

    def issue(self, challenge: Challenge) -> None:
        for each in self._kept(challenge.person, challenge.purpose):
            each.kept = False
            challenge.takes_over |= each.takes_over
        self.challenges.append(challenge)

    def by_token(self, kind: str, token: str, now: float) -> Challenge | None:
        return next(
            (
                each
                for each in self.challenges
                if each.token == token and each.purpose in TYPES[kind] and each.is_open(now)
            ),
            None,
        )

    def by_code(self, kind: str, email: str, code: str, now: float) -> Challenge | None:
        """The challenge that this code answers; otherwise it was a wrong try of all that it could have been for."""
        asked = [
            each
            for purpose in TYPES[kind]
            for each in self.challenges
            if each.purpose == purpose and each.sent_to == email and each.is_open(now) and each.tries < TRIES
        ]
        met = next((each for each in asked if each.code == code), None)
        if met is None:
            for each in asked:
                each.tries += 1
        return met

    def forget(self, person: str) -> None:
        for each in self.challenges:
            each.kept = each.kept and each.person != person
        for code, (whose, until, _) in self.auth_codes.items():
            if whose == person:
                self.auth_codes[code] = whose, until, True
