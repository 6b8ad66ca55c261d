"""Authentication on a real database: an application, plain SQL, repository, notifications and requests in one line
each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from twisted.internet import reactor as _reactor
from twisted.internet.defer import gatherResults

from project_service.auth.postgres import Repository
from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import pool_on

reactor: Any = _reactor

Notifications = psycopg2.extensions.connection
PASSWORD = "a long enough one"


@asynccontextmanager
async def api_on(database: str, store: Store, folder: Path, **sections: Any) -> AsyncIterator[Api]:
    # Where the machine stands still for some seconds, requests wait for their connections for as long.
    sections = {"database": {"acquire_timeout_seconds": 30.0}, **sections}
    async with serving(settings_for(database, store, folder, **sections)) as api:
        yield api


async def all_of(*work: Any) -> list[Any]:
    """Run coroutines at the same time, and return their results."""
    return list(await gatherResults([start(one) for one in work]))


@asynccontextmanager
async def repository_on(database: str) -> AsyncIterator[Repository]:
    pool = pool_on(database)
    try:
        yield Repository(pool)
    finally:
        await pool.close()


@contextmanager
def listening(database: str, channel: str) -> Iterator[Notifications]:
    connection = psycopg2.connect(database)
    connection.autocommit = True
    connection.cursor().execute(f"listen {channel}")
    yield connection
    connection.close()


def payloads(notifications: Notifications) -> list[str]:
    """The notifications received since the last call. All sent before it are in it: they arrive before the answer
    to a query."""
    notifications.cursor().execute("select")
    texts = [notice.payload for notice in notifications.notifies]
    notifications.notifies.clear()
    return texts


async def post(api: Api, path: str, body: Any, **more: Any) -> tuple[int, Any]:
    status, _, answer = await api.request("POST", path, key=None, json=body, **more)
    return status, answer


async def log_in(api: Api, email: str, password: str = PASSWORD) -> tuple[int, Any]:
    return await post(api, "/auth/login", {"email": email, "password": password})


async def code_for(api: Api, token: str) -> Any:
    """ "ok" if the access token is accepted, and otherwise the error code."""
    status, _, answer = await api.request("GET", "/auth/user", key=None, token=token)
    return "ok" if status == 200 else answer["error"]["code"]
