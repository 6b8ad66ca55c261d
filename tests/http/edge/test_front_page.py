"""``GET /``: a page for browsers, 404 for programs; what it shows, and what it must not let happen."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256

from twisted.trial.unittest import TestCase

from project_service import __version__
from project_service.front_page import FrontPage
from project_service.http.health import Check, Health
from project_service.http.routing import Router
from tests.fakes.common import App, Response

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
DATABASE = "/dev/db/main/rest/"


async def works() -> None:
    return


async def broken() -> None:
    raise RuntimeError("the password is hunter2")


def app_of(shows_health: bool = True, public_url: str | None = None, **checks: Check) -> App:
    router = Router()
    app = App(router, public_url=public_url)
    health = Health(checks, app.metrics, app.clock)
    FrontPage([DATABASE], health if shows_health else None).mount(router)
    # So that no earlier result can stand for the first.
    app.clock.advance(10)
    return app


def page(app: App) -> Response:
    response = app.request("GET", "/", BROWSER)
    assert response.status == 200, response
    return response


class FrontPageTests(TestCase):
    def test_it_shows_the_version_and_where_everything_is(self) -> None:
        text = page(app_of()).body.decode()
        self.assertIn(f"project-service <small>{__version__}</small>", text)
        for path in ("/auth/", "/storage/", DATABASE, "/openapi.json"):
            self.assertIn(f"http://api.example.test{path}", text)

    def test_addresses_begin_with_the_public_url(self) -> None:
        text = page(app_of(public_url="https://example.com/api/")).body.decode()
        self.assertIn("curl -s https://example.com/api/auth/signup ", text)
        self.assertIn(f"https://example.com/api{DATABASE}", text)

    def test_it_shows_what_is_away_and_no_reason(self) -> None:
        text = page(app_of(database=works, store=broken)).body.decode()
        self.assertRegex(text, r"<th>database<td[^>]*>ready\n")
        self.assertRegex(text, r"<th>store<td[^>]*>not ready\n")
        self.assertNotIn("hunter2", text)

    def test_it_shows_no_state_if_health_has_an_address_of_its_own(self) -> None:
        text = page(app_of(shows_health=False, store=broken)).body.decode()
        self.assertNotIn("<th>store", text)
        self.assertIn("server.admin_listen", text)

    def test_only_clients_that_prefer_html_get_it(self) -> None:
        app = app_of()
        for accept in ("text/html", "TEXT/HTML;q=0.5", "text/html, application/json;q=0.9", "text/html, */*"):
            self.assertEqual(app.request("GET", "/", {"Accept": accept}).status, 200, accept)
        others = (
            "*/*",
            "text/*",
            "application/json",
            "text/html;q=0",
            "application/json, text/html;q=0.5",
            "",
        )
        for headers in ({}, *({"Accept": accept} for accept in others)):
            refused = app.request("GET", "/", headers)
            self.assertEqual(refused.status, 404, headers)
            self.assertEqual(refused.header("content-type"), "application/json; charset=utf-8")
            self.assertEqual(json.loads(refused.body)["error"]["code"], "not_found")
            self.assertEqual(refused.header("vary"), "Accept")

    def test_head_is_the_page_without_its_body(self) -> None:
        app = app_of()
        whole, head = (app.request(method, "/", BROWSER) for method in ("GET", "HEAD"))
        self.assertEqual((head.status, head.headers, head.body), (200, whole.headers, b""))

    def test_caches_do_not_keep_it_and_nothing_foreign_runs_in_it(self) -> None:
        response = page(app_of())
        self.assertEqual(response.header("cache-control"), "no-store")
        policy = response.header("content-security-policy") or ""
        self.assertTrue(policy.startswith("default-src 'none'; style-src 'sha256-"))
        self.assertNotIn("unsafe", policy)
        text = response.body.decode()
        styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        hashes = [b64encode(sha256(style.encode()).digest()).decode() for style in styles]
        self.assertEqual(hashes, re.findall("'sha256-([^']*)'", policy))
        for active in (" src=", "<script", "<link", " style=", "url("):
            self.assertNotIn(active, text)

    def test_an_address_is_text_in_the_page_and_one_word_in_the_commands(self) -> None:
        text = page(app_of(public_url="https://a.test/<script>;id")).body.decode()
        self.assertNotIn("<script>", text)
        self.assertIn("curl -s &#x27;https://a.test/&lt;script&gt;;id/auth/signup&#x27; ", text)
