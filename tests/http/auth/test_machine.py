"""Users, sessions, tokens, mails and limits in any order of requests, beside a model of what must come of them."""

from __future__ import annotations

import re
from typing import Any

import jwt
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from twisted.trial.unittest import TestCase

from tests.fakes.common import SERVICE_KEY
from tests.http.auth.app import Answer, AuthApp
from tests.models.auth import FAILURES_MAX, FAILURES_MAX_PER_CLIENT, Mail, Model, User
from tests.models.machines import play

EMAILS = st.sampled_from(["ada@example.test", "Ada@example.test", "bob@example.test"])
PASSWORDS = st.sampled_from(["correct horse battery", "another horse entirely"])
CLIENTS = st.sampled_from(["192.0.2.7", "192.0.2.8"])
# On both sides of each limit of time that there is. After a long pause little is left, so these are rare.
SHORT = st.sampled_from([0.5, 5.0, 9.0, 11.0, 61.0])
LONG = st.sampled_from([895.0, 905.0, 3601.0, 3632.0, 29 * 86400.0, 30 * 86400.0])
PAUSES = SHORT | SHORT | LONG
TOKEN = re.compile(r"^[A-Za-z0-9_-]{43}$", re.MULTILINE)


class AuthMachine(RuleBasedStateMachine):
    def __init__(self, test: TestCase) -> None:
        super().__init__()
        self.app = AuthApp(
            test,
            login_failures_max=FAILURES_MAX,
            login_failures_max_per_address=FAILURES_MAX_PER_CLIENT,
            signups_max_per_address=0,
        )
        self.model = Model()
        self.recoveries = 0

    @property
    def now(self) -> float:
        return self.app.clock.seconds()

    def one_of(self, data: st.DataObject, known: dict[str, Any]) -> str:
        """One of ``known``, more often one of the newest."""
        all_of_them = list(known)
        return data.draw(st.sampled_from(all_of_them[-3:]) | st.sampled_from(all_of_them))

    def begun(self, user: str, answer: Answer) -> None:
        tokens = answer.data
        assert tokens["user"]["id"] == user
        session = jwt.decode(tokens["access_token"], options={"verify_signature": False})["sid"]
        assert session not in self.model.sessions
        self.model.begin(session, user, tokens["refresh_token"], tokens["access_token"], self.now)

    def call(self, method: str, path: str, body: Any, outcome: str, token: str | None = None) -> Answer:
        """The answer to a request that has to end with the error code ``outcome``, or without one for ""."""
        answer = self.app.call(method, path, body, token=token)
        assert ("" if answer.status < 400 else answer.code) == outcome, (method, path, answer.body, outcome)
        return answer

    def administer(self, method: str, path: str, body: Any = None) -> Answer:
        return self.app.call(method, path, body, X_Service_Key=SERVICE_KEY)

    @rule(seconds=PAUSES)
    def time_passes(self, seconds: float) -> None:
        self.app.clock.advance(seconds)

    @rule(email=EMAILS, password=PASSWORDS)
    def sign_up(self, email: str, password: str) -> None:
        taken = self.model.named(email) is not None
        body = {"email": email, "password": password}
        answer = self.call("POST", "/auth/signup", body, "email_taken" if taken else "")
        if not taken:
            user = answer.data["user"]["id"]
            self.model.users[user] = User(email, password)
            self.begun(user, answer)

    @rule(email=EMAILS, password=PASSWORDS, client=CLIENTS)
    def log_in(self, email: str, password: str, client: str) -> None:
        user = self.model.named(email)
        answer = self.app.log_in(email, password, host=client)
        if self.model.is_limited(email, client, self.now):
            assert answer.code == "rate_limited"
        elif user is None or self.model.users[user].password != password:
            assert answer.code == "invalid_credentials", answer.body
            self.model.failed(email, client, now=self.now)
        elif self.model.users[user].disabled:
            assert answer.code == "user_disabled"
        else:
            self.model.succeeded(email)
            self.begun(user, answer)

    @precondition(lambda self: self.model.refreshes)
    @rule(data=st.data())
    def refresh(self, data: st.DataObject) -> None:
        self.exchange(self.one_of(data, self.model.refreshes))

    @precondition(lambda self: self.model.refreshes)
    @rule(data=st.data(), pause=PAUSES)
    def refresh_and_try_again(self, data: st.DataObject, pause: float) -> None:
        token = self.one_of(data, self.model.refreshes)
        self.exchange(token)
        self.app.clock.advance(pause)
        self.exchange(token)

    def exchange(self, token: str) -> None:
        outcome = self.model.refused(token, self.now)
        answer = self.call("POST", "/auth/refresh", {"refresh_token": token}, outcome)
        session = self.model.refreshes[token].session
        if outcome == "refresh_token_reused":
            self.model.sessions[session].ended = True
        elif outcome == "":
            given, last = answer.data["refresh_token"], self.model.current(token)
            if last == token:
                assert given not in self.model.refreshes
                self.model.rotate(token, given, self.now)
            else:
                assert given == last
                self.model.repeat(token, self.now)
            self.model.allow(session, answer.data["access_token"], self.now)

    @precondition(lambda self: self.model.accesses)
    @rule(data=st.data(), scope=st.sampled_from(["local", "global", "others"]))
    def log_out(self, data: st.DataObject, scope: str) -> None:
        token = self.one_of(data, self.model.accesses)
        outcome = self.model.worth(token, self.now)
        self.call("POST", f"/auth/logout?scope={scope}", None, outcome, token)
        if outcome == "":
            own = self.model.accesses[token].session
            self.model.sessions[own].ended |= scope == "local"
            if scope != "local":
                self.model.end(self.model.sessions[own].user, own if scope == "others" else None)

    @precondition(lambda self: self.model.accesses)
    @rule(data=st.data())
    def end_a_session(self, data: st.DataObject) -> None:
        token, ending = self.one_of(data, self.model.accesses), self.one_of(data, self.model.sessions)
        outcome = self.model.worth(token, self.now)
        if outcome == "":
            owner = self.model.sessions[self.model.accesses[token].session].user
            outcome = "" if ending in self.model.active(owner, self.now) else "session_not_found"
        self.call("DELETE", f"/auth/sessions/{ending}", None, outcome, token)
        if outcome == "":
            self.model.sessions[ending].ended = True

    @precondition(lambda self: self.model.accesses)
    @rule(data=st.data(), current=PASSWORDS, password=st.one_of(st.none(), PASSWORDS))
    def change_password_or_leave(self, data: st.DataObject, current: str, password: str | None) -> None:
        """Without a new password the user deletes the account."""
        token = self.one_of(data, self.model.accesses)
        outcome = self.model.worth(token, self.now)
        session = self.model.accesses[token].session
        user = self.model.sessions[session].user
        if outcome == "":
            outcome = self.checked(session, current)
        if password is None:
            self.call("DELETE", "/auth/user", {"current_password": current}, outcome, token)
        else:
            body = {"password": password, "current_password": current}
            self.call("PATCH", "/auth/user", body, outcome, token)
        if outcome == "" and password is None:
            self.model.forget(user)
        elif outcome == "" and password is not None:
            self.model.users[user].password = password
            self.model.succeeded(self.model.users[user].email)
            self.model.end(user, but=session)
            self.model.void_mails(user)

    def checked(self, session: str, password: str) -> str:
        """What comes of a current password; wrong ones count by session."""
        if self.model.is_session_limited(session, self.now):
            return "rate_limited"
        if self.model.users[self.model.sessions[session].user].password != password:
            self.model.failed(session, now=self.now)
            return "invalid_credentials"
        self.model.succeeded(session)
        return ""

    @precondition(lambda self: self.model.users)
    @rule(data=st.data(), password=PASSWORDS)
    def set_password(self, data: st.DataObject, password: str) -> None:
        user = self.one_of(data, self.model.users)
        assert self.administer("PATCH", f"/admin/users/{user}", {"password": password}).status == 200
        self.model.users[user].password = password
        self.model.succeeded(self.model.users[user].email)
        self.model.end(user)
        self.model.void_mails(user)

    @precondition(lambda self: self.model.users)
    @rule(data=st.data(), disabled=st.booleans())
    def switch(self, data: st.DataObject, disabled: bool) -> None:
        user = self.one_of(data, self.model.users)
        assert self.administer("PATCH", f"/admin/users/{user}", {"disabled": disabled}).status == 200
        self.model.users[user].disabled = disabled
        if disabled:
            self.model.end(user)

    @precondition(lambda self: self.model.users)
    @rule(data=st.data())
    def end_all_sessions(self, data: st.DataObject) -> None:
        user = self.one_of(data, self.model.users)
        ended = self.administer("DELETE", f"/admin/users/{user}/sessions").data["ended"]
        # Those that have expired may have been counted: they are removed only later.
        assert len(self.model.active(user, self.now)) <= ended <= len(self.model.sessions)
        self.model.end(user)
        assert self.administer("DELETE", f"/admin/users/{user}/sessions").data["ended"] == 0

    @rule(email=EMAILS)
    def recover(self, email: str) -> None:
        user = self.model.named(email)
        before = len(self.app.mails)
        self.recoveries += 1
        # Recoveries are limited per client, which is not compared here: each comes from another one.
        client = f"2001:db8:{self.recoveries:x}::1"
        assert self.app.call("POST", "/auth/recover", {"email": email}, host=client).data is None
        written = self.app.mails[before:]
        if user is None or not self.model.gets_a_mail(user, self.now):
            assert written == []
            return
        (token,) = TOKEN.findall(written[0].text)
        self.model.void_mails(user)
        self.model.mails[token] = Mail(user, self.now)

    @precondition(lambda self: self.model.mails)
    @rule(data=st.data(), password=PASSWORDS)
    def reset(self, data: st.DataObject, password: str) -> None:
        token = self.one_of(data, self.model.mails)
        good = self.model.is_good(token, self.now)
        body = {"token": token, "password": password}
        self.call("POST", "/auth/reset", body, "" if good else "invalid_one_time_token")
        if good:
            user = self.model.mails[token].user
            self.model.users[user].password = password
            self.model.end(user)
            self.model.void_mails(user)
            self.model.succeeded(self.model.users[user].email)

    @invariant()
    def every_access_token_is_worth_what_the_model_says(self) -> None:
        for token in list(self.model.accesses)[-6:]:
            outcome = self.model.worth(token, self.now)
            answer = self.call("GET", "/auth/sessions", None, outcome, token)
            if outcome == "":
                session = self.model.accesses[token].session
                listed = {one["id"]: one["current"] for one in answer.data["sessions"]}
                active = self.model.active(self.model.sessions[session].user, self.now)
                assert listed == {key: key == session for key in active}


class AnyOrderOfRequests(TestCase):
    def test_what_comes_of_requests_is_what_the_model_says(self) -> None:
        play(lambda: AuthMachine(self), 60)
