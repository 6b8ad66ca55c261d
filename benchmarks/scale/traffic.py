"""The requests of the mix, and clients that send them one after the other."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

from attrs import frozen

from benchmarks import tables
from benchmarks.auth import PASSWORD, Client
from benchmarks.bare_client import BareClient
from benchmarks.scale.machines import Cost
from benchmarks.scale.mix import MIX
from benchmarks.scale.place import Place

CLIENTS = 12
OBJECT_BYTES = 64 * 1024
OBJECTS = 200
_TABLES, _OBJECTS = "/dev/db/main/rest", "/storage/buckets/private/objects"

Work = Callable[[], object]


@frozen
class Traffic:
    """Clients with accounts, rows and objects of their own, at what ``place`` has."""

    place: Place
    sessions: tuple[dict[str, Any], ...]

    @classmethod
    def prepared(cls, place: Place) -> Traffic:
        place.sql(
            tables.SCHEMA
            + ";grant update on notes to authenticated;grant insert, select on notes to authenticated"
        )
        client = Client(place.url)
        accounts = [
            {"email": f"user{number}@example.test", "password": PASSWORD} for number in range(CLIENTS)
        ]
        sessions = tuple(client.post("/auth/signup", account) for account in accounts)
        owner = sessions[0]["user"]["id"]
        place.sql(
            f"insert into own_items select *, '{owner}' from items; vacuum analyze own_items; notify pgrst"
        )
        place.sql("insert into notes (text) select 'note ' || i from generate_series(1, 10000) i")
        payload = os.urandom(OBJECT_BYTES)
        headers = {"Host": "scale", "X-Service-Key": place.credentials["service_key"]}
        with BareClient(place.url) as bare:
            for number in range(OBJECTS):
                bare.request("PUT", f"{_OBJECTS}/kept/{number}", headers, payload)
        return cls(place, sessions)

    def works(self, number: int, random: Random) -> dict[str, Work]:
        """What client ``number`` does for each kind of request."""
        bare = BareClient(self.place.url)
        client = Client(self.place.url)
        session = dict(self.sessions[number])
        known = self.place.credentials
        anon = {"Host": "scale", "X-Service-Key": known["anon_key"]}
        # All read the rows of one user, who has some.
        owner = {**anon, "Authorization": f"Bearer {self.sessions[0]['access_token']}"}
        service = {"Host": "scale", "X-Service-Key": known["service_key"]}
        json_ = {"Content-Type": "application/json", "Prefer": "return=minimal"}
        numbers = itertools.count()
        payload = random.randbytes(OBJECT_BYTES)
        account = {"email": f"user{number}@example.test", "password": PASSWORD}

        def get(path: str, headers: dict[str, str]) -> Work:
            return lambda: bare.request("GET", path.replace("{}", str(random.randrange(1, 10000))), headers)

        def refresh() -> None:
            session.update(client.post("/auth/refresh", {"refresh_token": session["refresh_token"]}))

        def update() -> None:
            path = f"{_TABLES}/notes?id=eq.{random.randrange(1, 10000)}"
            bare.request("PATCH", path, {**owner, **json_}, b'{"text": "changed"}')

        return {
            "a user's row by key": get(f"{_TABLES}/own_items?id=eq.{{}}", owner),
            "100 rows": get(f"{_TABLES}/items?limit=100&id=gt.{{}}", anon),
            "a row and its related rows": get(
                f"{_TABLES}/items?select=id,name,parts(id,label)&id=eq.{{}}", anon
            ),
            "an insert": lambda: bare.request(
                "POST", f"{_TABLES}/notes", {**owner, **json_}, json.dumps({"text": "a note"}).encode()
            ),
            "an update": update,
            "GET /auth/user": get("/auth/user", owner),
            "a token refreshed": refresh,
            "a sign-in by password": lambda: client.post("/auth/login", account),
            "a 64 KiB object": lambda: bare.request(
                "GET", f"{_OBJECTS}/kept/{random.randrange(OBJECTS)}", service
            ),
            "a 64 KiB upload": lambda: bare.request(
                "PUT", f"{_OBJECTS}/new/{number}/{os.getpid()}/{next(numbers)}", service, payload
            ),
            "a list of 100 objects": get(f"{_OBJECTS}?max_keys=100&prefix=kept/", service),
        }


@frozen
class Measured:
    """``cost`` of one request, the average of ``requests``."""

    cost: Cost
    requests: int


def measured(place: Place, clients: Sequence[Iterator[Work]], idle: Cost) -> Measured:
    """What one of all that ``clients`` do takes, beyond what is used when ``idle`` for a second."""
    before, began = place.used(), time.perf_counter()
    requests = send(clients)
    took = time.perf_counter() - began
    used = place.used() - before
    return Measured((used - idle * took) * (1 / requests), requests)


def send(clients: Sequence[Iterator[Work]]) -> int:
    """Each of ``clients`` does its own, one after the other, in a thread of its own; how much that was."""

    def sending(works: Iterator[Work]) -> int:
        count = 0
        for work in works:
            work()
            count += 1
        return count

    with ThreadPoolExecutor(len(clients)) as threads:
        return sum(threads.map(sending, clients))


def repeated(work: Work, seconds: float) -> Iterator[Work]:
    """``work`` again and again, for so many seconds from the first on."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        yield work


def deck(requests: int) -> list[str]:
    """At least as many, in any order, of each kind exactly its share: one sign-in more or less is what hundreds of
    other requests cost."""
    thousand = [kind.name for kind in MIX for _ in range(round(kind.share * 1000))]
    dealt = thousand * -(-requests // len(thousand))
    Random(0).shuffle(dealt)
    return dealt


def dealt(works: dict[str, Work], from_deck: list[str]) -> Iterator[Work]:
    """One request of each kind that is taken from the deck, which all clients share."""
    with suppress(IndexError):
        while True:
            yield works[from_deck.pop()]


def idle(place: Place, seconds: float) -> Cost:
    """What a second costs in which nobody asks for anything."""
    before = place.used()
    time.sleep(seconds)
    return (place.used() - before) * (1 / seconds)
