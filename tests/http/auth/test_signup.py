"""Sign-up: its response, and what it refuses."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service import errors
from tests.http.auth.app import NOW, PASSWORD, AuthApp


class SignUp(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)

    def test_a_signup_responds_with_a_session(self) -> None:
        answer = self.app.sign_up("Ada.Lovelace@EXAMPLE.test")
        assert answer.status == 201
        assert sorted(answer.data) == ["access_token", "expires_at", "refresh_token", "token_type", "user"]
        assert answer.data["token_type"] == "Bearer"
        assert answer.data["expires_at"] == int(NOW) + 3600
        user = answer.data["user"]
        assert sorted(user) == ["created_at", "email", "id", "metadata"]
        assert (user["email"], user["metadata"]) == ("Ada.Lovelace@example.test", {})
        assert user["created_at"] == "2026-11-21T03:04:05.678Z"
        assert answer.response.header("cache-control") == "no-store"
        assert self.app.user(answer.data["access_token"]).data == {"user": user}

    def test_a_signup_says_where_the_user_is(self) -> None:
        assert self.app.sign_up().response.header("location") == "/auth/user"

    def test_unknown_members_are_refused_by_every_json_body(self) -> None:
        token = self.app.sign_up().data["access_token"]
        for method, path, known in (
            ("POST", "/auth/signup", {"email": "b@example.test", "password": PASSWORD}),
            ("POST", "/auth/login", {"email": "ada@example.test", "password": PASSWORD}),
            ("POST", "/auth/refresh", {"refresh_token": "x"}),
            ("POST", "/auth/recover", {"email": "ada@example.test"}),
            ("POST", "/auth/resend", {"email": "ada@example.test"}),
            ("POST", "/auth/reset", {"token": "x", "password": PASSWORD}),
            ("POST", "/auth/verify", {"token": "x"}),
            ("PATCH", "/auth/user", {"metadata": {}}),
            ("DELETE", "/auth/user", {"current_password": PASSWORD}),
        ):
            answer = self.app.call(method, path, {**known, "metdata": {}, "Email": None}, token=token)
            assert (answer.status, answer.code) == (422, "validation_failed"), path
            assert sorted(answer.details) == ["Email", "metdata"], path
        assert self.app.user(token).status == 200
        assert self.app.log_in("b@example.test").status == 401

    def test_metadata_is_kept(self) -> None:
        body = {
            "email": "a@example.test",
            "password": PASSWORD,
            "metadata": {"name": "Ada", "n": [1.5, None]},
        }
        answer = self.app.call("POST", "/auth/signup", body)
        assert answer.data["user"]["metadata"] == {"name": "Ada", "n": [1.5, None]}

    def test_a_taken_address_is_409_in_any_letter_case(self) -> None:
        self.app.sign_up("ada@example.test")
        answer = self.app.sign_up("ADA@Example.TEST")
        assert (answer.status, answer.code) == (409, "email_taken")

    def test_an_invalid_address_is_422(self) -> None:
        for email in (
            "",
            "ada",
            "ada@",
            "@example.test",
            "a b@example.test",
            "ada@example.test\r\nBcc: everyone@example.test",
            "ada@example.test\0",
            "Ada <ada@example.test>",
            "a" * 10_000 + "@example.test",
            "ada@" + "a." * 5000 + "test",
            7,
            None,
            ["ada@example.test"],
            {"email": "ada@example.test"},
            True,
            "δοκιμή@example.test",
            "zoë@bücher.test",
        ):
            answer = self.app.call("POST", "/auth/signup", {"email": email, "password": PASSWORD})
            assert (answer.status, answer.code) == (422, "validation_failed"), email
            assert list(answer.details) == ["email"]

    def test_domains_of_any_script_and_special_use_are_accepted(self) -> None:
        for email in (
            "ada@δοκιμή.test",
            "ada@localhost.test",
            "ada+tag@bücher.test",
            "o'neil@example.test",
            "ada@printer.local",
            "ada@x.invalid",
        ):
            assert self.app.sign_up(email).status == 201, email

    def test_weak_passwords_are_422(self) -> None:
        for password in (
            "",
            "short12",
            "x" * 73,
            "é" * 37,
            "x" * 10_000,
            "nul\0in the middle",
            "tab\tin the middle",
            "😀😀😀",
            "пароль",
            "e\u0301" * 7,
            "password123",
            "PassWord123",
            "ada@example.test",
            "ADA@EXAMPLE.TEST",
        ):
            answer = self.app.sign_up(password=password)
            assert (answer.status, answer.code) == (422, "weak_password"), password
            assert list(answer.details) == ["password"]
        assert self.app.repository.events == []

    def test_acceptable_passwords(self) -> None:
        for number, password in enumerate(("é" * 36, "x1" * 36, "😀" * 8, " spaces count ", "12345678z")):
            email = f"user{number}@example.test"
            assert self.app.sign_up(email, password).status == 201, password
            assert self.app.log_in(email, password).status == 200, password

    def test_a_password_typed_as_nfd_or_nfc_is_the_same_everywhere(self) -> None:
        composed, decomposed = "пароль й", "пароль и\u0306"
        token = self.app.sign_up(password=decomposed).data["access_token"]
        for password in (composed, decomposed):
            assert self.app.log_in(password=password).status == 200
        change = {"password": decomposed + "2", "current_password": composed}
        assert self.app.call("PATCH", "/auth/user", change, token=token).status == 200
        assert self.app.log_in(password=composed + "2").status == 200
        body = {"current_password": composed + "2"}
        assert self.app.call("DELETE", "/auth/user", body, token=token).status == 200

    def test_a_password_that_is_no_string_is_422(self) -> None:
        for password in (None, 12345678, ["long enough"], {"a": "long enough"}, True):
            answer = self.app.call("POST", "/auth/signup", {"email": "a@x.test", "password": password})
            assert (answer.status, answer.code) == (422, "validation_failed"), password

    def test_every_missing_or_mistyped_field_is_named(self) -> None:
        for path, names in (
            ("/auth/signup", {"email", "password"}),
            ("/auth/login", {"email", "password"}),
            ("/auth/reset", {"token", "password"}),
            ("/auth/refresh", {"refresh_token"}),
            ("/auth/verify", {"token"}),
        ):
            answer = self.app.call("POST", path, {})
            assert (answer.status, answer.code) == (422, "validation_failed"), path
            assert answer.details == dict.fromkeys(names, "is required"), path
            answer = self.app.call("POST", path, dict.fromkeys(names, 7))
            assert answer.details == dict.fromkeys(names, "must be a string"), path

    def test_unreadable_bodies_are_400(self) -> None:
        for raw in (
            b"",
            b"{",
            b"[]",
            b'"text"',
            b'{"email":"a@x.test","email":"b@x.test","password":"long enough"}',
            b'{"email":"a@x.test","password":"\\ud800 lone surrogate"}',
            b'{"email":"a@x.test","password":"\xff\xfe"}',
        ):
            answer = self.app.call("POST", "/auth/signup", raw=raw)
            assert (answer.status, answer.code) == (400, "invalid_json"), raw

    def test_metadata_that_cannot_be_stored_is_422(self) -> None:
        with_nul = ({"nul": "\0"}, {"\0": 1}, {"nul": "\\\0"})
        refused: tuple[object, ...] = ([], "text", 7, {"big": "x" * 20_000}, *with_nul)
        for metadata in refused:
            body = {"email": "a@example.test", "password": PASSWORD, "metadata": metadata}
            answer = self.app.call("POST", "/auth/signup", body)
            assert (answer.status, answer.code, list(answer.details)) == (
                422,
                "validation_failed",
                ["metadata"],
            )

    def test_signup_can_be_switched_off_by_a_reload(self) -> None:
        self.app.reload(allow_signup=False)
        answer = self.app.sign_up()
        assert (answer.status, answer.code) == (403, "signup_disabled")

    def test_signups_of_one_address_are_limited_by_the_hour(self) -> None:
        self.app.reload(signups_max_per_address=3)
        assert self.app.sign_up("a@example.test").status == 201
        assert self.app.sign_up("a@example.test").status == 409
        assert self.app.sign_up("b@example.test").status == 201
        # A signup that is refused before its password is hashed does not count.
        assert self.app.sign_up("c@example.test", "short").status == 422
        answer = self.app.sign_up("c@example.test")
        assert (answer.status, answer.code) == (429, "rate_limited")
        assert answer.response.header("retry-after") == "3600"
        assert self.app.sign_up("c@example.test", host="192.0.2.8").status == 201
        self.app.clock.advance(3601)
        assert self.app.sign_up("d@example.test").status == 201

    def test_a_full_queue_is_503_and_does_not_count(self) -> None:
        self.app.reload(signups_max_per_address=1)
        self.app.hashes.failure = errors.overloaded()
        answer = self.app.sign_up()
        assert (answer.status, answer.code) == (503, "overloaded")
        assert answer.response.header("retry-after") is not None
        self.app.hashes.failure = None
        assert self.app.sign_up().status == 201
