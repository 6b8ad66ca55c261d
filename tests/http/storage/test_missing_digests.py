"""The SHA-256 of objects that come in several requests, and of those that are in the store without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import psycopg2
from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.settings.model import Storage as StorageSettings
from project_service.storage import sha256 as digests
from project_service.storage.assemble import build
from project_service.storage.s3.connection import ObjectStream
from project_service.storage.s3.errors import BrokenRead, StoreError, StoreUnreachable
from project_service.storage.sha256 import UnfinishedDigests
from tests.captured_log import logged_until_the_end
from tests.fakes.storage import FakeGarbage, FakeResumables
from tests.fakes.store import MemoryStore, in_place_of_s3
from tests.http.storage.app import StorageApp
from tests.http.storage.test_resumable import TusApp, checksum

PAYLOAD = bytes(range(33))
EVERY = 600


def hexadecimal(payload: bytes) -> str:
    return sha256(payload).hexdigest()


def known(app: StorageApp, key: str = "a.txt", bucket: str = "open") -> str | None:
    return app.tables.objects[bucket, key].sha256


class Resumable(TestCase):
    def test_all_bytes_in_one_request(self) -> None:
        for length in (0, 1, 10, 33):
            app = TusApp()
            payload = PAYLOAD[:length]
            self.assertEqual(app.begin(length, body=payload).status, 201)
            self.assertEqual(known(app), hexadecimal(payload))
            path = app.begun(length)
            self.assertEqual(app.patch(path, 0, payload).status, 204)
            self.assertEqual(known(app), hexadecimal(payload))

    def test_several_requests_of_one_process(self) -> None:
        for size in (1, 7, 10, 20):
            app = TusApp()
            path = app.begun(33)
            for first in range(0, 33, size):
                self.assertEqual(app.patch(path, first, PAYLOAD[first : first + size]).status, 204)
            self.assertEqual(known(app), hexadecimal(PAYLOAD), size)
            version = UUID(path.rpartition("/")[2])
            self.assertIsNone(app.storage.resumables.digests.take(version, 33), "nothing is left of it")

    def test_a_request_that_breaks_off_counts_as_far_as_it_came(self) -> None:
        for came in (0, 4, 10, 17):
            app = TusApp()
            path = app.begun(33)
            app.sending(path, 0, 33, PAYLOAD[:came]).hang_up()
            self.assertEqual(app.offset(path), came)
            app.patch(path, came, PAYLOAD[came:])
            self.assertEqual(known(app), hexadecimal(PAYLOAD), came)

    def test_bytes_that_do_not_count_are_not_in_the_digest(self) -> None:
        """Of a wrong checksum nothing counts. The SHA-256 is computed later then."""
        app = TusApp()
        path = app.begun(33)
        app.patch(path, 0, PAYLOAD[:15])
        wrong = checksum("sha256", bytes(32))
        self.assertEqual(app.patch(path, 15, b"x" * 18, Upload_Checksum=wrong).status, 460)
        self.assertEqual(app.patch(path, 15, PAYLOAD[15:]).status, 204)
        self.assertIsNone(known(app))
        self.assertEqual(app.stored(), [PAYLOAD])

    def test_bytes_that_were_not_recorded_are_not_in_the_digest(self) -> None:
        """Also where another process then receives as many others."""
        app = TusApp()
        path = app.begun(33)
        app.patch(path, 0, PAYLOAD[:15])
        with patch.object(FakeResumables, "advance", side_effect=RuntimeError):
            self.assertEqual(app.patch(path, 15, b"xyz").status, 500)
        self.flushLoggedErrors(RuntimeError)
        self.elsewhere(app, path, 15, 18)
        app.patch(path, 18, PAYLOAD[18:])
        self.assertEqual((known(app), app.get("a.txt").body), (None, PAYLOAD))

    def test_another_process_continues(self) -> None:
        """Also where the first one has the last bytes again: its hash lacks those that came in between."""
        app = TusApp()
        path = app.begun(33)
        app.patch(path, 0, PAYLOAD[:12])
        self.elsewhere(app, path, 12, 20)
        app.patch(path, 20, PAYLOAD[20:])
        self.assertEqual((known(app), app.stored()), (None, [PAYLOAD]))

    def elsewhere(self, app: TusApp, path: str, first: int, last: int) -> None:
        """Another process receives these bytes."""
        resumables = app.storage.resumables
        here = resumables.digests
        object.__setattr__(resumables, "digests", UnfinishedDigests())
        self.assertEqual(app.patch(path, first, PAYLOAD[first:last]).status, 204)
        object.__setattr__(resumables, "digests", here)

    def test_so_many_hashes_are_kept(self) -> None:
        self.patch(digests, "MAX_UNFINISHED", 2)
        unfinished, versions = UnfinishedDigests(), [uuid4() for _ in range(3)]
        for version in versions:
            unfinished.put(version, 5, version)
        self.assertEqual([unfinished.take(one, 5) for one in versions], [None, *versions[1:]])
        self.assertEqual([unfinished.take(one, 5) for one in versions], [None] * 3)


class Missing(TestCase):
    """A store with objects that have no SHA-256, and the loop that computes it every ten minutes."""

    def setUp(self) -> None:
        self.app = StorageApp(sweep_seconds=EVERY)
        self.loop = self.app.storage.digesting
        self.loop.startService()
        self.addCleanup(self.stop)
        self.events = logged_until_the_end(self)

    def stop(self) -> None:
        stopping = self.loop.stopService()
        if stopping is not None:
            stopping.cancel()

    def put(self, key: str, payload: bytes = b"hello", bucket: str = "open") -> None:
        self.app.put(key, payload, bucket)
        self.forget(key, bucket)

    def forget(self, key: str, bucket: str = "open") -> None:
        self.app.tables.objects[bucket, key] = evolve(self.app.tables.objects[bucket, key], sha256=None)

    def run_once(self) -> None:
        """One run, which takes a moment for each object."""
        self.app.clock.advance(EVERY)
        self.app.clock.pump([0.01] * 20)

    def missing(self) -> list[str]:
        return [key for (_, key), row in self.app.tables.objects.items() if row.sha256 is None]

    def warned(self) -> list[str]:
        return [str(event["key"]) for event in self.events if "cannot be computed: " in event["log_format"]]

    def test_nothing_but_the_digest_changes(self) -> None:
        payloads = {"a": b"", "b": b"hello", "c": b"large" * 500_000}
        for key, payload in payloads.items():
            self.put(key, payload)
        self.put("z", b"shut", "shut")
        before = dict(self.app.tables.objects)
        self.app.clock.advance(EVERY - 1)
        self.assertEqual(self.app.tables.objects, before)
        self.app.clock.advance(1)
        self.app.clock.pump([0.1] * 5)
        after = {at: evolve(row, sha256=None) for at, row in self.app.tables.objects.items()}
        self.assertEqual(after, before)
        for key, payload in payloads.items():
            self.assertEqual(known(self.app, key), hexadecimal(payload))
        self.assertEqual(known(self.app, "z", "shut"), hexadecimal(b"shut"))
        self.assertEqual([e["count"] for e in self.events if "computed the" in e["log_format"]], [4])
        self.assertEqual(self.app.get("b", Want_Repr_Digest="sha-256=1").header("repr-digest") or "", REPR)

    def test_objects_that_have_one_are_not_read(self) -> None:
        self.app.put("a")
        self.app.store.calls.clear()
        self.run_once()
        self.assertEqual(self.app.store.calls, [])

    def test_there_may_be_many(self) -> None:
        self.patch(digests, "BATCH", 3)
        for number in range(9):
            self.put(f"{number}")
        self.run_once()
        self.assertEqual(self.missing(), [])

    def test_no_more_is_read_in_a_second_than_the_setting_allows(self) -> None:
        self.set(1_000_000)
        payload = bytes(4_000_000)
        self.put("a", payload)
        self.run_once()
        for _ in range(29):
            self.assertEqual(self.missing(), ["a"])
            self.app.clock.advance(0.1)
        self.app.clock.pump([0.1] * 10)
        self.assertEqual(known(self.app, "a"), hexadecimal(payload))

    def test_with_zero_nothing_is_read_and_a_reload_is_obeyed_soon(self) -> None:
        self.set(0)
        self.put("a", bytes(3_000_000))
        self.put("b")
        self.app.store.calls.clear()
        self.run_once()
        self.assertEqual(self.app.store.calls, [])
        self.set(1_000_000)
        self.run_once()
        self.set(0)
        self.app.clock.pump([1.0] * 10)
        self.assertEqual(self.missing(), ["b"])

    def set(self, rate: int) -> None:
        live = self.app.storage.live
        live.settings = evolve(live.settings, digest_bytes_per_second=rate)

    def test_bytes_that_the_store_does_not_have_are_logged_once_and_affect_no_others(self) -> None:
        for key in ("a", "cut", "gone", "z"):
            self.put(key)
        objects, rows = self.app.store.objects, self.app.tables.objects
        del objects[rows["open", "gone"].path]
        cut = rows["open", "cut"].path
        objects[cut] = evolve(objects[cut], payload=b"hell")
        self.run_once()
        self.assertEqual((self.missing(), self.warned()), (["cut", "gone"], ["cut", "gone"]))
        self.app.store.calls.clear()
        self.run_once()
        self.assertEqual((self.app.store.calls, self.warned()), ([], ["cut", "gone"]))

    def test_when_too_many_cannot_be_read_none_are_read_any_more(self) -> None:
        self.patch(digests, "MAX_UNREADABLE", 2)
        for key in "abcd":
            self.put(key)
        self.app.store.objects.clear()
        self.run_once()
        self.run_once()
        self.assertEqual(self.warned(), ["a", "b"])
        self.assertEqual([e["count"] for e in self.events if "no more are read" in e["log_format"]], [2])

    def test_an_object_that_is_replaced_or_deleted_meanwhile_is_no_fault(self) -> None:
        for change in (lambda: self.app.put("a", b"other"), self.app.tables.objects.clear):
            self.put("a", b"hello" * 1000)
            opened = MemoryStore.open

            async def late(
                store: MemoryStore,
                *what: Any,
                change: Callable[[], object] = change,
                opened: Callable[..., Awaitable[ObjectStream]] = opened,
            ) -> ObjectStream:
                self.patch(MemoryStore, "open", opened)
                change()
                return await opened(store, *what)

            self.patch(MemoryStore, "open", late)
            self.run_once()
            self.assertEqual((self.missing(), self.warned()), ([], []))
        self.assertEqual(self.app.tables.objects, {})

    def test_an_overwrite_while_the_bytes_are_read_keeps_its_own_digest(self) -> None:
        """All bytes of the old version are read before it is replaced by one that has no SHA-256 yet."""
        self.put("a", b"hello")
        recorded = FakeGarbage.set_sha256

        async def late(rows: FakeGarbage, *what: Any) -> bool:
            self.patch(FakeGarbage, "set_sha256", recorded)
            self.put("a", b"other")
            return await recorded(rows, *what)

        self.patch(FakeGarbage, "set_sha256", late)
        self.run_once()
        self.assertEqual(self.missing(), ["a"])
        self.run_once()
        self.assertEqual(known(self.app, "a"), hexadecimal(b"other"))

    def test_a_store_that_fails_is_asked_again_and_one_object_does_not_stop_the_others(self) -> None:
        for failure in (StoreUnreachable("away"), StoreError(403, "ExpiredToken"), BrokenRead("silent")):
            for key in "abc":
                self.put(key)
            opened, bad = MemoryStore.open, self.app.tables.objects["open", "b"].path

            async def failing(
                store: MemoryStore,
                path: str,
                *what: Any,
                bad: str = bad,
                failure: Exception = failure,
                opened: Callable[..., Awaitable[ObjectStream]] = opened,
            ) -> ObjectStream:
                if path == bad:
                    raise failure
                return await opened(store, path, *what)

            self.patch(MemoryStore, "open", failing)
            for left in (["b", "c"], ["b"]):
                self.run_once()
                self.assertEqual(self.missing(), left, failure)
            self.patch(MemoryStore, "open", opened)
            self.run_once()
            self.assertEqual((self.missing(), self.warned()), ([], []), failure)
        self.assertEqual(len([e for e in self.events if "wait for the store" in e["log_format"]]), 3)

    def test_a_trigger_of_the_project_may_refuse(self) -> None:
        for key in "ab":
            self.put(key)
        recorded, refusing = FakeGarbage.set_sha256, self.app.tables.objects["open", "a"].version

        async def refuse(rows: FakeGarbage, version: Any, digest: str) -> bool:
            if version == refusing:
                raise psycopg2.Error
            return await recorded(rows, version, digest)

        self.patch(FakeGarbage, "set_sha256", refuse)
        self.run_once()
        self.assertEqual((self.missing(), self.warned()), (["a"], ["a"]))

    def test_it_ends_with_the_service_in_the_middle_of_an_object(self) -> None:
        self.put("a")
        asked: list[Deferred[ObjectStream]] = []

        async def silent(*_: object) -> ObjectStream:
            asked.append(Deferred())
            return await asked[-1]

        self.patch(MemoryStore, "open", silent)
        self.run_once()
        stopping = self.loop.stopService()
        assert stopping is not None
        self.assertNoResult(stopping)
        stopping.cancel()
        self.assertIsNone(self.successResultOf(stopping))
        self.assertEqual((len(asked), self.missing()), (1, ["a"]))

    def test_one_process_at_a_time_does_it(self) -> None:
        async def busy(_: object) -> bool:
            return False

        self.put("a")
        self.loop.stopService()
        given = StorageSettings(sweep_seconds=EVERY)
        app = self.app
        store, rows = in_place_of_s3(app.store), app.tables.rows()
        elsewhere = build(app.clock, given, store, rows, now=app.now, digest_lock=busy)
        elsewhere.digesting.startService()
        self.addCleanup(elsewhere.digesting.stopService)
        self.run_once()
        self.assertEqual(self.missing(), ["a"])


REPR = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:"
