"""``/console``: who sees it, what the page and its files say of themselves, and what becomes of changed files."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from twisted.trial.unittest import TestCase

from project_service.console.serving import APP, Console
from project_service.http.routing import Router
from tests.fakes.common import App, Response, parse_response
from tests.temporary import temporary_directory


def app_of(shown: bool | str = True, folder: Path = APP) -> App:
    router = Router()
    Console(shown, folder).mount(router)
    return App(router)


def page(app: App) -> Response:
    response = app.request("GET", "/console")
    assert response.status == 200, response
    return response


def addresses(text: str) -> list[str]:
    return re.findall(r'(?:href|src)="(console/[^"]+)"', text)


class Serving(TestCase):
    def test_everything_that_the_page_names_is_there_and_may_be_kept_for_ever(self) -> None:
        app = app_of()
        named = addresses(page(app).body.decode())
        self.assertGreater(len(named), 8)
        for address in named:
            response = app.request("GET", f"/{address}")
            self.assertEqual(response.status, 200, address)
            self.assertEqual(response.header("Cache-Control"), "public, max-age=31536000, immutable")
            self.assertEqual(response.header("X-Content-Type-Options"), "nosniff")

    def test_every_module_that_the_first_one_imports_is_asked_for_by_the_page(self) -> None:
        named = {address.split("/", 2)[2] for address in addresses(page(app_of()).body.decode())}
        waiting, seen = ["main.js"], set()
        while waiting:
            path = waiting.pop()
            seen.add(path)
            text = (APP / path).read_text("utf-8")
            for name in re.findall(r'^import [^;]*?"(\.[^"]+)";', text, re.MULTILINE):
                module = (APP / path).parent.joinpath(name).resolve().relative_to(APP.resolve()).as_posix()
                if module not in seen:
                    waiting.append(module)
        self.assertEqual(seen - named, set())

    def test_the_page_lets_in_only_its_own_scripts_and_is_never_in_a_frame(self) -> None:
        response = page(app_of())
        policy = dict(
            part.strip().split(" ", 1)
            for part in (response.header("Content-Security-Policy") or "").split(";")
        )
        self.assertEqual(policy["default-src"], "'none'")
        self.assertEqual(policy["script-src"], "'self'")
        self.assertEqual(policy["connect-src"], "'self'")
        self.assertEqual(policy["frame-ancestors"], "'none'")
        self.assertEqual(policy["require-trusted-types-for"], "'script'")
        self.assertEqual(policy["trusted-types"], "console")
        self.assertEqual(response.header("Cache-Control"), "no-store")
        text = response.body.decode()
        self.assertNotRegex(text, r"<script(?![^>]* src=)|<style| on\w+=| style=")

    def test_a_changed_file_has_another_address_and_the_old_one_is_gone(self) -> None:
        folder = temporary_directory(self)
        (folder / "index.html").write_text('<link href="console/DIGEST/style.css">')
        (folder / "style.css").write_text("a {}")
        app = app_of(folder=folder)
        (before,) = addresses(page(app).body.decode())
        (folder / "style.css").write_text("a { color: red }")
        (after,) = addresses(page(app).body.decode())
        self.assertNotEqual(before, after)
        self.assertEqual(app.request("GET", f"/{before}").status, 404)
        self.assertEqual(app.request("GET", f"/{after}").body, b"a { color: red }")

    def test_a_page_that_was_sent_gets_its_files_whatever_changes_meanwhile(self) -> None:
        folder = temporary_directory(self)
        (folder / "index.html").write_text('<link href="console/DIGEST/style.css">')
        (folder / "style.css").write_text("a {}")
        app = app_of(folder=folder)
        (address,) = addresses(page(app).body.decode())
        (folder / "style.css").write_text("a { color: red }")
        self.assertEqual(app.request("GET", f"/{address}").body, b"a {}")

    def test_files_are_compressed_for_browsers_that_can_read_that(self) -> None:
        app = app_of()
        address = addresses(page(app).body.decode())[-1]
        plain = app.request("GET", f"/{address}")
        small = app.request("GET", f"/{address}", {"Accept-Encoding": "gzip, deflate"})
        self.assertEqual(small.header("Content-Encoding"), "gzip")
        self.assertEqual(gzip.decompress(small.body), plain.body)
        self.assertEqual({each.header("Vary") for each in (plain, small)}, {"Accept-Encoding"})

    def test_what_is_no_file_of_the_console_is_not_found(self) -> None:
        app = app_of()
        digest = addresses(page(app).body.decode())[0].split("/")[1]
        names = (
            "jsconfig.json",
            "none.js",
            "../serving.py",
            "..%2Fserving.py",
            "%2e%2e/serving.py",
            "",
            "index.html",
        )
        for path in (*(f"/console/{digest}/{name}" for name in names), "/console/other/main.js"):
            self.assertEqual(app.request("GET", path).status, 404, path)

    def test_with_a_slash_at_its_end_the_address_leads_to_the_page(self) -> None:
        response = app_of().request("GET", "/console/")
        self.assertEqual((response.status, response.header("Location")), (308, "/console"))


class Loopback(TestCase):
    """``server.console = "loopback"``: for browsers on this machine that name it so."""

    def status(self, host: str, client: str = "127.0.0.1") -> int:
        connected = app_of("loopback").connect(client)
        connected.send(f"GET /console HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return parse_response(connected.received()).status

    def test_it_is_shown_to_clients_on_this_machine(self) -> None:
        for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "127.0.0.2", "[::1]:8080", "LOCALHOST"):
            self.assertEqual(self.status(host), 200, host)
        self.assertEqual(self.status("localhost", "::1"), 200)

    def test_it_is_hidden_from_others_and_from_other_names_of_this_machine(self) -> None:
        self.assertEqual(self.status("localhost:8080", "192.0.2.7"), 404)
        for host in ("api.example.com", "localhost.example.com", "127.0.0.1.example.com", "192.0.2.1"):
            self.assertEqual(self.status(host), 404, host)

    def test_without_the_setting_there_is_none(self) -> None:
        self.assertEqual(app_of(False).request("GET", "/console").status, 404)
