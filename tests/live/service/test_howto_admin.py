"""docs/howto/admin-page: the page as it stands there, in headless Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests

from tests.live.cli.command_line import cli
from tests.live.daemon import Daemon, eventually
from tests.live.service.documented import blocks, write_files
from tests.live.service.documented_clients import Pages, browser, examples, filled_in, opened
from tests.live.services import WithDatabase

PAGE = "howto/admin-page.rst"
EXPORTS = "export { json, read, rest, send }"
# Signs somebody in, and has a row in the table until the page has read the users.
BEFORE = "<script>localStorage.setItem('session', %r)</script><table><tr><td>not yet</td></tr>"
# Clicks one button after the other, each in the row of the user whom it names, and reports what the page says in the
# end, as the metadata of another user.
AFTER = """<script type="module">
const settled = async condition => { while (!condition()) await new Promise(done => setTimeout(done, 20)) }
const rows = () => [...document.querySelectorAll('tr')].map(row => row.innerText)
const status = document.querySelector('[role=status]')
const named = (email, text) => [...document.querySelectorAll('tr')]
  .filter(row => row.innerText.includes(email)).flatMap(row => [...row.querySelectorAll('button')])
  .find(button => button.textContent === text)
for (const [email, text] of %s) {
  await settled(() => named(email, text))
  const button = named(email, text)
  button.click()
  await settled(() => !button.isConnected || status.textContent)
}
await settled(() => !rows().includes('not yet') || status.textContent)
const metadata = { visit: %s, rows: rows(), status: status.textContent }
await fetch('%s/auth/user', {
  method: 'PATCH', body: JSON.stringify({ metadata }),
  headers: { 'Content-Type': 'application/json', Authorization: 'Bearer %s' },
})
</script>"""


class Site:
    """The page beside a service, and whoever opens it."""

    def __init__(self, folder: Path, credentials: dict[str, str], address: str) -> None:
        self.folder = folder
        self.url = credentials["base_url"]
        self.visits = 0
        self._address = address
        self._teller = self.signed_in("teller")["access_token"]

    def signed_in(self, name: str) -> Any:
        user = {"email": f"{name}@example.com", "password": "correct horse battery"}
        return requests.post(f"{self.url}/auth/signup", json=user, timeout=30).json()["data"]

    def sees(self, session: Any, *clicks: tuple[str, str]) -> dict[str, Any]:
        """The rows of the table and the status, after these buttons were clicked: a user's e-mail, and the text."""
        self.visits += 1
        page = (self.folder / "admin.html").read_text("utf-8")
        after = AFTER % (json.dumps(clicks), self.visits, self.url, self._teller)
        written = page.replace("<table>", BEFORE % json.dumps(session), 1) + after
        (self.folder / "visited.html").write_text(written, "utf-8")
        with opened(browser(), f"{self._address}/visited.html"):
            eventually(lambda: self._told().get("visit") == self.visits, "the page to tell what it says")
        return {name: value for name, value in self._told().items() if name != "visit"}

    def _told(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._teller}"}
        answer = requests.get(f"{self.url}/auth/user", headers=headers, timeout=30).json()
        return dict(answer["data"]["user"]["metadata"])


@pytest.fixture
def site(with_database: WithDatabase, tmp_path: Path) -> Iterator[Site]:
    browser()
    handler = partial(Pages, directory=str(tmp_path))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        Daemon(with_database(tmp_path / "var")) as daemon,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        daemon.wait_until_ready()
        write_files(tmp_path, blocks(PAGE))
        assert EXPORTS in {block.text.strip() for block in blocks(PAGE)}
        credentials = json.loads((tmp_path / "var" / "credentials.json").read_text())
        project = filled_in(
            examples("js", "project", "session", "send"), credentials["base_url"], credentials["anon_key"]
        )
        (tmp_path / "project.js").write_text(project + EXPORTS, "utf-8")
        yield Site(tmp_path, credentials, f"http://localhost:{server.server_port}")
        server.shutdown()


def test_an_administrator_keeps_somebody_out_and_others_see_nothing(site: Site) -> None:
    data = ("--data-dir", site.folder / "var")
    assert cli("sql", site.folder / "admin.sql", *data).code == 0
    ann, bob, eve = (site.signed_in(name) for name in ("ann", "bob", "eve"))
    assert cli("sql", *data, stdin=f"insert into admins values ('{ann['user']['id']}')").code == 0

    def may_log_in() -> int:
        sent = {"email": "eve@example.com", "password": "correct horse battery"}
        return requests.post(f"{site.url}/auth/login", json=sent, timeout=30).status_code

    assert site.sees(bob) == {"rows": [], "status": ""}
    seen = site.sees(ann, ("eve@example.com", "Keep out"))
    assert [row.split("\t")[0] for row in seen["rows"]] == [
        f"{name}@example.com" for name in ("eve", "bob", "ann", "teller")
    ]
    assert ("Let in" in seen["rows"][0], seen["status"]) == (True, "")
    assert may_log_in() == 403
    site.sees(ann, ("eve@example.com", "Let in"))
    assert may_log_in() == 200
    assert (
        site.sees(ann, ("ann@example.com", "Keep out"))["status"] == "Administrators are not locked out here."
    )
    headers = {"Authorization": f"Bearer {eve['access_token']}"}
    assert requests.get(f"{site.url}/auth/user", headers=headers, timeout=30).status_code == 401
