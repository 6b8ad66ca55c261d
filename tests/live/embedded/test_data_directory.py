"""Data directories: those of another user, of root with a strict umask, and copies."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from psycopg2.extensions import parse_dsn
from twisted.internet import reactor as _reactor

from project_service.embedded.assemble import Embedded
from project_service.embedded.data_directory import SECRETS_FILE, Running
from project_service.embedded.supervised import ChildFailed
from project_service.lifecycle import all_of
from project_service.settings.model import Store
from project_service.storage.s3.errors import NoSuchObject
from tests.live.services import WithDatabase, store_client
from tests.live.sql import connection_to

reactor: Any = _reactor

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may work on another user's files")


@root_only
@pytest_twisted.ensureDeferred
async def test_nothing_is_started_on_another_users_data(tmp_path: Path) -> None:
    """Servers started by root would leave files there that the owner could not use."""
    (tmp_path / SECRETS_FILE).write_text("{}")
    os.chown(tmp_path / SECRETS_FILE, 54321, 54321)
    embedded = Embedded(reactor, tmp_path)
    with pytest.raises(ChildFailed, match="is the data of the user 54321: run this as that user"):
        await embedded.start()
    assert not (tmp_path / "postgres.new").exists()
    assert not (tmp_path / "run").exists()
    assert embedded.children == {}


@root_only
@pytest_twisted.ensureDeferred
async def test_a_first_start_with_umask_077(tmp_path: Path) -> None:
    """Hardened hosts have such a umask; PostgreSQL runs as another user there and needs to read its files."""
    before = os.umask(0o077)
    try:
        embedded = Embedded(reactor, tmp_path / "in" / "var", store=False)
        try:
            await embedded.start()
            assert [name for name, child in embedded.children.items() if child.is_ready] == ["postgres"]
        finally:
            await embedded.stop()
    finally:
        os.umask(before)


async def _all_alone(running: Running) -> bool:
    """Whether nobody else has written to its database and its store. Writes something to both."""
    assert running.dsn is not None
    session = await connection_to(running.dsn)
    try:
        rows = await session.query("select to_regclass('public.left_behind') is null")
        await session.query("create table if not exists public.left_behind ()")
    finally:
        session.close()
    return bool(rows[0][0]) and (running.store is None or await _alone_in(running.store))


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


def _give(folder: Path, user: int) -> None:
    subprocess.run(["chown", "-R", f"{user}:{user}", folder], check=True)


def _remove_socket_directory(running: Running) -> None:
    """Removes the socket directory of a stopped service, which is outside pytest's directories."""
    assert running.dsn is not None
    Path(parse_dsn(running.dsn)["host"]).rmdir()


@pytest_twisted.ensureDeferred
async def test_original_and_copy_started_at_once_have_servers_of_their_own(
    with_database: WithDatabase, tmp_path: Path
) -> None:
    # The path is so long that the socket is placed elsewhere.
    first = Embedded(reactor, with_database(tmp_path / ("long" * 30)))
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
async def test_the_copy_of_a_running_original_leaves_it_its_socket(
    with_database: WithDatabase, tmp_path: Path
) -> None:
    first = Embedded(reactor, with_database(tmp_path / ("long" * 30)), store=False)
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


@root_only
@pytest_twisted.ensureDeferred
async def test_a_copy_from_another_machine_is_given_to_the_user_of_this_one(
    with_database: WithDatabase, tmp_path: Path
) -> None:
    """Whose number is another one there. What a link leads to is left alone."""
    data_dir, elsewhere = with_database(tmp_path / "var"), tmp_path / "elsewhere"
    elsewhere.write_text("not the database's")
    _give(data_dir / "postgres", 54321)
    (data_dir / "postgres" / "link").symlink_to(elsewhere)
    embedded = Embedded(reactor, data_dir, store=False)
    try:
        running = await embedded.start()
        assert await _all_alone(running)
    finally:
        await embedded.stop()
    assert elsewhere.lstat().st_uid == 0
