"""Resumable uploads in any order of operations, beside a model that knows only which bytes were acknowledged."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from tests.http.storage.test_resumable import DAY, TusApp, metadata

PAYLOAD = Random(5).randbytes(64)


class Uploading:
    """One upload, and what a client knows of it: that ``least`` bytes at least are there."""

    def __init__(self, app: TusApp, key: str, length: int) -> None:
        self.app, self.key, self.payload = app, key, PAYLOAD[:length]
        self.path = app.begun(length, Upload_Metadata=metadata(key=key))
        self.least = 0
        self.over = False

    def look(self) -> None:
        response = self.app.head(self.path)
        if self.over:
            assert response.status in (404, 410), response
            return
        assert response.status == 200, response
        offset = int(response.header("upload-offset") or "")
        assert self.least <= offset <= len(self.payload), (self.least, offset)
        self.least = offset

    def send(self, count: int, wrong: bool) -> None:
        self.look()
        if self.over:
            return
        piece = self.payload[self.least : self.least + count]
        response = self.app.patch(self.path, self.least + wrong, piece)
        if wrong:
            assert response.status == 409, response
            return
        assert response.status == 204, response
        assert response.header("upload-offset") == str(self.least + len(piece))
        self.least += len(piece)

    def break_off(self, count: int) -> None:
        """A request that announces everything and of which ``count`` bytes come."""
        self.look()
        if self.over or self.least == len(self.payload):
            return
        rest = self.payload[self.least :]
        self.app.sending(self.path, self.least, len(rest), rest[: min(count, len(rest) - 1)]).hang_up()

    def terminate(self) -> None:
        assert self.app.delete(self.path).status == (404 if self.over else 204)
        self.over = True

    @property
    def whole(self) -> bool:
        return self.least == len(self.payload)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "send", "send", "wrong", "break off", "look", "terminate", "store", "sweep"]
        ),
        st.integers(0, 2),
        st.integers(0, 40),
    ),
    max_size=30,
)


class Machine(TestCase):
    @given(st.lists(st.integers(1, 64), min_size=3, max_size=3), OPERATIONS)
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_no_order_loses_or_doubles_a_byte(
        self, lengths: list[int], operations: list[tuple[str, int, int]]
    ) -> None:
        app = TusApp()
        uploads = [Uploading(app, f"k{number}", length) for number, length in enumerate(lengths)]
        made: set[int] = set()
        for name, number, count in operations:
            upload = uploads[number]
            if name == "store":
                self.fail_once(app, upload, count)
            elif name == "sweep":
                self.sweep(app)
            elif name == "terminate":
                upload.terminate()
            elif name == "look":
                upload.look()
            elif name == "break off":
                upload.break_off(count)
            else:
                upload.send(count, name == "wrong")
            if upload.whole:
                made.add(number)
        # The last one is left to expire, and the others are finished.
        for number, upload in enumerate(uploads[:2]):
            if not upload.over:
                upload.send(len(PAYLOAD), False)
                made.add(number)
        self.check(app, uploads, made)

    def fail_once(self, app: TusApp, upload: Uploading, count: int) -> None:
        """The store is away while a request brings bytes, which are not acknowledged."""
        upload.look()
        app.store.away = True
        if not upload.over and not upload.whole:
            response = app.patch(upload.path, upload.least, upload.payload[upload.least :][: count + 1])
            assert response.status == 503, response
        app.store.away = False

    def sweep(self, app: TusApp) -> None:
        self.successResultOf(Deferred.fromCoroutine(app.storage.sweeper.sweep()))

    def check(self, app: TusApp, uploads: list[Uploading], made: set[int]) -> None:
        for number, upload in enumerate(uploads):
            got = app.get(upload.key)
            self.assertEqual(
                (got.status, got.body if number in made else b""),
                (200, upload.payload) if number in made else (404, b""),
            )
        # What is not an object expires, and leaves nothing.
        app.clock.advance(DAY + 1000)
        self.sweep(app)
        payloads = sorted(uploads[number].payload for number in made)
        self.assertEqual(sorted(app.stored()), payloads)
