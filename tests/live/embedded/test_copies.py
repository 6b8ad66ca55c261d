"""A data directory and a copy of it, which contains the same ports, socket and passwords."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest_twisted
from psycopg2.extensions import parse_dsn
from twisted.internet import reactor as _reactor

from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import Running
from project_service.lifecycle import all_of
from project_service.settings.model import Store
from project_service.storage.s3.errors import NoSuchObject
from tests.live.services import store_client
from tests.live.sql import connection_to

reactor: Any = _reactor


async def _all_alone(running: Running) -> bool:
    """Whether nobody else has written to its database and its store. Writes something to both."""
    assert running.dsn is not None
    session = await connection_to(running.dsn)
    try:
        found = await session.query("select to_regclass('public.left_behind') is null")
        await session.query("create table if not exists public.left_behind ()")
    finally:
        session.close()
    return bool(found[0][0]) and (running.store is None or await _alone_in(running.store))


async def _alone_in(settings: Store) -> bool:
    store = store_client(settings)
    try:
        await store.stat("left-behind")
    except NoSuchObject:
        await store.put("left-behind", b"", "text/plain", {})
        return True
    else:
        return False
    finally:
        await store.close()


def _copied(one: Embedded) -> Path:
    copy = one.data_dir.with_name("copy" * 30)
    subprocess.run(["cp", "-a", one.data_dir, copy], check=True)
    return copy


def _remove_socket_directory(running: Running) -> None:
    """Removes the socket directory of a stopped service, which is outside pytest's directories."""
    assert running.dsn is not None
    Path(parse_dsn(running.dsn)["host"]).rmdir()


@pytest_twisted.ensureDeferred
async def test_original_and_copy_started_at_once_have_servers_of_their_own(tmp_path: Path) -> None:
    # The path is so long that the socket is placed elsewhere.
    first = Embedded(reactor, tmp_path / ("long" * 30))
    await first.start()
    await first.stop()
    copy = Embedded(reactor, _copied(first))
    running: list[Running] = []

    async def started(one: Embedded) -> None:
        running.append(await one.start())

    try:
        await all_of([started(first), started(copy)])
        one, other = running
        assert await _all_alone(one)
        assert await _all_alone(other)
    finally:
        await all_of([first.stop(), copy.stop()])
    for each in running:
        _remove_socket_directory(each)


@pytest_twisted.ensureDeferred
async def test_the_copy_of_a_running_original_leaves_it_its_socket(tmp_path: Path) -> None:
    first = Embedded(reactor, tmp_path / ("long" * 30), store=False)
    await first.start()
    await first.stop()
    copy = Embedded(reactor, _copied(first), store=False)
    try:
        own, others = await first.start(), await copy.start()
        assert await _all_alone(own)
        assert await _all_alone(others)
        assert await _all_alone(own) is False
    finally:
        await all_of([first.stop(), copy.stop()])
    for each in (own, others):
        _remove_socket_directory(each)
