"""The audit log: who did what to whom, when, from where and with what result."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from project_service.audit import Origin
from project_service.auth.values import moment
from project_service.http.caller import digest
from tests.fakes.common import SERVICE_KEY
from tests.http.auth.app import NOW, PASSWORD, Answer, AuthApp

ANOTHER = "another good one"
EMAIL = "ada@example.test"
NOBODY = "nobody@example.test"


class Audit(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.requests = 0

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        self.requests += 1
        return self.app.call(
            method, path, body, User_Agent="a browser", X_Request_Id=f"r{self.requests}", **more
        )

    def service(self, method: str, path: str, body: Any = None) -> Answer:
        return self.call(method, f"/admin/users{path}", body, X_Service_Key=SERVICE_KEY)

    def log_in(self, password: str = PASSWORD, email: str = EMAIL) -> Answer:
        return self.call("POST", "/auth/login", {"email": email, "password": password})

    def new_entries(self) -> list[tuple[str, str, str]]:
        """What was recorded since the last call. Asserts whose entry it is, when it was made and from where."""
        events, self.app.repository.events = self.app.repository.events, []
        (user,) = self.app.repository.accounts or [self.user]
        for event in events:
            assert event.at == moment(NOW)
            key = digest(SERVICE_KEY) if event.actor == "service" else b""
            assert event.origin == Origin("192.0.2.7", "a browser", f"r{self.requests}", service_key=key)
            known = (None, NOBODY) if event.email == NOBODY else (user, EMAIL)
            assert (event.user_id, event.email) == known, event
        return [(event.action, event.result, event.actor) for event in events]

    def sign_up(self, **more: str) -> Any:
        answer = self.call("POST", "/auth/signup", {"email": EMAIL, "password": PASSWORD} | more)
        (self.user,) = self.app.repository.accounts
        return answer

    def test_signups_and_logins_are_recorded(self) -> None:
        session = self.sign_up().data
        assert self.new_entries() == [("signup", "ok", "anonymous")]
        self.log_in()
        assert self.new_entries() == [("login", "ok", "anonymous")]
        self.log_in("wrong")
        assert self.new_entries() == [("login", "invalid_credentials", "anonymous")]
        self.log_in(email=NOBODY)
        assert self.new_entries() == [("login", "invalid_credentials", "anonymous")]
        self.call("POST", "/auth/refresh", {"refresh_token": session["refresh_token"]})
        assert self.new_entries() == []

    def test_a_long_user_agent_is_cut(self) -> None:
        self.app.sign_up(User_Agent="x" * 256 + "y" * 40_000)
        (event,) = self.app.repository.events
        assert event.origin.user_agent == "x" * 256

    def test_refusals_are_recorded_but_not_those_by_a_limit(self) -> None:
        """A flood would be recorded line by line."""
        self.sign_up()
        self.new_entries()
        self.service("PATCH", f"/{self.user}", {"disabled": True})
        assert self.new_entries() == [("disable_user", "ok", "service")]
        self.log_in()
        assert self.new_entries() == [("login", "user_disabled", "anonymous")]
        self.app.reload(login_failures_max=1)
        self.log_in("wrong")
        self.new_entries()
        assert self.log_in().status == 429
        assert self.new_entries() == []

    def test_changes_by_the_user_are_recorded(self) -> None:
        token = self.sign_up().data["access_token"]
        self.new_entries()
        for method, path, body, recorded in (
            ("PATCH", "/auth/user", {"metadata": {}}, ["set_metadata"]),
            ("PATCH", "/auth/user", {"password": ANOTHER, "current_password": PASSWORD}, ["set_password"]),
            ("POST", "/auth/logout?scope=others", None, ["logout_others"]),
            ("GET", "/auth/sessions", None, []),
            ("DELETE", "/auth/sessions/00000000-0000-4000-8000-000000000000", None, []),
            ("POST", "/auth/logout", None, ["logout_local"]),
        ):
            self.call(method, path, body, token=token)
            assert self.new_entries() == [(action, "ok", "user") for action in recorded], (method, path)
        first, second = (self.log_in(ANOTHER).data["access_token"] for _ in range(2))
        self.app.repository.events = []
        self.call("DELETE", f"/auth/sessions/{self.app.auth.verifier.verify(first).sid}", token=second)
        assert self.new_entries() == [("end_session", "ok", "user")]
        for body, action in (
            ({"password": PASSWORD, "current_password": "wrong"}, "set_password"),
            ({"current_password": "wrong"}, "delete_user"),
        ):
            self.call("PATCH" if "password" in body else "DELETE", "/auth/user", body, token=second)
            assert self.new_entries() == [(action, "invalid_credentials", "user")]
        self.call("POST", "/auth/logout?scope=global", token=second)
        assert self.new_entries() == [("logout_global", "ok", "user")]
        last = self.log_in(ANOTHER).data["access_token"]
        self.new_entries()
        self.call("DELETE", "/auth/user", {"current_password": ANOTHER}, token=last)
        assert self.new_entries() == [("delete_user", "ok", "user")]

    def test_mails_and_their_use_are_recorded(self) -> None:
        self.app.reload(confirm_email=True)
        self.sign_up()
        assert self.new_entries() == [("signup", "ok", "anonymous"), ("mail_confirmation", "ok", "anonymous")]
        self.log_in()
        assert self.new_entries() == [("login", "email_not_confirmed", "anonymous")]
        self.call("POST", "/auth/verify", {"token": self.token()})
        assert self.new_entries() == [("confirm_email", "ok", "anonymous")]
        for email in (EMAIL, NOBODY):
            self.call("POST", "/auth/recover", {"email": email})
            assert self.new_entries() == [("mail_recovery", "ok", "anonymous")]
        self.call("POST", "/auth/reset", {"token": self.token(), "password": ANOTHER})
        assert self.new_entries() == [("reset_password", "ok", "anonymous")]

    def token(self) -> str:
        return self.app.mails[-1].text.split("\n\n")[1]

    def test_changes_by_an_operator_are_recorded(self) -> None:
        self.service("POST", "", {"email": EMAIL})
        (self.user,) = self.app.repository.accounts
        assert self.new_entries() == [("create_user", "ok", "service")]
        for method, path, body, recorded in (
            ("GET", "", None, []),
            ("PATCH", "", {"metadata": {}}, ["set_metadata"]),
            ("PATCH", "", {"password": ANOTHER, "disabled": True}, ["set_password", "disable_user"]),
            ("PATCH", "", {"disabled": False}, ["enable_user"]),
            ("DELETE", "/sessions", None, ["end_sessions"]),
            ("DELETE", "", None, ["delete_user"]),
        ):
            self.service(method, f"/{EMAIL}{path}", body)
            assert self.new_entries() == [(action, "ok", "service") for action in recorded], (method, path)
