"""The table API alone, without auth and storage, for one database: what is measured and scored.

python -m benchmarks.tables_serving '{"dsn": …, …}' ['["*"]']

The settings are those of ``[stages.dev.databases.suite]``; the keys are ``anon`` and ``service``. Prints
``serving PORT``.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import Any

from twisted.internet import endpoints

from project_service.database.errors import translate
from project_service.http.caller import Callers, Claims, KeyKind, KeyUse
from project_service.http.connection import ConnectionFactory
from project_service.http.edge import Edge, EdgeSettings, HttpDate
from project_service.http.metrics import Metrics
from project_service.http.routing import Router
from project_service.lifecycle import background
from project_service.settings.model import Secret, Settings, Stage, StageDatabase
from project_service.tables.assemble import Tables, assemble


class Keys:
    """The project keys are their own kinds, for ever."""

    active: object = None

    def kind_of(self, presented: str) -> KeyKind | None:
        kinds: dict[str, KeyKind] = {"anon": "anon", "service": "service"}
        return kinds.get(presented)

    def use_of(self, presented: str) -> KeyUse:
        return KeyUse()

    def mistyped(self, presented: str) -> bool:
        return False


class NoTokens:
    """Never asked: the table API verifies tokens itself."""

    def verify(self, token: str) -> Claims:
        raise RuntimeError("tokens are the table API's business")


class Current:
    """Nothing is ever revoked."""

    current = True

    async def catch_up(self) -> None:
        return None


def settings_of(values: dict[str, Any]) -> Settings:
    known = dict(values)
    for name in ("dsn", "jwt_secret"):
        if known.get(name) is not None:
            known[name] = Secret(known[name])
    for name, value in known.items():
        if isinstance(value, list):
            known[name] = tuple(value)
    return Settings(stages={"dev": Stage(databases={"suite": StageDatabase(**known)})})


def serve(reactor: Any, values: dict[str, Any], origins: tuple[str, ...]) -> None:
    tables = assemble(reactor, settings_of(values), None, time.time)
    router = Router()
    tables.mount(router)
    edge = Edge(
        router,
        Callers(Keys(), NoTokens(), Current()),
        EdgeSettings(None, origins, (), 16 * 1024 * 1024),
        reactor,
        lambda: secrets.token_hex(16),
        Metrics(),
        translate,
        HttpDate(time.time),
        {},
    )
    for service in tables.services:
        service.startService()
    reactor.callWhenRunning(background, _listen(reactor, tables, edge), "listening")


async def _listen(reactor: Any, tables: Tables, edge: Edge) -> None:
    for holder in tables.holders.values():
        await holder.reload()
    factory = ConnectionFactory(edge, reactor, 60.0, 10_000)
    port = await endpoints.serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(factory)
    print(f"serving {port.getHost().port}", flush=True)


if __name__ == "__main__":
    from twisted.internet import reactor as found

    serve(found, json.loads(sys.argv[1]), tuple(json.loads(sys.argv[2]) if len(sys.argv) > 2 else ["*"]))
    found.run()
