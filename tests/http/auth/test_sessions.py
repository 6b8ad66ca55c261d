"""Refreshing, logging out and what a signed-in user may do, over HTTP in memory; and the cleanup, which
removes what has expired and nothing that is still needed."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.lifecycle import start
from tests.http.auth.app import NOW, PASSWORD, AuthApp


class Refresh(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.session: dict[str, Any] = self.app.sign_up().data

    def test_a_refresh_gives_new_tokens_of_the_same_session(self) -> None:
        self.app.clock.advance(60)
        answer = self.app.refresh(self.session["refresh_token"])
        assert answer.status == 200
        assert answer.data["user"] == self.session["user"]
        assert answer.data["expires_at"] == int(NOW + 60) + 3600
        assert answer.data["refresh_token"] != self.session["refresh_token"]
        assert answer.response.header("cache-control") == "no-store"
        verify = self.app.auth.verifier.verify
        assert verify(answer.data["access_token"]).sid == verify(self.session["access_token"]).sid

    def test_a_stale_access_token_in_the_headers_does_not_prevent_a_refresh(self) -> None:
        self.app.clock.advance(7200)
        body = {"refresh_token": self.session["refresh_token"]}
        answer = self.app.call("POST", "/auth/refresh", body, token=self.session["access_token"])
        assert answer.status == 200

    def test_a_repeated_refresh_within_the_window_gets_the_current_token(self) -> None:
        first = self.app.refresh(self.session["refresh_token"]).data
        self.app.clock.advance(9)
        second = self.app.refresh(self.session["refresh_token"])
        assert second.data["refresh_token"] == first["refresh_token"]
        assert self.app.refresh(first["refresh_token"]).status == 200

    def test_a_refresh_whose_answer_was_lost_can_be_repeated_until_its_token_is_used(self) -> None:
        self.app.refresh(self.session["refresh_token"])
        successors = set()
        for _ in range(6):
            self.app.clock.advance(3600)
            answer = self.app.refresh(self.session["refresh_token"])
            assert (answer.status, answer.data["expires_at"]) == (200, int(self.app.clock.seconds()) + 3600)
            successors.add(answer.data["refresh_token"])
        (successor,) = successors
        # Six tabs that wake up together: one goes on before another has asked.
        following = self.app.refresh(successor).data["refresh_token"]
        assert self.app.refresh(self.session["refresh_token"]).data["refresh_token"] == following
        self.app.clock.advance(10)
        assert self.app.refresh(successor).data["refresh_token"] == following
        assert self.app.refresh(self.session["refresh_token"]).code == "refresh_token_reused"

    def test_a_later_reuse_ends_the_session_and_its_access_tokens(self) -> None:
        successor = self.app.refresh(self.session["refresh_token"]).data
        current = self.app.refresh(successor["refresh_token"]).data
        self.app.clock.advance(10)
        answer = self.app.refresh(self.session["refresh_token"])
        assert (answer.status, answer.code) == (401, "refresh_token_reused")
        assert answer.response.header("www-authenticate") == "Bearer"
        assert self.app.refresh(current["refresh_token"]).code == "invalid_refresh_token"
        assert self.app.user(current["access_token"]).code == "session_revoked"
        assert self.app.user(self.session["access_token"]).code == "session_revoked"
        assert ("refresh", "refresh_token_reused") in {
            (e.action, e.result) for e in self.app.repository.events
        }

    def test_a_repeated_refresh_gets_the_current_token_though_others_have_gone_on(self) -> None:
        tokens = [self.session["refresh_token"]]
        for _ in range(3):
            tokens.append(self.app.refresh(tokens[-1]).data["refresh_token"])
            self.app.clock.advance(3)
        assert [self.app.refresh(token).data["refresh_token"] for token in tokens[:3]] == [tokens[3]] * 3
        self.app.clock.advance(1)
        assert self.app.refresh(tokens[0]).code == "refresh_token_reused"
        assert self.app.refresh(tokens[3]).code == "invalid_refresh_token"

    def test_a_refresh_token_lives_thirty_days_from_its_last_use(self) -> None:
        token = self.session["refresh_token"]
        for _ in range(3):
            self.app.clock.advance(2592000 - 1)
            answer = self.app.refresh(token)
            assert answer.status == 200
            token = answer.data["refresh_token"]
        self.app.clock.advance(2592000)
        assert self.app.refresh(token).code == "invalid_refresh_token"

    def test_anything_else_is_no_refresh_token(self) -> None:
        for token in ("", "x", "x" * 43, "x" * 10_000, "é" * 43, self.session["access_token"], "\0" * 43):
            answer = self.app.refresh(token)
            assert (answer.status, answer.code) == (401, "invalid_refresh_token"), token
        others: tuple[object, ...] = (None, 7, [self.session["refresh_token"]], {})
        for other in others:
            answer = self.app.refresh(other)
            assert (answer.status, answer.code, list(answer.details)) == (
                422,
                "validation_failed",
                ["refresh_token"],
            )

    def test_a_refresh_token_is_no_access_token(self) -> None:
        answer = self.app.user(self.session["refresh_token"])
        assert (answer.status, answer.code) == (401, "invalid_token")


class LogOut(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.first: dict[str, Any] = self.app.sign_up().data
        self.second: dict[str, Any] = self.app.log_in().data
        self.third: dict[str, Any] = self.app.log_in().data

    def log_out(self, session: dict[str, Any], query: str = "") -> Any:
        return self.app.call("POST", f"/auth/logout{query}", token=session["access_token"])

    def alive(self) -> list[bool]:
        return [
            self.app.user(one["access_token"]).status == 200 for one in (self.first, self.second, self.third)
        ]

    def test_scope_local_is_the_default(self) -> None:
        answer = self.log_out(self.second)
        assert (answer.status, answer.body) == (200, {"data": None, "error": None})
        assert self.alive() == [True, False, True]
        again = self.log_out(self.second)
        assert (again.status, again.code) == (401, "session_revoked")
        assert again.response.header("www-authenticate").startswith('Bearer error="invalid_token"')
        assert self.app.refresh(self.second["refresh_token"]).code == "invalid_refresh_token"
        self.log_out(self.first, "?scope=local")
        assert self.alive() == [False, False, True]

    def test_scope_global(self) -> None:
        assert self.log_out(self.second, "?scope=global").status == 200
        assert self.app.repository.events[-1].action == "logout_global"
        assert self.alive() == [False, False, False]

    def test_scope_others(self) -> None:
        assert self.log_out(self.second, "?scope=others").status == 200
        assert self.alive() == [False, True, False]

    def test_another_scope_is_422_and_ends_nothing(self) -> None:
        for scope in ("everything", "", "LOCAL"):
            answer = self.log_out(self.second, f"?scope={scope}")
            assert (answer.status, answer.code, list(answer.details)) == (422, "validation_failed", ["scope"])
        assert self.alive() == [True, True, True]

    def test_a_scope_in_the_body_is_422_and_ends_nothing(self) -> None:
        token = self.second["access_token"]
        answer = self.app.call("POST", "/auth/logout", {"scope": "global"}, token=token)
        assert (answer.status, answer.code, list(answer.details)) == (422, "validation_failed", ["scope"])
        assert self.alive() == [True, True, True]
        assert self.app.call("POST", "/auth/logout", {}, token=token).status == 200
        text = self.app.call(
            "POST", "/auth/logout", raw=b"?", token=self.first["access_token"], Content_Type="text/plain"
        )
        assert text.status == 200

    def test_without_a_token_logout_is_401(self) -> None:
        answer = self.app.call("POST", "/auth/logout")
        assert (answer.status, answer.code) == (401, "authentication_required")
        assert answer.response.header("www-authenticate") == "Bearer"

    def test_the_process_that_ended_a_session_refuses_it_before_the_notification_comes(self) -> None:
        self.app.repository.on_ended = lambda session_id, until: None
        self.log_out(self.first)
        assert self.alive() == [False, True, True]
        successor = self.app.refresh(self.second["refresh_token"]).data
        self.app.refresh(successor["refresh_token"])
        self.app.clock.advance(10)
        assert self.app.refresh(self.second["refresh_token"]).code == "refresh_token_reused"
        assert self.alive() == [False, False, True]
        user = self.third["user"]["id"]
        self.app.call("DELETE", f"/admin/users/{user}/sessions", X_Service_Key="service-key")
        assert self.alive() == [False, False, False]

    def test_an_ended_session_is_refused_as_long_as_its_last_token_is_valid(self) -> None:
        self.app.clock.advance(1800)
        self.second = self.app.refresh(self.second["refresh_token"]).data
        for session in (self.first, self.second):
            assert self.log_out(session).status == 200
        for seconds, first, second in (
            (1829, "session_revoked", "session_revoked"),
            (2, "invalid_token", "session_revoked"),
            (1798, "invalid_token", "session_revoked"),
            (2, "invalid_token", "invalid_token"),
        ):
            self.app.clock.pump([1.0] * seconds)
            self.successResultOf(start(self.app.auth.revoked.read_new()))
            codes = [self.app.user(one["access_token"]).code for one in (self.first, self.second)]
            assert codes == [first, second], seconds

    def test_sessions_of_other_users_are_left_alone(self) -> None:
        other = self.app.sign_up("bob@example.test").data
        self.log_out(self.first, "?scope=global")
        assert self.app.user(other["access_token"]).status == 200

    def test_sessions_are_listed_and_one_can_be_ended(self) -> None:
        answer = self.app.call("GET", "/auth/sessions", token=self.second["access_token"])
        sids = [
            self.app.auth.verifier.verify(one["access_token"]).sid
            for one in (self.first, self.second, self.third)
        ]
        assert {one["id"]: one["current"] for one in answer.data["sessions"]} == dict(
            zip(sids, (False, True, False), strict=True)
        )
        assert answer.data["sessions"][0]["created_at"] == "2026-11-21T03:04:05.678Z"
        ended = self.app.call("DELETE", f"/auth/sessions/{sids[0]}", token=self.second["access_token"])
        assert ended.body == {"data": None, "error": None}
        assert self.alive() == [False, True, True]
        again = self.app.call("DELETE", f"/auth/sessions/{sids[0]}", token=self.second["access_token"])
        assert (again.status, again.code) == (404, "session_not_found")

    def test_the_id_of_a_session_may_be_in_upper_case(self) -> None:
        sid = self.app.auth.verifier.verify(self.first["access_token"]).sid
        ended = self.app.call("DELETE", f"/auth/sessions/{sid.upper()}", token=self.second["access_token"])
        assert ended.status == 200
        assert self.alive() == [False, True, True]

    def test_a_user_cannot_end_sessions_of_another(self) -> None:
        other = self.app.sign_up("bob@example.test").data
        sid = self.app.auth.verifier.verify(self.first["access_token"]).sid
        for target in (sid, "nonsense", "%00"):
            answer = self.app.call("DELETE", f"/auth/sessions/{target}", token=other["access_token"])
            assert (answer.status, answer.code) == (404, "session_not_found")
        assert self.alive() == [True, True, True]


class Profile(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.session: dict[str, Any] = self.app.sign_up().data
        self.token = self.session["access_token"]

    def change(self, **wanted: Any) -> Any:
        return self.app.call("PATCH", "/auth/user", wanted, token=self.token)

    def test_metadata_is_replaced(self) -> None:
        sent: list[Any] = [{"metadata": value} for value in ({"a": 1, "b": 2}, None, {"b": 3})]
        shown = [self.change(**wanted).data["user"]["metadata"] for wanted in (*sent, {})]
        assert shown == [{"a": 1, "b": 2}, {}, {"b": 3}, {"b": 3}]
        assert self.app.user(self.token).data["user"]["metadata"] == {"b": 3}

    def test_a_new_password_needs_the_old_one_and_ends_other_sessions(self) -> None:
        other = self.app.log_in().data
        answer = self.change(password="another good one", current_password=PASSWORD)
        assert answer.status == 200
        assert self.app.user(self.token).status == 200
        assert self.app.user(other["access_token"]).code == "session_revoked"
        assert self.app.log_in().status == 401
        assert self.app.log_in(password="another good one").status == 200

    def test_refused_changes_change_nothing(self) -> None:
        for wanted, status, code in (
            ({"password": "another good one"}, 422, "validation_failed"),
            ({"password": "another good one", "current_password": "wrong"}, 401, "invalid_credentials"),
            ({"password": "short", "current_password": PASSWORD}, 422, "weak_password"),
            ({"password": "ada@example.test", "current_password": PASSWORD}, 422, "weak_password"),
            ({"password": None, "current_password": PASSWORD}, 422, "validation_failed"),
            ({"current_password": PASSWORD}, 422, "validation_failed"),
            ({"email": "new@example.test"}, 422, "validation_failed"),
            ({"id": "1", "metadata": {}}, 422, "validation_failed"),
            ({"metadata": None, "role": "service_role"}, 422, "validation_failed"),
            ({"metadata": 1, "password": "new", "current_password": PASSWORD}, 422, "validation_failed"),
        ):
            answer = self.change(**wanted)
            assert (answer.status, answer.code) == (status, code), wanted
        assert self.app.log_in().status == 200

    def test_guessing_the_password_with_a_stolen_token_is_limited_like_a_login(self) -> None:
        self.app.reload(login_failures_max=2)
        for _ in range(2):
            assert self.change(password="another good one", current_password="wrong").status == 401
        assert self.change(password="another good one", current_password=PASSWORD).code == "rate_limited"
        body = {"current_password": PASSWORD}
        assert self.app.call("DELETE", "/auth/user", body, token=self.token).code == "rate_limited"

    def test_the_right_password_does_not_count_as_a_guess(self) -> None:
        self.app.reload(login_failures_max=1)
        for current, new in ((PASSWORD, "another good one"), ("another good one", "yet another one")):
            assert self.change(password=new, current_password=current).status == 200

    def test_users_delete_themselves_with_their_password(self) -> None:
        for body, code in (({}, "validation_failed"), ({"current_password": "wrong"}, "invalid_credentials")):
            assert self.app.call("DELETE", "/auth/user", body, token=self.token).code == code
        answer = self.app.call("DELETE", "/auth/user", {"current_password": PASSWORD}, token=self.token)
        assert (answer.status, answer.body) == (200, {"data": None, "error": None})
        assert self.app.user(self.token).code == "session_revoked"
        assert self.app.refresh(self.session["refresh_token"]).code == "invalid_refresh_token"
        assert self.app.log_in().code == "invalid_credentials"
        assert self.app.sign_up().status == 201

    def test_deleted_and_disabled_users_are_refused_before_the_notification_comes(self) -> None:
        self.app.repository.on_ended = lambda session_id, until: None
        path = f"/admin/users/{self.session['user']['id']}"
        self.app.call("PATCH", path, {"disabled": True}, X_Service_Key="service-key")
        assert self.app.user(self.token).code == "session_revoked"
        assert self.change(metadata={"a": 1}).code == "session_revoked"
        self.app.call("DELETE", path, X_Service_Key="service-key")
        assert self.app.user(self.token).code == "session_revoked"

    def test_every_call_needs_a_token(self) -> None:
        for method, path in (
            ("GET", "/auth/user"),
            ("PATCH", "/auth/user"),
            ("DELETE", "/auth/user"),
            ("GET", "/auth/sessions"),
            ("DELETE", "/auth/sessions/x"),
            ("POST", "/auth/logout"),
        ):
            answer = self.app.call(method, path, {} if method in {"PATCH", "DELETE"} else None)
            assert (answer.status, answer.code) == (401, "authentication_required"), (method, path)

    def test_a_service_key_is_no_users_session(self) -> None:
        app = AuthApp(self, require_project_key=True)
        assert app.call("GET", "/auth/user", X_Service_Key="service-key").code == "authentication_required"

    def test_a_project_key_is_required_if_configured(self) -> None:
        app = AuthApp(self, require_project_key=True)
        assert app.sign_up().code == "project_key_required"
        assert app.sign_up(X_Service_Key="anon-key").status == 201
        assert self.app.log_in(X_Service_Key="wrong").code == "project_key_invalid"

    def test_an_overloaded_service_is_503(self) -> None:
        self.app.hashes.failure = errors.overloaded()
        assert self.change(password="another good one", current_password=PASSWORD).status == 503


class Upkeep(TestCase):
    def app(self, **auth: Any) -> AuthApp:
        app = AuthApp(self, **auth)
        (upkeep,) = [service for service in app.auth.services if service.name == "auth-upkeep"]
        upkeep.startService()
        self.addCleanup(upkeep.stopService)
        return app

    def test_each_minute_old_salts_and_audit_entries_are_removed(self) -> None:
        app = self.app(audit_days=1)
        session = app.sign_up().data
        app.clock.advance(55)
        child = app.refresh(session["refresh_token"]).data["refresh_token"]
        app.refresh(child)
        app.clock.advance(5)
        assert app.refresh(session["refresh_token"]).status == 200
        app.clock.advance(60)
        (row,) = app.repository.session_rows.values()
        assert (row.older, bool(row.salt)) == ({}, True)
        app.clock.advance(86400 - 120)
        assert len(app.repository.events) == 1
        app.clock.advance(60)
        assert app.repository.events == []

    def test_salts_are_kept_for_two_windows(self) -> None:
        """A host whose clock is ahead must not take them away from the others."""
        app = self.app()
        session = app.sign_up().data
        app.clock.advance(41)
        app.refresh(app.refresh(session["refresh_token"]).data["refresh_token"])
        app.clock.advance(19)
        (row,) = app.repository.session_rows.values()
        assert len(row.older) == 1
        app.clock.advance(60)
        assert row.older == {}

    def test_an_expired_refresh_token_is_forgotten(self) -> None:
        app = self.app(refresh_token_seconds=300)
        tokens = [app.sign_up().data["refresh_token"]]
        for _ in range(6):
            app.clock.advance(60)
            tokens.append(app.refresh(tokens[-1]).data["refresh_token"])
        refused = [app.refresh(token).code for token in tokens[:2]]
        assert refused == ["invalid_refresh_token", "refresh_token_reused"]
