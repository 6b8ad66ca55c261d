"""All of authentication in memory: the real edge, routes, services and tokens, on the fake repository."""

from __future__ import annotations

from typing import Any

import orjson
from attrs import evolve, frozen
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.auth import tokens
from project_service.auth.assemble import Auth, put_together
from project_service.auth.mail import Outbox
from project_service.auth.mail_templates import Mail
from project_service.auth.tokens import AUDIENCE
from project_service.http.routing import Router
from project_service.settings.model import Auth as AuthSettings
from project_service.settings.model import Settings, Smtp
from project_service.supabase.users import user_view
from tests.fakes.auth import FakeListener, InlineHashes, MemoryRepository, in_place_of_sql, lookups_of
from tests.fakes.common import App, Client, Response, raw_request
from tests.fakes.internet import Internet
from tests.temporary import temporary_directory

NOW = 1_795_230_245.678
PASSWORD = "correct horse battery"


@frozen
class Answer:
    status: int
    body: Any
    response: Response

    @property
    def data(self) -> Any:
        assert self.body["error"] is None, self.body
        return self.body["data"]

    @property
    def code(self) -> Any:
        assert self.body["data"] is None, self.body
        return self.body["error"]["code"]

    @property
    def details(self) -> Any:
        return self.body["error"].get("details")


class AuthApp:
    """Sends requests. Tests may look at ``repository``, ``hashes``, ``mails``, ``listener`` and ``internet``, and
    break them."""

    def __init__(
        self,
        test: TestCase,
        *,
        mail: bool = True,
        smtp: Smtp | None = None,
        trusted: tuple[str, ...] = (),
        **auth: Any,
    ) -> None:
        path = temporary_directory(test) / "jwt-keys.json"
        settings = AuthSettings(bcrypt_cost=4, jwt_keys_file=str(path), **auth)
        tokens.load_or_create_keys(path, settings.jwt_algorithm)
        self.settings = Settings(auth=settings, smtp=smtp or Smtp())
        self.clock = Clock()
        self.clock.advance(NOW)
        self.repository, self.hashes, self.listener = MemoryRepository(), InlineHashes(), FakeListener()
        self._mails: list[Mail] = []
        self.internet = Internet()
        self.auth: Auth = put_together(
            self.settings,
            in_place_of_sql(self.repository),
            lookups_of(self.repository),
            self.hashes,
            Outbox(self._keep, self.clock) if mail else None,
            self.listener,
            self.clock,
            self.clock.seconds,
            self.internet.outgoing,
            self.internet.actor,
            user_view,
        )
        self.repository.on_ended = self._announce
        router = Router()
        self.auth.mount(router)
        self.app = App(router, tokens=self.auth.verifier, trusted_proxies=trusted)

    def reload(self, **auth: Any) -> None:
        self.settings = evolve(self.settings, auth=evolve(self.settings.auth, **auth))
        self.auth.reload(self.settings)

    def _announce(self, session_id: str, until: float) -> None:
        self.listener.hear("auth_revocations", f"{session_id} {until:.0f}")

    async def _keep(self, mail: Mail) -> None:
        self._mails.append(mail)

    @property
    def mails(self) -> list[Mail]:
        """What has been sent. The outbox composes mails after the turn of the reactor in which they are asked for."""
        self.clock.advance(0)
        return self._mails

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        raw: bytes | None = None,
        host: str = "192.0.2.7",
        **headers: str,
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None:
            raw = orjson.dumps(body)
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        response = self.app.connect(host).request(method, path, sent, raw)
        return Answer(response.status, orjson.loads(response.body) if response.body else None, response)

    def begin(self, method: str, path: str, body: Any, **headers: str) -> Client:
        """Sends a request, whose response the test reads from the connection when it is there."""
        client = self.app.connect()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["Content-Type"] = "application/json"
        client.send(raw_request(method, path, sent, None if body is None else orjson.dumps(body)))
        return client

    def sign_up(self, email: str = "ada@example.test", password: str = PASSWORD, **more: Any) -> Answer:
        return self.call("POST", "/auth/signup", {"email": email, "password": password}, **more)

    def log_in(self, email: str = "ada@example.test", password: Any = PASSWORD, **more: Any) -> Answer:
        return self.call("POST", "/auth/login", {"email": email, "password": password}, **more)

    def refresh(self, token: Any) -> Answer:
        return self.call("POST", "/auth/refresh", {"refresh_token": token})

    def user(self, token: str) -> Answer:
        return self.call("GET", "/auth/user", token=token)


__all__ = ["AUDIENCE", "NOW", "PASSWORD", "Answer", "AuthApp"]
