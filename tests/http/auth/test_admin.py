"""The operator's endpoints below /admin/users, over HTTP in memory."""

from __future__ import annotations

from typing import Any

import bcrypt
from twisted.trial.unittest import TestCase

from tests.http.auth.app import PASSWORD, Answer, AuthApp


class Admin(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)

    def admin(self, method: str, path: str = "", body: Any = None) -> Answer:
        return self.app.call(method, f"/admin/users{path}", body, X_Service_Key="service-key")

    def test_admin_routes_need_the_service_key(self) -> None:
        token = self.app.sign_up().data["access_token"]
        for method, path in (
            ("GET", ""),
            ("POST", ""),
            ("GET", "/x"),
            ("PATCH", "/x"),
            ("DELETE", "/x"),
            ("DELETE", "/x/sessions"),
        ):
            body: Any = {} if method in {"POST", "PATCH"} else None
            url = f"/admin/users{path}"
            assert self.app.call(method, url, body, token=token).code == "project_key_required"
            refused = self.app.call(method, url, body, token=token, X_Service_Key="anon-key")
            assert (refused.status, refused.code) == (403, "service_key_required")

    def test_a_user_is_created_with_a_password(self) -> None:
        answer = self.admin(
            "POST", body={"email": "ada@example.test", "password": PASSWORD, "metadata": {"a": 1}}
        )
        assert answer.status == 201
        user = answer.data["user"]
        assert answer.response.header("location") == f"/admin/users/{user['id']}"
        assert user["email"] == "ada@example.test"
        assert (user["disabled"], user["email_confirmed"], user["last_login_at"]) == (False, True, None)
        assert not any("hash" in name for name in user)
        assert self.app.log_in().status == 200
        assert self.admin("GET", f"/{user['id']}").data["user"]["last_login_at"] == "2026-11-21T03:04:05.678Z"
        assert self.admin("POST", body={"email": "ADA@example.test"}).code == "email_taken"

    def test_a_user_is_imported_with_a_bcrypt_hash(self) -> None:
        made = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        for number, kind in enumerate(("$2a$", "$2b$", "$2y$")):
            email = f"user{number}@example.test"
            assert self.admin("POST", body={"email": email, "password_hash": kind + made[4:]}).status == 201
            assert self.app.log_in(email).status == 200

    def test_an_imported_user_keeps_his_id(self) -> None:
        key = "5e9D3a00-7b1c-4b8e-9f6d-0a1b2c3d4e5f"
        body = {"id": key, "email": "ada@example.test", "password": PASSWORD}
        assert self.admin("POST", body=body).data["user"]["id"] == key.lower()
        assert self.app.log_in().data["user"]["id"] == key.lower()
        again = self.admin("POST", body={**body, "email": "bob@example.test"})
        assert (again.status, again.code) == (409, "id_taken")
        assert self.admin("GET", "/bob@example.test").status == 404

    def test_a_user_without_a_password_cannot_log_in(self) -> None:
        assert self.admin("POST", body={"email": "ada@example.test"}).status == 201
        for password in ("", PASSWORD):
            assert self.app.log_in(password=password).code == "invalid_credentials"

    def test_an_unconfirmed_address_keeps_a_user_out_only_if_confirmation_is_required(self) -> None:
        body = {"email": "ada@example.test", "password": PASSWORD, "email_confirmed": False}
        assert self.admin("POST", body=body).data["user"]["email_confirmed"] is False
        self.app.reload(confirm_email=True)
        assert self.app.log_in().code == "email_not_confirmed"
        self.app.reload(confirm_email=False)
        assert self.app.log_in().status == 200

    def test_invalid_users_are_refused(self) -> None:
        made = bcrypt.hashpw(b"x", bcrypt.gensalt(4)).decode()
        for body, code in (
            ({}, "validation_failed"),
            ({"email": "no address"}, "validation_failed"),
            ({"email": "zoë@example.test"}, "validation_failed"),
            ({"email": "a@example.test", "password": "short"}, "weak_password"),
            ({"email": "a@example.test", "id": None}, "validation_failed"),
            ({"email": "a@example.test", "id": "7"}, "validation_failed"),
            ({"email": "a@example.test", "password": None}, "validation_failed"),
            ({"email": "a@example.test", "password_hash": "plain"}, "validation_failed"),
            ({"email": "a@example.test", "password_hash": None}, "validation_failed"),
            ({"email": "a@example.test", "password_hash": made + "x"}, "validation_failed"),
            ({"email": "a@example.test", "password_hash": made.replace("$04$", "$17$")}, "validation_failed"),
            ({"email": "a@example.test", "password_hash": made.replace("$04$", "$03$")}, "validation_failed"),
            ({"email": "a@example.test", "password_hash": "$1$" + made}, "validation_failed"),
            # No password would match it: the salt's last character has unused bits that are set.
            ({"email": "a@example.test", "password_hash": f"{made[:28]}/{made[29:]}"}, "validation_failed"),
            ({"email": "a@example.test", "password": PASSWORD, "password_hash": made}, "validation_failed"),
            ({"email": "a@example.test", "role": "service_role"}, "validation_failed"),
            ({"email": "a@example.test", "email_confirmed": "yes"}, "validation_failed"),
        ):
            answer = self.admin("POST", body=body)
            assert (answer.status, answer.code) == (422, code), body
        assert self.app.repository.accounts == {}
        dear = {"email": "a@example.test", "password_hash": made.replace("$04$", "$16$")}
        assert self.admin("POST", body=dear).status == 201

    def test_disabling_ends_sessions_and_enabling_does_not_restore_them(self) -> None:
        session = self.app.sign_up().data
        path = f"/{session['user']['id']}"
        assert self.admin("PATCH", path, {"disabled": True}).data["user"]["disabled"] is True
        assert self.app.user(session["access_token"]).code == "session_revoked"
        assert self.app.refresh(session["refresh_token"]).code == "invalid_refresh_token"
        assert self.app.log_in().code == "user_disabled"
        assert self.admin("PATCH", path, {"disabled": False}).data["user"]["disabled"] is False
        assert self.app.user(session["access_token"]).code == "session_revoked"
        assert self.app.log_in().status == 200
        recorded = [event.action for event in self.app.repository.events if event.actor == "service"]
        assert recorded == ["disable_user", "enable_user"]

    def test_password_and_metadata_can_be_set(self) -> None:
        session = self.app.sign_up().data
        path = f"/{session['user']['id']}"
        answer = self.admin("PATCH", path, {"password": "set by the operator", "metadata": {"vip": True}})
        assert answer.data["user"]["metadata"] == {"vip": True}
        assert self.app.user(session["access_token"]).code == "session_revoked"
        assert self.app.log_in(password="set by the operator").status == 200
        wrong = ({"email": "new@example.test"}, {"metadata": 7}, {"password": 7})
        for body in (*wrong, {"disabled": "yes"}, {"disabled": None}):
            assert self.admin("PATCH", path, body).code == "validation_failed"

    def test_sessions_are_ended_and_counted(self) -> None:
        session = self.app.sign_up().data
        self.app.log_in()
        path = f"/{session['user']['id']}/sessions"
        assert self.admin("DELETE", path).data == {"ended": 2}
        assert self.admin("DELETE", path).data == {"ended": 0}
        assert self.app.user(session["access_token"]).code == "session_revoked"

    def test_a_deleted_user_is_gone(self) -> None:
        session = self.app.sign_up().data
        path = f"/{session['user']['id']}"
        assert self.admin("DELETE", path).body == {"data": None, "error": None}
        assert self.app.user(session["access_token"]).code == "session_revoked"
        for method in ("GET", "DELETE"):
            answer = self.admin(method, path)
            assert (answer.status, answer.code) == (404, "user_not_found")
        assert self.app.repository.events[-1].actor == "service"

    def test_of_two_simultaneous_deletions_one_is_404(self) -> None:
        user_id, delete = self.app.sign_up().data["user"]["id"], self.app.repository.delete_user

        async def second(user_id: str, *about: Any) -> bool:
            self.app.repository.accounts.pop(user_id)
            return await delete(user_id, *about)

        self.patch(self.app.repository, "delete_user", second)
        assert self.admin("DELETE", f"/{user_id}").code == "user_not_found"

    def test_a_user_is_found_by_email_address_too(self) -> None:
        self.app.sign_up()
        assert self.admin("GET", "/ADA@example.test").data["user"]["email"] == "ada@example.test"

    def test_an_impossible_id_is_404(self) -> None:
        for path in ("/nonsense", "/%00", "/00000000-0000-4000-8000-000000000009", "/'--", "/a@b@c"):
            assert self.admin("GET", path).code == "user_not_found"

    def test_the_list_is_read_page_by_page(self) -> None:
        for number in range(5):
            self.app.sign_up(f"user{number}@example.test")
        seen: list[str] = []
        query = "?limit=2"
        while True:
            page = self.admin("GET", query).data
            assert len(page["users"]) <= 2
            seen += [user["email"] for user in page["users"]]
            if page["next_cursor"] is None:
                break
            query = f"?limit=2&cursor={page['next_cursor']}"
        assert seen == [f"user{number}@example.test" for number in range(5)]

    def test_page_sizes_from_1_to_1000(self) -> None:
        sizes = (1, 1000, "0" * 5000 + "9")
        assert [self.admin("GET", f"?limit={size}").status for size in sizes] == [200, 200, 200]

    def test_the_default_page_size_is_50(self) -> None:
        for number in range(51):
            self.admin("POST", body={"email": f"user{number}@example.test"})
        page = self.admin("GET").data
        assert (len(page["users"]), page["next_cursor"] is None) == (50, False)

    def test_invalid_page_parameters_are_422(self) -> None:
        for query in (
            "?limit=0",
            "?limit=1001",
            f"?limit={'9' * 5000}",
            "?limit=x",
            "?limit=%D9%A3",
            "?cursor=x",
            "?cursor=",
            "?cursor=%C3%A9",
        ):
            assert self.admin("GET", query).code == "validation_failed", query
