"""``/storage/v1/render/image``: the names of parameters, and who gets a picture."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.supabase.storage.pictures import query_of
from tests.fakes.common import Response
from tests.http.storage.app import ALICE
from tests.http.supabase.storage_app import ANON, OTHER, SERVICE, USER, V1, told
from tests.http.supabase.test_storage_objects import DENIED, MISSING, Case

INVALID = (400, "400", "InvalidRequest")


class Parameters(TestCase):
    def test_theirs_as_ours(self) -> None:
        for sent, ours in (
            ({"width": "5"}, {"width": "5", "fit": "cover", "format": "auto"}),
            (
                {"width": "5", "height": "6", "resize": "contain"},
                {"width": "5", "height": "6", "fit": "inside", "format": "auto"},
            ),
            (
                {"height": "6", "format": "origin", "quality": "50"},
                {"height": "6", "fit": "cover", "quality": "50"},
            ),
            ({"format": "avif"}, {"format": "avif"}),
            ({"resize": "cover"}, {"format": "auto"}),
            ({"format": "origin"}, {}),
        ):
            self.assertEqual(dict(parse_qsl(query_of(sent))), ours)
        with self.assertRaises(ApiError) as caught:
            query_of({"width": "5", "resize": "fill"})
        self.assertIn("resize", caught.exception.details or {})


class Pictures(Case):
    def setUp(self) -> None:
        super().setUp()
        self.path = f"policed/{ALICE}/cat.png"
        for path in (self.path, "shown/cat.png"):
            self.put(path, b"picture", Content_Type="image/png")

    def show(self, path: str, headers: dict[str, str] = USER, method: str = "GET") -> Response:
        return self.app.request(method, f"{V1}{path}", headers)

    def assert_picture(self, response: Response, kind: str = "image/webp") -> None:
        self.assertEqual((response.status, response.header("content-type")), (200, kind), response.body)
        self.assertNotEqual(response.body, b"picture")

    def test_by_who_may_download_it(self) -> None:
        path = f"/render/image/authenticated/{self.path}?width=100&height=50"
        self.assert_picture(self.show(path, {**USER, "Accept": "image/webp"}))
        self.assert_picture(self.show(path), "image/png")
        self.assert_picture(self.show(f"{path}&format=origin", {**USER, "Accept": "image/webp"}), "image/png")
        for headers in (OTHER, ANON):
            self.assertEqual(told(self.show(path, headers)), MISSING)
        self.assertEqual(told(self.show(path, {})), (400, "400", "AccessDenied"))
        self.assertEqual(told(self.show("/render/image/authenticated/shut/x?width=5", ANON)), DENIED)

    def test_public_ones_by_anybody(self) -> None:
        for headers in ({}, {"apikey": "wrong", "Authorization": "Bearer wrong"}):
            self.assert_picture(self.show("/render/image/public/shown/cat.png?width=9", headers), "image/png")
        self.assertEqual(told(self.show(f"/render/image/public/{self.path}?width=9", {})), MISSING)

    def sign(self, headers: dict[str, str] = USER, **transform: Any) -> str:
        body = {"expiresIn": 60, "transform": transform}
        address: str = self.app.value("POST", f"/object/sign/{self.path}", body, headers)["signedURL"]
        return address

    def test_by_an_address_in_the_size_that_it_was_made_for(self) -> None:
        address = self.sign(width=100, height=50, resize="contain")
        self.assertTrue(address.startswith(f"/render/image/sign/{self.path}?token="))
        response = self.show(f"{address}&width=2000&quality=1", {})
        self.assert_picture(response, "image/png")
        (rendition,) = [name for _, name in self.app.tables.renditions]
        self.assertIn("inside-100x50", rendition)
        self.assertTrue((response.header("cache-control") or "").startswith("private, max-age="))
        self.assertTrue(self.sign().startswith("/object/sign/"))

    def test_one_that_was_sent_as_text_is_known_by_its_key(self) -> None:
        self.put("shown/a.jpg", b"picture")
        self.assert_picture(self.show("/render/image/public/shown/a.jpg?width=9", {}), "image/jpeg")
        own = self.app.request("GET", "/storage/public/shown/a.jpg?width=9")
        self.assertNotEqual(own.status, 200)

    def test_an_svg_fits_any_size_and_is_sent_as_it_is(self) -> None:
        self.put("shown/icon.svg", b"<svg/>", Content_Type="image/svg+xml")
        path = "/render/image/public/shown/icon.svg?width=9"
        for query in ("", "&format=origin"):
            response = self.show(path + query, {})
            kind, policy = response.header("content-type"), response.header("content-security-policy") or ""
            self.assertEqual((response.status, kind, response.body), (200, "image/svg+xml", b"<svg/>"))
            self.assertTrue(policy.startswith("sandbox"), policy)
        self.assertEqual(told(self.show(f"{path}&format=png", {})), (400, "422", "InvalidRequest"))
        own = self.app.request("GET", "/storage/public/shown/icon.svg?width=9")
        self.assertNotEqual(own.status, 200)

    def test_refusals(self) -> None:
        for query in ("width=0", "width=x", "width=5&resize=fill", "format=bmp", "quality=101"):
            path = f"/render/image/authenticated/{self.path}?{query}"
            self.assertEqual(told(self.show(path)), INVALID, query)
            body = {"expiresIn": 60, "transform": dict(parse_qsl(query))}
            self.assertEqual(
                told(self.app.ask("POST", f"/object/sign/{self.path}", body, USER)), INVALID, query
            )
        body = {"expiresIn": 60, "transform": "small"}
        self.assertEqual(told(self.app.ask("POST", f"/object/sign/{self.path}", body, USER)), INVALID)
        self.put("policed/a.txt")
        refused = self.show("/render/image/authenticated/policed/a.txt?width=5", SERVICE)
        self.assertEqual(told(refused), (400, "422", "InvalidRequest"))
