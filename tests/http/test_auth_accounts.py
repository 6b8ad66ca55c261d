"""Signing up, logging in, and the limits on both, over HTTP in memory."""

from __future__ import annotations

import bcrypt
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.auth import passwords
from project_service.auth.model import Account
from project_service.errors import ApiError
from tests.http.auth_app import NOW, PASSWORD, AuthApp


class SignUp(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)

    def test_a_signup_answers_with_a_session(self) -> None:
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

    def test_metadata_comes_along(self) -> None:
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

    def test_what_cannot_be_an_address_is_422(self) -> None:
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

    def test_domains_of_any_script_and_special_use_domains_are_taken(self) -> None:
        for email in (
            "ada@δοκιμή.test",
            "ada@localhost.test",
            "ada+tag@bücher.test",
            "o'neil@example.test",
            "ada@printer.local",
            "ada@x.invalid",
        ):
            assert self.app.sign_up(email).status == 201, email

    def test_passwords_that_break_a_rule(self) -> None:
        for password in (
            "",
            "short12",
            "x" * 73,
            "é" * 37,
            "x" * 10_000,
            "nul\0in the middle",
            "password123",
            "PassWord123",
            "ada@example.test",
            "ADA@EXAMPLE.TEST",
        ):
            answer = self.app.sign_up(password=password)
            assert (answer.status, answer.code) == (422, "weak_password"), password
            assert list(answer.details) == ["password"]
        assert self.app.store.events == []

    def test_passwords_that_are_fine(self) -> None:
        for number, password in enumerate(("é" * 36, "x1" * 36, "😀😀😀", " spaces count ", "12345678z")):
            email = f"user{number}@example.test"
            assert self.app.sign_up(email, password).status == 201, password
            assert self.app.log_in(email, password).status == 200, password

    def test_a_password_that_is_no_text_is_422(self) -> None:
        for password in (None, 12345678, ["long enough"], {"a": "long enough"}, True):
            answer = self.app.call("POST", "/auth/signup", {"email": "a@x.test", "password": password})
            assert (answer.status, answer.code) == (422, "validation_failed"), password

    def test_bodies_that_cannot_be_read_are_400(self) -> None:
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

    def test_metadata_that_cannot_be_kept_is_422(self) -> None:
        refused: tuple[object, ...] = ([], "text", 7, {"big": "x" * 20_000}, {"nul": "\0"}, {"\0": 1})
        for metadata in refused:
            body = {"email": "a@example.test", "password": PASSWORD, "metadata": metadata}
            answer = self.app.call("POST", "/auth/signup", body)
            assert (answer.status, answer.code, list(answer.details)) == (
                422,
                "validation_failed",
                ["metadata"],
            )

    def test_signing_up_can_be_switched_off_without_a_restart(self) -> None:
        self.app.reload(allow_signup=False)
        answer = self.app.sign_up()
        assert (answer.status, answer.code) == (403, "signup_disabled")

    def test_signups_of_one_address_are_limited_by_the_hour(self) -> None:
        self.app.reload(signups_max_per_address=3)
        assert self.app.sign_up("a@example.test").status == 201
        assert self.app.sign_up("a@example.test").status == 409
        assert self.app.sign_up("b@example.test").status == 201
        # What was refused before a password was hashed did not count.
        assert self.app.sign_up("c@example.test", "short").status == 422
        answer = self.app.sign_up("c@example.test")
        assert (answer.status, answer.code) == (429, "rate_limited")
        assert answer.response.header("retry-after") == "3600"
        assert self.app.sign_up("c@example.test", host="192.0.2.8").status == 201
        self.app.clock.advance(3601)
        assert self.app.sign_up("d@example.test").status == 201

    def test_a_full_queue_is_503_and_no_attempt(self) -> None:
        self.app.reload(signups_max_per_address=1)
        self.app.hashes.failure = errors.overloaded()
        answer = self.app.sign_up()
        assert (answer.status, answer.code) == (503, "overloaded")
        assert answer.response.header("retry-after") is not None
        self.app.hashes.failure = None
        assert self.app.sign_up().status == 201


class LogIn(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.app.sign_up()

    def test_a_login_answers_like_a_signup_with_200(self) -> None:
        answer = self.app.log_in("ADA@example.TEST")
        assert answer.status == 200
        assert answer.data["user"]["email"] == "ada@example.test"
        assert answer.response.header("cache-control") == "no-store"
        first = self.app.auth.verifier.verify(answer.data["access_token"])
        second = self.app.auth.verifier.verify(self.app.log_in().data["access_token"])
        assert first.sid != second.sid

    def test_unknown_and_wrong_are_the_same_answer_for_the_same_work(self) -> None:
        self.app.hashes.checks.clear()
        unknown, wrong = (
            self.app.log_in("nobody@example.test", "some password"),
            self.app.log_in(password="wrong"),
        )
        assert (unknown.status, unknown.code) == (401, "invalid_credentials")
        assert unknown.body == wrong.body
        assert (
            unknown.response.header("www-authenticate")
            == wrong.response.header("www-authenticate")
            == "Bearer"
        )
        assert len(self.app.hashes.checks) == 2

    def test_passwords_nobody_can_have_are_401_after_one_hash(self) -> None:
        for password in ("", "x" * 73, "é" * 37, "x" * 10_000, "nul\0", PASSWORD + "\0"):
            self.app.hashes.checks.clear()
            answer = self.app.log_in(password=password)
            assert (answer.status, answer.code) == (401, "invalid_credentials"), password
            assert [candidate for candidate, _ in self.app.hashes.checks] == [None]

    def test_a_disabled_user_is_told_so_only_after_the_right_password(self) -> None:
        self._disable()
        assert self.app.log_in(password="wrong").code == "invalid_credentials"
        answer = self.app.log_in()
        assert (answer.status, answer.code) == (403, "user_disabled")

    def test_a_disabled_users_right_password_is_no_failure(self) -> None:
        self.app.reload(login_failures_max=2)
        self._disable()
        assert [self.app.log_in().code for _ in range(5)] == ["user_disabled"] * 5

    def test_an_older_hash_is_made_again_at_the_next_login(self) -> None:
        self._store_hash(bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)))
        self.app.hashes.bcrypt = type(self.app.hashes.bcrypt)(5)
        assert self.app.log_in().status == 200
        stored = self._account().password_hash
        assert stored.startswith(b"$2b$05$")
        assert self.app.log_in().status == 200
        assert self._account().password_hash == stored

    def test_hashes_from_elsewhere_work(self) -> None:
        made = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))
        for kind in (b"$2a$", b"$2b$", b"$2y$"):
            self._store_hash(kind + made[4:])
            assert self.app.log_in().status == 200, kind
            assert self.app.log_in(password="wrong").status == 401, kind

    def _account(self) -> Account:
        (account,) = self.app.store.accounts.values()
        return account

    def _store_hash(self, stored: bytes) -> None:
        account = self._account()
        self.app.store.accounts[account.user.id] = evolve(account, password_hash=stored)

    def _disable(self) -> None:
        answer = self.app.call(
            "PATCH",
            f"/admin/users/{self._account().user.id}",
            {"disabled": True},
            X_Service_Key="service-key",
        )
        assert answer.status == 200


class BruteForce(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self, login_failures_max=3, login_failures_max_per_address=5)
        self.app.sign_up()

    def guess(self, times: int, email: str = "ada@example.test", **more: str) -> None:
        for _ in range(times):
            assert self.app.log_in(email, "wrong", **more).status == 401

    def test_after_the_limit_even_the_right_password_is_429_until_the_window_ends(self) -> None:
        self.guess(3)
        answer = self.app.log_in(host="192.0.2.99")
        assert (answer.status, answer.code) == (429, "rate_limited")
        assert answer.response.header("retry-after") == "900"
        self.app.clock.advance(100.5)
        assert self.app.log_in().response.header("retry-after") == "800"
        self.app.clock.advance(800)
        assert self.app.log_in().status == 200

    def test_what_was_refused_does_not_prolong_the_wait(self) -> None:
        self.guess(3)
        for _ in range(5):
            self.app.clock.advance(100)
            assert self.app.log_in().status == 429
        self.app.clock.advance(401)
        assert self.app.log_in().status == 200

    def test_a_success_clears_the_accounts_counter(self) -> None:
        self.guess(2)
        assert self.app.log_in().status == 200
        self.guess(2)
        assert self.app.log_in().status == 200

    def test_successes_do_not_count(self) -> None:
        assert [self.app.log_in().status for _ in range(20)] == [200] * 20

    def test_an_address_that_tries_many_accounts_is_stopped(self) -> None:
        for number in range(5):
            self.guess(1, f"user{number}@example.test")
        assert self.app.log_in().status == 429
        assert self.app.log_in(host="192.0.2.8").status == 200

    def test_ones_own_successes_do_not_clear_an_addresss_counter(self) -> None:
        for number in range(4):
            self.guess(1, f"user{number}@example.test")
            assert self.app.log_in().status == 200
        self.guess(1, "user9@example.test")
        assert self.app.log_in().status == 429

    def test_letter_case_is_no_way_around(self) -> None:
        for email in ("ada@example.test", "ADA@example.test", "Ada@EXAMPLE.test"):
            self.guess(1, email)
        assert self.app.log_in().status == 429

    def test_a_forged_forwarding_header_is_no_way_around(self) -> None:
        for number in range(5):
            self.guess(1, f"user{number}@example.test", X_Forwarded_For=f"203.0.113.{number}")
        assert self.app.log_in(X_Forwarded_For="203.0.113.77").status == 429

    def test_behind_a_proxy_the_right_most_untrusted_hop_counts(self) -> None:
        app = self.app = AuthApp(self, trusted=("192.0.2.0/24",), login_failures_max_per_address=2)
        app.sign_up()
        for number in range(2):
            self.guess(1, f"user{number}@example.test", X_Forwarded_For=f"10.9.9.{number}, 203.0.113.5")
        assert app.log_in(X_Forwarded_For="10.9.9.9, 203.0.113.5").status == 429
        assert app.log_in(X_Forwarded_For="203.0.113.5, 203.0.113.6").status == 200

    def test_a_missing_forwarding_header_counts_for_the_proxy_itself(self) -> None:
        app = self.app = AuthApp(self, trusted=("192.0.2.0/24",), login_failures_max_per_address=2)
        app.sign_up()
        for number in range(2):
            self.guess(1, f"user{number}@example.test")
        assert app.log_in().status == 429

    def test_one_ipv6_host_is_one_address_whatever_it_calls_itself(self) -> None:
        for number in range(5):
            self.guess(1, f"user{number}@example.test", host=f"2001:db8::{number}")
        assert self.app.log_in(host="2001:db8::ffff").status == 429
        assert self.app.log_in(host="2001:db8:0:1::1").status == 200

    def test_an_overloaded_moment_is_no_failure(self) -> None:
        self.app.hashes.failure = errors.overloaded()
        assert [self.app.log_in(password="wrong").status for _ in range(6)] == [503] * 6
        self.app.hashes.failure = None
        assert self.app.log_in().status == 200

    def test_hanging_up_does_not_spare_an_attempt_from_being_counted(self) -> None:
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        client = self.app.app.connect()
        body = b'{"email":"ada@example.test","password":"wrong"}'
        head = "POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        client.send((head % len(body)).encode() + body)
        client.hang_up()
        self.app.hashes.gate = None
        gate.callback(None)
        counter = self.app.store.counter("login", "ada@example.test")
        assert (len(counter.failed), counter.pending) == (1, [])
        self.flushLoggedErrors(ApiError)

    def test_zero_switches_the_limits_off(self) -> None:
        self.app.reload(login_failures_max=0, login_failures_max_per_address=0)
        self.guess(30)
        assert self.app.log_in().status == 200

    def test_who_comes_while_the_last_attempts_are_under_way_waits_for_them(self) -> None:
        """Twenty logins of one user at once are twenty sessions, though only three attempts may be open."""
        now = self.app.auth.context.now()
        counter = self.app.store.counter("login", "ada@example.test")
        counter.pending.extend([now, now, now])
        client = self.app.app.connect()
        body = b'{"email":"ada@example.test","password":"correct horse battery"}'
        head = "POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        client.send((head % len(body)).encode() + body)
        assert client.received() == b""
        counter.pending.clear()
        self.app.clock.advance(0.2)
        assert client.received().startswith(b"HTTP/1.1 200")


class Timing(TestCase):
    def test_a_wrong_password_for_a_cheap_old_hash_costs_what_an_unknown_user_costs(self) -> None:
        """The work, not the time: a hash at cost c is 2^c steps."""
        spent: list[int] = []
        real = bcrypt.hashpw

        def counted(password: bytes, salt: bytes) -> bytes:
            spent.append(int(salt[4:6]))
            return real(password, salt)

        self.patch(bcrypt, "hashpw", counted)
        checker = passwords.Bcrypt(8)
        old = real(b"right", bcrypt.gensalt(5))
        assert not checker.matches(b"wrong", old)
        assert 2**5 + sum(2**cost for cost in spent) == 2**8
        spent.clear()
        assert not checker.matches(b"wrong", None)
        assert spent == [8]
