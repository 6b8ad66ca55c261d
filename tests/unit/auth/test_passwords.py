"""E-mail addresses and passwords: what is allowed, how they are compared, and how passwords are hashed."""

from __future__ import annotations

import string
import unicodedata
from typing import Any

import bcrypt
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.python.threadpool import ThreadPool
from twisted.trial.unittest import TestCase

from project_service.auth import passwords
from project_service.auth.values import Email, moment
from project_service.errors import ApiError
from project_service.http.head import address_block
from project_service.lifecycle import start, timestamp
from project_service.process import let_threads_yield

ADA = Email.parse("ada@example.test")
RULES = passwords.Rules()


class Addresses(TestCase):
    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=300), st.emails()))
    def test_any_address_is_parsed_to_one_that_parses_again_or_refused(self, text: str) -> None:
        try:
            email = Email.parse(text)
        except ApiError as fault:
            assert (fault.status, fault.code) == (422, "validation_failed")
            return
        assert Email.parse(email.address) == email
        assert len(email.address.encode()) <= 254
        assert not set(email.address) & set("\r\n\0 <>,;")

    def test_addresses_are_compared_without_case_and_composition(self) -> None:
        for one, other in (("ÅSA@x.test", "a\u030asa@x.test"), ("strasse@x.test", "STRASSE@X.TEST")):
            assert Email.parse(one).key == Email.parse(other).key

    def test_different_domains_make_different_addresses(self) -> None:
        for one, other in (
            ("ada@stra\u00dfe.test", "ada@strasse.test"),
            ("ada@\u03c2.test", "ada@\u03c3.test"),
        ):
            assert Email.parse(one).key != Email.parse(other).key
        for same in ("Ada@STRA\u00dfE.test", "ADA@xn--strae-oqa.TEST"):
            assert Email.parse(same).key == Email.parse("ada@stra\u00dfe.test").key

    def test_timestamps_are_rfc_3339_with_milliseconds(self) -> None:
        assert timestamp(moment(1_795_230_245.6789)) == "2026-11-21T03:04:05.678Z"
        assert timestamp(moment(1_795_230_245)) == "2026-11-21T03:04:05.000Z"

    def test_an_ipv6_address_is_counted_by_its_64_bit_prefix(self) -> None:
        for address, counted in (
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("64:ff9b::192.0.2.7", "192.0.2.7"),
            ("64:ff9b::1:c000:207", "64:ff9b::/64"),
            ("64:ff9b::c000:207%eth0", "192.0.2.7"),
            ("unix", "unix"),
        ):
            assert address_block(address) == counted


class Passwords(TestCase):
    def test_an_operator_may_ask_for_less(self) -> None:
        lax = passwords.Rules(6, refuse_common=False)
        for weak in ("123456", "password123"):
            assert passwords.check_new(weak, ADA, lax) == weak.encode()
            with self.assertRaises(ApiError):
                passwords.check_new(weak, ADA, RULES)
        for refused in ("12345", ADA.address, "a\0bcdefgh"):
            with self.assertRaises(ApiError):
                passwords.check_new(refused, ADA, lax)

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=90))
    def test_an_acceptable_password_can_be_hashed_and_checked(self, text: str) -> None:
        try:
            raw = passwords.check_new(text, ADA, RULES)
        except ApiError as fault:
            assert fault.status == 422
            return
        assert len(raw) <= 72 and len(raw.decode()) >= 8
        for same in (text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))):
            assert passwords.candidates(same)[0] == passwords.check_new(same, ADA, RULES) == raw
        assert raw.decode().casefold() not in passwords.common_passwords()

    @settings(max_examples=200, deadline=None)
    @given(st.text(alphabet=st.characters(), max_size=100))
    def test_passwords_that_bcrypt_refuses_never_reach_it(self, text: str) -> None:
        for raw in passwords.candidates(text):
            assert 0 < len(raw) <= 72 and b"\0" not in raw

    def reason(self, text: str) -> str:
        """Why it is not allowed; "" if it is."""
        try:
            passwords.check_new(text, ADA, RULES)
        except ApiError as fault:
            assert fault.code == "weak_password" and fault.details is not None
            assert fault.message == f"This password is not allowed: it {fault.details['password']}."
            return fault.details["password"]
        return ""

    def test_a_password_has_so_many_characters_at_least_and_bytes_at_most(self) -> None:
        short, long = "must have at least 8 characters", "must have at most 72 bytes in UTF-8"
        for text, why in (
            ("", short),
            ("zqzqzqz", short),
            ("\u043f\u0430\u0440\u043e\u043b\u044c", short),
            ("\u0444\u044b\u0432\u0430\u043f\u0440\u043e\u043b", ""),
            ("\U0001f511" * 7, short),
            ("\U0001f511" * 8, ""),
            # Counted as they are composed.
            ("e\u0301" * 7, short),
            ("e\u0301" * 8, ""),
            ("z" * 72, ""),
            ("z" * 73, long),
            ("\u00e9" * 36, ""),
            ("e\u0301" * 36, ""),
            ("\u00e9" * 37, long),
            ("u\u0308\u0304" * 36, ""),
            ("u\u0308\u0304" * 37, long),
            ("\u1112\u1161\u11ab" * 24, ""),
            ("z" * 100_000, long),
        ):
            assert self.reason(text) == why, ascii(text)
        # A stored password may be shorter, since users can be imported with their hashes.
        assert passwords.candidates("z") == (b"z",)

    def test_a_password_is_the_same_however_it_was_typed(self) -> None:
        for one, other in (
            ("passw\u00f6rter", "passwo\u0308rter"),
            ("\u1ec7\u1ec7\u1ec7\u1ec7\u1ec7\u1ec7\u1ec7\u1ec7", "e\u0323\u0302" * 8),
            ("\ud55c\uae00\ud55c\uae00\ud55c\uae00\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af" * 4),
            ("two words here", "two\u00a0words\u3000here"),
            ("\u2126\u2126\u2126\u2126 \u00c5ngstr\u00f6m", "\u03a9\u03a9\u03a9\u03a9 \u212bngstr\u00f6m"),
        ):
            assert passwords.check_new(one, ADA, RULES) == passwords.check_new(other, ADA, RULES)
            assert passwords.candidates(one)[0] == passwords.candidates(other)[0]
        # Case, width and ligatures are left as they are.
        for one, other in (
            ("Long Enough", "long enough"),
            ("\uff41bcdefgh qz", "abcdefgh qz"),
            ("\ufb01shermen", "fishermen"),
        ):
            assert passwords.check_new(one, ADA, RULES) != passwords.check_new(other, ADA, RULES)

    def test_characters_that_the_profile_does_not_allow_are_refused(self) -> None:
        for text in (
            "nul\0in the middle",
            "tab\tin it",
            "two\nlines",
            "del\x7fete",
            "soft\u00adhyphen",
            "\ufeffmarked in front",
            "joined\u200d here",
            "un\u0378assigned",
            "\ue000 private use",
        ):
            assert self.reason(text).startswith("contains a character"), ascii(text)
            # There may be an older hash of it.
            assert passwords.candidates(text) == (() if "\0" in text else (text.encode(),))

    def test_a_password_is_also_tried_as_it_came(self) -> None:
        decomposed = "passwo\u0308rter"
        assert passwords.candidates(decomposed) == ("passw\u00f6rter".encode(), decomposed.encode())
        checker = passwords.Bcrypt(4)
        for stored in (decomposed, "passw\u00f6rter"):
            assert checker.matches(passwords.candidates(decomposed), checker.hash(stored.encode()))
        assert not checker.matches(passwords.candidates("passw\u00f6rter"), checker.hash(decomposed.encode()))

    def test_a_password_that_is_not_unicode_is_refused(self) -> None:
        """It can come from a command line, though not from JSON."""
        with self.assertRaises(ApiError) as caught:
            passwords.check_new("long enough \udcff", ADA, RULES)
        assert caught.exception.details == {"password": "is not valid Unicode"}

    def test_the_shipped_list_of_common_passwords(self) -> None:
        common = passwords.common_passwords()
        assert len(common) > 5000
        assert {"password", "password1", "12345678", "qwertyuiop", "iloveyou1", "letmein123"} <= common
        assert all(line == line.casefold().strip() for line in common)

    def test_the_cost_is_read_from_a_bcrypt_hash_and_nothing_else(self) -> None:
        made = bcrypt.hashpw(b"x", bcrypt.gensalt(5))
        for stored, cost in (
            (made, 5),
            (b"$2y$" + made[4:], 5),
            (b"$2x$" + made[4:], None),
            (made[:-1], None),
            (made + b"x", None),
            (b"", None),
            (b"$2b$03$" + made[7:], None),
            (b"$2b$32$" + made[7:], None),
            (made[:28] + b"/" + made[29:], None),
        ):
            assert passwords.cost_of(stored) == cost, stored

    def test_a_malformed_hash_matches_nothing(self) -> None:
        checker = passwords.Bcrypt(4)
        for end in string.ascii_letters:
            assert not checker.matches((b"x",), b"$2b$04$" + b"." * 52 + end.encode())


class FakeThreads:
    """A thread pool whose work is only done when a test says so."""

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def callInThreadWithCallback(self, done: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        self.queue.append((done, lambda: work(*args, **kwargs)))

    def finish_one(self) -> None:
        done, work = self.queue.pop(0)
        done(True, work())


class AtOnceReactor(Clock):
    def callFromThread(self, work: Any, *args: Any) -> None:
        work(*args)


class Hashing(TestCase):
    """Passwords are hashed in threads of their own."""

    def setUp(self) -> None:
        self.threads = FakeThreads()
        self.hashing = passwords.Hashing(AtOnceReactor(), passwords.Bcrypt(4), threads=2, queue_per_thread=2)
        self.hashing._pool = self.threads  # type: ignore[assignment]  # what is used of it

    def test_hashing_threads_give_way_to_the_reactors(self) -> None:
        hashing = passwords.Hashing(AtOnceReactor(), passwords.Bcrypt(4), threads=1)
        yielding = ThreadPool()
        let_threads_yield(yielding)
        assert hashing._pool.threadFactory is yielding.threadFactory is not ThreadPool.threadFactory

    def test_the_queue_is_bounded_and_a_cancelled_request_keeps_its_place_until_its_thread_is_done(
        self,
    ) -> None:
        pending = [start(self.hashing.matches((b"x",), None)) for _ in range(6)]
        self.failureResultOf(start(self.hashing.hash(b"x")), ApiError)
        # Hanging up does not make room: the thread goes on.
        pending[0].addErrback(lambda _: None).cancel()
        fault = self.failureResultOf(start(self.hashing.hash(b"x")), ApiError).value
        assert (fault.status, fault.code) == (503, "overloaded")
        assert "Retry-After" in dict(fault.headers)
        self.threads.finish_one()
        accepted = start(self.hashing.hash(b"x"))
        while self.threads.queue:
            self.threads.finish_one()
        assert self.successResultOf(accepted).startswith(b"$2b$04$")
        assert self.successResultOf(pending[-1]) is False
        assert self.hashing._pending == 0
