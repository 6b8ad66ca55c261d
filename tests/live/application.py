"""A whole application on the real database and store, in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import treq
from attrs import evolve, frozen
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from project_service import keys
from project_service.application import Application
from project_service.auth import tokens
from project_service.bootstrap import ensure_buckets
from project_service.daemon import Startup
from project_service.database.connecting import connector
from project_service.database.pool import Pool
from project_service.network import bind_endpoints
from project_service.settings.model import Auth, Secret, Server, Settings, Store
from project_service.settings.reading import Launch, Source, with_data_dir_defaults


@frozen
class Api:
    """A running application and its two keys."""

    base_url: str
    anon_key: str
    service_key: str
    dsn: str
    settings: Settings
    application: Application
    reactor: Any

    @property
    def port(self) -> int:
        return int(self.base_url.rpartition(":")[2])

    async def request(
        self,
        method: str,
        path: str,
        *,
        key: str | None = "anon",
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> tuple[int, Any, Any]:
        """Returns status, headers and body, which is parsed if it is JSON and otherwise bytes."""
        sent: dict[bytes | str, bytes | str] = {}
        sent.update(headers or {})
        if key is not None:
            sent["X-Service-Key"] = {"anon": self.anon_key, "service": self.service_key}.get(key, key)
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        response = await treq.request(method, self.base_url + path, headers=sent, persistent=False, **more)
        body = await treq.content(response)
        kind = (response.headers.getRawHeaders("content-type") or [""])[0]
        if kind.startswith("application/json") and body:
            import orjson

            body = orjson.loads(body)
        return response.code, response.headers, body

    async def sign_up(self, email: str, password: str = "a long enough one") -> dict[str, Any]:
        status, _, body = await self.request(
            "POST", "/auth/signup", key=None, json={"email": email, "password": password}
        )
        assert status == 201, body
        session: dict[str, Any] = body["data"]
        return session


def settings_for(dsn: str, store: Store, data_dir: Path, **sections: Any) -> Settings:
    """Settings for tests, with cheap password hashes and without limits that a test might exceed."""
    settings = Settings(
        server=Server(listen=("tcp:0:interface=127.0.0.1",), shutdown_seconds=5.0),
        store=store,
        auth=Auth(bcrypt_cost=4, signups_max_per_address=0),
    )
    settings = evolve(settings, database=evolve(settings.database, dsn=Secret(dsn)))
    for name, changes in sections.items():
        settings = evolve(settings, **{name: evolve(getattr(settings, name), **changes)})
    return with_data_dir_defaults(settings, data_dir)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Api]:
    """An application with these settings, keys and the first buckets, for as long as the block lasts."""
    from twisted.internet import reactor

    assert settings.database.dsn is not None and settings.auth.jwt_keys_file is not None
    tokens.load_or_create_keys(Path(settings.auth.jwt_keys_file), settings.auth.jwt_algorithm)
    pool = Pool(connector(reactor, settings), 1, 5.0, reactor)
    anon, service = (await _key(pool, "anon"), await _key(pool, "service"))
    await ensure_buckets(pool)
    await pool.close()
    application = Application(reactor, settings, bind_endpoints(reactor, settings.server.listen))
    await application.start()
    try:
        url = f"http://127.0.0.1:{application.addresses[0].port}"
        yield Api(url, anon, service, settings.database.dsn.reveal(), settings, application, reactor)
    finally:
        await application.stop()
        # Sockets that were closed a moment ago report it in the next turn.
        await deferLater(reactor, 0, lambda: None)


async def _key(pool: Pool, kind: Any) -> str:
    import secrets

    made = keys.make(kind, secrets.token_bytes)
    await keys.store(pool, kind, made)
    return made


async def logged_at_start(settings: Settings) -> str:
    """Starts a service with these settings and stops it. Returns what was logged."""
    from twisted.internet import reactor

    with capturedLogs() as events:
        startup = Startup(reactor, Launch(settings, Source()))
        await startup.start()
        await startup.stop()
    return "\n".join(formatEvent(event) for event in events)


NOTES = """
create table notes (id int generated always as identity primary key,
                    owner uuid not null default auth.uid(), words text);
alter table notes enable row level security;
create policy own on notes to authenticated using (owner = auth.uid()) with check (owner = auth.uid());
grant select, insert, update, delete on notes to authenticated;
grant select on notes to anon;
"""


async def use_every_part(api: Api, name: str) -> None:
    """Sign up, write and read with each part, and log out, after which the token is refused. Needs ``NOTES``."""
    email = f"{name}@example.test"
    session = await api.sign_up(email)
    token, user_id = session["access_token"], session["user"]["id"]
    status, _, body = await api.request(
        "POST", "/auth/login", key=None, json={"email": email, "password": "wrong for sure"}
    )
    assert (status, body["error"]["code"]) == (401, "invalid_credentials")

    stored = f"/storage/buckets/private/objects/{name}/a.txt"
    status, _, _ = await api.request("PUT", stored, token=token, data=b"kept")
    assert status == 201
    status, _, link = await api.request(
        "POST", "/storage/buckets/private/presign", token=token, json={"key": f"{name}/a.txt"}
    )
    assert status == 200
    status, _, body = await api.request("GET", link["url"].removeprefix(api.base_url), key=None)
    assert (status, body) == (200, b"kept")
    assert (await api.request("DELETE", stored, token=token))[0] == 204
    made = {"name": f"made-{name}", "visibility": "private"}
    assert (await api.request("POST", "/admin/buckets", key="service", json=made))[0] == 201

    notes = "/dev/db/main/rest/notes"
    sent = {"words": name}
    prefer = {"Prefer": "return=representation"}
    status, _, rows = await api.request("POST", notes, token=token, json=sent, headers=prefer)
    assert (status, rows[0]["owner"]) == (201, user_id), rows
    assert (await api.request("GET", f"{notes}?select=words", token=token))[2] == [sent]
    assert (await api.request("GET", notes))[2] == []
    status, _, rows = await api.request("GET", f"{notes}?select=words&words=eq.{name}", key="service")
    assert (status, rows) == (200, [sent])

    assert (await api.request("POST", "/auth/logout", key=None, token=token))[0] == 200
    status, _, body = await api.request("GET", "/auth/user", key=None, token=token)
    assert (status, body["error"]["code"]) == (401, "session_revoked")
