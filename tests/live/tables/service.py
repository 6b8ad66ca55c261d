"""A service with the table API on a real database, which has the schema of the documentation's examples."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from project_service.settings.model import Stage, StageDatabase, Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open, wait
from tests.live.sql import run_sql
from tests.live.waiting import until

DOCS = Path(__file__).parents[3] / "docs" / "tables.rst"
BASE = "/dev/db/main/rest"
BEFORE_EACH = """
create function before_each() returns void language plpgsql as $$ begin
  if current_setting('request.headers')::json->>'x-refuse' = current_user then
    raise sqlstate 'PT418' using message = current_setting('request.path');
  end if;
end $$
"""


@frozen
class Tables:
    """The running service, and the token of a signed-in user."""

    api: Api
    token: str

    async def request(
        self, method: str, path: str, *, base: str = BASE, token: str | None = None, **more: Any
    ) -> tuple[int, Any, Any]:
        """Send a request, by default with the anon key and no token. Returns status, headers and body."""
        return await self.api.request(method, base + path, token=token, **more)

    def sql(self, text: str) -> list[Any]:
        """Run SQL as the owner of the database."""
        return run_sql(self.api.dsn, text)


async def until_answered(tables: Tables, method: str, path: str, expected: int, **more: Any) -> None:
    """Repeat a request until its status is the expected one, once the schema cache knows what it names."""

    async def answered() -> bool:
        return (await tables.request(method, path, **more))[0] == expected

    await until(answered)


@asynccontextmanager
async def impatient(tables: Tables, seconds: float) -> AsyncIterator[Tables]:
    """The same in another service, which gives up clients that do nothing for so long. Only for tests of that: where
    the machine stands still for as long, no client does anything."""
    settings = tables.api.settings
    settings = evolve(settings, server=evolve(settings.server, idle_timeout_seconds=seconds))
    async with serving(settings) as api:
        yield Tables(api, tables.token)


def blocks(kind: str) -> list[tuple[int, str]]:
    """The code blocks of one kind in the documentation, each with its line number."""
    result: list[tuple[int, str]] = []
    lines = DOCS.read_text("utf-8").split("\n")
    at = 0
    while at < len(lines):
        if lines[at].strip() == f".. code-block:: {kind}":
            body, end = [], at + 2
            while end < len(lines) and (lines[end].startswith("   ") or not lines[end]):
                body.append(lines[end][3:])
                end += 1
            result.append((at, "\n".join(body).strip()))
        at += 1
    return result


_MAIN = StageDatabase(pool_size=3, max_rows=0, stream_threshold_bytes=4096)
_DATABASES = {
    "main": _MAIN,
    "careful": evolve(
        _MAIN,
        prepare=False,
        max_rows=2,
        error_verbosity="minimal",
        plan=True,
        tx_end="commit-allow-override",
        pre_request="before_each",
        app_settings={"colour": "50% blue"},
    ),
    "few": evolve(
        _MAIN, max_rows=3, max_rows_by_role={"reporting": 0, "anon": 2}, stream_threshold_bytes=200
    ),
    "narrow": evolve(_MAIN, pool_size=1, max_import_bytes=1_500_000),
    "literal": evolve(_MAIN, error_hints=False),
    "led": evolve(_MAIN, pool_size=1, pre_request="before_each"),
}


@pytest.fixture(scope="module")
def tables(
    request: pytest.FixtureRequest,
    module_database: str,
    store_settings: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Tables]:
    """The service with the database ``main`` and those that the module lists in ``DATABASES``: all are the same one
    with other settings. Each reads the schema anew whenever it changes, which is what tests here wait for longest."""
    for text in (*(text for _, text in blocks("sql")), BEFORE_EACH):
        run_sql(module_database, text)
    data_dir = Path(tmp_path_factory.mktemp("tables"))
    names = ("main", *getattr(request.module, "DATABASES", ()))
    databases = {name: _DATABASES[name] for name in names}
    # Where the machine stands still for some seconds, requests wait for their connections for as long.
    limits = {"acquire_timeout_seconds": 30.0}
    settings = settings_for(module_database, store_settings, data_dir, database=limits)
    settings = evolve(settings, stages={"dev": Stage(databases=databases)})
    with held_open(serving(settings)) as api:
        session = wait(lambda: api.sign_up("tables@example.test"))
        yield Tables(api, str(session["access_token"]))
