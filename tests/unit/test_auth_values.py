"""Addresses, passwords, opaque tokens, letters, hashing and revocations: the parts that need no database."""

from __future__ import annotations

import email
import hashlib
import json
import math
import string
import uuid
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, datetime
from email.policy import default
from typing import Any

import bcrypt
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from project_service.auth import admin, hashing, mail, passwords, secrets
from project_service.auth.keyset import KeySet, KeySetError
from project_service.auth.metadata import checked, loaded
from project_service.auth.model import Account, Email, User, moment, timestamp
from project_service.auth.revocations import CHANNEL, RevokedSessions
from project_service.auth.throttle import place
from project_service.deferreds import start
from project_service.errors import ApiError
from tests.auth_fakes import FakeListener

ADA = Email.parse("ada@example.test")
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(["kty", "alg", "k", "kid", "x"]), st.text(max_size=5)),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


class Addresses(TestCase):
    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=300), st.emails()))
    def test_an_address_is_taken_or_refused_and_taken_again_as_it_is_shown(self, text: str) -> None:
        try:
            found = Email.parse(text)
        except ApiError as fault:
            assert (fault.status, fault.code) == (422, "validation_failed")
            return
        assert Email.parse(found.address) == found
        assert len(found.address.encode()) <= 254
        assert not set(found.address) & set("\r\n\0 <>,;")

    def test_the_key_ignores_letter_case_and_composition(self) -> None:
        for one, other in (("ÅSA@x.test", "a\u030asa@x.test"), ("strasse@x.test", "STRASSE@X.TEST")):
            assert Email.parse(one).key == Email.parse(other).key

    def test_timestamps_are_rfc_3339_with_milliseconds(self) -> None:
        assert timestamp(moment(1_795_230_245.6789)) == "2026-11-21T03:04:05.678Z"
        assert timestamp(moment(1_795_230_245)) == "2026-11-21T03:04:05.000Z"

    def test_an_ipv6_address_counts_as_its_64(self) -> None:
        for address, counted in (
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("unix", "unix"),
        ):
            assert place(address) == counted


class Passwords(TestCase):
    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=90))
    def test_what_is_accepted_can_be_hashed_and_checked(self, text: str) -> None:
        try:
            raw = passwords.acceptable(text, ADA, 8)
        except ApiError as fault:
            assert fault.status == 422
            return
        assert 8 <= len(raw) <= 72
        assert passwords.candidate(text) == raw
        assert text.casefold() not in passwords.common_passwords()

    @settings(max_examples=200, deadline=None)
    @given(st.text(alphabet=st.characters(), max_size=100))
    def test_what_bcrypt_refuses_never_reaches_it(self, text: str) -> None:
        raw = passwords.candidate(text)
        assert raw is None or (0 < len(raw) <= 72 and b"\0" not in raw)

    def test_the_shipped_list(self) -> None:
        found = passwords.common_passwords()
        assert len(found) > 5000
        assert {"password", "password1", "12345678", "qwertyuiop", "iloveyou1", "letmein123"} <= found
        assert all(line == line.casefold().strip() for line in found)

    def test_the_cost_of_a_hash(self) -> None:
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
        ):
            assert passwords.cost_of(stored) == cost, stored

    def test_a_hash_that_only_looks_like_one_matches_nothing(self) -> None:
        checker = passwords.Bcrypt(4)
        for end in string.ascii_letters:
            assert not checker.matches(b"x", b"$2b$04$" + b"." * 52 + end.encode())


class Opaque(TestCase):
    def test_only_the_digest_is_stored_and_the_text_is_256_bits(self) -> None:
        token = secrets.fresh(lambda count: bytes(range(count)))
        assert token.text == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
        assert token.digest == hashlib.sha256(token.text.encode()).digest() == secrets.digest(token.text)
        assert token.text not in repr(token)

    def test_a_successor_takes_both_the_token_and_the_salt(self) -> None:
        one = secrets.fresh(lambda count: b"a" * count).text
        other = secrets.fresh(lambda count: b"b" * count).text
        made = {
            secrets.successor(token, salt).text for token in (one, other) for salt in (b"1" * 32, b"2" * 32)
        }
        assert len(made) == 4
        assert secrets.successor(one, b"1" * 32) == secrets.successor(one, b"1" * 32)
        assert all(len(text) == secrets.LENGTH for text in made)

    @given(st.one_of(st.text(max_size=60), st.binary(), st.integers(), st.none()))
    def test_what_cannot_be_a_token_has_no_digest(self, value: object) -> None:
        found = secrets.digest(value)
        assert found is None or (isinstance(value, str) and len(value) == secrets.LENGTH)

    def test_metadata_that_is_none_is_empty(self) -> None:
        assert checked(None) == {}

    def test_metadata_has_no_number_that_the_database_would_give_back_as_a_longer_one(self) -> None:
        for number in (1e20, -1e20, 1e308, 2.0**63, 2**64, -(2**63) - 1, math.inf, math.nan):
            for value in ({"a": number}, {"a": [{"b": [number]}]}):
                with self.assertRaises(ApiError) as caught:
                    checked(value)
                assert (caught.exception.status, caught.exception.code) == (422, "validation_failed"), number
        fine = {"a": [2**63 - 1, -(2**63), 2**64 - 1, 2.0**53, 9.2e18, 0.1, 1e-300, 5e-324, True]}
        assert checked(fine) == fine

    def test_metadata_that_came_by_sql_can_be_sent(self) -> None:
        for digits in ("1" + "0" * 20, "-" + "9" * 19, "9" * 20, "1" + "0" * 308, "7" * 5000):
            found = loaded(f'{{"a": [{digits}]}}')
            assert isinstance(found["a"][0], float)
            orjson.dumps(found)
        assert loaded('{"a": 18446744073709551615, "b": 1.5}') == {"a": 2**64 - 1, "b": 1.5}


class Parsers(TestCase):
    """What comes from outside is read or refused, never a surprise."""

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(max_size=80), st.binary(max_size=60).map(lambda raw: b64encode(raw).decode())))
    def test_a_cursor(self, text: str) -> None:
        try:
            when, key = admin.read_cursor(text)
        except ApiError as fault:
            assert fault.code == "validation_failed"
            return
        assert when.tzinfo is not None
        assert len(key) == 36

    def test_a_cursor_of_an_odd_offset_is_refused_or_taken_as_utc(self) -> None:
        def cursor(moment: str) -> str:
            return urlsafe_b64encode(f"{moment} {uuid.UUID(int=1)}".encode()).decode().rstrip("=")

        when, _ = admin.read_cursor(cursor("2026-11-21T03:04:05+23:59"))
        assert when.tzinfo is UTC and when == datetime(2026, 11, 20, 3, 5, 5, tzinfo=UTC)
        for beyond in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
            with self.assertRaises(ApiError) as caught:
                admin.read_cursor(cursor(beyond))
            assert caught.exception.code == "validation_failed", beyond

    @given(st.datetimes(timezones=st.just(UTC)), st.uuids())
    def test_a_cursor_leads_back_to_its_place(self, when: datetime, key: uuid.UUID) -> None:
        account = Account(User(str(key), "ada@example.test", when))
        assert admin.read_cursor(admin.cursor_after(account)) == (when, str(key))

    @given(st.text(max_size=10))
    def test_a_page_size(self, text: str) -> None:
        try:
            assert 1 <= admin.page_size(text) <= admin.LARGEST_PAGE
        except ApiError as fault:
            assert fault.code == "validation_failed"

    @settings(max_examples=200, deadline=None)
    @given(JSON)
    def test_a_key_set(self, value: Any) -> None:
        for keys in (value, {"keys": value}, {"keys": [value]}, {"keys": [{"kty": "EC", "crv": value}]}):
            with self.assertRaises(KeySetError):
                KeySet.parse(json.dumps(keys))

    @given(JSON)
    def test_metadata(self, value: Any) -> None:
        try:
            assert checked(value) == (value if value is not None else {})
        except ApiError as fault:
            assert fault.code == "validation_failed"

    @given(st.text(max_size=40))
    def test_a_users_id(self, text: str) -> None:
        try:
            assert len(admin.user_id(text)) == 36
        except ApiError as fault:
            assert fault.code == "user_not_found"


class Letters(TestCase):
    def test_a_letter_has_the_token_on_a_line_of_its_own(self) -> None:
        for template in ("recovery", "confirmation"):
            letter = mail.compose(template, "ada@example.test", "TOKEN", None, 1)
            assert "TOKEN" in letter.text.splitlines()
            assert "link" not in letter.text
            assert "$" not in letter.text
            linked = mail.compose(template, "ada@example.test", "TOKEN", "https://x.test/a", 1)
            assert "https://x.test/a?token=TOKEN" in linked.text.splitlines()

    def test_the_message_is_rfc_5322(self) -> None:
        letter = mail.Letter("zoë@bücher.test", "Ein Betreff mit ü", "Zeile eins\n.\nFrom hier\n")
        raw = mail.message(letter, "Project <noreply@example.test>", 1_795_230_245, "id-1")
        assert b"\r\n" in raw and b"\n" not in raw.replace(b"\r\n", b"")
        assert raw.isascii()
        parsed = email.message_from_bytes(raw, policy=default)
        assert parsed["Subject"] == "Ein Betreff mit ü"
        assert parsed["Message-ID"] == "<id-1@example.test>"
        assert parsed["Date"] == "Sat, 21 Nov 2026 03:04:05 -0000"
        assert parsed["Auto-Submitted"] == "auto-generated"
        assert parsed.get_content().splitlines() == ["Zeile eins", ".", "From hier"]

    def test_a_line_break_never_becomes_a_header(self) -> None:
        for field in ("recipient", "subject"):
            parts = {"recipient": "ada@example.test", "subject": "Hello", "text": "x"}
            parts[field] += "\r\nBcc: everyone@example.test"
            with self.assertRaises(ValueError):
                mail.message(mail.Letter(**parts), "noreply@example.test", 0, "id")

    def test_a_letter_that_is_not_taken_is_tried_twice_more(self) -> None:
        clock, tried = Clock(), []

        async def refuse(letter: mail.Letter) -> None:
            tried.append(letter)
            raise ConnectionRefusedError

        outbox = mail.Outbox.over(refuse, clock)
        letter = mail.Letter("ada@example.test", "s", "t")
        outbox.post(lambda: letter)
        assert tried == []
        clock.advance(0)
        assert len(tried) == 1
        clock.advance(5)
        assert len(tried) == 2
        clock.advance(60)
        assert tried == [letter] * 3
        assert clock.getDelayedCalls() == []

    def test_a_slow_mail_server_gets_four_letters_at_a_time(self) -> None:
        open_: list[Deferred[None]] = []

        async def slow(letter: mail.Letter) -> None:
            waiting: Deferred[None] = Deferred()
            open_.append(waiting)
            await waiting

        clock = Clock()
        outbox = mail.Outbox.over(slow, clock)
        for _ in range(10):
            outbox.post(lambda: mail.Letter("ada@example.test", "s", "t"))
        clock.advance(0)
        assert len(open_) == 4
        open_[0].callback(None)
        assert len(open_) == 5
        while any(not one.called for one in open_):
            next(one for one in open_ if not one.called).callback(None)
        assert len(open_) == 10


class FakeThreads:
    """A thread pool whose threads never get anywhere until told."""

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
    def setUp(self) -> None:
        self.threads = FakeThreads()
        self.hashing = hashing.Hashing(AtOnceReactor(), passwords.Bcrypt(4), threads=2, queue_per_thread=2)
        self.hashing._pool = self.threads  # type: ignore[assignment]  # what is used of it

    def test_the_queue_is_bounded_and_a_place_in_it_is_kept_until_the_work_is_done(self) -> None:
        under_way = [start(self.hashing.matches(b"x", None)) for _ in range(6)]
        self.failureResultOf(start(self.hashing.hash(b"x")), ApiError)
        # Hanging up does not make room: the thread goes on.
        under_way[0].addErrback(lambda _: None).cancel()
        fault = self.failureResultOf(start(self.hashing.hash(b"x")), ApiError).value
        assert (fault.status, fault.code) == (503, "overloaded")
        assert "Retry-After" in dict(fault.headers)
        self.threads.finish_one()
        accepted = start(self.hashing.hash(b"x"))
        while self.threads.queue:
            self.threads.finish_one()
        assert self.successResultOf(accepted).startswith(b"$2b$04$")
        assert self.successResultOf(under_way[-1]) is False
        assert self.hashing.under_way == 0


class Revocations(TestCase):
    def setUp(self) -> None:
        self.clock, self.listener = Clock(), FakeListener()
        self.stored: list[tuple[str, float]] = []
        self.reads: list[float | None] = []
        self.failure: Exception | None = None
        self.revoked = RevokedSessions(self.read, self.listener, self.clock.seconds)

    async def read(self, since: float | None) -> list[tuple[str, float]]:
        self.reads.append(since)
        if self.failure is not None:
            raise self.failure
        return list(self.stored)

    def poll(self) -> None:
        self.successResultOf(start(self.revoked.poll()))

    def test_what_is_announced_is_revoked(self) -> None:
        self.listener.heard[CHANNEL]("session-1 100")
        assert self.revoked.is_revoked("session-1")
        assert not self.revoked.is_revoked("session-2")

    def test_a_listening_connection_that_is_dead_without_a_sign_is_made_up_for_within_a_second(self) -> None:
        self.poll()
        for tenth in range(100):
            if tenth == 55:
                self.stored = [("session-1", 100.0)]
            self.clock.advance(0.1)
            if tenth % 4 == 3:
                self.poll()
            assert self.revoked.is_revoked("session-1") or tenth < 55 + 9
        # All at first, then what is new: about once a second.
        assert self.reads[0] is None
        assert len(self.reads) == 13
        assert all(since is not None and since < 0 for since in self.reads[1:])

    def test_after_a_gap_the_set_is_read_again(self) -> None:
        self.stored = [("session-1", 100.0)]
        for gap in self.listener.gaps:
            self.successResultOf(start(gap()))  # type: ignore[arg-type]  # they are coroutines
        assert self.revoked.is_revoked("session-1")

    def test_while_nobody_listens_the_set_is_read_often_and_trusted_for_a_second(self) -> None:
        self.poll()
        self.listener.current = False
        self.clock.advance(0.9)
        assert not self.revoked.is_revoked("session-1")
        self.stored = [("session-1", 100.0)]
        self.poll()
        assert self.revoked.is_revoked("session-1")
        self.clock.advance(0.9)
        assert not self.revoked.is_revoked("session-2")

    def test_a_set_that_cannot_be_read_is_not_trusted(self) -> None:
        self.poll()
        self.listener.current = False
        self.failure = RuntimeError("database away")
        with capturedLogs() as events:
            for _ in range(3):
                self.poll()
        assert [formatEvent(event) for event in events] == ["ended sessions cannot be read: RuntimeError"]
        self.clock.advance(1.01)
        fault = self.assertRaises(ApiError, self.revoked.is_revoked, "session-2")
        assert (fault.status, fault.code) == (503, "database_unavailable")
        self.failure = None
        self.poll()
        assert not self.revoked.is_revoked("session-2")

    def test_before_the_first_reading_nothing_is_trusted(self) -> None:
        self.listener.current = False
        self.clock.advance(5)
        self.assertRaises(ApiError, self.revoked.is_revoked, "session-1")

    def test_a_session_is_forgotten_when_its_tokens_have_expired(self) -> None:
        self.revoked.add("session-1", 100.0)
        # An earlier time that arrives later does not shorten it.
        self.revoked.add("session-1", 50.0)
        self.clock.advance(99)
        self.poll()
        assert len(self.revoked) == 1
        self.clock.advance(1)
        self.poll()
        assert len(self.revoked) == 0
