"""``/auth/v1`` in memory: as ``AuthApp``, with requests like those of supabase-js."""

from __future__ import annotations

import re
from copy import copy
from typing import Any
from urllib.parse import parse_qs, urlsplit

from twisted.trial.unittest import TestCase

from project_service.auth.assemble import put_together
from project_service.auth.mail import Outbox
from project_service.auth.mail_templates import Mail
from project_service.http.routing import Router
from project_service.supabase.auth.mounting import ClientAuth
from project_service.supabase.users import user_view
from tests.fakes.auth import in_place_of_sql, lookups_of
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App
from tests.http.auth.app import PASSWORD, Answer, AuthApp

EMAIL = "ada@example.test"


def link_of(mail: Mail) -> str:
    """The link of a mail that a client asked for."""
    return next(
        line for line in mail.text.splitlines() if line.startswith("https://api.example.test/auth/v1/")
    )


def token_of(mail: Mail) -> str:
    return parse_qs(urlsplit(link_of(mail)).query)["token"][0]


def code_of(mail: Mail) -> str:
    """The line of six digits."""
    (code,) = re.findall(r"^[0-9]{6}$", mail.text, re.M)
    return str(code)


class ClientApp(AuthApp):
    def __init__(
        self, test: TestCase, public_url: str | None = "https://api.example.test", **more: Any
    ) -> None:
        super().__init__(test, **more)
        self.seen = 0
        router = Router()
        self.auth.mount(router)
        ClientAuth(self.auth, [("dev", "main")], public_url).mount(router)
        self.app = App(router, tokens=self.auth.verifier)

    def another_host(self) -> ClientApp:
        """The same service on another host: with the same database, keys and clock."""
        other = copy(self)
        other._mails, other.seen = [], 0
        other.auth = put_together(
            self.settings,
            in_place_of_sql(self.repository),
            lookups_of(self.repository),
            self.hashes,
            Outbox(other._keep, self.clock),
            self.listener,
            self.clock,
            self.clock.seconds,
            self.internet.outgoing,
            self.internet.actor,
            user_view,
        )
        router = Router()
        other.auth.mount(router)
        ClientAuth(other.auth, [], "https://api.example.test").mount(router)
        other.app = App(router, tokens=other.auth.verifier)
        return other

    def new_mails(self) -> list[Mail]:
        """What has been sent since this was asked the last time."""
        before, self.seen = self.seen, len(self.mails)
        return self.mails[before:]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str = ANON_KEY,
        key: str = ANON_KEY,
        **more: Any,
    ) -> Answer:
        """A request as supabase-js sends it: with nobody signed in, the key is the bearer token too."""
        headers = {"apikey": key, "X_Supabase_Api_Version": "2024-01-01", **more}
        return self.call(method, f"/auth/v1{path}", body, token=token, **headers)

    def operate(self, method: str, path: str = "", body: Any = None, **more: Any) -> Answer:
        return self.ask(method, f"/admin/users{path}", body, SERVICE_KEY, SERVICE_KEY, **more)

    def begin_session(self, email: str = EMAIL, password: str = PASSWORD, **more: Any) -> Any:
        """The session of a new user."""
        answer = self.ask("POST", "/signup", {"email": email, "password": password, **more})
        assert answer.status == 200, answer.body
        return answer.body

    def again(self, email: str = EMAIL, password: str = PASSWORD) -> Answer:
        return self.ask("POST", "/token?grant_type=password", {"email": email, "password": password})
