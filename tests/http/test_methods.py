"""Methods that a path does not have, including those that no parser knows."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.http.outbound import Reply
from project_service.http.router import Router
from project_service.tables.incoming import Incoming
from project_service.tables.routes import TableRoutes
from tests.fakes import App, parse_response
from tests.http.toy_app import ANON, app_of, hello

BASE = "/dev/db/main/rest"


class Asked:
    """A fake table API that records the methods it is asked with."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def answer(self, incoming: Incoming) -> Reply:
        self.methods.append(incoming.method)
        return Reply()


def tables(api: Any) -> App:
    router = Router()
    TableRoutes({("dev", "main"): api}).mount(router)
    return App(router)


def told(app: App, line: str) -> tuple[int, str | None, str]:
    """Returns status, ``Allow`` and code of the response."""
    client = app.connect()
    client.send(f"{line} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    response = parse_response(client.received())
    body = json.loads(response.body)
    return response.status, response.header("allow"), (body.get("error") or body)["code"]


class Unknown(TestCase):
    """llhttp refuses them itself, before there is a request."""

    def test_meets_the_methods_of_its_path(self) -> None:
        for method in ("BREW", "get", "PROPFIND"):
            for target in ("/x", "/x?a=b", "http://a/x"):
                found = told(app_of(hello), f"{method} {target}")
                self.assertEqual(found, (405, "GET, HEAD, OPTIONS", "method_not_allowed"), (method, target))

    def test_also_where_it_comes_in_pieces(self) -> None:
        line = b"BREW /x HTTP/1.1\r\n"
        for step in (1, 3, 7):
            client = app_of(hello).connect()
            for start in range(0, len(line), step):
                self.assertEqual(client.received(), b"", start)
                client.send(line[start : start + step])
            self.assertEqual(parse_response(client.received()).header("allow"), "GET, HEAD, OPTIONS")

    def test_what_can_be_no_method_is_not_waited_for(self) -> None:
        for raw in (b"\x16\x03\x01", b"BR@W", b"BREW /x y z", b"BREW\r\n"):
            client = app_of(hello).connect()
            client.send(raw)
            self.assertEqual(parse_response(client.received()).status, 400, raw)

    def test_nor_is_a_line_without_end(self) -> None:
        client = app_of(hello).connect()
        client.send(b"BREW /")
        for _ in range(6):
            self.assertEqual(client.received(), b"")
            client.send(b"x" * 10_000)
        self.assertEqual(parse_response(client.received()).status, 400)

    def test_nothing_is_there_where_nothing_is(self) -> None:
        for method in ("BREW", "get", "PROPFIND"):
            for target in ("/y", "//x", "/", "http://a"):
                found = told(app_of(hello), f"{method} {target}")
                self.assertEqual(found, (404, None, "not_found"), (method, target))

    def test_below_a_table_api_too(self) -> None:
        for path, methods in (
            ("/books", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
            ("", "GET, HEAD, OPTIONS"),
        ):
            status, allow, code = told(tables(Asked()), f"BREW {BASE}{path}")
            self.assertEqual((status, allow, code), (405, methods, "method_not_allowed"))


class OfTables(TestCase):
    def test_the_table_api_refuses_in_its_own_words_whatever_is_not_its_own(self) -> None:
        for method, path in (
            *((method, "/books") for method in ("PURGE", "TRACE", "PROPFIND", "M-SEARCH")),
            *((method, "") for method in ("PURGE", "POST", "DELETE")),
        ):
            asked = Asked()
            tables(asked).request(method, BASE + path, ANON)
            self.assertEqual(asked.methods, [method], path)
