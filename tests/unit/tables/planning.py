"""Plans requests against the schema cache of ``schema.py``, as the table API does before it asks the database."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any, TypeVar

from project_service.database.acting import Preamble
from project_service.tables.planner import Planned, Planner
from project_service.tables.request.request import WRITING, RawRequest, RequestHeaders, payload_of
from project_service.tables.values import SchemaCache, TablesConfig
from tests.unit.tables import schema

CACHE = schema.cache()
T = TypeVar("T")


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def preamble(*pairs: tuple[str, str], role: str = "anon", **more: Any) -> Preamble:
    """A preamble that sets the role and ``pairs``, in a database that is trusted."""
    return Preamble((("role", role), *pairs), role, **more)


CONFIG = TablesConfig(schemas=("api",), max_rows=0, unfiltered_writes="allow")


def planned(
    method: str,
    path: str,
    *pairs: tuple[str, str],
    body: bytes = b"",
    prefer: str = "",
    media: str = "",
    accept: str = "",
    planner: Planner | None = None,
    config: TablesConfig = CONFIG,
    cache: SchemaCache = CACHE,
) -> Planned:
    planner = planner or Planner(config)
    given = (("prefer", prefer), ("content-type", media), ("accept", accept))
    headers = tuple(pair for pair in given if pair[1])
    incoming = RawRequest(
        method, tuple(path.split("/")), pairs=pairs, headers=RequestHeaders.of(headers), body=body
    )
    shape, operands = planner.shape(incoming)
    payload = payload_of(shape.head, shape.query, body) if method in WRITING else None
    return planner.plan(shape, pairs, payload, operands, config.max_rows, cache)


async def waited(answer: Awaitable[T]) -> T:
    """The answer of what may be a coroutine or not."""
    return await answer


def text(planned_request: Planned) -> str:
    return planned_request.compiled.statement.sql.for_prepare
