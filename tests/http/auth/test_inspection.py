"""What operators look up about users, over HTTP in memory: search, details, sessions, the audit; and invitations."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.auth.inspection import Inspection
from project_service.errors import ApiError
from tests.fakes.auth import MemoryRepository, lookups_of
from tests.http.auth.app import PASSWORD, Answer, AuthApp


class Inspecting(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)

    def admin(self, method: str, path: str, body: Any = None, **query: str) -> Answer:
        target = f"/admin/{path}" + (f"?{urlencode(query)}" if query else "")
        return self.app.call(method, target, body, X_Service_Key="service-key")

    def emails(self, **query: str) -> list[str]:
        """Of all pages."""
        found: list[str] = []
        while True:
            page = self.admin("GET", "users", **query).data
            found += [user["email"] for user in page["users"]]
            if page["next_cursor"] is None:
                return found
            query["cursor"] = page["next_cursor"]


class Users(Inspecting):
    def setUp(self) -> None:
        super().setUp()
        for name in ("zoe", "ada", "Bob"):
            self.app.clock.advance(1)
            self.admin("POST", "users", {"email": f"{name}@Example.test"})
        self.app.clock.advance(1)
        self.admin("POST", "users", {"email": "ann@other.test", "email_confirmed": False})
        self.admin("PATCH", f"users/{quote('ada@example.test')}", {"disabled": True})

    def test_a_search_finds_parts_of_addresses_in_upper_or_lower_case(self) -> None:
        for limit in ("1", "50"):
            assert self.emails(email="EXAMPLE", limit=limit) == [
                *("ada@example.test", "Bob@example.test", "zoe@example.test"),
            ]
            assert self.emails(email="bob@", limit=limit) == ["Bob@example.test"]
            assert self.emails(email="o", limit=limit) == [
                *("ann@other.test", "Bob@example.test", "zoe@example.test"),
            ]
        assert self.emails(email="nobody") == []
        assert self.emails(email="%") == []

    def test_an_empty_search_finds_everybody(self) -> None:
        assert self.emails(email="") == self.emails()

    def test_the_newest_first(self) -> None:
        for limit in ("1", "3", "50"):
            oldest = self.emails(order="oldest", limit=limit)
            assert oldest == self.emails(limit=limit)
            assert oldest[0] == "zoe@example.test"
            assert self.emails(order="newest", limit=limit) == oldest[::-1]

    def test_filters(self) -> None:
        assert self.emails(disabled="true") == ["ada@example.test"]
        assert self.emails(email_confirmed="false") == ["ann@other.test"]
        assert self.emails(email_confirmed="true", disabled="false") == [
            "zoe@example.test",
            "Bob@example.test",
        ]
        assert self.emails(anonymous="true") == []
        assert len(self.emails(anonymous="false")) == 4
        assert self.emails(email="a", disabled="true") == ["ada@example.test"]

    def test_what_cannot_be_looked_for_is_refused(self) -> None:
        for query, name in (
            ({"disabled": "yes"}, "disabled"),
            ({"email_confirmed": ""}, "email_confirmed"),
            ({"anonymous": "1"}, "anonymous"),
            ({"order": "random"}, "order"),
            ({"order": "newest", "email": "a"}, "order"),
            ({"email": "a" * 255}, "email"),
            ({"email": "a\0"}, "email"),
            ({"cursor": "x"}, "cursor"),
            ({"cursor": "", "email": "a"}, "cursor"),
            ({"cursor": "/", "email": "a"}, "cursor"),
            ({"limit": "0"}, "limit"),
        ):
            refused = self.admin("GET", "users", **query)
            assert (refused.status, refused.code, list(refused.details)) == (422, "validation_failed", [name])


class OneUser(Inspecting):
    def setUp(self) -> None:
        super().setUp()
        self.session = self.app.sign_up(User_Agent="a telephone", metadata=None).data
        self.user = self.session["user"]

    def test_details_have_all_ways_in(self) -> None:
        details = self.admin("GET", f"users/{self.user['id']}/details").data
        assert details["user"] == self.admin("GET", f"users/{self.user['id']}").data["user"]
        assert details == self.admin("GET", f"users/{self.user['email']}/details").data
        (identity,) = details["identities"]
        assert (identity["provider"], identity["email"]) == ("email", self.user["email"])
        assert (details["factors"], details["passkeys"]) == ([], [])
        assert details["app_metadata"] == {"provider": "email", "providers": ["email"]}
        assert (details["is_anonymous"], details["has_password"]) == (False, True)
        assert (details["invited_at"], details["disabled_until"]) == (None, None)
        assert PASSWORD not in str(details) and "$2b$" not in str(details)

    def test_sessions_have_device_and_address(self) -> None:
        self.app.clock.advance(60)
        self.app.log_in(User_Agent="a desktop", host="192.0.2.9")
        sessions = self.admin("GET", f"users/{self.user['id']}/sessions").data["sessions"]
        assert [(one["user_agent"], one["address"]) for one in sessions] == [
            ("a desktop", "192.0.2.9"),
            ("a telephone", "192.0.2.7"),
        ]
        assert set(sessions[0]) == {
            *("id", "created_at", "refreshed_at", "expires_at", "user_agent", "address"),
        }

    def test_one_session_is_ended(self) -> None:
        other = self.app.log_in().data
        path = f"users/{self.user['id']}/sessions"
        newest = self.app.auth.verifier.verify(other["access_token"]).sid
        self.app.repository.events = []
        assert self.admin("DELETE", f"{path}/{newest.upper()}").data is None
        (event,) = self.app.repository.events
        assert (event.action, event.actor, event.user_id) == ("end_session", "service", self.user["id"])
        assert self.app.call("GET", "/auth/user", token=other["access_token"]).code == "session_revoked"
        assert self.app.call("GET", "/auth/user", token=self.session["access_token"]).status == 200
        assert len(self.admin("GET", path).data["sessions"]) == 1
        for gone in (newest, "x", "00000000-0000-4000-8000-000000000000"):
            refused = self.admin("DELETE", f"{path}/{gone}")
            assert (refused.status, refused.code) == (404, "session_not_found")
        somebody = self.app.sign_up("bob@example.test").data["user"]["id"]
        mine = self.app.auth.verifier.verify(self.session["access_token"]).sid
        assert self.admin("DELETE", f"users/{somebody}/sessions/{mine}").code == "session_not_found"

    def test_nobody_is_found_by_an_unknown_name(self) -> None:
        for name in ("x", "nobody@example.test", "00000000-0000-4000-8000-000000000000"):
            for path in ("details", "sessions"):
                refused = self.admin("GET", f"users/{name}/{path}")
                assert (refused.status, refused.code) == (404, "user_not_found")


class Audit(Inspecting):
    def entries(self, **query: str) -> list[str]:
        """Of all pages."""
        found: list[str] = []
        while True:
            page = self.admin("GET", "audit", **query).data
            found += [entry["action"] for entry in page["entries"]]
            if page["next_cursor"] is None:
                return found
            query["cursor"] = page["next_cursor"]

    def test_it_has_the_newest_entry_first(self) -> None:
        user = self.app.sign_up().data["user"]
        self.app.clock.advance(1)
        self.app.log_in(password="wrong", User_Agent="a robot")
        self.app.clock.advance(1)
        self.app.sign_up("bob@example.test")
        for limit in ("1", "2", "50"):
            assert self.entries(limit=limit) == ["signup", "login", "signup"]
            assert self.entries(limit=limit, user=user["id"]) == ["login", "signup"]
            assert self.entries(limit=limit, user=user["email"]) == ["login", "signup"]
            assert self.entries(limit=limit, action="login") == ["login"]
            assert self.entries(limit=limit, subject="papers") == []
        entry = self.admin("GET", "audit", action="login").data["entries"][0]
        assert {**entry, "id": 0} == {
            "id": 0,
            "at": "2026-11-21T03:04:06.678Z",
            "actor": "anonymous",
            "actor_id": None,
            "user_id": user["id"],
            "email": user["email"],
            "subject": "",
            "action": "login",
            "result": "invalid_credentials",
            "address": "192.0.2.7",
            "user_agent": "a robot",
            "request_id": "made-here",
        }

    def test_it_shows_what_became_of_a_user_who_is_gone(self) -> None:
        user = self.app.sign_up().data["user"]
        self.admin("DELETE", f"users/{user['id']}")
        assert self.entries(user=user["id"]) == ["delete_user", "signup"]
        unknown = self.admin("GET", "audit", user=user["email"])
        assert (unknown.status, unknown.code) == (404, "user_not_found")

    def test_what_cannot_be_looked_for_is_refused(self) -> None:
        for query, name in (
            ({"cursor": "x"}, "cursor"),
            ({"action": ""}, "action"),
            ({"action": "a" * 1025}, "action"),
            ({"subject": "\0"}, "subject"),
            ({"limit": "1001"}, "limit"),
        ):
            refused = self.admin("GET", "audit", **query)
            assert (refused.status, refused.code, list(refused.details)) == (422, "validation_failed", [name])


class Cursors(TestCase):
    @given(st.text(max_size=60), st.sampled_from(["users", "addresses", "entries"]))
    def test_any_text_is_a_cursor_or_refused(self, cursor: str, what: str) -> None:
        repository = MemoryRepository()
        inspection = Inspection(None, lookups_of(repository))  # type: ignore[arg-type]
        work = {
            "users": lambda: inspection.page({"cursor": cursor}),
            "addresses": lambda: inspection.page({"cursor": cursor, "email": "a"}),
            "entries": lambda: inspection.entries({"cursor": cursor}),
        }[what]()
        try:
            work.send(None)
        except StopIteration:
            pass
        except ApiError as refusal:
            assert refusal.code == "validation_failed"


class Invitations(Inspecting):
    def invited(self, **more: Any) -> Answer:
        return self.admin("POST", "invitations", {"email": "ada@example.test", **more})

    def token(self) -> str:
        return self.app.mails[-1].text.split("\n\n")[1]

    def test_an_invited_user_sets_the_first_password(self) -> None:
        self.app.reload(recover_url="https://app.example.test/reset", confirm_email=True)
        user = self.invited(metadata={"name": "Ada"}).data["user"]
        assert (user["metadata"], user["email_confirmed"]) == ({"name": "Ada"}, False)
        mail = self.app.mails[-1]
        assert mail.recipient == "ada@example.test"
        assert f"https://app.example.test/reset?token={self.token()}" in mail.text.replace("#", "?")
        reset = {"token": self.token(), "password": PASSWORD}
        assert self.app.log_in().code == "invalid_credentials"
        assert self.app.call("POST", "/auth/reset", reset).status == 200
        assert self.app.log_in().status == 200
        assert self.admin("GET", f"users/{user['id']}").data["user"]["email_confirmed"] is True
        assert self.app.call("POST", "/auth/reset", reset).code == "invalid_one_time_token"
        taken = self.invited()
        assert (taken.status, taken.code) == (409, "email_taken")

    def test_whoever_has_not_accepted_gets_another_one(self) -> None:
        first = self.invited().data["user"]
        assert len(self.app.mails) == 1
        self.app.clock.advance(self.app.settings.auth.email_seconds + 1)
        assert self.invited().data["user"]["id"] == first["id"]
        assert len(self.app.mails) == 2

    def test_without_a_mail_server_nobody_is_invited(self) -> None:
        self.app = AuthApp(self, mail=False)
        refused = self.invited()
        assert refused.code == "email_not_configured"
        assert self.app.repository.accounts == {}
