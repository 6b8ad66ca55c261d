"""The tables of docs/architecture.rst name the modules that a row and an upload pass, and no others."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import pytest_twisted
from twisted.web.client import Agent, HTTPConnectionPool

from project_service.database import quickness
from project_service.settings.model import Store
from project_service.tables.schema_cache.holder import LOOK_SECONDS
from tests.live.application import serving, settings_for
from tests.live.sql import run_sql

ROOT = Path(__file__).parents[3]
PACKAGE = str(ROOT / "project_service") + "/"
PAGE = (ROOT / "docs" / "architecture.rst").read_text("utf-8")
MODULES = {str(path.relative_to(PACKAGE).with_suffix("")) for path in Path(PACKAGE).rglob("*.py")}
TIMES = 20
ROW = "/dev/db/main/rest/notes?id=eq.7"
OBJECT = "/storage/buckets/private/objects/cat.jpg"
# What starts coroutines on every way.
EVERYWHERE = {"lifecycle"}


def named(way: str) -> list[str]:
    """The modules in the column "where" of a table, in order. A name alone is of the package of the one before."""
    rule, _, *lines = PAGE[PAGE.index(f"\n**{way}**") :].split("\n\n")[1].split("\n")
    start = rule.index(" =") + 1
    end = rule.index("= ", start) + 1
    folder, found = Path(), []
    for name in re.findall("``([^`]+)``", "\n".join(line[start:end] for line in lines)):
        paths = [str(parent / name) for parent in (folder, *folder.parents)]
        module = next(path for path in paths if path in MODULES or path == "http")
        folder = Path(module).parent
        found.append(module)
    return found


@contextmanager
def profiled(entered: set[str]) -> Iterator[None]:
    """Adds the modules of which functions are called in this block."""

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE):
            entered.add(file.removeprefix(PACKAGE).removesuffix(".py"))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


async def passed(send: Callable[[], Awaitable[None]]) -> tuple[set[str], set[str]]:
    """The modules that each of many requests passes, and all that any of them does. Before them comes one for which
    nothing is kept yet, and one of them at least is over before what the service does by itself comes again."""
    await send()
    each: list[set[str]] = []
    quickest = 1.0
    while len(each) < TIMES or quickest > LOOK_SECONDS / 2:
        each.append(set())
        began = time.monotonic()
        with profiled(each[-1]):
            await send()
        quickest = min(quickest, time.monotonic() - began)
    # The embedded servers write their logs at any time.
    return {name for name in set.intersection(*each) if not name.startswith("embedded/")}, set.union(*each)


@pytest_twisted.ensureDeferred
async def test_the_tables_name_the_modules_that_a_row_and_an_upload_pass(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a read that is slow because the machine is busy, the way is another one.
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 60.0)
    run_sql(
        database, "create table notes (id int); insert into notes values (7); grant select on notes to anon"
    )
    async with serving(settings_for(database, store_settings, tmp_path)) as api:
        token = (await api.sign_up("ways@example.test"))["access_token"]
        connections = HTTPConnectionPool(api.reactor)
        agent = Agent(api.reactor, pool=connections)

        async def row() -> None:
            assert (await api.request("GET", ROW, agent=agent))[2] == [{"id": 7}]

        async def upload() -> None:
            status = (await api.request("PUT", OBJECT, token=token, data=b"a cat", agent=agent))[0]
            assert status in (200, 201)

        each_row, any_row = await passed(row)
        each_upload, any_upload = await passed(upload)
        await connections.closeCachedConnections()

    of_row, of_upload = set(named("A row")), set(named("An upload")) - {"http"}
    edge = {name for name in of_row if name.startswith("http/")}
    assert each_row - of_row == EVERYWHERE
    assert of_row - any_row == set()
    assert each_upload - of_upload - edge == EVERYWHERE
    assert of_upload - any_upload == set()
