"""Tokens by which an operator sees what somebody sees, over HTTP in memory."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from project_service.auth.values import moment
from project_service.http.caller import NOBODY
from tests.http.auth.app import NOW, PASSWORD, Answer, AuthApp


class Impersonation(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.user = self.app.sign_up().data["user"]

    def made(self, user: str | None) -> Answer:
        return self.app.call("POST", "/admin/tokens", {"user": user}, X_Service_Key="service-key")

    def claims(self, token: str) -> Any:
        return self.app.auth.verifier.verify(token)

    def test_only_the_service_key_makes_one(self) -> None:
        token = self.app.log_in().data["access_token"]
        no_keys: dict[str, Any] = {}
        for headers, code in (
            (no_keys, "project_key_required"),
            ({"X_Service_Key": "anon-key"}, "service_key_required"),
        ):
            made = self.app.call("POST", "/admin/tokens", {"user": None}, token=token, **headers)
            assert made.code == code
        own = self.made(self.user["id"]).data["access_token"]
        assert (
            self.app.call("POST", "/admin/tokens", {"user": None}, token=own).code == "project_key_required"
        )

    def test_it_has_the_claims_of_the_user(self) -> None:
        theirs = self.claims(self.app.log_in().data["access_token"]).raw
        for name in (self.user["id"], self.user["email"]):
            made = self.made(name)
            assert made.status == 200
            assert made.response.header("cache-control") == "no-store"
            assert made.data["user"] == self.user
            claims = self.claims(made.data["access_token"]).raw
            assert {name for name in theirs if claims[name] != theirs[name]} == {
                *("sid", "session_id", "jti", "exp", "amr"),
            }
            assert (claims["act"], claims["amr"]) == ({"sub": "service"}, [])
            assert claims["exp"] == made.data["expires_at"] == int(NOW) + 300

    def test_it_lives_no_longer_than_other_tokens(self) -> None:
        self.app.reload(access_token_seconds=60)
        assert self.made(None).data["expires_at"] == int(NOW) + 60
        assert self.made(self.user["id"]).data["expires_at"] == int(NOW) + 60

    def test_one_of_nobody(self) -> None:
        made = self.made(None).data
        assert made["user"] is None
        claims = self.claims(made["access_token"])
        assert (claims.sub, claims.role, claims.is_nobody) == (NOBODY, "anon", True)

    def test_the_account_cannot_be_changed_with_it(self) -> None:
        token = self.made(self.user["id"]).data["access_token"]
        change = {"password": "another good one", "current_password": PASSWORD}
        for method, path, body in (
            ("GET", "/auth/user", None),
            ("PATCH", "/auth/user", change),
            ("PATCH", "/auth/user", {"metadata": {}}),
            ("DELETE", "/auth/user", {"current_password": PASSWORD}),
            ("GET", "/auth/sessions", None),
            ("DELETE", f"/auth/sessions/{self.claims(token).sid}", None),
            ("POST", "/auth/logout", None),
        ):
            keys: tuple[dict[str, Any], ...] = ({}, {"X_Service_Key": "service-key"})
            for key in keys:
                refused = self.app.call(method, path, body, token=token, **key)
                assert (refused.status, refused.code) == (403, "session_required"), (method, path)
            nobody = self.made(None).data["access_token"]
            refused = self.app.call(method, path, body, token=nobody)
            assert (refused.status, refused.code) == (401, "authentication_required"), (method, path)
        refused = self.app.call("POST", "/auth/refresh", {"refresh_token": token})
        assert refused.code == "invalid_refresh_token"
        assert self.app.log_in().status == 200

    def test_it_begins_no_session(self) -> None:
        before = dict(self.app.repository.session_rows)
        account = self.app.repository.accounts[self.user["id"]]
        self.made(self.user["id"])
        assert self.app.repository.session_rows == before
        assert self.app.repository.accounts[self.user["id"]] == account

    def test_what_becomes_of_the_user_does_not_end_it(self) -> None:
        token = self.made(self.user["id"]).data["access_token"]
        path = f"/admin/users/{self.user['id']}"
        self.app.call("DELETE", f"{path}/sessions", X_Service_Key="service-key")
        self.app.call("PATCH", path, {"disabled": True}, X_Service_Key="service-key")
        assert self.claims(token).sub == self.user["id"]
        self.app.clock.advance(300 + 30)
        assert self.app.call("GET", "/auth/user", token=token).code == "invalid_token"

    def test_those_who_get_none(self) -> None:
        unknown = self.made("nobody@example.test")
        assert (unknown.status, unknown.code) == (404, "user_not_found")
        path = f"/admin/users/{self.user['id']}"
        self.app.call("PATCH", path, {"disabled": True}, X_Service_Key="service-key")
        self.app.repository.events = []
        disabled = self.made(self.user["id"])
        assert (disabled.status, disabled.code) == (403, "user_disabled")
        for body in ({}, {"user": 7}, {"user": None, "seconds": 9}):
            refused = self.app.call("POST", "/admin/tokens", body, X_Service_Key="service-key")
            assert (refused.status, refused.code) == (422, "validation_failed")
        assert self.app.repository.events == []

    def test_it_is_in_the_audit(self) -> None:
        self.app.repository.events = []
        self.made(self.user["email"])
        self.made(None)
        of_user, of_nobody = self.app.repository.events
        for event in (of_user, of_nobody):
            assert (event.at, event.actor, event.action, event.result) == (
                moment(NOW),
                "service",
                "impersonate",
                "ok",
            )
            assert event.origin.address == "192.0.2.7"
        assert (of_user.user_id, of_user.email, of_user.subject) == (self.user["id"], self.user["email"], "")
        assert (of_nobody.user_id, of_nobody.email, of_nobody.subject) == (None, None, "anon")
