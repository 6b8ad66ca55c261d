"""Storage in any order of requests on the real database and store, beside a model of what must come of them."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from http.client import HTTPConnection
from socket import MSG_PEEK
from typing import Any

import pytest_twisted
from attrs import field, frozen
from twisted.internet.threads import deferToThread

from tests.fakes.common import Response
from tests.live.application import Api
from tests.live.storage.service import Running, nothing_left
from tests.live.waiting import until
from tests.models.machines import play
from tests.models.storage import Caller
from tests.models.storage_machine_pictures import PicturesMachine
from tests.pictures import looks


@frozen
class OpenOverSocket:
    connection: HTTPConnection

    def send(self, data: bytes) -> None:
        # What was refused early need not be read to its end.
        with suppress(ConnectionError):
            self.connection.send(data)

    def answer(self) -> Response:
        answered = response(self.connection)
        self.connection.close()
        return answered

    def hang_up(self) -> None:
        self.connection.close()


@frozen
class OverSockets:
    """``users`` are their sessions."""

    api: Api
    users: dict[str, Any]
    prefix: str
    connection: HTTPConnection = field()
    # No link may expire while the machine is at work.
    lifetime_factor: int = 80

    @connection.default
    def _connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.api.port, timeout=120)

    def now(self) -> float:
        return time.time()

    def credentials(self, caller: Caller) -> dict[str, str]:
        keys = {"anon": self.api.anon_key, "service": self.api.service_key}
        sent = {} if caller.key is None else {"X-Service-Key": keys[caller.key]}
        if caller.user is None:
            return sent
        return {**sent, "Authorization": f"Bearer {self.users[caller.user]['access_token']}"}

    def user_id(self, user: str) -> str:
        return str(self.users[user]["user"]["id"])

    def shows(self, resized: bytes, picture: bytes, width: int) -> bool:
        return looks(resized) == (width, looks(picture)[1])

    def request(self, method: str, target: str, headers: dict[str, str], body: bytes | None) -> Response:
        self.connection.request(method, target, body, headers)
        return response(self.connection)

    def begin(self, method: str, target: str, headers: dict[str, str]) -> OpenOverSocket:
        connection = self._connect()
        connection.putrequest(method, target)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        # With the first byte of an answer, which stays where it is, the service has decided about the head.
        connection.sock.recv(1, MSG_PEEK)
        return OpenOverSocket(connection)

    def rules_changed(self) -> None:
        """The process that changed them knows at once."""


def response(connection: HTTPConnection) -> Response:
    answer = connection.getresponse()
    return Response(answer.status, answer.getheaders(), answer.read())


class StorageOverSockets(PicturesMachine):
    world: OverSockets

    def teardown(self) -> None:
        for held in self.held:
            held.request.hang_up()
        for name in list(self.model.buckets):
            self.delete_bucket(name, True)
        self.world.connection.close()


@pytest_twisted.ensureDeferred
async def test_what_comes_of_requests_is_what_the_model_says(running: Running) -> None:
    users = {user: (await running.api.sign_up(f"{user}@example.test")) for user in ("alice", "bob")}
    numbers = itertools.count()

    def machine() -> StorageOverSockets:
        return StorageOverSockets(OverSockets(running.api, users, f"m{next(numbers)}-"))

    await deferToThread(play, machine, 30)
    await until(lambda: nothing_left(running))
