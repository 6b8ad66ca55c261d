"""Methods that a path does not have, including those that the HTTP parser does not know."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.errors import ApiError, Headers
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Router
from project_service.tables.api import TableRoutes
from project_service.tables.request.request import RawRequest
from tests.fakes.common import App, Response, parse_response
from tests.http.toy_app import ANON, app_of, hello

BASE = "/dev/db/main/rest"


class Asked:
    """A fake table API that records the methods it is asked with."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def answer(self, incoming: RawRequest) -> Reply:
        self.methods.append(incoming.method)
        return Reply()


def tables(api: Any) -> App:
    router = Router()
    TableRoutes({("dev", "main"): api}).mount(router)
    return App(router)


def refused(app: App, line: str) -> tuple[int, str | None, str]:
    """Returns status, ``Allow`` and code of the response."""
    client = app.connect()
    client.send(f"{line} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    response = parse_response(client.received())
    body = json.loads(response.body)
    return response.status, response.header("allow"), (body.get("error") or body)["code"]


class Unknown(TestCase):
    """llhttp refuses unknown methods itself, before there is a request."""

    def test_unknown_methods_are_405_with_the_methods_of_the_path(self) -> None:
        for method in ("BREW", "get", "PROPFIND"):
            for target in ("/x", "/x?a=b", "http://a/x"):
                refusal = refused(app_of(hello), f"{method} {target}")
                self.assertEqual(refusal, (405, "GET, HEAD, OPTIONS", "method_not_allowed"), (method, target))

    def test_also_if_the_request_line_comes_in_pieces(self) -> None:
        line = b"BREW /x HTTP/1.1\r\n"
        for step in (1, 3, 7):
            client = app_of(hello).connect()
            for start in range(0, len(line), step):
                self.assertEqual(client.received(), b"", start)
                client.send(line[start : start + step])
            self.assertEqual(parse_response(client.received()).header("allow"), "GET, HEAD, OPTIONS")

    def test_what_cannot_be_a_method_is_400_at_once(self) -> None:
        for raw in (b"\x16\x03\x01", b"BR@W", b"BREW /x y z", b"BREW\r\n"):
            client = app_of(hello).connect()
            client.send(raw)
            self.assertEqual(parse_response(client.received()).status, 400, raw)

    def test_a_request_line_without_end_is_400(self) -> None:
        client = app_of(hello).connect()
        client.send(b"BREW /")
        for _ in range(6):
            self.assertEqual(client.received(), b"")
            client.send(b"x" * 10_000)
        self.assertEqual(parse_response(client.received()).status, 400)

    def test_unknown_methods_of_unknown_paths_are_404(self) -> None:
        for method in ("BREW", "get", "PROPFIND"):
            for target in ("/y", "//x", "/", "http://a"):
                refusal = refused(app_of(hello), f"{method} {target}")
                self.assertEqual(refusal, (404, None, "not_found"), (method, target))

    def test_unknown_methods_below_a_table_api_are_405(self) -> None:
        for path, methods in (
            ("/books", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
            ("", "GET, HEAD, OPTIONS"),
        ):
            status, allow, code = refused(tables(Asked()), f"BREW {BASE}{path}")
            self.assertEqual((status, allow, code), (405, methods, "method_not_allowed"))


class OfTables(TestCase):
    def test_known_http_methods_are_refused_by_the_table_api_itself(self) -> None:
        for method, path in (
            *((method, "/books") for method in ("PURGE", "TRACE", "PROPFIND", "M-SEARCH")),
            *((method, "") for method in ("PURGE", "POST", "DELETE")),
        ):
            asked = Asked()
            tables(asked).request(method, BASE + path, ANON)
            self.assertEqual(asked.methods, [method], path)

    def test_a_body_with_a_content_encoding_is_415_in_the_form_of_the_table_api(self) -> None:
        asked = Asked()
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            headers = {**ANON, "Content-Type": "application/json", "Content-Encoding": "gzip"}
            response = tables(asked).request(method, f"{BASE}/books", headers, b"{}")
            self.assertEqual(
                (response.status, json.loads(response.body)["code"]), (415, "unsupported_media_type")
            )
        self.assertEqual(asked.methods, [])


class Required(TestCase):
    """Headers that a status must not come without, whatever chose it."""

    def answered(self, status: int, headers: Headers = ()) -> Response:
        async def refuse(request: Request) -> Reply:
            raise ApiError(status, "refused", "No.", headers=headers)

        return app_of(refuse, methods=("PATCH", "GET")).request("PATCH", "/x")

    def test_405_has_allow_without_the_method_that_was_refused(self) -> None:
        self.assertEqual(self.answered(405).header("allow"), "GET, HEAD, OPTIONS")
        self.assertEqual(self.answered(405, (("allow", "GET"),)).header("allow"), "GET")

    def test_429_and_503_have_retry_after(self) -> None:
        for status in (429, 503):
            self.assertEqual(self.answered(status).header("retry-after"), "2")
            self.assertEqual(self.answered(status, (("retry-after", "60"),)).header("retry-after"), "60")

    def test_401_has_a_challenge(self) -> None:
        self.assertEqual(self.answered(401).header("www-authenticate"), "Bearer")
        self.assertIsNone(self.answered(403).header("www-authenticate"))
