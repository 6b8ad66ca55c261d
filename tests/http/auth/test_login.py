"""Login, and that an attacker cannot learn from it who has an account."""

from __future__ import annotations

from unittest.mock import patch

import bcrypt
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.auth import passwords
from project_service.auth.passwords import Candidates
from project_service.auth.values import Account
from project_service.errors import database_unavailable, overloaded
from tests.http.auth.app import PASSWORD, AuthApp


class LogIn(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.app.sign_up()

    def test_a_login_responds_like_a_signup_with_200(self) -> None:
        answer = self.app.log_in("ADA@example.TEST")
        assert answer.status == 200
        assert answer.data["user"]["email"] == "ada@example.test"
        assert answer.response.header("cache-control") == "no-store"
        first = self.app.auth.verifier.verify(answer.data["access_token"])
        second = self.app.auth.verifier.verify(self.app.log_in().data["access_token"])
        assert first.sid != second.sid

    def test_an_unknown_user_and_a_wrong_password_get_the_same_response_for_the_same_work(self) -> None:
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

    def test_impossible_passwords_are_401_after_one_hash(self) -> None:
        for password in ("", "x" * 73, "é" * 37, "x" * 10_000, "nul\0", PASSWORD + "\0"):
            self.app.hashes.checks.clear()
            answer = self.app.log_in(password=password)
            assert (answer.status, answer.code) == (401, "invalid_credentials"), password
            assert [candidates for candidates, _ in self.app.hashes.checks] == [()]

    def test_a_disabled_user_is_told_only_after_the_right_password(self) -> None:
        self._disable()
        assert self.app.log_in(password="wrong").code == "invalid_credentials"
        answer = self.app.log_in()
        assert (answer.status, answer.code) == (403, "user_disabled")

    def test_a_disabled_users_right_password_is_no_failed_attempt(self) -> None:
        self.app.reload(login_failures_max=2)
        self._disable()
        assert [self.app.log_in().code for _ in range(5)] == ["user_disabled"] * 5

    def test_a_password_that_changed_while_it_was_checked_is_wrong(self) -> None:
        """It does not clear the counter of failures either."""
        self.app.reload(login_failures_max=2)
        self.app.log_in(password="wrong")
        account, hashes = self._account(), self.app.hashes
        right = hashes.matches

        async def changed_at_the_same_time(candidates: Candidates, stored: bytes | None) -> bool:
            matches = await right(candidates, stored)
            if stored == account.password_hash:
                self._store_hash(hashes.bcrypt.hash(b"the new one"))
            return matches

        with patch.object(hashes, "matches", changed_at_the_same_time):
            answer = self.app.log_in()
        assert (answer.status, answer.code) == (401, "invalid_credentials")
        assert self._account().last_login_at == account.last_login_at
        counter = self.app.repository.counters["login", "ada@example.test"]
        assert (len(counter.failed), counter.pending) == (1, [])

    def test_a_user_deleted_while_the_password_is_checked_is_unknown(self) -> None:
        right = self.app.hashes.matches

        async def deleted_at_the_same_time(candidates: Candidates, stored: bytes | None) -> bool:
            self.app.repository.accounts.clear()
            return await right(candidates, stored)

        with patch.object(self.app.hashes, "matches", deleted_at_the_same_time):
            assert self.app.log_in().code == "invalid_credentials"

    def test_an_outdated_hash_is_replaced_at_the_next_login(self) -> None:
        self._store_hash(bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)))
        self.app.hashes.bcrypt = type(self.app.hashes.bcrypt)(5)
        assert self.app.log_in().status == 200
        stored = self._account().password_hash
        assert stored.startswith(b"$2b$05$")
        assert self.app.log_in().status == 200
        assert self._account().password_hash == stored

    def test_simultaneous_logins_with_an_outdated_hash_all_succeed(self) -> None:
        """The first replaces the hash while the second checks the old one."""
        self._store_hash(bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)))
        self.app.hashes.bcrypt = type(self.app.hashes.bcrypt)(5)
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        client = self.app.begin("POST", "/auth/login", {"email": "ada@example.test", "password": PASSWORD})
        self.app.hashes.gate = None
        assert self.app.log_in().status == 200
        stored = self._account().password_hash
        gate.callback(None)
        assert client.received().startswith(b"HTTP/1.1 200 ")
        assert self._account().password_hash == stored

    def test_a_login_that_fails_after_the_password_was_right_is_no_failed_attempt(self) -> None:
        for name, fault in (("hash", overloaded()), ("start_session", database_unavailable())):
            self._store_hash(bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)))
            self.app.hashes.bcrypt = type(self.app.hashes.bcrypt)(5)
            where = self.app.hashes if name == "hash" else self.app.repository
            with patch.object(where, name, side_effect=fault):
                assert self.app.log_in().status == 503
            counter = self.app.repository.counters["login", "ada@example.test"]
            assert (counter.failed, counter.pending) == ([], []), name

    def test_hashes_from_other_programs_work(self) -> None:
        made = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))
        for kind in (b"$2a$", b"$2b$", b"$2y$"):
            self._store_hash(kind + made[4:])
            assert self.app.log_in().status == 200, kind
            assert self.app.log_in(password="wrong").status == 401, kind

    def test_an_imported_hash_is_also_tried_with_the_password_as_it_came(self) -> None:
        decomposed = "passwo\u0308rter"
        self._store_hash(bcrypt.hashpw(decomposed.encode(), bcrypt.gensalt(4)))
        assert self.app.log_in(password="passw\u00f6rter").status == 401
        assert self.app.log_in(password=decomposed).status == 200
        # A hash that replaces an outdated one is of the composed password, which all keyboards can type.
        self.app.hashes.bcrypt = type(self.app.hashes.bcrypt)(5)
        assert self.app.log_in(password=decomposed).status == 200
        assert self.app.log_in(password="passw\u00f6rter").status == 200
        assert self.app.log_in(password=decomposed).status == 200

    def _account(self) -> Account:
        (account,) = self.app.repository.accounts.values()
        return account

    def _store_hash(self, stored: bytes) -> None:
        account = self._account()
        self.app.repository.accounts[account.user.id] = evolve(account, password_hash=stored)

    def _disable(self) -> None:
        answer = self.app.call(
            "PATCH",
            f"/admin/users/{self._account().user.id}",
            {"disabled": True},
            X_Service_Key="service-key",
        )
        assert answer.status == 200


class Timing(TestCase):
    def test_a_wrong_password_for_a_cheap_hash_costs_what_an_unknown_user_costs(self) -> None:
        """The number of steps is compared, not the time: a hash at cost c is 2^c steps."""
        spent: list[int] = []
        real = bcrypt.hashpw

        def counted(password: bytes, salt: bytes) -> bytes:
            spent.append(int(salt[4:6]))
            return real(password, salt)

        self.patch(bcrypt, "hashpw", counted)
        checker = passwords.Bcrypt(8)
        old = real(b"right", bcrypt.gensalt(5))
        for candidates in ((b"wrong",), (b"composed", b"as it came")):
            spent.clear()
            assert not checker.matches(candidates, old)
            assert len(candidates) * 2**5 + sum(2**cost for cost in spent) == len(candidates) * 2**8
            spent.clear()
            assert not checker.matches(candidates, None)
            assert spent == [8] * len(candidates)
