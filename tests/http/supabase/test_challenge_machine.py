"""Codes, links, bans, deletions and changes of address in any order of requests at two hosts, beside a model of what
must come of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.trial.unittest import TestCase

from tests.fakes.common import SERVICE_KEY
from tests.http.auth.app import Answer
from tests.http.supabase.app import ClientApp, code_of, token_of
from tests.http.supabase.test_challenges import CHALLENGE, SITE, VERIFIER
from tests.models.challenges import AUTH_CODE_LIFETIME, TYPES, Challenge, Model, Person
from tests.models.machines import play

EMAILS = st.sampled_from(["ada@example.test", "bob@example.test", "eve@example.test"])
HOSTS = st.integers(0, 1)
PAUSES = st.sampled_from([1.0, 59.0, 61.0, 299.0, 301.0, 3599.0, 3601.0])
PURPOSES = {"/recover": "recovery", "/resend": "confirmation"}


class ChallengeMachine(RuleBasedStateMachine):
    def __init__(self, test: TestCase) -> None:
        super().__init__()
        self.app = ClientApp(
            test,
            site_url=SITE,
            confirm_email=True,
            signups_max_per_address=0,
            emails_max_per_address=0,
            emails_max_per_account=0,
            verifications_max_per_address=0,
        )
        self.apps = [self.app, self.app.another_host()]
        self.model = Model()
        # Of each user a token of the last session that began.
        self.tokens: dict[str, str] = {}

    @property
    def now(self) -> float:
        return self.app.clock.seconds()

    def ask(self, host: int, method: str, path: str, body: Any, **more: Any) -> Answer:
        return self.apps[host].ask(method, path, body, **more)

    def operate(self, method: str, person: str, body: Any = None) -> Answer:
        return self.app.operate(method, f"/{person}", body)

    def sent(self, *expected: tuple[str, str, str]) -> None:
        """The mails since the last request are those: of whom, for what, to which address."""
        mails = [mail for app in self.apps for mail in app.new_mails()]
        assert [mail.recipient for mail in mails] == [address for _, _, address in expected]
        for mail, (person, purpose, address) in zip(mails, expected, strict=True):
            self.model.issue(Challenge(person, purpose, address, code_of(mail), token_of(mail), self.now))

    @rule(seconds=PAUSES)
    def time_passes(self, seconds: float) -> None:
        self.app.clock.advance(seconds)

    @rule(email=EMAILS, create=st.booleans(), pkce=st.booleans(), host=HOSTS)
    def ask_for_a_code(self, email: str, create: bool, pkce: bool, host: int) -> None:
        body: dict[str, Any] = {"email": email, "create_user": create}
        if pkce:
            body |= {"code_challenge": CHALLENGE, "code_challenge_method": "s256"}
        assert self.ask(host, "POST", "/otp", body).body == {}
        person = self.model.named(email)
        if person is None and create:
            (person,) = set(self.app.repository.accounts) - set(self.model.people)
            self.model.people[person] = Person(email)
        if person is None:
            return self.sent()
        purpose = "magic_link" if self.model.people[person].confirmed else "confirmation"
        if self.model.due(person, purpose, self.now):
            self.sent((person, purpose, email))
        else:
            self.sent()
        if not self.model.people[person].banned:
            self.model.let_take_over(person)
        return None

    @rule(path=st.sampled_from(sorted(PURPOSES)), email=EMAILS, host=HOSTS)
    def ask_for_a_mail(self, path: str, email: str, host: int) -> None:
        body = {"email": email, "type": "signup"}
        assert self.ask(host, "POST", path, body).body == {}
        person, purpose = self.model.named(email), PURPOSES[path]
        if person is not None and self.model.due(person, purpose, self.now):
            self.sent((person, purpose, email))
        else:
            self.sent()

    @precondition(lambda self: self.model.challenges)
    @rule(data=st.data(), host=HOSTS)
    def answer_by_code(self, data: st.DataObject, host: int) -> None:
        one = data.draw(st.sampled_from(self.model.challenges[-6:]))
        code = data.draw(st.sampled_from([one.code, one.code, f"{(int(one.code) + 1) % 10**6:06}"]))
        kind = data.draw(st.sampled_from([key for key, purposes in TYPES.items() if one.purpose in purposes]))
        kind = data.draw(st.sampled_from([kind, kind, *TYPES]))
        met = self.model.by_code(kind, one.sent_to, code, self.now)
        body = {"type": kind, "email": one.sent_to, "token": code}
        self.answered(self.ask(host, "POST", "/verify", body), met)

    @precondition(lambda self: self.model.challenges)
    @rule(guesses=st.integers(3, 5), host=HOSTS)
    def guess_and_answer(self, guesses: int, host: int) -> None:
        one = self.model.challenges[-1]
        kind = next(key for key, purposes in TYPES.items() if one.purpose in purposes)
        wrong = f"{(int(one.code) + 1) % 10**6:06}"
        for code in (*[wrong] * guesses, one.code):
            met = self.model.by_code(kind, one.sent_to, code, self.now)
            body = {"type": kind, "email": one.sent_to, "token": code}
            self.answered(self.ask(host, "POST", "/verify", body), met)

    @precondition(lambda self: self.model.challenges)
    @rule(data=st.data(), host=HOSTS)
    def answer_by_token(self, data: st.DataObject, host: int) -> None:
        one = data.draw(st.sampled_from(self.model.challenges[-6:]))
        kind = data.draw(st.sampled_from([*TYPES]))
        met = self.model.by_token(kind, one.token, self.now)
        body = {"type": kind, "token_hash": one.token}
        self.answered(self.ask(host, "POST", "/verify", body), met)

    @precondition(lambda self: self.model.challenges)
    @rule(data=st.data(), host=HOSTS)
    def press_the_button_of_a_link(self, data: st.DataObject, host: int) -> None:
        one = data.draw(st.sampled_from(self.model.challenges[-6:]))
        kind = next(key for key, purposes in TYPES.items() if one.purpose in purposes)
        met = self.model.by_token(kind, one.token, self.now)
        form = urlencode({"type": kind, "token": one.token}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        reply = self.apps[host].app.connect().request("POST", "/auth/v1/verify", headers, form)
        address, _, fragment = str(reply.header("location")).partition("#")
        told = {name: values[0] for name, values in parse_qs(fragment).items()}
        begins = self.comes_of(met)
        code = parse_qs(urlsplit(address).query).get("code")
        assert (code is not None or "access_token" in told) is begins
        if met is not None and "access_token" in told:
            self.tokens[met.person] = told["access_token"]
        if met is not None and code is not None:
            self.model.auth_codes[code[0]] = met.person, self.now + AUTH_CODE_LIFETIME, False

    @precondition(lambda self: self.model.auth_codes)
    @rule(data=st.data(), right=st.booleans(), host=HOSTS, pause=st.sampled_from([0.0, 0.0, 299.0, 301.0]))
    def exchange(self, data: st.DataObject, right: bool, host: int, pause: float) -> None:
        self.app.clock.advance(pause)
        code = data.draw(st.sampled_from([*self.model.auth_codes]))
        person, until, used = self.model.auth_codes[code]
        body = {"auth_code": code, "code_verifier": VERIFIER if right else "w" * 56}
        answer = self.ask(host, "POST", "/token?grant_type=pkce", body)
        if used or self.now >= until:
            assert answer.body["code"] == "flow_state_not_found"
        elif not right:
            assert answer.body["code"] == "bad_code_verifier"
        else:
            self.model.auth_codes[code] = person, until, True
            known = self.model.people.get(person)
            assert (answer.status == 200) is (known is not None and not known.banned), answer.body
            if answer.status == 200:
                self.tokens[person] = answer.body["access_token"]

    def answered(self, answer: Answer, met: Challenge | None) -> None:
        begins = self.comes_of(met)
        assert ("access_token" in answer.body) is begins, (answer.body, met)
        if met is not None and begins:
            assert answer.body["user"]["id"] == met.person
            self.tokens[met.person] = answer.body["access_token"]

    def comes_of(self, met: Challenge | None) -> bool:
        """Use the challenge up in the model; whether a session begins."""
        if met is None:
            return False
        person = self.model.people[met.person]
        if person.banned:
            met.kept = False
            return False
        if met.new_email and met.both and not met.half:
            met.kept = False
            for other in self.model.challenges:
                if (other.person, other.new_email, other.kept) == (met.person, met.new_email, True):
                    other.half = True
            return False
        if met.new_email and self.model.named(met.new_email) is not None:
            return False  # somebody has taken the address since; the challenge stays
        met.kept = False
        if met.new_email:
            self.model.forget(met.person)
            person.email = met.new_email
        elif not person.confirmed and (met.takes_over or met.purpose != "confirmation"):
            # Whoever signed up with the address may be somebody else.
            self.model.forget(met.person)
        person.confirmed = True
        return True

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), email=EMAILS, host=HOSTS)
    def change_the_address(self, data: st.DataObject, email: str, host: int) -> None:
        person = data.draw(st.sampled_from(sorted(self.tokens)))
        answer = self.ask(host, "PUT", "/user", {"email": email}, token=self.tokens[person])
        known = self.model.people.get(person)
        if answer.status in (401, 403):  # the token has expired, or its session has ended
            return self.sent()
        assert known is not None and not known.banned
        if email == known.email:
            assert answer.status == 200
            return self.sent()
        if self.model.named(email) is not None:
            assert answer.body["code"] == "email_exists"
            return self.sent()
        both = True
        expected = [(person, "email_change_current", known.email)] if both else []
        expected.append((person, "email_change", email))
        before = len(self.model.challenges)
        self.sent(*(one for one in expected if self.model.due(person, one[1], self.now, email)))
        for one in self.model.challenges[before:]:
            one.new_email, one.both = email, both
        return None

    @precondition(lambda self: self.model.people)
    @rule(data=st.data())
    def ban_or_let_in(self, data: st.DataObject) -> None:
        person = data.draw(st.sampled_from(sorted(self.model.people)))
        known = self.model.people[person]
        known.banned = not known.banned
        self.operate("PUT", person, {"ban_duration": "876000h" if known.banned else "none"})

    @precondition(lambda self: self.model.people)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        person = data.draw(st.sampled_from(sorted(self.model.people)))
        assert self.operate("DELETE", person).status == 200
        self.model.forget(person)
        del self.model.people[person]

    @invariant()
    def everybody_is_as_the_model_says(self) -> None:
        shown = {
            one["id"]: one
            for one in self.app.ask("GET", "/admin/users", None, SERVICE_KEY, SERVICE_KEY).body["users"]
        }
        assert set(shown) == set(self.model.people)
        for key, one in self.model.people.items():
            assert shown[key]["email"] == one.email
            assert ("banned_until" in shown[key]) is one.banned
            assert shown[key]["identities"][0]["identity_data"]["email_verified"] is one.confirmed


class AnyOrderOfRequests(TestCase):
    def test_what_comes_of_challenges_is_what_the_model_says(self) -> None:
        play(lambda: ChallengeMachine(self), 60)
