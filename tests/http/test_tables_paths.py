"""From a path to the names in it, behind the real edge."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from project_service.http.outbound import Reply
from project_service.http.router import Router
from project_service.tables.incoming import Incoming
from project_service.tables.routes import TableRoutes
from tests.fakes import App
from tests.http.toy_app import ANON


class Asked:
    """A table API that keeps what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Incoming] = []

    async def answer(self, incoming: Incoming) -> Reply:
        self.calls.append(incoming)
        return Reply()


class Paths(TestCase):
    def test_an_encoded_slash_is_part_of_a_name(self) -> None:
        asked: Any = Asked()
        router = Router()
        TableRoutes({("dev", "main"): asked}).mount(router)
        app = App(router)
        for path, segments in (
            ("", ()),
            ("/", ()),
            ("/books", ("books",)),
            ("/books/", ("books",)),
            ("/rpc/find", ("rpc", "find")),
            ("/a%20b", ("a b",)),
            ("/a%2Fb", ("a/b",)),
            ("/a%2fb%C3%A9/", ("a/bé",)),
            ("/rpc/a%2Fb", ("rpc", "a/b")),
            ("/a%252Fb", ("a%2Fb",)),
        ):
            self.assertEqual(app.request("GET", f"/dev/db/main/rest{path}?x=1", ANON).status, 200)
            self.assertEqual(asked.calls[-1].segments, segments)

    def test_what_is_not_utf8_is_no_name(self) -> None:
        asked: Any = Asked()
        router = Router()
        TableRoutes({("dev", "main"): asked}).mount(router)
        for path in ("/%ff", "/a%2F%ff"):
            response = App(router).request("GET", f"/dev/db/main/rest{path}", ANON)
            self.assertEqual((response.status, asked.calls), (404, []))

    def test_a_name_without_a_value_is_no_parameter(self) -> None:
        asked: Any = Asked()
        router = Router()
        TableRoutes({("dev", "main"): asked}).mount(router)
        App(router).request("GET", "/dev/db/main/rest/books?id&order&title=&id=eq.1", ANON)
        self.assertEqual(asked.calls[-1].pairs, (("title", ""), ("id", "eq.1")))
