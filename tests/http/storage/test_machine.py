"""Storage in memory in any order of requests, with time that passes and a store that fails, beside a model."""

from __future__ import annotations

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from twisted.trial.unittest import TestCase

from project_service.lifecycle import start
from tests.fakes import images
from tests.fakes.common import ANON_KEY, SERVICE_KEY, Client, Response, parse_response
from tests.fakes.storage import START
from tests.http.storage.app import ALICE, BOB, StorageApp
from tests.models.machines import play
from tests.models.storage import Caller
from tests.models.storage_machine_pictures import PicturesMachine
from tests.models.storage_world import PAYLOADS, SERVICE, code

SILENCE_SECONDS = 60.0
USERS = {"alice": ALICE, "bob": BOB}
KEY = {"anon": ANON_KEY, "service": SERVICE_KEY}


@define
class OpenInMemory:
    client: Client
    answered: bytes = b""

    def send(self, data: bytes) -> None:
        if not self.client.transport.ended:
            self.client.send(data)

    def answer(self) -> Response:
        return parse_response(self.client.received())

    def hang_up(self) -> None:
        self.client.hang_up()


@define
class InMemory:
    app: StorageApp = field(factory=lambda: StorageApp(part_bytes=1000))
    prefix: str = ""
    lifetime_factor: int = 1

    def __attrs_post_init__(self) -> None:
        self.app.tables.buckets.clear()
        # What is made of a picture depends on it.
        self.app.image_pool.outcomes = []

    def now(self) -> float:
        return START.timestamp() + self.app.clock.seconds()

    def credentials(self, caller: Caller) -> dict[str, str]:
        sent = {} if caller.key is None else {"X-Service-Key": KEY[caller.key]}
        return sent if caller.user is None else {**sent, "Authorization": f"Bearer user:{USERS[caller.user]}"}

    def user_id(self, user: str) -> str:
        return USERS[user]

    def shows(self, resized: bytes, picture: bytes, width: int) -> bool:
        return resized == images.resized(picture, width)

    def request(self, method: str, target: str, headers: dict[str, str], body: bytes | None) -> Response:
        return self.app.request(method, target, headers, body)

    def begin(self, method: str, target: str, headers: dict[str, str]) -> OpenInMemory:
        client = self.app.connect()
        lines = [f"{method} {target} HTTP/1.1", "Host: x", *(f"{k}: {v}" for k, v in headers.items())]
        client.send("\r\n".join([*lines, "", ""]).encode())
        return OpenInMemory(client)

    def rules_changed(self) -> None:
        """They are remembered for half a second."""
        self.app.clock.advance(0.5)


class StorageInMemory(PicturesMachine):
    world: InMemory

    def __init__(self, test: TestCase) -> None:
        super().__init__(InMemory())
        self.test = test
        self.was_away = False

    @rule(seconds=st.sampled_from([0.4, 1.0, 20.0, 59.9]))
    def time_passes(self, seconds: float) -> None:
        self.world.app.clock.advance(seconds)

    @invariant()
    def silent_uploads_are_given_up(self) -> None:
        for one in list(self.held):
            if self.world.now() - one.since >= SILENCE_SECONDS:
                self.held.remove(one)
                assert code(one.request.answer()) in {"request_timeout", *one.early}

    @rule(data=st.data(), payload=PAYLOADS)
    def the_store_is_away(self, data: st.DataObject, payload: bytes) -> None:
        """What is refused then has changed nothing."""
        bucket, key = self.bucket_and_key(data)
        early = self.model.unchangeable(SERVICE, bucket, key)
        if bucket in self.model.buckets:
            early |= self.model.not_taken(bucket, key, len(payload), "application/octet-stream")
        self.world.app.store.away = self.was_away = True
        answer = self.call(SERVICE, "PUT", self.path(bucket, key), payload, {"X-Any": "1"})
        self.world.app.store.away = False
        assert code(answer) in early | {"store_unavailable"}
        self.sweep()

    def sweep(self) -> None:
        self.test.successResultOf(start(self.world.app.storage.sweeper.sweep(orphans=True)))

    def teardown(self) -> None:
        """Whatever was refused or left has been cleaned up, without the sweeper unless the store was away."""
        for held in self.held:
            held.request.hang_up()
        if self.was_away:
            self.world.app.clock.advance(16 * 60)
            self.sweep()
        objects = self.model.objects.values()
        made = [images.resized(one.payload, width) for one in objects for width in one.widths]
        assert sorted(self.world.app.stored()) == sorted([*(one.payload for one in objects), *made])


class AnyOrderOfRequests(TestCase):
    def test_what_comes_of_requests_is_what_the_model_says(self) -> None:
        play(lambda: StorageInMemory(self), 100)
