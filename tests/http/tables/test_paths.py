"""Paths and early refusals of the table API, behind the real edge."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from project_service.http.response import Reply
from project_service.http.routing import Router
from project_service.tables.api import TableRoutes
from project_service.tables.request.request import RawRequest
from project_service.tables.run.imports import Upload
from project_service.tables.values import TablesConfig
from tests.fakes.common import App, parse_response, raw_request
from tests.http.toy_app import ANON, SERVICE


class Asked:
    """A fake table API that records what it is asked, and which of these were imports."""

    config = TablesConfig()

    def __init__(self) -> None:
        self.calls: list[RawRequest] = []
        self.imports: list[RawRequest] = []

    async def answer(self, incoming: RawRequest) -> Reply:
        self.calls.append(incoming)
        return Reply()

    async def check_import(self, incoming: RawRequest) -> None:
        """Refuses nothing."""

    async def import_rows(self, incoming: RawRequest, upload: Upload) -> Reply:
        self.imports.append(incoming)
        return Reply()


def app_of(api: Any) -> App:
    router = Router()
    TableRoutes({("dev", "main"): api}).mount(router)
    return App(router)


class Paths(TestCase):
    def test_an_encoded_slash_is_part_of_a_name(self) -> None:
        asked: Any = Asked()
        app = app_of(asked)
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

    def test_a_name_that_is_not_utf8_is_404(self) -> None:
        asked: Any = Asked()
        for path in ("/%ff", "/a%2F%ff"):
            response = app_of(asked).request("GET", f"/dev/db/main/rest{path}", ANON)
            self.assertEqual((response.status, asked.calls), (404, []))

    def test_a_body_that_is_too_large_is_413_with_the_setting_and_other_ways(self) -> None:
        asked: Any = Asked()
        headers = {**ANON, "Content-Type": "application/json"}
        response = app_of(asked).request("POST", "/dev/db/main/rest/books", headers, b" " * ((1 << 20) + 1))
        body = json.loads(response.body)
        self.assertEqual((response.status, body["code"], asked.calls), (413, "payload_too_large", []))
        self.assertIn("server.max_json_bytes", body["message"])
        self.assertIn("\\copy", body["hint"])

    def test_rows_that_are_larger_are_an_import(self) -> None:
        asked: Any = Asked()
        path = "/dev/db/main/rest/books"
        for media, size in (
            ("text/csv", 1 << 20),
            ("text/csv", (1 << 20) + 1),
            ("application/x-ndjson", (1 << 20) + 1),
        ):
            response = app_of(asked).request("POST", path, {**ANON, "Content-Type": media}, b"x" * size)
            self.assertEqual(response.status, 200)
        client = app_of(asked).connect()
        chunked = {**ANON, "Content-Type": "text/csv", "Transfer-Encoding": "chunked"}
        client.send(raw_request("POST", path, chunked, None) + b"10\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n")
        self.assertEqual(parse_response(client.received()).status, 200)
        self.assertEqual([len(call.body) for call in asked.calls], [1 << 20, 16])
        self.assertEqual([call.segments for call in asked.imports], [("books",)] * 2)

    def test_a_parameter_without_equals_sign_is_ignored(self) -> None:
        asked: Any = Asked()
        app_of(asked).request("GET", "/dev/db/main/rest/books?id&order&title=&id=eq.1", ANON)
        self.assertEqual(asked.calls[-1].pairs, (("title", ""), ("id", "eq.1")))


class Exposed(TestCase):
    """The headers that pages of other origins may read."""

    POSTGRESTS = (
        "Content-Encoding, Content-Location, Content-Range, Content-Type, Date, Location, Server, Transfer-Encoding, "
        "Range-Unit"
    )

    def lines(self, path: str, headers: dict[str, str], **settings: Any) -> list[str]:
        api: Any = Asked()
        router = Router()
        TableRoutes({("dev", "main"): api}).mount(router)
        response = App(router, **settings).request("GET", path, headers)
        return [value for name, value in response.headers if name == "Access-Control-Expose-Headers"]

    def test_postgrests_list_is_a_line_by_itself_on_every_response(self) -> None:
        page = {"Origin": "https://a.test"}
        for path, headers in (
            ("/dev/db/main/rest/books", ANON),
            ("/dev/db/main/rest", ANON),
            ("/dev/db/main/rest/%ff", ANON),
            ("/dev/db/absent/rest/books", ANON),
            ("/dev/db/main/rest/books", {}),
        ):
            lines = self.lines(path, {**headers, **page})
            self.assertEqual(lines.count(self.POSTGRESTS), 1, path)
            (ours,) = (line for line in lines if line != self.POSTGRESTS)
            for name in ("X-Max-Rows", "X-Request-Id", "Preference-Applied"):
                self.assertIn(name, ours.split(", "), path)

    def test_only_pages_that_may_read_the_response_get_it(self) -> None:
        path = "/dev/db/main/rest/books"
        for origin, expected in (("https://a.test", 1), ("https://b.test", 0), (None, 0)):
            headers = {**ANON, **({"Origin": origin} if origin else {})}
            lines = self.lines(path, headers, cors_origins=("https://a.test",))
            self.assertEqual(lines.count(self.POSTGRESTS), expected, origin)
        self.assertEqual(self.lines(path, ANON), [])


class Databases(TestCase):
    def test_what_follows_from_the_headers_is_kept_for_each_database(self) -> None:
        """A role's identity and the settings of its transactions are those of one database."""
        main: Any = Asked()
        other: Any = Asked()
        router = Router()
        TableRoutes({("dev", "main"): main, ("dev", "other"): other}).mount(router)
        client = App(router).connect()
        for database in ("main", "other", "main"):
            client.send(raw_request("GET", f"/dev/db/{database}/rest/books", ANON, b""))
        (first, third), (second,) = main.calls, other.calls
        self.assertIs(first.headers, third.headers)
        self.assertIsNot(first.headers, second.headers)


class SlowBodies(TestCase):
    def test_a_key_revoked_while_rows_are_sent_writes_none(self) -> None:
        asked: Any = Asked()
        app = app_of(asked)
        client = app.connect()
        raw = raw_request("POST", "/dev/db/main/rest/books", ANON, b"[]")
        client.send(raw[:-1])
        app.keys.kinds.clear()
        client.send(raw[-1:])
        response = parse_response(client.received())
        self.assertEqual((response.status, asked.calls), (401, []))
        self.assertEqual(json.loads(response.body)["code"], "project_key_invalid")


class Answers(TestCase):
    def test_an_unknown_stage_or_database_is_404(self) -> None:
        asked: Any = Asked()
        for path in ("/dev/db/other/rest/books", "/other/db/main/rest/books", "/dev/db/other/rest"):
            response = app_of(asked).request("GET", path, ANON)
            refusal = json.loads(response.body)
            self.assertEqual((response.status, refusal["code"]), (404, "PGRST125"))
            self.assertIn("/{stage}/db/{database}/rest/{table}", refusal["hint"])
        self.assertEqual(asked.calls, [])

    def test_bodies_are_read_for_writes_only(self) -> None:
        asked: Any = Asked()
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            app_of(asked).request(method, "/dev/db/main/rest/books", ANON, b"[1]")
            self.assertEqual((asked.calls[-1].method, asked.calls[-1].body), (method, b"[1]"))
        app_of(asked).request("GET", "/dev/db/main/rest/books", ANON)
        self.assertEqual(asked.calls[-1].body, b"")


class Refusals(TestCase):
    """Refusals before there is a complete request have the form of errors at their path (decisions.md section 5)."""

    def test_below_a_table_api_they_have_postgrests_members(self) -> None:
        line = "{} /dev/db/main/rest/books{} HTTP/1.1\r\nHost: a\r\n"
        long = "?id=in.(" + "1," * 30_000
        for head, status in (
            (line.format("GET", long), 414),
            (line.format("GET", long)[:52_000], 414),
            (line.format("GET", "?title=eq.\xe9"), 400),
            (line.format("GET", "?a#b"), 400),
            (line.format("GET", "") + "A: b\r\n" * 300, 431),
            (line.format("GET", "") + "A: " + "b" * 60_000, 431),
            (line.format("GET", "") + "no header\r\n", 400),
        ):
            body = self.refused(head, status)
            self.assertEqual(set(body), {"code", "message", "details", "hint"}, head[:60])

    def test_the_refusal_of_a_head_that_is_too_large_names_the_limit(self) -> None:
        line = "GET /dev/db/main/rest/books HTTP/1.1\r\nHost: a\r\n"
        for head, words in (
            ("A: b\r\n" * 300, "more than 200 headers"),
            ("A: " + "b" * 60_000, "A request header is longer than"),
            (("A: " + "b" * 9000 + "\r\n") * 8, "headers are larger than 65536 bytes"),
        ):
            self.assertIn(words, self.refused(line + head, 431)["message"])

    def test_elsewhere_they_have_the_envelope(self) -> None:
        for head, status in (
            ("GET /dev/auth/user?" + "x" * 60_000, 414),
            ("GET /dev/db/main/books?" + "x" * 60_000, 414),
            ("G" * 70_000, None),
            ("rubbish\r\n", 400),
        ):
            self.assertEqual(set(self.refused(head, status)), {"data", "error"}, head[:60])

    def test_a_filter_on_a_thousand_uuids_fits(self) -> None:
        asked: Any = Asked()
        ids = ",".join(["6f9619ff-8b86-d011-b42d-00cf4fc964ff"] * 1_000)
        self.assertEqual(
            app_of(asked).request("GET", f"/dev/db/main/rest/books?id=in.({ids})", ANON).status, 200
        )
        self.assertEqual(asked.calls[-1].pairs, (("id", f"in.({ids})"),))

    def refused(self, head: str, status: int | None) -> Any:
        client = app_of(Asked()).connect()
        client.send(head.encode("latin-1") + b"\r\n")
        response = parse_response(client.received())
        self.assertIn(response.status, (status,) if status else (400, 414), head[:60])
        return json.loads(response.body)


class Caching(TestCase):
    def test_what_the_service_key_shows_may_not_be_cached_unless_sql_says_so(self) -> None:
        class Answering:
            headers: tuple[tuple[str, str], ...] = ()

            async def answer(self, incoming: RawRequest) -> Reply:
                return Reply(200, self.headers)

        reported: Any = Answering()
        app = app_of(reported)

        def caching(key: dict[str, str]) -> str | None:
            return app.request("GET", "/dev/db/main/rest/books", key).header("cache-control")

        self.assertEqual((caching(SERVICE), caching(ANON)), ("no-store", None))
        reported.headers = (("cache-control", "max-age=5"),)
        self.assertEqual(caching(SERVICE), "max-age=5")
