"""SIGKILL at random moments during resumable uploads (tus) by two hosts on one database and one store.

Clients do what those of tus do: they ask HEAD after every failure and go on from there, at whichever host. No offset
that they have seen may go back, objects must have their bytes, and when everything has expired nothing may be left.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import requests
from attrs import define, field

from project_service.settings.model import Store
from tests.chaos.leftovers import embedded, judge_leftovers
from tests.live.daemon import TIMEOUT_SECONDS, Daemon, eventually, workers_of
from tests.live.loaded_service import credentials, sections, started
from tests.live.mixed_load import AFTER_FAILURE_SECONDS, Threads

UPLOADS, OBJECTS = "/storage/buckets/private/resumable", "/storage/buckets/private/objects"
TUS = {"Tus-Resumable": "1.0.0"}
MIB = 1024 * 1024
SIZES = (0, 1000, 5 * MIB + 7, 12 * MIB, 12 * MIB, 17 * MIB)
PIECE = 64 * 1024
SETTINGS = f"part_bytes = {5 * MIB}\ncache_bytes = 0\n"
# What may come of a request to a host whose workers die, besides a broken connection. A client asks HEAD then.
PASSING = {409, 423, 503, 504}


class Uploading(Threads):
    """Clients that upload to any of ``urls`` until they are stopped; then they finish what they have begun."""

    def __init__(self, urls: list[str], service_key: str, clients: int, random: Random) -> None:
        self.urls = urls
        self.headers = {"X-Service-Key": service_key, **TUS}
        # Set when a client sends the last bytes of an upload, or terminates one.
        self.at_an_end = threading.Event()
        # How many requests were acknowledged, and how many uploads went on after a failure.
        self.acknowledged = self.resumed = 0
        self.digests: dict[str, str] = {}
        self.terminated = self.abandoned = 0
        self.wrong: list[str] = []
        super().__init__(
            partial(_Client(self, number, Random(random.random())).run) for number in range(clients)
        )

    def damaged(self) -> list[str]:
        """The objects that are not what was uploaded, by any of the hosts."""
        return [
            key
            for url in self.urls
            for key, digest in self.digests.items()
            if sha256(
                requests.get(f"{url}{OBJECTS}/{key}", headers=self.headers, timeout=TIMEOUT_SECONDS).content
            ).hexdigest()
            != digest
        ]

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} requests acknowledged, {self.resumed} times gone on after a failure;"
            f" {len(self.digests)} objects, {self.terminated} terminated, {self.abandoned} left unfinished"
        )


@define(eq=False)
class _Client:
    load: Uploading
    number: int
    random: Random
    _count: int = field(default=0, init=False)

    def run(self) -> None:
        while not self.load.ended:
            self._count += 1
            try:
                self._upload(f"{self.number}/{self._count}")
            except AssertionError as fault:
                self.load.wrong.append(str(fault))

    def _upload(self, key: str) -> None:
        payload = self.random.randbytes(self.random.choice(SIZES))
        fate = self.random.choice(("object", "object", "terminated", "abandoned"))
        until = len(payload) if fate == "object" else self.random.randrange(len(payload) + 1)
        path = self._begun(key, len(payload))
        offset = 0
        while offset < until:
            offset = self._sent(path, payload, offset, self.random.randint(offset + 1, until))
        if fate == "terminated":
            self._terminate(path)
            self.load.terminated += 1
        elif offset == len(payload):
            self._become_object(path, offset)
            self.load.digests[key] = sha256(payload).hexdigest()
        else:
            self.load.abandoned += 1

    def _begun(self, key: str, size: int) -> str:
        while True:
            answer = self._request("POST", f"{UPLOADS}?key={key}", {"Upload-Length": str(size)})
            if answer is not None and answer.status_code == 201:
                return answer.headers["Location"]

    def _sent(self, path: str, payload: bytes, offset: int, until: int) -> int:
        """Send what is between; the offset that is acknowledged then."""
        if until == len(payload):
            self.load.at_an_end.set()
        headers = {"Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
        body = payload[offset:until]
        answer = self._request("PATCH", path, headers, self.random.choice((body, self._slowly(body))))
        if answer is not None and answer.status_code == 204:
            assert answer.headers["Upload-Offset"] == str(until), f"{path}: {answer.headers}, not {until}"
            return until
        self.load.resumed += 1
        received = int(self._head(path).headers["Upload-Offset"])
        assert offset <= received <= until, f"{path}: {received}, {offset} was acknowledged, {until} sent"
        return received

    def _slowly(self, body: bytes) -> Iterator[bytes]:
        for first in range(0, len(body), PIECE):
            yield body[first : first + PIECE]
            sleep(self.random.uniform(0, 0.01))

    def _head(self, path: str) -> requests.Response:
        while True:
            answer = self._request("HEAD", path)
            if answer is not None and answer.status_code not in PASSING:
                assert answer.status_code == 200, f"HEAD {path}: {answer.status_code}"
                return answer

    def _become_object(self, path: str, size: int) -> None:
        """An upload that is whole is an object, at the latest when HEAD has been asked and nobody holds it."""
        while True:
            answer = self._head(path)
            assert answer.headers["Upload-Offset"] == str(size), f"{path}: {answer.headers}"
            if "Content-Location" in answer.headers:
                return

    def _terminate(self, path: str) -> None:
        self.load.at_an_end.set()
        while True:
            answer = self._request("DELETE", path)
            if answer is not None and answer.status_code not in PASSING:
                # 404: an earlier request did it, whose answer was lost.
                assert answer.status_code in (204, 404), f"DELETE {path}: {answer.status_code}"
                break
        while (gone := self._request("HEAD", path)) is None or gone.status_code in PASSING:
            continue
        assert gone.status_code == 404, f"{path} was terminated: {gone.status_code}"

    def _request(
        self, method: str, path: str, headers: dict[str, str] | None = None, data: Any = None
    ) -> requests.Response | None:
        """None if the connection broke."""
        url = self.random.choice(self.load.urls) + path
        sent = {**self.load.headers, **(headers or {})}
        try:
            answer = requests.request(method, url, headers=sent, data=data, timeout=TIMEOUT_SECONDS)
        except requests.Timeout:
            raise AssertionError(f"{method} {path} hung") from None
        except requests.RequestException:
            sleep(AFTER_FAILURE_SECONDS)
            return None
        if answer.status_code in PASSING:
            sleep(AFTER_FAILURE_SECONDS)
        elif answer.ok:
            self.load.acknowledged += 1
        return answer


def kill_during_uploads(
    directory: Path,
    random: Random,
    kills: int,
    clients: int = 8,
    beside: tuple[str, Store] | None = None,
) -> None:
    """``beside``: a database and a store that are there already; else the first host has them embedded.

    Raises ``AssertionError`` where an acknowledged byte is gone, an answer is wrong, or something is left.
    """
    first, second = directory / "one", directory / "two"
    first.mkdir()
    (second / "var").mkdir(parents=True, mode=0o700)
    with started(first, storage=SETTINGS, **(sections(*beside) if beside else {})) as one:
        for name in ("jwt-keys.json", "credentials.json"):
            (second / "var" / name).write_bytes((first / "var" / name).read_bytes())
        dsn, store = beside or embedded(first / "var")
        with started(second, storage=SETTINGS, **sections(dsn, store)) as two:
            known = [credentials(folder) for folder in (first, second)]
            with Uploading(
                [each["base_url"] for each in known], known[0]["service_key"], clients, random
            ) as load:
                for number in range(1, kills + 1):
                    victims = _killed(random, load, random.choice([one, two]))
                    _go_on(load)
                    print(f"kill {number:2}: {victims}; {load}", flush=True)
            _judge(load)
        judge_leftovers(first, dsn, store)


def _killed(random: Random, load: Uploading, host: Daemon) -> str:
    """Kill one worker of ``host``, or both, and wait for their successors."""
    before = workers_of(host)
    victims = random.sample(sorted(before), random.randint(1, len(before)))
    if random.random() < 0.6:
        load.at_an_end.clear()
        load.at_an_end.wait(TIMEOUT_SECONDS)
        load.pause(random.uniform(0, 0.1))
    else:
        load.pause(random.uniform(0, 1))
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(workers_of(host) - set(victims)) == len(before), "new workers")
    return f"{len(victims)} of {len(before)} workers"


def _go_on(load: Uploading) -> None:
    eventually(lambda: all(_is_ready(url) for url in load.urls), "readiness")
    before = load.acknowledged
    eventually(lambda: load.acknowledged >= before + 5, "acknowledgements")


def _is_ready(url: str) -> bool:
    # A connection to a host without workers waits until there is one.
    try:
        return requests.get(f"{url}/ready", timeout=TIMEOUT_SECONDS).ok
    except requests.RequestException:
        return False


def _judge(load: Uploading) -> None:
    assert load.wrong == []
    assert load.damaged() == []
    assert load.resumed and load.digests and load.terminated, str(load)
