"""``/openapi.json``: public, like ``/live``; it shows no secret and nothing of what a database holds."""

from __future__ import annotations

import orjson
from attrs import define, field

from project_service.http.inbound import Inbound
from project_service.http.openapi.described import JSON, Answer, Described
from project_service.http.openapi.document import document
from project_service.http.outbound import JSON as JSON_TYPE
from project_service.http.outbound import NO_STORE, Reply
from project_service.http.router import Router

PATH = "/openapi.json"
DOCUMENT = Described(
    "describeService",
    "service",
    "This document",
    (Answer(200, "OpenAPI 3.1", {JSON: {"type": "object"}}),),
    needs=(),
)


@define(eq=False)
class OpenApi:
    """The route of the document. It describes every route that was mounted before it, and itself."""

    version: str
    _rest: bytes = field(default=b"", init=False)

    def mount(self, router: Router) -> None:
        router.route(PATH, DOCUMENT, methods=("GET",), key="optional", bearer="own")(self.answer)
        self._rest = orjson.dumps(document(router.routes, self.version))

    async def answer(self, inbound: Inbound) -> Reply:
        """The document with the address under which it was asked for."""
        servers = orjson.dumps({"servers": [{"url": inbound.base_url}]})
        return Reply(200, (("Content-Type", JSON_TYPE), NO_STORE), servers[:-1] + b"," + self._rest[1:])
