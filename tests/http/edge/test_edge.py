"""The web edge: routes, request ids, HEAD, 404 and 405, and the responses to failures."""

from __future__ import annotations

import json

from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.errors import ApiError
from project_service.http.request import Request
from project_service.http.response import MAX_REASON, Reply, Sink, StreamReply, json_reply
from tests.captured_log import captured_logs
from tests.fakes.common import parse_response, raw_request
from tests.http.toy_app import TABLES, app_of, hello


class Routing(TestCase):
    def test_a_reply_has_length_date_and_request_id(self) -> None:
        response = app_of(hello).request("GET", "/x")
        self.assertEqual(response.status, 200)
        self.assertEqual(response.header("content-type"), "application/json; charset=utf-8")
        self.assertEqual(response.header("date"), "Sat, 21 Nov 2026 00:00:00 GMT")
        self.assertEqual(response.header("x-request-id"), "made-here")
        self.assertEqual(response.body, b'{"data":{"hello":{}},"error":null}')

    def test_a_valid_request_id_of_the_caller_is_kept(self) -> None:
        app = app_of(hello)
        for good in ("a.B-9_", "x", "x" * 128):
            kept = app.request("GET", "/x", {"X-Request-Id": good}).header("x-request-id")
            self.assertEqual(kept, good)
        for bad in ("a b", "ä", "x" * 129, "a;b", "<script>"):
            kept = app.request("GET", "/x", {"X-Request-Id": bad}).header("x-request-id")
            self.assertEqual(kept, "made-here", bad)

    def test_unknown_paths_are_404_and_unknown_methods_405(self) -> None:
        app = app_of(hello)
        missing = app.request("GET", "/y")
        self.assertEqual((missing.status, json.loads(missing.body)["error"]["code"]), (404, "not_found"))
        refused = app.request("POST", "/x", body=b"{}")
        self.assertEqual(
            (refused.status, json.loads(refused.body)["error"]["code"]), (405, "method_not_allowed")
        )
        self.assertEqual(refused.header("allow"), "GET, HEAD, OPTIONS")

    def test_slashes_are_not_redirected(self) -> None:
        for target in ("/x/", "//x", "/x//"):
            self.assertEqual(app_of(hello).request("GET", target).status, 404, target)

    def test_head_is_get_without_its_body(self) -> None:
        app = app_of(hello)
        got, headed = app.request("GET", "/x"), app.request("HEAD", "/x")
        self.assertEqual(headed.status, got.status)
        self.assertEqual(headed.headers, got.headers)
        self.assertEqual(headed.body, b"")

    def test_path_arguments_are_decoded_once_and_encoded_slashes_kept(self) -> None:
        app = app_of(hello, "/o/<bucket>/k/<path:key>")
        for sent, expected in {
            "/o/b/k/a/b": "a/b",
            "/o/b/k/a%2Fb": "a/b",
            "/o/b/k/a%252Fb": "a%2Fb",
            "/o/b/k//a//b/": "/a//b/",
            "/o/b/k/%C3%A9": "é",
        }.items():
            body = json.loads(app.request("GET", sent).body)
            self.assertEqual(body["data"]["hello"], {"bucket": "b", "key": expected}, sent)

    def test_a_path_argument_that_is_not_utf8_is_404(self) -> None:
        self.assertEqual(app_of(hello, "/o/<bucket>").request("GET", "/o/%ff").status, 404)

    def test_options_without_origin_lists_the_methods(self) -> None:
        response = app_of(hello).request("OPTIONS", "/x")
        self.assertEqual((response.status, response.header("allow")), (204, "GET, HEAD, OPTIONS"))
        self.assertIsNone(response.header("content-length"))

    def test_options_of_the_whole_service_lists_all_methods(self) -> None:
        response = app_of(hello).request("OPTIONS", "*")
        self.assertEqual(response.status, 204)
        self.assertEqual(response.header("allow"), "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")

    def test_the_host_of_an_absolute_url_wins_over_the_header(self) -> None:
        async def where(request: Request) -> Reply:
            return json_reply([request.base_url, *map(bytes.decode, request.headers.all(b"host"))])

        for target, host in {
            "/x": "api.example.test",
            "http://other.test/x": "other.test",
            "HTTPS://Other.test:81/x?a": "Other.test:81",
        }.items():
            addressed = json.loads(app_of(where).request("GET", target).body)
            self.assertEqual(addressed, [f"http://{host}", host], target)


class Ending(TestCase):
    def test_after_close_connections_each_connection_closes_with_its_response(self) -> None:
        app = app_of(hello)
        client = app.connect()
        self.assertIsNone(client.request("GET", "/x").header("connection"))
        app.edge.close_connections()
        self.assertEqual(client.request("GET", "/x").header("connection"), "close")
        self.assertTrue(client.transport.ended)


class Reading(TestCase):
    """How handlers read queries and JSON."""

    def test_a_parameter_has_at_most_one_value(self) -> None:
        async def asked(request: Request) -> Reply:
            return json_reply(request.query_value("a"))

        for query, value in {
            "": None,
            "?b=1&aa=2": None,
            "?b=1&a=2": "2",
            "?a": "",
            "?%61=%2B+c%3Dd": "+ c=d",
            "?a=b+c;d": "b c;d",
        }.items():
            response = app_of(asked).request("GET", f"/x{query}")
            self.assertEqual((response.status, json.loads(response.body)), (200, value), query)
        for query in ("?a=1&a=1", "?a&b&a", "?a=%ff"):
            response = app_of(asked).request("GET", f"/x{query}")
            self.assertEqual(
                (response.status, json.loads(response.body)["error"]["code"]), (400, "invalid_query"), query
            )

    def test_json_needs_its_content_type(self) -> None:
        async def taken(request: Request) -> Reply:
            return json_reply(await request.json_object())

        app = app_of(taken, methods=("POST",))
        for kind in ("application/json", "Application/JSON ; charset=utf-8", "application/merge-patch+json"):
            response = app.request("POST", "/x", {"Content-Type": kind}, b'{"a":1}')
            self.assertEqual((response.status, response.body), (200, b'{"a":1}'), kind)
        uncoded = {"Content-Type": "application/json", "Content-Encoding": "identity"}
        self.assertEqual(app.request("POST", "/x", uncoded, b"{}").status, 200)
        for kinds in ({}, {"Content-Type": ""}, {"Content-Type": "text/json"}, {"Content-Type": "json"}):
            response = app.request("POST", "/x", kinds, b"{}")
            code = json.loads(response.body)["error"]["code"]
            self.assertEqual((response.status, code), (415, "unsupported_media_type"), kinds)
        for body in (b"[]", b"1", b"null", b'"{}"', b"{", b""):
            response = app.request("POST", "/x", {"Content-Type": "application/json"}, body)
            code = json.loads(response.body)["error"]["code"]
            self.assertEqual((response.status, code), (400, "invalid_json"), body)


class Failures(TestCase):
    def test_an_api_error_becomes_its_body(self) -> None:
        async def refuse(request: Request) -> Reply:
            raise ApiError(422, "validation_failed", "No.", {"email": "is missing"}, (("Retry-After", "3"),))

        response = app_of(refuse).request("GET", "/x")
        self.assertEqual(response.status, 422)
        self.assertEqual(response.header("retry-after"), "3")
        self.assertEqual(
            json.loads(response.body),
            {
                "data": None,
                "error": {"code": "validation_failed", "message": "No.", "details": {"email": "is missing"}},
            },
        )

    def test_an_error_on_a_table_path_has_postgrests_members(self) -> None:
        named = app_of(hello, "/t/<name>", key="required", policy=TABLES).request("GET", "/t/%ff")
        self.assertEqual(
            (named.status, set(json.loads(named.body))), (404, {"code", "message", "details", "hint"})
        )
        app = app_of(hello, "/t", key="required", policy=TABLES)
        self.assertEqual(
            set(json.loads(app.request("PUT", "/t").body)), {"code", "message", "details", "hint"}
        )
        self.assertEqual(
            json.loads(app.request("GET", "/t").body),
            {
                "code": "project_key_required",
                "message": "This path needs a project key in the header apikey (or X-Service-Key).",
                "details": None,
                "hint": None,
            },
        )

    def test_what_cannot_be_parsed_is_refused_in_the_form_of_its_own_path(self) -> None:
        without_host = b"GET %s HTTP/1.1\r\n\r\n"
        for refused, behind, members in (
            (b"/t", b"/other", {"code", "message", "details", "hint"}),
            (b"/other", b"/t", {"data", "error"}),
        ):
            client = app_of(hello, "/t", policy=TABLES).connect()
            client.send(without_host % refused + b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % behind)
            response = parse_response(client.received())
            self.assertEqual((response.status, set(json.loads(response.body))), (400, members))

    def test_an_error_on_a_table_path_has_its_code_in_a_header_for_head(self) -> None:
        refusal = app_of(hello, "/t", key="required", policy=TABLES).request("HEAD", "/t")
        self.assertEqual((refusal.status, refusal.body), (401, b""))
        self.assertEqual(refusal.header("proxy-status"), "PostgREST; error=project_key_required")
        other = app_of(hello, "/t", key="required").request("HEAD", "/t")
        self.assertEqual((other.status, other.header("proxy-status")), (401, None))

    def test_a_reason_phrase_is_cleaned_and_cut(self) -> None:
        for reason, line in (
            (None, b"404 Not Found"),
            ("No Such Tea", b"404 No Such Tea"),
            ("", b"404 "),
            ("a\r\nSet-Cookie: b", b"404 a Set-Cookie: b"),
            ("a\x00\x1b\x7f\tb\n", b"404 a b"),
            ("caf\u00e9 \u2028\ud800!", b"404 caf !"),
            ("x" * 5000, b"404 " + b"x" * MAX_REASON),
        ):

            async def refuse(request: Request, phrase: str | None = reason) -> Reply:
                error = ApiError(404, "not_found", "No.")
                error.reason = phrase
                raise error

            client = app_of(refuse).connect()
            client.send(raw_request("GET", "/x", {}, None))
            raw = client.received()
            self.assertEqual(raw.partition(b"\r\n")[0], b"HTTP/1.1 " + line)
            self.assertIsNone(parse_response(raw).header("set-cookie"))

    def test_reasons_that_are_not_for_clients_are_logged(self) -> None:
        full = errors.database_unavailable()
        full.why = "no space left (53100)"

        async def refuse(request: Request) -> Reply:
            raise full

        async def stream(request: Request) -> StreamReply:
            async def source(sink: Sink) -> None:
                raise full

            return StreamReply(200, (), None, source)

        for handler in (refuse, stream):
            app = app_of(handler).connect()
            with captured_logs() as events:
                app.send(raw_request("GET", "/x", {}, None))
            self.assertNotIn(b"53100", app.received())
            lines = [formatEvent(event) for event in events]
            self.assertEqual(
                lines.count("database_unavailable: no space left (53100) id=made-here"), 1, lines
            )

    def test_an_internal_error_shows_only_the_request_id(self) -> None:
        async def broken(request: Request) -> Reply:
            raise RuntimeError("the password is hunter2")

        response = app_of(broken).request("GET", "/x")
        self.assertEqual(response.status, 500)
        self.assertNotIn(b"hunter2", response.body)
        self.assertIn(b"made-here", response.body)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_framing_headers_and_odd_statuses_of_a_handler_are_500(self) -> None:
        for reply in (
            Reply(200, (("Content-Length", "1"),), b"abc"),
            Reply(200, (("transfer-encoding", "chunked"),), b"abc"),
            Reply(200, (("X A", "b"),), b"abc"),
            Reply(200, (("X-A", "a\r\nSet-Cookie: b"),)),
            Reply(200, (("X-A", "a\nb"),)),
            Reply(200, (("X-A", "a\rb"),)),
            Reply(200, (("X-A", "a\0b"),)),
            Reply(200, (("X-A\n", "b"),)),
            Reply(100),
            Reply(199),
            Reply(600),
            Reply(99999),
            Reply(-1),
        ):

            async def answer(request: Request, made: Reply = reply) -> Reply:
                return made

            response = app_of(answer).request("GET", "/x")
            self.assertEqual((response.status, response.header("transfer-encoding")), (500, None), reply)
