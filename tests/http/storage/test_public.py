"""``/storage/public``: objects that anybody may see, of buckets with ``anonymous_reads``."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.http.edge import EdgeSettings
from project_service.settings.model import Storage
from project_service.storage.presentation import SANDBOX
from tests.fakes.common import ANON_KEY, Response
from tests.http.storage.app import ANON, OBJECTS, USER, StorageApp, refused

PAGES = "/storage/public/open"
SHOWN = (
    "image/png",
    "image/svg+xml",
    "audio/mpeg",
    "video/mp4",
    "application/pdf",
    "IMAGE/GIF",
    "image/jpeg; q=1",
)
SAVED = ("text/html", "text/plain", "application/octet-stream", "application/xhtml+xml", "text/javascript")


class Public(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.rules("open", anonymous_reads=True)
        self.app.put("a/dot.png", Content_Type="image/png")

    def page(self, path: str = "a/dot.png", method: str = "GET", **headers: str) -> Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.app.request(method, f"{PAGES}/{path}", sent)

    def test_anybody_sees_an_object_without_a_key(self) -> None:
        response = self.page()
        self.assertEqual((response.status, response.body), (200, b"hello"))
        for name, value in {
            "content-type": "image/png",
            "content-disposition": "inline; filename=\"dot.png\"; filename*=UTF-8''dot.png",
            "cache-control": "public, no-cache",
            "x-content-type-options": "nosniff",
            "access-control-allow-origin": "*",
            "cross-origin-resource-policy": "cross-origin",
            "accept-ranges": "bytes",
        }.items():
            self.assertEqual(response.header(name), value)
        self.assertIsNone(response.header("vary"))
        head = self.page(method="HEAD")
        self.assertEqual((head.status, head.header("content-length"), head.body), (200, "5", b""))

    def test_conditions_and_ranges(self) -> None:
        etag = self.page().header("etag") or ""
        self.assertEqual(self.page(If_None_Match=etag).status, 304)
        part = self.page(Range="bytes=1-2", If_Range=etag)
        self.assertEqual((part.status, part.body, part.header("content-range")), (206, b"el", "bytes 1-2/5"))
        self.assertEqual(refused(self.page(Range="bytes=9-")), (416, "range_not_satisfiable"))
        self.assertEqual(refused(self.page(If_Match='"other"')), (412, "precondition_failed"))

    def test_the_type_decides_whether_it_is_shown(self) -> None:
        for content_type in (*SHOWN, *SAVED):
            self.app.put("x", Content_Type=content_type)
            response = self.page("x")
            shown = content_type in SHOWN
            disposition = response.header("content-disposition") or ""
            self.assertTrue(disposition.startswith("inline" if shown else "attachment"), content_type)
            policy = None if content_type == "application/pdf" else SANDBOX
            self.assertEqual(response.header("content-security-policy"), policy)
        # A viewer shows a PDF, unless it is to be saved.
        self.app.put("x", Content_Type="application/pdf")
        for query in ("download", "inline=false"):
            self.assertEqual(self.page(f"x?{query}").header("content-security-policy"), SANDBOX)

    def test_the_request_may_decide_instead(self) -> None:
        self.app.put("x", Content_Type="text/html")
        shown = self.page("x?inline=true")
        self.assertEqual(shown.header("content-disposition"), "inline; filename=\"x\"; filename*=UTF-8''x")
        self.assertEqual(shown.header("content-security-policy"), SANDBOX)
        saved = "attachment; filename=\"dot.png\"; filename*=UTF-8''dot.png"
        for query in ("inline=false", "download", "download=", "download&inline=true"):
            self.assertEqual(self.page(f"a/dot.png?{query}").header("content-disposition"), saved, query)
        named = self.page("a/dot.png?download=my%20caf%C3%A9.png")
        self.assertEqual(
            named.header("content-disposition"),
            "attachment; filename=\"my caf_.png\"; filename*=UTF-8''my%20caf%C3%A9.png",
        )
        for query in (
            "download=a/b",
            "download=%0A",
            "download=a%5Cb",
            "download=a%E2%80%AEb",
            f"download={256 * 'a'}",
            "inline=1",
        ):
            self.assertEqual(refused(self.page(f"a/dot.png?{query}")), (422, "validation_failed"), query)

    def test_an_age_is_that_of_the_object_or_of_the_service(self) -> None:
        self.app.put("aged", Cache_Control="max-age=7")
        self.assertEqual(self.page("aged").header("cache-control"), "public, max-age=7")
        self.app.storage.live.settings = Storage(public_max_age_seconds=60)
        self.assertEqual(self.page().header("cache-control"), "public, max-age=60")

    def test_a_bucket_may_say_how_its_objects_are_cached(self) -> None:
        self.app.put("aged", Cache_Control="max-age=7")
        self.app.put("said", Cache_Control="no-store")
        self.app.storage.live.settings = Storage(public_max_age_seconds=60)

        def caching(key: str) -> set[str | None]:
            downloaded = self.app.request("GET", f"{OBJECTS}/{key}", ANON)
            return {self.page(key).header("cache-control"), downloaded.header("cache-control")}

        for text, sent in (
            ("max-age=3600, immutable", "public, max-age=3600, immutable"),
            ("private, max-age=5", "private, max-age=5"),
            (None, "public, max-age=60"),
        ):
            self.app.rules("open", anonymous_reads=True, cache_control=text)
            self.assertEqual(caching("a/dot.png"), {sent})
            # What the object says comes first.
            self.assertEqual(caching("aged"), {"public, max-age=7"})
            self.assertEqual(caching("said"), {"no-store"})
        # A 304 says it too, for caches that have an older one.
        self.app.rules("open", anonymous_reads=True, cache_control="max-age=9")
        same = self.page(If_None_Match=self.page().header("etag") or "")
        self.assertEqual((same.status, same.header("cache-control")), (304, "public, max-age=9"))

    def test_the_rule_of_a_private_bucket_is_for_each_caller_alone(self) -> None:
        self.app.rules("shut", cache_control="public, max-age=9")
        self.app.put("x", bucket="shut")
        response = self.app.request("GET", "/storage/buckets/shut/objects/x", USER)
        self.assertEqual(response.header("cache-control"), "private, max-age=9")
        self.assertEqual(response.header("vary"), "Authorization")

    def test_what_is_not_public_does_not_exist(self) -> None:
        self.app.put("x", bucket="shut")
        missing = self.page("none")
        self.assertEqual(refused(missing), (404, "object_not_found"))
        self.app.rules("open")
        for path in (
            f"{PAGES}/a/dot.png",
            "/storage/public/shut/x",
            "/storage/public/none/x",
            "/storage/public/N/x",
        ):
            for headers in ({}, USER):
                response = self.app.request("GET", path, headers)
                self.assertEqual((response.status, response.body), (missing.status, missing.body), path)
                self.assertEqual(response.header("cache-control"), "no-store")
        for path in (PAGES, "/storage/public"):
            self.assertEqual(refused(self.app.request("GET", path)), (404, "not_found"))
        self.assertEqual(refused(self.app.request("GET", f"{PAGES}/")), (422, "invalid_key"))

    def test_it_is_never_written(self) -> None:
        for method in ("PUT", "POST", "DELETE", "PATCH"):
            response = self.app.request(method, f"{PAGES}/a/dot.png", USER)
            self.assertEqual(refused(response), (405, "method_not_allowed"))

    def test_a_key_is_checked_and_other_credentials_are_ignored(self) -> None:
        self.assertEqual(self.page(apikey=ANON_KEY, Authorization="Bearer nonsense").status, 200)
        self.assertEqual(self.page(Authorization="Basic YTpi", Cookie="a=b").status, 200)
        self.assertEqual(refused(self.page(apikey="wrong")), (401, "project_key_invalid"))

    def test_no_request_of_one_makes_a_cache_refuse_the_page_to_all(self) -> None:
        for response in (
            self.page(apikey="wrong"),
            self.page(method="POST"),
            self.page("%00"),
            self.page("a/dot.png?download=a%2Fb"),
            self.app.request("GET", "/storage/public/%FF/a"),
        ):
            self.assertIn(response.status, range(400, 500))
            self.assertEqual(response.header("cache-control"), "no-store", response.status)

    def test_pages_of_every_origin_may_read_it_whatever_origins_the_service_allows(self) -> None:
        self.app.edge.settings = EdgeSettings(None, ("https://one.example",), (), 1000)
        for origin in ({}, {"Origin": "https://one.example"}, {"Origin": "https://two.example"}):
            for path in ("a/dot.png", "none"):
                response = self.page(path, **origin)
                self.assertEqual(response.header("access-control-allow-origin"), "*")
                self.assertIsNone(response.header("vary"))
            self.assertEqual(self.page(**origin).header("cross-origin-resource-policy"), "cross-origin")
        asked = {"Origin": "https://two.example", "Access-Control-Request-Method": "GET"}
        preflight = self.app.request("OPTIONS", f"{PAGES}/a/dot.png", asked)
        self.assertEqual((preflight.status, preflight.header("access-control-allow-origin")), (204, "*"))


class DownloadNames(TestCase):
    def test_every_download_takes_a_name(self) -> None:
        app = StorageApp()
        app.put("a/dot.png")
        made = app.post("/storage/buckets/open/presign", {"key": "a/dot.png", "uses": 0})
        url: str = json.loads(made.body)["url"]
        target = url[url.index("/storage/") :]
        for path in ("/storage/buckets/open/objects/a/dot.png?", f"{target}&"):
            response = app.request("GET", f"{path}download=b.png&inline=true", USER)
            expected = "attachment; filename=\"b.png\"; filename*=UTF-8''b.png"
            self.assertEqual(response.header("content-disposition"), expected)
            refusal = app.request("GET", f"{path}download=a/b", USER)
            self.assertEqual(refused(refusal), (422, "validation_failed"))
