"""Plans requests against the schema cache of ``schema.py``, as the table API does before it asks the database."""

from __future__ import annotations

import json
from typing import Any

from project_service.tables.config import TablesConfig
from project_service.tables.execution.preamble import Preamble, PreambleSql
from project_service.tables.incoming import Incoming, Sent
from project_service.tables.model import SchemaCache
from project_service.tables.parse.request import make_request
from project_service.tables.planning.planner import Planned, Planner
from project_service.tables.sql.fragment import PLACE, Sql
from project_service.tables.sql.settings import SetConfig
from tests.unit.tables import schema

CACHE = schema.cache()


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def preamble(text: str = "SELECT 1", *values: str, role: str = "anon", **more: Any) -> Preamble:
    """A preamble that is all settings: ``text``, in which ``values`` have their places by ``%s``."""
    statement = Sql(text.replace("%s", PLACE), (None,) * len(values))
    settings = SetConfig(text, statement, f"({text.count('%s') * '%s'})" if values else "")
    return Preamble(PreambleSql("", settings, ""), values, role, True, **more)


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
    said = (("prefer", prefer), ("content-type", media), ("accept", accept))
    headers = tuple(pair for pair in said if pair[1])
    incoming = Incoming(method, tuple(path.split("/")), pairs, Sent.of(headers), body)
    head, key = planner.head(incoming)
    shape, query, operands = planner.query(incoming, head)
    request = make_request(head, query, pairs, body)
    return planner.plan(cache, key, shape, request, operands)


def text(found: Planned) -> str:
    return found.compiled.statement.sql.for_prepare
