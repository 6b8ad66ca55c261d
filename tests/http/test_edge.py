"""The web edge: framing, keys, request ids, CORS, HEAD, 404 and 405, early answers, streaming, hang-ups."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.http.body import ClientGone
from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, Sink, StreamReply, envelope, json_reply
from project_service.http.router import Handler, Router
from tests.fakes import ANON_KEY, SERVICE_KEY, App, Client, parse_response, raw_request
from tests.told import told

ANON = {"X-Service-Key": ANON_KEY}
SERVICE = {"X-Service-Key": SERVICE_KEY}


def app_of(handler: Handler, url: str = "/x", methods: tuple[str, ...] = ("GET",), **access: str) -> App:
    router = Router()
    router.route(url, told(url), methods=methods, **{"key": "optional", **access})(handler)  # type: ignore[arg-type]
    return App(router)


async def hello(inbound: Inbound) -> Reply:
    return envelope({"hello": inbound.path_args})


async def echo(inbound: Inbound) -> Reply:
    return Reply(200, (("Content-Type", "application/octet-stream"),), await inbound.body.read(1 << 20))


class Routing(TestCase):
    def test_a_reply_has_length_date_and_request_id(self) -> None:
        response = app_of(hello).request("GET", "/x")
        self.assertEqual(response.status, 200)
        self.assertEqual(response.header("content-type"), "application/json; charset=utf-8")
        self.assertEqual(response.header("date"), "Sat, 21 Nov 2026 00:00:00 GMT")
        self.assertEqual(response.header("x-request-id"), "made-here")
        self.assertEqual(response.body, b'{"data":{"hello":{}},"error":null}')

    def test_a_callers_request_id_is_kept_if_it_is_one(self) -> None:
        app = app_of(hello)
        self.assertEqual(
            app.request("GET", "/x", {"X-Request-Id": "a.B-9_"}).header("x-request-id"), "a.B-9_"
        )
        for bad in ("a b", "ä", "x" * 129, "a;b", "<script>"):
            kept = app.request("GET", "/x", {"X-Request-Id": bad}).header("x-request-id")
            self.assertEqual(kept, "made-here", bad)

    def test_unknown_path_and_method(self) -> None:
        app = app_of(hello)
        missing = app.request("GET", "/y")
        self.assertEqual((missing.status, json.loads(missing.body)["error"]["code"]), (404, "not_found"))
        refused = app.request("POST", "/x", body=b"{}")
        self.assertEqual(
            (refused.status, json.loads(refused.body)["error"]["code"]), (405, "method_not_allowed")
        )
        self.assertEqual(refused.header("allow"), "GET, HEAD, OPTIONS")

    def test_no_redirect_for_slashes(self) -> None:
        for target in ("/x/", "//x", "/x//"):
            self.assertEqual(app_of(hello).request("GET", target).status, 404, target)

    def test_head_is_get_without_its_body(self) -> None:
        app = app_of(hello)
        got, headed = app.request("GET", "/x"), app.request("HEAD", "/x")
        self.assertEqual(headed.status, got.status)
        self.assertEqual(headed.headers, got.headers)
        self.assertEqual(headed.body, b"")

    def test_path_arguments_are_decoded_once_and_slashes_stay(self) -> None:
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

    def test_a_name_that_is_not_utf8_is_not_found(self) -> None:
        self.assertEqual(app_of(hello, "/o/<bucket>").request("GET", "/o/%ff").status, 404)

    def test_options_without_origin_tells_the_methods(self) -> None:
        response = app_of(hello).request("OPTIONS", "/x")
        self.assertEqual((response.status, response.header("allow")), (204, "GET, HEAD, OPTIONS"))
        self.assertIsNone(response.header("content-length"))


class Failures(TestCase):
    def test_an_api_error_becomes_its_body(self) -> None:
        async def refuse(inbound: Inbound) -> Reply:
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

    def test_a_table_path_has_postgrests_members(self) -> None:
        app = app_of(hello, "/t", key="required", errors="tables")
        self.assertEqual(
            set(json.loads(app.request("PUT", "/t").body)), {"code", "message", "details", "hint"}
        )
        self.assertEqual(
            json.loads(app.request("GET", "/t").body),
            {
                "code": "project_key_required",
                "message": "This path needs a project key in the header X-Service-Key.",
                "details": None,
                "hint": None,
            },
        )

    def test_a_fault_of_ours_shows_only_the_request_id(self) -> None:
        async def broken(inbound: Inbound) -> Reply:
            raise RuntimeError("the password is hunter2")

        response = app_of(broken).request("GET", "/x")
        self.assertEqual(response.status, 500)
        self.assertNotIn(b"hunter2", response.body)
        self.assertIn(b"made-here", response.body)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_header_that_would_break_the_framing_is_a_500(self) -> None:
        async def splitting(inbound: Inbound) -> Reply:
            return Reply(200, (("X-A", "a\r\nSet-Cookie: b"),))

        response = app_of(splitting).request("GET", "/x")
        self.assertEqual(response.status, 500)
        self.assertIsNone(response.header("set-cookie"))

    def test_nor_do_framing_headers_or_odd_statuses_get_out(self) -> None:
        for reply in (
            Reply(200, (("Content-Length", "1"),), b"abc"),
            Reply(200, (("transfer-encoding", "chunked"),), b"abc"),
            Reply(100),
            Reply(99999),
            Reply(-1),
        ):

            async def answer(inbound: Inbound, made: Reply = reply) -> Reply:
                return made

            response = app_of(answer).request("GET", "/x")
            self.assertEqual((response.status, response.header("transfer-encoding")), (500, None), reply)


class Keys(TestCase):
    def code(self, app: App, headers: dict[str, str]) -> tuple[int, str | None]:
        response = app.request("GET", "/x", headers)
        error = json.loads(response.body)["error"]
        if response.status == 401:
            self.assertTrue((response.header("www-authenticate") or "").startswith("Bearer"))
        return response.status, error and error["code"]

    def test_required(self) -> None:
        app = app_of(hello, key="required")
        self.assertEqual(self.code(app, {}), (401, "project_key_required"))
        self.assertEqual(self.code(app, {"X-Service-Key": "wrong"}), (401, "project_key_invalid"))
        self.assertEqual(self.code(app, ANON), (200, None))
        self.assertEqual(self.code(app, {"apikey": ANON_KEY}), (200, None))

    def test_a_wrong_key_is_refused_where_none_is_needed(self) -> None:
        self.assertEqual(self.code(app_of(hello), {"apikey": "wrong"}), (401, "project_key_invalid"))

    def test_a_wrong_key_beside_a_right_one_is_refused(self) -> None:
        both = {"X-Service-Key": ANON_KEY, "apikey": "wrong"}
        self.assertEqual(self.code(app_of(hello), both), (401, "project_key_invalid"))
        self.assertEqual(self.code(app_of(hello), {**both, "apikey": ANON_KEY}), (200, None))

    def test_service_only(self) -> None:
        app = app_of(hello, key="service")
        self.assertEqual(self.code(app, ANON), (403, "service_key_required"))
        self.assertEqual(self.code(app, SERVICE), (200, None))

    def test_a_signed_in_user(self) -> None:
        app = app_of(hello, key="required", bearer="required")
        self.assertEqual(self.code(app, ANON), (401, "authentication_required"))
        self.assertEqual(self.code(app, SERVICE), (200, None))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Bearer user:7"}), (200, None))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Bearer nobody"}), (401, "invalid_token"))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Basic dTpw"}), (401, "invalid_token"))

    def test_the_project_key_repeated_as_bearer_signs_nobody_in(self) -> None:
        app = app_of(hello, key="required", bearer="required")
        self.assertEqual(
            self.code(app, {**ANON, "Authorization": f"Bearer {ANON_KEY}"}), (401, "authentication_required")
        )

    def test_a_bad_token_says_so_in_the_challenge(self) -> None:
        response = app_of(hello).request("GET", "/x", {"Authorization": "Bearer nobody"})
        self.assertIn('error="invalid_token"', response.header("www-authenticate") or "")


class CrossOrigin(TestCase):
    def test_preflight_needs_no_key(self) -> None:
        response = app_of(hello, key="required").request(
            "OPTIONS",
            "/x",
            {
                "Origin": "https://a.test",
                "Access-Control-Request-Method": "GET",
                "Access-Control-Request-Headers": "x-service-key, prefer",
            },
        )
        self.assertEqual(response.status, 204)
        self.assertEqual(response.header("access-control-allow-origin"), "*")
        self.assertEqual(response.header("access-control-allow-headers"), "x-service-key, prefer")
        self.assertEqual(response.header("access-control-allow-methods"), "GET, HEAD, OPTIONS")
        self.assertEqual(response.header("access-control-max-age"), "86400")

    def test_preflight_below_a_table_path_is_postgrests(self) -> None:
        app = app_of(hello, "/t/<path:rest>", key="required", errors="tables")
        asked = {"Origin": "https://a.test", "Access-Control-Request-Method": "PATCH"}
        response = app.request(
            "OPTIONS", "/t/x", {**asked, "Access-Control-Request-Headers": "prefer,apikey"}
        )
        self.assertEqual((response.status, response.body), (200, b""))
        self.assertIn("PATCH", response.header("access-control-allow-methods") or "")
        self.assertEqual(
            response.header("access-control-allow-headers"),
            "Authorization, prefer, apikey, Accept, Accept-Language, Content-Language",
        )

    def test_errors_carry_the_headers_too(self) -> None:
        response = app_of(hello).request("GET", "/y", {"Origin": "https://a.test"})
        self.assertEqual(response.status, 404)
        self.assertEqual(response.header("access-control-allow-origin"), "*")
        self.assertIn("X-Request-Id", response.header("access-control-expose-headers") or "")

    def test_listed_origins(self) -> None:
        router = Router()
        router.route("/x", told(), methods=("GET",), key="optional")(hello)
        app = App(router, cors_origins=("https://a.test",))
        self.assertEqual(
            app.request("GET", "/x", {"Origin": "https://a.test"}).header("access-control-allow-origin"),
            "https://a.test",
        )
        other = app.request("GET", "/x", {"Origin": "https://b.test"})
        self.assertIsNone(other.header("access-control-allow-origin"))
        self.assertEqual(other.header("vary"), "Origin")


class Origins(TestCase):
    def address(self, trusted: tuple[str, ...], headers: dict[str, str]) -> tuple[str, str]:
        seen: list[Inbound] = []

        async def remember(inbound: Inbound) -> Reply:
            seen.append(inbound)
            return Reply(204)

        router = Router()
        router.route("/x", told(), methods=("GET",), key="optional")(remember)
        App(router, trusted_proxies=trusted).request("GET", "/x", headers)
        return seen[0].client_address, seen[0].base_url

    def test_nobody_is_trusted_by_default(self) -> None:
        forged = {"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "https"}
        self.assertEqual(self.address((), forged), ("192.0.2.7", "http://api.example.test"))

    def test_the_right_most_untrusted_hop_counts(self) -> None:
        headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.5, 10.1.1.1", "X-Forwarded-Proto": "https"}
        self.assertEqual(
            self.address(("192.0.2.0/24", "10.0.0.0/8"), headers), ("203.0.113.5", "https://api.example.test")
        )

    def test_rubbish_hides_nobody(self) -> None:
        self.assertEqual(
            self.address(("192.0.2.7",), {"X-Forwarded-For": "6.6.6.6, rubbish"})[0], "192.0.2.7"
        )


class Bodies(TestCase):
    def test_with_length_and_chunked(self) -> None:
        app = app_of(echo, methods=("POST",))
        self.assertEqual(app.request("POST", "/x", body=b"abc").body, b"abc")
        client = app.connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None))
        client.send(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        self.assertEqual(parse_response(client.received()).body, b"abcde")

    def test_the_handler_runs_before_the_body_has_come(self) -> None:
        client = app_of(hello, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "10"}, None))
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_an_early_answer_keeps_a_small_rest_apart_from_the_next_request(self) -> None:
        client = app_of(hello, methods=("POST", "GET")).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "24"}, None))
        self.assertEqual(parse_response(client.received()).status, 200)
        client.send(b"GET /evil HTTP/1.1\r\nA: b")
        self.assertEqual(client.received(), b"")
        client.send(raw_request("GET", "/x", {}, None))
        self.assertEqual(parse_response(client.received()).status, 200)

    def test_an_early_answer_to_a_large_or_waiting_body_closes(self) -> None:
        for extra in ({"Content-Length": "99999999"}, {"Content-Length": "9", "Expect": "100-continue"}):
            client = app_of(hello, methods=("POST",)).connect()
            client.send(raw_request("POST", "/x", extra, None))
            response = parse_response(client.received())
            self.assertEqual(response.header("connection"), "close")
            client.clock.advance(5)
            self.assertTrue(client.transport.disconnecting)

    def test_continue_is_sent_only_when_the_body_is_wanted(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "3", "Expect": "100-continue"}, None))
        self.assertEqual(client.received(), b"HTTP/1.1 100 Continue\r\n\r\n")
        client.send(b"abc")
        self.assertEqual(parse_response(client.received()).body, b"abc")

    def test_reading_pauses_while_nobody_takes_the_body(self) -> None:
        gate: Deferred[None] = Deferred()

        async def slow(inbound: Inbound) -> Reply:
            await gate
            return await echo(inbound)

        client = app_of(slow, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "300000"}, None))
        sent = 0
        while client.transport.producerState == "producing" and sent < 300_000:
            client.send(b"x" * 10_000)
            sent += 10_000
        self.assertLess(sent, 200_000)
        client.clock.advance(120)  # our pause is not the client's idleness
        gate.callback(None)
        self.assertEqual(client.transport.producerState, "producing")
        client.send(b"x" * (300_000 - sent))
        self.assertEqual(len(parse_response(client.received()).body), 300_000)

    def test_json_in(self) -> None:
        async def read(inbound: Inbound) -> Reply:
            return json_reply(await inbound.json())

        app = app_of(read, methods=("POST",))
        kind = {"Content-Type": "application/json; charset=utf-8"}
        self.assertEqual(
            app.request("POST", "/x", kind, b'{"a": [1, "\xc3\xa9"]}').body, '{"a":[1,"é"]}'.encode()
        )
        for bad in (b"", b"{", b'{"a":1,"a":2}', b"NaN", b'"\\ud800"', b"[" * 300 + b"]" * 300, b"\xff"):
            response = app.request("POST", "/x", kind, bad)
            self.assertEqual(
                (response.status, json.loads(response.body)["error"]["code"]), (400, "invalid_json"), bad
            )
        self.assertEqual(app.request("POST", "/x", {"Content-Type": "text/plain"}, b"{}").status, 415)
        self.assertEqual(app.request("POST", "/x", kind, b'"' + b"x" * (1 << 20) + b'"').status, 413)
        self.assertEqual(app.request("POST", "/x", {**kind, "Content-Encoding": "gzip"}, b"{}").status, 415)


class Framing(TestCase):
    """What cannot be parsed gets a proper response, then the connection closes (RFC 9112)."""

    def refused(self, raw: bytes) -> int:
        client = app_of(hello, methods=("GET", "POST")).connect()
        client.send(raw)
        response = parse_response(client.received())
        self.assertEqual(response.header("connection"), "close")
        self.assertIn("error", json.loads(response.body))
        self.assertEqual(response.header("x-request-id"), "made-here")
        self.assertTrue(client.transport.disconnecting)
        return response.status

    def test_faults(self) -> None:
        post = b"POST /x HTTP/1.1\r\nHost: a\r\n"
        for raw, status in {
            b"rubbish\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n": 400,
            post + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
            post + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n": 400,
            post + b"Content-Length: -3\r\n\r\n": 400,
            post + b"Content-Length: " + b"1" * 5000 + b"\r\n\r\n": 400,
            b"GET x HTTP/1.1\r\nHost: a\r\n\r\n": 400,
            b"GET /x HTTP/1.1\r\nHost: a b/c\r\n\r\n": 400,
            b"GET /x HTTP/2.0\r\nHost: a\r\n\r\n": 400,
            post + b"Transfer-Encoding: gzip, chunked\r\n\r\n": 400,
            post + b"Transfer-Encoding: identity\r\n\r\n": 400,
            b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n": 414,
            b"GET /x HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 40_000: 431,
            b"GET /x HTTP/1.1\r\nHost: a\r\n" + (b"A: " + b"x" * 9000 + b"\r\n") * 8: 431,
            b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 300 + b"\r\n": 431,
        }.items():
            self.assertEqual(self.refused(raw), status, raw[:80])

    def test_broken_chunks_reach_the_handler_as_400(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Transfer-Encoding": "chunked"}, None) + b"zz\r\n")
        response = parse_response(client.received())
        self.assertEqual((response.status, response.header("connection")), (400, "close"))

    def test_a_head_that_trickles_in_is_cut_off(self) -> None:
        client = app_of(hello).connect()
        for byte in b"GET /x HTTP/1.1\r\nHost: a\r\n":
            client.send(bytes([byte]))
            client.clock.advance(3)
        self.assertTrue(client.transport.disconnecting)

    def test_nor_does_one_behind_another_request(self) -> None:
        client = app_of(hello).connect()
        client.send(raw_request("GET", "/x", {}, None) + b"GET /x HTTP/1.1\r\nHo")
        for _ in range(5):
            client.clock.advance(15)
            client.send(b"s")
        self.assertTrue(client.transport.disconnecting)

    def test_a_closing_connection_that_takes_nothing_is_cut_off(self) -> None:
        client = app_of(hello).connect()
        client.send(raw_request("GET", "/x", {"Connection": "close"}, None))
        self.assertEqual(parse_response(client.received()).status, 200)
        self.assertFalse(client.transport.aborted)
        client.clock.advance(61)
        self.assertTrue(client.transport.aborted)

    def test_a_target_may_be_a_whole_url(self) -> None:
        app = app_of(hello)
        self.assertEqual(app.request("GET", "http://api.example.test/x").status, 200)
        self.assertEqual(app.request("GET", "HTTPS://other.test/x?a=b").status, 200)
        self.assertEqual(app.request("GET", "http://api.example.test").status, 404)

    def test_a_body_that_stalls_is_a_408(self) -> None:
        client = app_of(echo, methods=("POST",)).connect()
        client.send(raw_request("POST", "/x", {"Content-Length": "10"}, None))
        client.clock.advance(61)
        self.assertEqual(parse_response(client.received()).status, 408)

    def test_pipelined_requests_are_answered_in_order(self) -> None:
        client = app_of(hello, "/p/<n>").connect()
        client.send(b"".join(raw_request("GET", f"/p/{n}", {}, None) for n in range(5)))
        raw = client.received()
        self.assertEqual(
            [raw.find(f'"n":"{n}"'.encode()) for n in range(5)],
            sorted(raw.find(f'"n":"{n}"'.encode()) for n in range(5)),
        )
        self.assertEqual(raw.count(b"HTTP/1.1 200"), 5)

    def test_http_1_0_is_answered_and_closed(self) -> None:
        client = app_of(hello).connect()
        client.send(b"GET /x HTTP/1.0\r\n\r\n")
        self.assertEqual(parse_response(client.received()).header("connection"), "close")
        self.assertTrue(client.transport.disconnecting)


Source = Callable[[Sink], Awaitable[None]]


def streaming(source: Source, length: int | None = None) -> App:
    async def reply(inbound: Inbound) -> StreamReply:
        return StreamReply(200, (("Content-Type", "text/plain"),), length, source)

    return app_of(reply)


class Streams(TestCase):
    def test_chunked_and_with_length(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            await sink.drained()
            sink.write(b"")
            sink.write(b"de")

        self.assertEqual(streaming(source).request("GET", "/x").body, b"abcde")
        sized = streaming(source, 5).request("GET", "/x")
        self.assertEqual((sized.body, sized.header("content-length")), (b"abcde", "5"))
        self.assertEqual(streaming(source).request("HEAD", "/x").body, b"")

    def test_a_stream_without_a_body_writes_none(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"HTTP/1.1 200 OK\r\n\r\nforged")

        for status in (204, 304):

            async def reply(inbound: Inbound, made: int = status) -> StreamReply:
                return StreamReply(made, (), None, source)

            client = app_of(reply).connect()
            client.send(raw_request("GET", "/x", {}, None))
            raw = client.received()
            self.assertTrue(raw.startswith(b"HTTP/1.1 %d " % status))
            self.assertTrue(raw.endswith(b"\r\n\r\n"))
            self.assertNotIn(b"forged", raw)

    def test_a_failure_in_mid_stream_aborts(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"abc")
            raise RuntimeError("the store broke off")

        client = streaming(source).connect()
        client.send(raw_request("GET", "/x", {}, None))
        self.assertTrue(client.transport.aborted)
        self.assertFalse(client.received().endswith(b"0\r\n\r\n"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def paused_client(self, app: App) -> Client:
        client = app.connect()
        client.transport.full = True
        client.send(raw_request("GET", "/x", {}, None))
        return client

    def test_a_source_waits_for_a_slow_reader(self) -> None:
        done: list[str] = []

        async def source(sink: Sink) -> None:
            sink.write(b"a")
            await sink.drained()
            done.append("drained")

        client = self.paused_client(streaming(source))
        self.assertEqual(done, [])
        client.transport.drain()
        self.assertEqual(done, ["drained"])

    def test_a_reader_that_takes_nothing_is_dropped(self) -> None:
        async def source(sink: Sink) -> None:
            sink.write(b"a")
            await sink.drained()

        client = self.paused_client(streaming(source))
        client.clock.advance(59)
        self.assertFalse(client.transport.aborted)
        client.clock.advance(2)
        self.assertTrue(client.transport.aborted)
        client.hang_up()

    def test_a_client_that_leaves_wakes_the_source_and_stops_its_producer(self) -> None:
        seen: list[object] = []

        class Producer:
            def pauseProducing(self) -> None:
                seen.append("paused")

            def resumeProducing(self) -> None:
                seen.append("resumed")

            def stopProducing(self) -> None:
                seen.append("stopped")

        async def source(sink: Sink) -> None:
            sink.register_producer(Producer())
            try:
                await sink.drained()
            except (ClientGone, CancelledError) as fault:
                seen.append(type(fault))
                raise

        client = self.paused_client(streaming(source))
        client.hang_up()
        self.assertEqual(seen, ["paused", "stopped", ClientGone])

    def test_a_client_that_leaves_cancels_its_handler(self) -> None:
        seen: list[str] = []

        async def forever(inbound: Inbound) -> Reply:
            try:
                await Deferred()
            except CancelledError:
                seen.append("cancelled")
                raise
            raise AssertionError

        app = app_of(forever)
        client = app.connect()
        client.send(raw_request("GET", "/x", {}, None))
        client.hang_up()
        self.assertEqual(seen, ["cancelled"])
        self.successResultOf(app.edge.drained())
