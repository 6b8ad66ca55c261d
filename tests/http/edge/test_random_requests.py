"""Random requests and random clients: every response is valid, and what is counted balances."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.http.admission import Limits
from project_service.http.request import Request
from project_service.http.response import Reply, Sink, StreamReply, envelope
from project_service.http.routing import Policy, Router
from tests.fakes.common import ANON_KEY, App, Client, held, raw_request
from tests.http.edge.random_requests import STATUS, spoiled
from tests.route_description import operation_at

ROUNDS = 20_000


def app() -> App:
    async def answer(request: Request) -> Reply:
        request.query_value("select")
        value = await request.json() if request.method == "POST" else None
        return envelope({"value": value, "path": ascii(request.path_args)})

    router = Router()
    for url, methods in (("/x", ("GET", "POST")), ("/o/<bucket>/k/<path:key>", ("GET", "PUT"))):
        router.route(url, operation_at(url), methods=methods, key="optional")(answer)
    return App(router)


class Fuzz(TestCase):
    def test_every_request_gets_a_proper_response_or_a_closed_connection(self) -> None:
        chance = random.Random(20261121)
        service = app()
        seen: set[int] = set()
        for _ in range(ROUNDS):
            raw = spoiled(chance)
            client = service.connect()
            for piece in self.pieces(raw, chance):
                client.send(piece)
            # A request that is incomplete times out, and its client has a moment to read why.
            client.clock.advance(61)
            client.clock.advance(6)
            answered = client.received()
            statuses = [int(status) for status in STATUS.findall(answered)]
            if answered:
                self.assertTrue(STATUS.match(answered), raw)
            self.assertNotIn(500, statuses, raw)
            seen.update(statuses)
            self.assertTrue(client.transport.ended or client.transport.aborted, raw)
            client.hang_up()
        self.assertEqual(self.flushLoggedErrors(), [])
        self.successResultOf(service.edge.drained())
        # The service still answers, and the noise was varied enough to mean something.
        self.assertEqual(service.request("GET", "/x", {"apikey": ANON_KEY}).status, 200)
        self.assertLessEqual({200, 204, 400, 404, 405, 408, 414, 415, 431}, seen)

    def pieces(self, raw: bytes, chance: random.Random) -> list[bytes]:
        """Splits the bytes into one or several segments."""
        cuts = sorted(chance.randrange(len(raw) + 1) for _ in range(chance.randrange(3)))
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]


CLIENT_ROUNDS = 150
KINDS = ("quick", "wait", "read", "store", "stream", "refuse", "large")
SECONDS = (0.0, 0.05, 0.5, 5.0, 6.0, 30.0, 61.0)


class World:
    """More clients than connections are allowed, and handlers that wait for a test to let them end."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.answers: list[Deferred[None]] = []
        self.clients: list[Client] = []
        self.ended: set[int] = set()
        router = Router().of_part(Policy(admission="storage"))
        for kind in KINDS:
            path = f"/storage/{kind}"
            router.route(path, operation_at(), methods=("GET", "PUT"), key="optional")(self.handle)
        self.app = App(router, connections=4, limits={"storage": Limits(2, 5.0, 10_000)})

    async def once(self) -> None:
        await held(self.answers)

    async def handle(self, request: Request) -> Reply | StreamReply:
        kind = request.raw_path.rpartition(b"/")[2].decode()
        if kind == "refuse":
            raise errors.authentication_required()
        if kind == "large":
            return Reply(200, (), b"x" * 100_000)
        if kind == "stream":
            return StreamReply(200, (), self.chance.choice([None, 2000]), self.write)
        if kind == "wait":
            await self.once()
        elif kind == "read":
            await request.body.read(300_000)
        elif kind == "store":
            while await request.body.next_chunk():
                await self.once()
        return envelope({})

    async def write(self, sink: Sink) -> None:
        for _ in range(2):
            sink.write(b"x" * 1000)
            await sink.drained()
            await self.once()

    def request(self) -> bytes:
        """Makes a request, which may be incomplete or malformed."""
        chance = self.chance
        path = f"/storage/{chance.choice(KINDS)}"
        headers = {"Expect": "100-continue"} if chance.random() < 0.2 else {}
        if chance.random() < 0.2:
            headers["Connection"] = chance.choice(["close", "Upgrade"])
            headers["Upgrade"] = "x"
        size = chance.choice([0, 1, 1000, 70_000, 400_000])
        good = (
            raw_request(chance.choice(["GET", "HEAD", "OPTIONS"]), path, headers, None),
            raw_request("PUT", path, headers, b"y" * size),
            raw_request("PUT", path, {**headers, "Transfer-Encoding": "chunked"}, None)
            + b"%x\r\n%b\r\n" % (size or 1, b"z" * (size or 1))
            + chance.choice([b"0\r\n\r\n", b"rubbish\r\n"]),
        )
        made = chance.choice([*good, *good, b"rubbish\r\n\r\n", b"BREW /"])
        return made[: chance.randrange(len(made))] if chance.random() < 0.3 else made

    def step(self) -> None:
        chance = self.chance
        client = chance.choice(self.clients) if self.clients else None
        what = chance.random()
        if client is None or what < 0.15:
            self.clients.append(self.app.connect())
        elif client.transport.aborted or what < 0.22:
            self.hang_up(client)
        elif what < 0.24 and client.transport.producerState == "producing":
            client.half_close()
            self.ended.add(id(client))
        elif what < 0.6 and client.transport.producerState == "producing" and id(client) not in self.ended:
            client.send(b"".join(self.request() for _ in range(chance.choice([1, 1, 3]))))
        elif what < 0.66:
            client.transport.full = True
        elif what < 0.72:
            client.transport.drain()
        elif what < 0.88:
            self.answer(chance.randint(0, 2))
        else:
            self.app.clock.advance(chance.choice(SECONDS))

    def answer(self, limit: int) -> None:
        for _ in range(min(limit, len(self.answers))):
            answer = self.answers.pop(0)
            if not answer.called:
                answer.callback(None)

    def hang_up(self, client: Client) -> None:
        self.clients.remove(client)
        client.hang_up()


class Books(TestCase):
    def test_all_counts_balance_in_the_end(self) -> None:
        for seed in range(CLIENT_ROUNDS):
            world = World(seed)
            for _ in range(world.chance.randrange(5, 60)):
                world.step()
            if seed % 2:
                self.nobody_stays(world, seed)
            for client in list(world.clients):
                world.hang_up(client)
            world.answer(1000)
            self.even(world, seed)

    def nobody_stays(self, world: World, seed: int) -> None:
        """Asserts that nobody stays, once handlers have ended and clients do nothing any more."""
        for _ in range(100):
            world.answer(1000)
            world.app.clock.advance(31)
        for client in world.clients:
            taken = not client.transport.full
            self.assertTrue(client.transport.aborted or (taken and client.transport.ended), seed)

    def even(self, world: World, seed: int) -> None:
        app = world.app
        for _ in range(5):  # those who wait in a queue are looked for as long as they may wait
            app.clock.advance(6)
        storage = app.edge.classes["storage"]
        limit = app._factory._limit
        self.assertEqual((storage.served, storage.waiting), (0, 0), seed)
        self.assertEqual(
            (len(limit.connections), len(limit._closing), len(limit._candidates)), (0, 0, 0), seed
        )
        self.assertEqual(len(app.metrics.requests), 0, seed)
        self.successResultOf(app.edge.drained())
        self.assertEqual(app.clock.getDelayedCalls(), [], seed)
