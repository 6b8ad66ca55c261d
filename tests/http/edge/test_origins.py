"""CORS, and where a request comes from: the headers of proxies, and the public URL."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service.http.health import Health
from project_service.http.metrics import Metrics
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Router
from tests.fakes.common import App
from tests.http.toy_app import PLAIN, TABLES, app_of, hello
from tests.route_description import operation_at

READABLE = (
    "Accept-Ranges, Consistency-Token, Content-Range, Content-Location, Location, Content-Disposition, ETag, "
    "Last-Modified, Preference-Applied, Repr-Digest, Retry-After, X-Max-Rows, X-Request-Id"
)


class CrossOrigin(TestCase):
    def test_a_preflight_needs_no_key(self) -> None:
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

    def test_requests_that_only_resemble_a_preflight_are_ordinary(self) -> None:
        origin, method = {"Origin": "https://a.test"}, {"Access-Control-Request-Method": "GET"}
        for sent in (origin, method):
            response = app_of(hello).request("OPTIONS", "/x", sent)
            self.assertEqual((response.status, response.header("allow")), (204, "GET, HEAD, OPTIONS"))
            self.assertIsNone(response.header("access-control-allow-methods"))
        self.assertEqual(app_of(hello).request("GET", "/x", {**origin, **method}).status, 200)
        for path in ("/y", "//x"):
            self.assertEqual(app_of(hello).request("OPTIONS", path, {**origin, **method}).status, 404, path)

    def test_a_preflight_below_a_table_path_answers_as_postgrest_does(self) -> None:
        app = app_of(hello, "/t/<path:rest>", key="required", policy=TABLES)
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

    def test_a_preflight_may_ask_for_no_headers(self) -> None:
        asked = {"Origin": "https://a.test", "Access-Control-Request-Method": "PATCH"}
        for path, allowed in (
            ("/x", None),
            ("/t/x", "Authorization, Accept, Accept-Language, Content-Language"),
        ):
            app = app_of(hello, path, key="required", policy=TABLES if allowed else PLAIN)
            response = app.request("OPTIONS", path, asked)
            self.assertEqual(response.header("access-control-allow-headers"), allowed, path)

    def test_errors_have_the_cors_headers_too(self) -> None:
        response = app_of(hello).request("GET", "/y", {"Origin": "https://a.test"})
        self.assertEqual(response.status, 404)
        self.assertEqual(response.header("access-control-allow-origin"), "*")
        self.assertEqual(response.header("access-control-expose-headers"), READABLE)
        self.assertIsNone(response.header("access-control-allow-credentials"))

    def test_paths_of_operators_have_no_cors_headers(self) -> None:
        asked = {"Origin": "https://a.test", "Access-Control-Request-Method": "GET"}
        for path in ("/live", "/ready", "/health", "/metrics"):
            for method, status in (("GET", 200), ("OPTIONS", 204), ("PUT", 405)):
                router = Router()
                Health({}, Metrics(), Clock()).mount(router)
                response = App(router).request(method, path + "?x", asked)
                self.assertEqual(response.status, status, (method, path))
                names = [name for name, _ in response.headers if name.lower().startswith("access-control")]
                self.assertEqual(names, [], (method, path))
        self.assertIsNotNone(
            app_of(hello, "/livestock")
            .request("GET", "/livestock", asked)
            .header("access-control-allow-origin")
        )

    def test_publicly_cacheable_responses_allow_any_origin(self) -> None:
        """The request that filled the cache may have had no Origin."""

        for name, value, expected in (
            ("Cache-Control", "public, max-age=9", "*"),
            ("cache-control", "max-age=9, Public", "*"),
            ("Cache-Control", "private, max-age=9", None),
        ):

            async def kept(request: Request, header: tuple[str, str] = (name, value)) -> Reply:
                return Reply(200, (header,), b"x")

            response = app_of(kept).request("GET", "/x")
            self.assertEqual(response.header("access-control-allow-origin"), expected, value)
            self.assertEqual(
                "ETag" in (response.header("access-control-expose-headers") or ""), bool(expected), value
            )

    def test_listed_origins(self) -> None:
        router = Router()
        router.route("/x", operation_at(), methods=("GET",), key="optional")(hello)
        app = App(router, cors_origins=("https://a.test",))
        named = app.request("GET", "/x", {"Origin": "https://a.test"})
        self.assertEqual(
            [named.header(f"access-control-{name}") for name in ("allow-origin", "allow-credentials")],
            ["https://a.test", "true"],
        )
        self.assertEqual(named.header("access-control-expose-headers"), READABLE)
        other = app.request("GET", "/x", {"Origin": "https://b.test"})
        for header in ("allow-origin", "allow-credentials", "expose-headers"):
            self.assertIsNone(other.header(f"access-control-{header}"), header)
        for response in (named, other, app.request("GET", "/x")):
            self.assertEqual(response.header("vary"), "Origin")


class Origins(TestCase):
    def address(self, trusted: tuple[str, ...], headers: dict[str, str]) -> tuple[str, str]:
        seen: list[Request] = []

        async def remember(request: Request) -> Reply:
            seen.append(request)
            return Reply(204)

        router = Router()
        router.route("/x", operation_at(), methods=("GET",), key="optional")(remember)
        App(router, trusted_proxies=trusted).request("GET", "/x", headers)
        return seen[0].client_address, seen[0].base_url

    def test_no_proxy_is_trusted_by_default(self) -> None:
        forged = {"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "https"}
        self.assertEqual(self.address((), forged), ("192.0.2.7", "http://api.example.test"))

    def test_the_rightmost_untrusted_hop_counts(self) -> None:
        headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.5, 10.1.1.1", "X-Forwarded-Proto": "https"}
        self.assertEqual(
            self.address(("192.0.2.0/24", "10.0.0.0/8"), headers), ("203.0.113.5", "https://api.example.test")
        )

    def test_an_invalid_hop_does_not_hide_the_peer(self) -> None:
        self.assertEqual(
            self.address(("192.0.2.7",), {"X-Forwarded-For": "6.6.6.6, rubbish"})[0], "192.0.2.7"
        )
