"""An application whose handlers respond only when a test lets them, with few slots."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from project_service.http.admission import MAX_WAITING_BYTES, Limits
from project_service.http.health import Health
from project_service.http.request import Request
from project_service.http.response import Reply, Sink, StreamReply, envelope
from project_service.http.routing import Policy, Router
from project_service.tables.api import POLICY as TABLES
from tests.fakes.common import App, Client, held, raw_request
from tests.route_description import operation_at

SLOW = "/storage/slow"
TABLE = "/dev/db/main/rest/orders"
TIMEOUT = 5.0


class Busy:
    """An app whose handlers wait until a test lets them respond. ``begun`` are the requests that they have
    received."""

    def __init__(self, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        limits = Limits(1, TIMEOUT, max_waiting_bytes)
        router = Router()
        self.begun: list[Deferred[None]] = []
        storage = router.of_part(Policy(admission="storage"))
        for part, url in (
            (storage, SLOW),
            (router.of_part(TABLES), "/<stage>/db/<database>/rest/<path:below>"),
            (router.of_part(Policy(admission="auth")), "/auth/user"),
        ):
            part.route(url, operation_at(url), methods=("GET", "POST"), key="optional")(self.slow)
        storage.route("/storage/stream", operation_at(), methods=("GET",), key="optional")(self.stream)
        storage.route("/storage/read", operation_at(), methods=("POST",), key="optional")(self.read)
        storage.route("/storage/echo", operation_at(), methods=("POST",), key="optional")(self.echo)
        self.app = App(router, limits={"storage": limits, "tables:dev/main": limits, "auth": limits})
        Health({}, self.app.metrics, self.app.clock).mount(router)

    async def slow(self, request: Request) -> Reply:
        await held(self.begun)
        return envelope({})

    async def read(self, request: Request) -> Reply:
        await request.read(1000)
        return await self.slow(request)

    async def echo(self, request: Request) -> Reply:
        return Reply(200, (), await request.body.read(1000))

    async def stream(self, request: Request) -> StreamReply:
        async def source(sink: Sink) -> None:
            sink.write(b"a beginning")
            await self.slow(request)

        return StreamReply(200, (), None, source)

    def ask(
        self, target: str = SLOW, headers: dict[str, str] | None = None, host: str = "192.0.2.7"
    ) -> Client:
        client = self.app.connect(host)
        client.send(raw_request("GET", target, headers or {}, None))
        return client

    def fill(self) -> list[Client]:
        """Sends requests until one is served and one waits."""
        return [self.ask(), self.ask()]
