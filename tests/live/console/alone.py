"""Modules of the console in Chromium without a service: their files from a server of the test's own, with the policy
and the styles of the real page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from project_service.console.serving import APP, POLICY
from tests.live.console.browsing import TIMEOUT_MILLISECONDS, WIDE
from tests.live.service.documented_clients import Pages

_STYLES = re.findall(r'href="console/DIGEST/(style/[^"]+)"', (APP / "index.html").read_text("utf-8"))
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Alone</title>'
    '<meta name="viewport" content="width=device-width">'
    + "".join(f'<link rel="stylesheet" href="/{path}">' for path in _STYLES)
    + "</head><body></body></html>"
).encode()


class _Alone(Pages):
    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # which browsers ask for by themselves
            self.send_response(204)
            return self.end_headers()
        if self.path != "/":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of an empty page, below which the modules are, as ``/ideas/grid.js``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Alone, directory=str(APP))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


@contextmanager
def page_of(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page of ``address``, which must have been without errors at the end; ``options`` are a context's."""
    context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
    context.set_default_timeout(TIMEOUT_MILLISECONDS)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    page.goto(address)
    yield page
    context.close()
    assert not faults, faults
