"""Accounts with providers, second factors and passwords in any order of requests at two hosts, beside a model of what
must come of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pyotp
from attrs import frozen
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.trial.unittest import TestCase

from tests.fakes.common import SERVICE_KEY
from tests.http.auth.app import Answer
from tests.http.supabase.app import ClientApp, token_of
from tests.http.supabase.test_challenges import SITE, claims_of
from tests.http.supabase.test_providers import SIGN_IN, Browser, landed, onward_from, settings_of
from tests.live.auth.provider import Provider
from tests.models.accounts import (
    ENROLMENT_LIFETIME,
    STATE_LIFETIME,
    STEP,
    Factor,
    FactorChallenge,
    Mail,
    Model,
    Person,
    Said,
    Session,
)
from tests.models.machines import play

EMAILS = st.sampled_from(["ada@example.test", "bob@example.test"])
PASSWORDS = ["correct horse battery", "another horse battery"]
SAID = st.builds(
    Said,
    st.sampled_from([("keycloak", "person-1"), ("keycloak", "person-2"), ("gitlab", "person-1")]),
    st.sampled_from(["ada@example.test", "bob@example.test", ""]),
    st.booleans(),
)
HOSTS = st.integers(0, 1)
PAUSES = st.sampled_from([1.0, 29.0, 31.0, 61.0, 299.0, 301.0, 601.0, 3601.0])
TOKEN_LIFETIME = 3600.0


@frozen
class Trip:
    """Somebody is at a provider: where the browser comes back to, and the session that adds an identity."""

    back: str
    provider: str
    browser: Browser
    began: float
    links: Session | None


class AccountMachine(RuleBasedStateMachine):
    def __init__(self, test: TestCase) -> None:
        super().__init__()
        self.providers = {
            name: Provider(f"https://{name}.example.test", now=lambda: self.now)
            for name in ("keycloak", "gitlab")
        }
        self.app = ClientApp(
            test,
            site_url=SITE,
            providers={name: settings_of(one) for name, one in self.providers.items()},
            manual_linking=True,
            double_confirm_changes=False,
            secure_password_change=False,
            signups_max_per_address=0,
            login_failures_max=0,
            login_failures_max_per_address=0,
            emails_max_per_address=0,
            emails_max_per_account=0,
            verifications_max_per_address=0,
            oauth_max_per_address=0,
            mfa_failures_max=0,
        )
        self.app.internet.servers |= {one.url: one.answer for one in self.providers.values()}
        self.apps = [self.app, self.app.another_host()]
        self.model = Model()
        self.trips: list[Trip] = []
        # Users as an operator sees them.
        self.shown: dict[str, Any] = {}

    @property
    def now(self) -> float:
        return self.app.clock.seconds()

    def a_session(self, data: st.DataObject) -> Session:
        """A late one, which has ended now and then."""
        going_on = [one for one in self.model.sessions if not one.ended][-4:]
        return data.draw(st.sampled_from([*going_on, *going_on, *self.model.sessions[-2:]]))

    def as_said(self, said: Said) -> Provider:
        there = self.providers[said.subject[0]]
        there.person = {"sub": said.subject[1], "email": said.email or None, "email_verified": said.verified}
        return there

    def by(self, session: Session, host: int, method: str, path: str, body: Any = None) -> Answer | None:
        """A request of somebody who is signed in; None if the session has ended, which is refused."""
        if self.now >= session.issued + TOKEN_LIFETIME and not session.ended:
            self.take(session, self.renewed(session, host))
        answer = self.apps[host].ask(method, path, body, token=session.token)
        if session.ended:
            assert answer.body["code"] in ("session_not_found", "bad_jwt"), answer.body
            return None
        return answer

    def renewed(self, session: Session, host: int) -> Any:
        """What comes of the session's refresh token."""
        body = {"refresh_token": session.refresh}
        answer = self.apps[host].ask("POST", "/token?grant_type=refresh_token", body)
        assert answer.status == 200, answer.body
        session.refresh = answer.body["refresh_token"]
        assert claims_of(answer.body)["aal"] == session.aal
        return answer.body

    def take(self, session: Session, issued: Any) -> None:
        session.token, session.refresh = issued["access_token"], issued["refresh_token"]
        session.issued, session.says = self.now, session.aal

    def begins(self, person: str, issued: Any) -> None:
        claims = claims_of(issued)
        assert (claims["sub"], claims["aal"]) == (person, "aal1")
        tokens = issued["access_token"], issued["refresh_token"]
        self.model.sessions.append(Session(person, *tokens, self.now, "aal1"))

    @initialize(has_factor=st.sampled_from([True, True, False]))
    def somebody_has_a_factor(self, has_factor: bool) -> None:
        """A session with it and one without, since steps by chance get there seldom."""
        if not has_factor:
            return
        email, password = "ada@example.test", PASSWORDS[0]
        self.signed_up(email, password, 0)
        (session,) = self.model.sessions
        self.enrolled(session, "phone", 0)
        (factor,) = self.model.people[session.person].factors
        self.challenged(session, factor, 1)
        challenge = self.model.challenges[-1]
        self.answered(session, challenge, self.codes(challenge)[0], 0)
        self.begins(session.person, self.app.again(email, password).body)
        # The code that was used shows nothing at the other host.
        lesser = self.model.sessions[-1]
        self.challenged(lesser, factor, 0)
        self.answered(lesser, self.model.challenges[-1], self.codes(challenge)[0], 1)

    @rule(seconds=PAUSES)
    def time_passes(self, seconds: float) -> None:
        self.app.clock.advance(seconds)

    # Passwords.

    @rule(email=EMAILS, password=st.sampled_from(PASSWORDS), host=HOSTS)
    def sign_up(self, email: str, password: str, host: int) -> None:
        self.signed_up(email, password, host)

    def signed_up(self, email: str, password: str, host: int) -> None:
        answer = self.apps[host].ask("POST", "/signup", {"email": email, "password": password})
        if self.model.named(email) is not None:
            assert answer.body["code"] == "user_already_exists"
            return
        person = answer.body["user"]["id"]
        self.model.people[person] = Person(email, password=password)
        self.begins(person, answer.body)

    @rule(email=EMAILS, password=st.sampled_from(PASSWORDS), host=HOSTS)
    def sign_in(self, email: str, password: str, host: int) -> None:
        answer = self.apps[host].again(email, password)
        person = self.model.named(email)
        if person is not None and self.model.people[person].password == password:
            self.begins(person, answer.body)
        else:
            assert answer.body["code"] == "invalid_credentials"

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), password=st.sampled_from(PASSWORDS), host=HOSTS)
    def change_the_password(self, data: st.DataObject, password: str, host: int) -> None:
        session = self.a_session(data)
        answer = self.by(session, host, "PUT", "/user", {"password": password})
        if answer is None:
            return
        person = self.model.people[session.person]
        if self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
        elif person.password == password:
            assert answer.body["code"] == "same_password"
        else:
            assert answer.status == 200, answer.body
            person.password = password
            self.model.end(session.person, but=session)
            self.model.forget_mails(session.person)

    # Sessions.

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), host=HOSTS, from_before=st.booleans())
    def refresh(self, data: st.DataObject, host: int, from_before: bool) -> None:
        session = self.a_session(data)
        if session.ended or (from_before and session.before):
            token = session.before if from_before and session.before else session.refresh
            answer = self.apps[host].ask("POST", "/token?grant_type=refresh_token", {"refresh_token": token})
            assert answer.status == 400, answer.body
            session.ended = True  # somebody has had that token who has not shown the factor
        else:
            self.take(session, self.renewed(session, host))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), scope=st.sampled_from(["local", "others"]), host=HOSTS)
    def sign_out(self, data: st.DataObject, scope: str, host: int) -> None:
        session = self.a_session(data)
        if self.by(session, host, "POST", f"/logout?scope={scope}") is None:
            return
        if scope == "local":
            session.ended = True
        else:
            self.model.end(session.person, but=session)

    # Mails.

    def mailed(self, person: str, email: str, new_email: str = "") -> None:
        mails = [mail for app in self.apps for mail in app.new_mails()]
        due = self.model.due(person, self.now, new_email)
        assert [mail.recipient for mail in mails] == ([email] if due else [])
        for mail in mails:
            self.model.mail(Mail(person, token_of(mail), self.now, new_email))

    @rule(email=EMAILS, host=HOSTS)
    def ask_for_a_recovery(self, email: str, host: int) -> None:
        assert self.apps[host].ask("POST", "/recover", {"email": email}).body == {}
        if (person := self.model.named(email)) is not None:
            self.mailed(person, email)

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), email=EMAILS, host=HOSTS)
    def change_the_address(self, data: st.DataObject, email: str, host: int) -> None:
        session = self.a_session(data)
        answer = self.by(session, host, "PUT", "/user", {"email": email})
        if answer is None:
            return
        if email == self.model.people[session.person].email:
            assert answer.status == 200
        elif self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
        elif self.model.named(email) is not None:
            assert answer.body["code"] == "email_exists"
        else:
            assert answer.status == 200, answer.body
            self.mailed(session.person, email, email)

    @precondition(lambda self: self.model.mails)
    @rule(data=st.data(), host=HOSTS)
    def answer_a_mail(self, data: st.DataObject, host: int) -> None:
        mail = data.draw(st.sampled_from(self.model.mails[-4:]))
        body = {"type": "email_change" if mail.new_email else "recovery", "token_hash": mail.token}
        answer = self.apps[host].ask("POST", "/verify", body)
        if why := self.model.answer(mail, self.now):
            assert answer.body["code"] == why, answer.body
        else:
            self.begins(mail.person, answer.body)

    # Providers.

    def comes(self, said: Said, links: Session | None, told: Any, why: Any) -> None:
        """Somebody is let in, or was told ``why`` not."""
        if links is not None:
            expected = "session_not_found" if links.ended else self.model.link(links.person, said)
            person: str | None = links.person
        else:
            expected = self.model.refuses(said)
            person = None if expected else self.model.enter(said)
        assert why == (expected or None), told
        if expected:
            return
        if person is None:
            person = claims_of(told)["sub"]
            assert person not in self.model.people
            proven = said.verified and said.email != ""
            by_provider = said.email != ""
            self.model.people[person] = Person(said.email, proven, "", by_provider, {said.subject})
        self.begins(person, told)

    @rule(said=SAID, host=HOSTS)
    def come_by_an_id_token(self, said: Said, host: int) -> None:
        body = {"provider": said.subject[0], "id_token": self.as_said(said).id_token()}
        answer = self.apps[host].ask("POST", "/token?grant_type=id_token", body)
        self.comes(said, None, answer.body, answer.body.get("code"))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), said=SAID, host=HOSTS)
    def link_by_an_id_token(self, data: st.DataObject, said: Said, host: int) -> None:
        session = self.a_session(data)
        body = {
            "provider": said.subject[0],
            "id_token": self.as_said(said).id_token(),
            "link_identity": True,
        }
        answer = self.by(session, host, "POST", "/token?grant_type=id_token", body)
        if answer is None:
            return
        if self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
        else:
            self.comes(said, session, answer.body, answer.body.get("code"))

    @rule(provider=st.sampled_from(["keycloak", "gitlab"]), host=HOSTS)
    def go_to_a_provider(self, provider: str, host: int) -> None:
        browser = Browser(self.apps[host])
        self.trips.append(Trip(browser.begin(provider=provider), provider, browser, self.now, None))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), provider=st.sampled_from(["keycloak", "gitlab"]), host=HOSTS)
    def go_to_a_provider_to_link(self, data: st.DataObject, provider: str, host: int) -> None:
        session, browser = self.a_session(data), Browser(self.apps[host])
        query = urlencode({**SIGN_IN, "provider": provider, "skip_http_redirect": "true"})
        answer = self.by(session, host, "GET", f"/user/identities/authorize?{query}")
        if answer is None:
            return
        if self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
            return
        url = answer.body["url"]
        back = browser.at_provider(browser.get(onward_from(url, browser.get(url))))
        self.trips.append(Trip(back, provider, browser, self.now, session))

    @precondition(lambda self: self.trips)
    @rule(data=st.data(), said=SAID, own=st.sampled_from([True, True, False]), host=HOSTS)
    def come_back(self, data: st.DataObject, said: Said, own: bool, host: int) -> None:
        trip = data.draw(st.sampled_from(self.trips[-3:]))
        said.subject = trip.provider, said.subject[1]
        self.as_said(said)
        cookies = trip.browser.cookies if own else {}
        _, told = landed(Browser(self.apps[host], dict(cookies)).get(trip.back))
        if not own or self.now >= trip.began + STATE_LIFETIME:
            assert told["error_code"] == "bad_oauth_state"
            return
        self.trips.remove(trip)
        self.comes(said, trip.links, told, told.get("error_code"))

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), host=HOSTS)
    def unlink(self, data: st.DataObject, host: int) -> None:
        session = self.a_session(data)
        known = [one for shown in self.shown.values() for one in shown["identities"]]
        identity = data.draw(st.sampled_from(known))
        answer = self.by(session, host, "DELETE", f"/user/identities/{identity['identity_id']}")
        if answer is None:
            return
        person = self.model.people[session.person]
        if self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
        elif identity["user_id"] != session.person:
            assert answer.body["code"] == "identity_not_found"
        elif len(person.identities) == 1:
            assert answer.body["code"] == "single_identity_not_deletable"
        elif identity["provider"] == "email":
            assert answer.body["code"] == "email_conflict_identity_not_deletable"
        else:
            assert answer.status == 200, answer.body
            person.subjects.remove((identity["provider"], identity["id"]))

    # Second factors.

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), name=st.sampled_from(["phone", "tablet"]), host=HOSTS)
    def enrol(self, data: st.DataObject, name: str, host: int) -> None:
        self.enrolled(self.a_session(data), name, host)

    def enrolled(self, session: Session, name: str, host: int) -> None:
        answer = self.by(session, host, "POST", "/factors", {"factor_type": "totp", "friendly_name": name})
        if answer is None:
            return
        if self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
            return
        factors = self.model.people[session.person].factors
        for key, one in list(factors.items()):
            if not one.verified and self.now >= one.enrolled + ENROLMENT_LIFETIME:
                del factors[key]
        if name in [one.name for one in factors.values()]:
            assert answer.body["code"] == "mfa_factor_name_conflict"
        else:
            assert answer.status == 200, answer.body
            factors[answer.body["id"]] = Factor(name, answer.body["totp"]["secret"], self.now)

    def a_factor(self, data: st.DataObject, session: Session) -> str:
        """One of theirs, if there is one, and now and then somebody else's."""
        own = list(self.model.people[session.person].factors)
        every = [key for one in self.model.people.values() for key in one.factors]
        return data.draw(st.sampled_from([*own, *own, *own, *every]))

    @precondition(lambda self: any(one.factors for one in self.model.people.values()))
    @rule(data=st.data(), host=HOSTS)
    def challenge(self, data: st.DataObject, host: int) -> None:
        session = self.a_session(data)
        self.challenged(session, self.a_factor(data, session), host)

    def challenged(self, session: Session, factor: str, host: int) -> None:
        answer = self.by(session, host, "POST", f"/factors/{factor}/challenge", {})
        if answer is None:
            return
        if factor in self.model.people[session.person].factors:
            one = FactorChallenge(answer.body["id"], factor, session, self.now)
            self.model.challenges.append(one)
        else:
            assert answer.body["code"] == "mfa_factor_not_found"

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), hosts=st.tuples(HOSTS, HOSTS))
    def show_a_factor(self, data: st.DataObject, hosts: tuple[int, int]) -> None:
        """A new one, if there is none."""
        session = self.a_session(data)
        factors = self.model.people[session.person].factors
        if not factors:
            self.enrolled(session, "phone", hosts[0])
        if factors and not session.ended:
            self.challenged(session, data.draw(st.sampled_from([*factors])), hosts[0])
            challenge = self.model.challenges[-1]
            self.answered(session, challenge, data.draw(st.sampled_from(self.codes(challenge))), hosts[1])

    @precondition(lambda self: self.model.challenges)
    @rule(data=st.data(), host=HOSTS)
    def answer_a_challenge_of_before(self, data: st.DataObject, host: int) -> None:
        challenge = data.draw(st.sampled_from(self.model.challenges[-4:]))
        session = data.draw(st.sampled_from([challenge.session, challenge.session, self.a_session(data)]))
        self.answered(session, challenge, data.draw(st.sampled_from(self.codes(challenge))), host)

    def answered(self, session: Session, challenge: FactorChallenge, code: str, host: int) -> None:
        body = {"challenge_id": challenge.id, "code": code}
        answer = self.by(session, host, "POST", f"/factors/{challenge.factor}/verify", body)
        if answer is None:
            return
        if why := self.model.verify(session, challenge, code, self.now):
            assert answer.body["code"] == why, (answer.body, why)
            return
        assert answer.status == 200, answer.body
        assert claims_of(answer.body)["aal"] == "aal2"
        session.before = session.refresh
        self.take(session, answer.body)

    def codes(self, challenge: FactorChallenge) -> list[str]:
        """The one of now, the next one, the one used last, a wrong one, and recovery codes, void ones too."""
        person = self.model.people[challenge.session.person]
        factor = person.factors.get(challenge.factor)
        if factor is None:
            return ["123456"]
        totp, this = pyotp.TOTP(factor.secret), int(self.now) // STEP
        steps = [this, this, this + 1, max(factor.used, 0), this + 2]
        recovery = [*person.recovery_codes[:1], *person.spent[-1:]]
        return [*(totp.generate_otp(step) for step in steps), *recovery]

    @precondition(lambda self: self.model.sessions)
    @rule(data=st.data(), host=HOSTS)
    def ask_for_recovery_codes(self, data: st.DataObject, host: int) -> None:
        session = self.a_session(data)
        answer = self.by(session, host, "POST", "/factors/recovery-codes", {})
        if answer is None:
            return
        person = self.model.people[session.person]
        if session.says == session.aal == "aal2":
            person.void_recovery_codes()
            person.recovery_codes = answer.body["codes"]
        else:
            assert answer.body.get("code") == "insufficient_aal", "no second factor"

    @precondition(lambda self: any(one.factors for one in self.model.people.values()))
    @rule(data=st.data(), host=HOSTS)
    def unenrol(self, data: st.DataObject, host: int) -> None:
        session = self.a_session(data)
        factor = self.a_factor(data, session)
        answer = self.by(session, host, "DELETE", f"/factors/{factor}")
        if answer is None:
            return
        if self.model.needs_factor(session):
            assert answer.body["code"] == "insufficient_aal"
        elif factor not in self.model.people[session.person].factors:
            assert answer.body["code"] == "mfa_factor_not_found"
        else:
            assert answer.status == 200, answer.body
            self.model.drop(session.person, {factor})

    # Operators.

    @precondition(lambda self: self.model.people)
    @rule(data=st.data())
    def confirm_or_reset(self, data: st.DataObject) -> None:
        """An operator says that the address is theirs, or deletes a factor."""
        key = data.draw(st.sampled_from(sorted(self.model.people)))
        person = self.model.people[key]
        if person.factors:
            factor = data.draw(st.sampled_from(sorted(person.factors)))
            assert self.app.operate("DELETE", f"/{key}/factors/{factor}").status == 200
            self.model.drop(key, {factor})
        elif person.email:
            assert self.app.operate("PUT", f"/{key}", {"email_confirm": True}).status == 200
            person.proven = True

    @invariant()
    def everybody_is_as_the_model_says(self) -> None:
        users = self.app.ask("GET", "/admin/users", None, SERVICE_KEY, SERVICE_KEY).body["users"]
        self.shown = {one["id"]: one for one in users}
        assert set(self.shown) == set(self.model.people)
        for key, person in self.model.people.items():
            shown = self.shown[key]
            assert shown["email"] == person.email
            identities = {
                (one["provider"], "" if one["provider"] == "email" else one["id"])
                for one in shown["identities"]
            }
            assert identities == person.identities
            factors = {one["id"] for one in shown.get("factors", []) if one["status"] == "verified"}
            assert factors == person.verified
            if person.email:
                self.check_passwords(person)
            last = self.model.last_session(key)
            if last is not None and not last.ended:
                self.renewed(last, 1)

    def check_passwords(self, person: Person) -> None:
        for password in PASSWORDS:
            answer = self.app.again(person.email, password)
            assert (answer.status == 200) is (password == person.password), (person, answer.body)
            if answer.status == 200:  # without leaving a session behind
                self.app.ask("POST", "/logout?scope=local", token=answer.body["access_token"])


class AnyOrderOfRequests(TestCase):
    def test_what_comes_of_accounts_is_what_the_model_says(self) -> None:
        play(lambda: AccountMachine(self), 12)
