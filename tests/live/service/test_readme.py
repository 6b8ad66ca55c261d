"""The README's first session, executed as it stands: its commands, in its order, against a new service; and its page,
in Chromium, beside the same service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.browsing import PUPPETEER, visit
from tests.live.daemon import ROOT, Daemon
from tests.live.npm import install
from tests.live.programs import program
from tests.live.service.documented_clients import filled_in

README = (ROOT / "README.rst").read_text("utf-8")
BLOCK = re.compile(r"\.\. code-block:: sh\n\n((?: {4}.*\n|\n)+)")
PAGE = re.compile(r"\.\. code-block:: html\n\n((?: {4}.*\n|\n)+)")
SHOWN = """
const page = await opened(args[0])
await says(page, '[')
seen.text = await page.evaluate(() => document.body.innerText)
"""


def commands(rst: str) -> str:
    """All shell blocks of a document as one script."""
    blocks = [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in BLOCK.findall(rst)]
    assert blocks, "there are no commands"
    return "\n".join(blocks)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a service in ``var``, and what the commands printed."""
    program("curl")
    folder = Path(tmp_path_factory.mktemp("clone"))
    # As in a clone after `make run`: the program in .venv, its state in var.
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "README.rst").write_text(README)
    with Daemon(folder / "var") as daemon:
        daemon.wait_until_ready()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands(README)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,  # its output says more than a status
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder, done.stdout


def test_the_first_session_works_as_printed(session: tuple[Path, str]) -> None:
    _, out = session
    assert '"email":"ann@example.com"' in out, out
    assert '"key":"docs/readme.rst"' in out, out
    assert '"folders":[]' in out, out
    assert "identical" in out, out
    assert re.search(r'\[\{"id":2,"text":"second"\}\]', out.replace(" ", "").replace("\n", "")), out


def test_the_page_works_as_printed(session: tuple[Path, str]) -> None:
    folder, _ = session
    install(folder, "@supabase/supabase-js@2", PUPPETEER)
    (page,) = PAGE.findall(README)
    assert len(page.strip("\n").splitlines()) == 10
    credentials = json.loads((folder / "var" / "credentials.json").read_text())
    (folder / "page.html").write_text(filled_in(page, credentials["base_url"], credentials["anon_key"]))
    seen = visit(folder, SHOWN, (folder / "page.html").as_uri())
    assert seen["errors"] == []
    # "first" has been here since the commands.
    assert [note["text"] for note in json.loads(seen["text"])] == ["first", "third"]


def test_the_two_commands_are_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)
    assert targets == ["run", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
