"""An application with one route, behind the real edge, for tests of the edge itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from attrs import evolve

from project_service.http.request import Request
from project_service.http.response import Reply, Sink, StreamReply, envelope
from project_service.http.routing import Handler, Policy, Router
from project_service.tables.api import POLICY
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App
from tests.route_description import operation_at

ANON = {"X-Service-Key": ANON_KEY}
SERVICE = {"X-Service-Key": SERVICE_KEY}


PLAIN = Policy()
# The policy of the table API, for paths without a database.
TABLES = evolve(POLICY, admission="")


def app_of(
    handler: Handler,
    url: str = "/x",
    methods: tuple[str, ...] = ("GET",),
    policy: Policy = PLAIN,
    **access: Any,
) -> App:
    router = Router()
    router.of_part(policy).route(url, operation_at(url), methods=methods, **{"key": "optional", **access})(
        handler
    )
    return App(router)


async def hello(request: Request) -> Reply:
    return envelope({"hello": request.path_args})


async def echo(request: Request) -> Reply:
    return Reply(200, (("Content-Type", "application/octet-stream"),), await request.body.read(1 << 20))


Source = Callable[[Sink], Awaitable[None]]


def streaming(source: Source, length: int | None = None) -> App:
    async def reply(request: Request) -> StreamReply:
        return StreamReply(200, (("Content-Type", "text/plain"),), length, source)

    return app_of(reply)
