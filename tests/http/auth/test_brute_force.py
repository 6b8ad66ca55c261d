"""The limits on guessing passwords and on creating many accounts."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.errors import ApiError
from tests.http.auth.app import PASSWORD, AuthApp


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

    def test_refused_attempts_do_not_prolong_the_wait(self) -> None:
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

    def test_failures_of_others_do_not_keep_a_signed_in_user_from_the_settings(self) -> None:
        """Neither those at the same account nor those from the same address."""
        token = self.app.log_in().data["access_token"]
        self.guess(3)
        for number in range(2):
            self.guess(1, f"user{number}@example.test")
        assert self.app.log_in().status == self.app.log_in("user0@example.test").status == 429
        wanted = {"password": "another good one", "current_password": PASSWORD}
        assert self.app.call("PATCH", "/auth/user", wanted, token=token).status == 200
        body = {"current_password": "another good one"}
        assert self.app.call("DELETE", "/auth/user", body, token=token).status == 200

    def test_wrong_current_passwords_count_for_their_session_alone(self) -> None:
        one, other = (self.app.log_in().data["access_token"] for _ in range(2))
        wrong = {"current_password": "wrong"}
        for _ in range(3):
            assert self.app.call("DELETE", "/auth/user", wrong, token=one).code == "invalid_credentials"
        right = {"current_password": PASSWORD, "password": "another good one"}
        answer = self.app.call("PATCH", "/auth/user", right, token=one)
        assert (answer.code, answer.response.header("retry-after")) == ("rate_limited", "900")
        assert self.app.log_in().status == 200
        for _ in range(2):
            assert self.app.call("DELETE", "/auth/user", wrong, token=other).code == "invalid_credentials"
        assert self.app.call("PATCH", "/auth/user", right, token=other).status == 200

    def test_simultaneous_guesses_with_one_token_are_limited(self) -> None:
        token = self.app.log_in().data["access_token"]
        self.app.hashes.checks.clear()
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        sent = {"Authorization": f"Bearer {token}"}
        wrong = {"current_password": "wrong"}
        clients = [self.app.begin("DELETE", "/auth/user", wrong, **sent) for _ in range(20)]
        assert len(self.app.hashes.checks) == 3
        self.app.hashes.gate = None
        gate.callback(None)
        self.app.clock.pump([0.1] * 2)
        answers = sorted(client.received()[:12] for client in clients)
        assert answers == [b"HTTP/1.1 401"] * 3 + [b"HTTP/1.1 429"] * 17

    def test_successes_do_not_count(self) -> None:
        assert [self.app.log_in().status for _ in range(20)] == [200] * 20

    def test_an_address_that_tries_many_accounts_is_stopped(self) -> None:
        for number in range(5):
            self.guess(1, f"user{number}@example.test")
        assert self.app.log_in().status == 429
        assert self.app.log_in(host="192.0.2.8").status == 200

    def test_successes_do_not_clear_an_addresss_counter(self) -> None:
        for number in range(4):
            self.guess(1, f"user{number}@example.test")
            assert self.app.log_in().status == 200
        self.guess(1, "user9@example.test")
        assert self.app.log_in().status == 429

    def test_another_letter_case_of_the_email_address_counts_for_the_same_account(self) -> None:
        for email in ("ada@example.test", "ADA@example.test", "Ada@EXAMPLE.test"):
            self.guess(1, email)
        assert self.app.log_in().status == 429

    def test_a_forged_forwarding_header_does_not_change_the_address(self) -> None:
        for number in range(5):
            self.guess(1, f"user{number}@example.test", X_Forwarded_For=f"203.0.113.{number}")
        assert self.app.log_in(X_Forwarded_For="203.0.113.77").status == 429

    def test_behind_a_proxy_the_rightmost_untrusted_hop_counts(self) -> None:
        app = self.app = AuthApp(self, trusted=("192.0.2.0/24",), login_failures_max_per_address=2)
        app.sign_up()
        for number in range(2):
            self.guess(1, f"user{number}@example.test", X_Forwarded_For=f"10.9.9.{number}, 203.0.113.5")
        assert app.log_in(X_Forwarded_For="10.9.9.9, 203.0.113.5").status == 429
        assert app.log_in(X_Forwarded_For="203.0.113.5, 203.0.113.6").status == 200

    def test_without_a_forwarding_header_the_proxy_itself_counts(self) -> None:
        app = self.app = AuthApp(self, trusted=("192.0.2.0/24",), login_failures_max_per_address=2)
        app.sign_up()
        for number in range(2):
            self.guess(1, f"user{number}@example.test")
        assert app.log_in().status == 429

    def test_ipv6_addresses_of_one_network_are_one_address(self) -> None:
        for number in range(5):
            self.guess(1, f"user{number}@example.test", host=f"2001:db8::{number}")
        assert self.app.log_in(host="2001:db8::ffff").status == 429
        assert self.app.log_in(host="2001:db8:0:1::1").status == 200

    def test_an_attempt_refused_as_overloaded_is_no_failure(self) -> None:
        self.app.hashes.failure = errors.overloaded()
        assert [self.app.log_in(password="wrong").status for _ in range(6)] == [503] * 6
        self.app.hashes.failure = None
        assert self.app.log_in().status == 200

    def test_hanging_up_does_not_spare_an_attempt_from_being_counted(self) -> None:
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        client = self.app.begin("POST", "/auth/login", {"email": "ada@example.test", "password": "wrong"})
        client.hang_up()
        self.app.hashes.gate = None
        gate.callback(None)
        counter = self.app.repository.counters["login", "ada@example.test"]
        assert (len(counter.failed), counter.pending) == (1, [])
        self.flushLoggedErrors(ApiError)

    def test_zero_switches_the_limits_off(self) -> None:
        self.app.reload(login_failures_max=0, login_failures_max_per_address=0)
        self.guess(30)
        recorded = [event.result for event in self.app.repository.events if event.action == "login"]
        assert recorded == ["invalid_credentials"] * 30
        # The database is not even asked then.
        self.patch(self.app.repository, "record_outcome", None)
        assert self.app.log_in().status == 200

    def test_each_limit_works_without_the_other(self) -> None:
        limits = ("login_failures_max", "login_failures_max_per_address")
        for on, off in (limits, limits[::-1]):
            app = self.app = AuthApp(self)
            app.reload(**{on: 1, off: 0})
            app.sign_up()
            assert [app.log_in().status for _ in range(3)] == [200] * 3
            self.guess(1)
            assert app.log_in().status == 429, on

    def test_a_login_waits_for_attempts_under_way(self) -> None:
        """Twenty simultaneous logins of one user shall succeed, though only three attempts may be open at a time."""
        now = self.app.auth.context.now()
        counter = self.app.repository.counters["login", "ada@example.test"]
        counter.pending.extend([now, now, now])
        client = self.app.begin("POST", "/auth/login", {"email": "ada@example.test", "password": PASSWORD})
        assert client.received() == b""
        counter.pending.clear()
        self.app.clock.advance(0.2)
        assert client.received().startswith(b"HTTP/1.1 200")

    def test_a_login_that_waited_five_seconds_for_them_is_429(self) -> None:
        now = self.app.auth.context.now()
        self.app.repository.counters["login", "ada@example.test"].pending.extend([now, now, now])
        client = self.app.begin("POST", "/auth/login", {"email": "ada@example.test", "password": PASSWORD})
        self.app.clock.pump([0.1] * 49)
        assert client.received() == b""
        self.app.clock.pump([0.1] * 2)
        answer = client.received()
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"Retry-After: 1\r\n" in answer
