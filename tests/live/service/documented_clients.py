"""The examples of docs/clients.rst, and a browser that runs those for web pages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

from tests.live.programs import program

DOCS = Path(__file__).parents[3] / "docs" / "clients.rst"
BLOCK = re.compile(r"\.\. code-block:: (\w+)\n(?:   :name: (\S+)\n)?\n((?:   .*\n|\n)+)")
ADDRESS, KEY = "http://127.0.0.1:8080", "psk_anon_…"


class Pages(SimpleHTTPRequestHandler):
    """Serves a folder whose pages may be written anew."""

    def end_headers(self) -> None:
        # Its Last-Modified has whole seconds, so that a browser would keep a page that is written twice in one.
        self.send_header("Cache-Control", "no-store")
        super().end_headers()


def examples(language: str, *names: str) -> str:
    """The examples in a language, all or those with the given names, in their order. The address has to be filled
    in."""
    found = [
        (name, textwrap.dedent(text))
        for kind, name, text in BLOCK.findall(DOCS.read_text("utf-8"))
        if kind == language
    ]
    chosen = [text for name, text in found if not names or name in names]
    assert chosen, (language, names)
    return "".join(chosen)


def filled_in(text: str, address: str, key: str) -> str:
    """The example with the values that a reader has to fill in. Fails if it lacks the place for one of them."""
    assert ADDRESS in text
    assert KEY in text
    return text.replace(ADDRESS, address).replace(KEY, key)


def browser() -> str:
    """Chromium's program. Skips the test where there is none."""
    return program("chromium", "chromium-browser")


@contextmanager
def opened(browser: str, page: str, *options: str) -> Iterator[None]:
    """Chromium with the page at that address."""
    # Its files, in a directory with a short name: the path of a socket among them has at most 107 bytes. Killed with
    # its children, so that none of them writes there when the directory is removed.
    with tempfile.TemporaryDirectory() as own:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={own}/profile"]
        with subprocess.Popen(
            [browser, *flags, *options, page],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": own},
            start_new_session=True,
        ) as process:
            try:
                yield
            finally:
                os.killpg(process.pid, signal.SIGKILL)
