"""A stored HTML page that is opened inline cannot act as the site, shown in headless Chromium."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.settings.model import Store
from tests.live import documented_clients
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open

PAGES = {
    "page.html": (
        "text/html",
        b"<!doctype html><body><p id=seen>here</p><script>document.getElementById('seen').textContent='ran'</script>"
        b"<img src=x onerror=\"document.getElementById('seen').textContent='ran'\"></body>",
    ),
    "image.svg": (
        "image/svg+xml",
        b"<svg xmlns='http://www.w3.org/2000/svg'><text id='seen'>here</text>"
        b"<script>document.getElementById('seen').textContent='ran'</script></svg>",
    ),
}


@pytest.fixture(scope="module")
def browser() -> str:
    return documented_clients.browser()


@pytest.fixture(scope="module")
def api(
    browser: str, module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    data_dir = Path(tmp_path_factory.mktemp("browser"))
    context = serving(settings_for(module_database, store_settings, data_dir))
    with held_open(context) as running:
        yield running


def shown(browser: str, url: str, profile: Path) -> str:
    """The page's document after its scripts could have run."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=2000",
    ]
    done = subprocess.run([browser, *flags, "--dump-dom", url], capture_output=True, timeout=60, check=True)
    return done.stdout.decode()


@pytest.mark.parametrize("name", PAGES)
@pytest_twisted.ensureDeferred
async def test_no_script_of_a_stored_page_runs(api: Api, browser: str, tmp_path: Path, name: str) -> None:
    content_type, page = PAGES[name]
    (tmp_path / name).write_bytes(page)
    # The same page from a file does run its script, so the test is able to fail.
    assert ">ran<" in await deferToThread(
        shown, browser, f"file://{quote(str(tmp_path / name))}", tmp_path / "a"
    )
    path = f"/storage/buckets/private/objects/{name}"
    put = await api.request("PUT", path, key="service", data=page, headers={"Content-Type": content_type})
    assert put[0] == 201
    made = await api.request(
        "POST", "/storage/buckets/private/presign", key="service", json={"key": name, "uses": 0}
    )
    dom = await deferToThread(shown, browser, f"{made[2]['url']}&inline=true", tmp_path / "b")
    assert ">here<" in dom
    assert ">ran<" not in dom
