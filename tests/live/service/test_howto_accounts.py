"""docs/howto/accounts: the page as it stands there, in headless Chromium, with the links of its e-mails."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from attrs import frozen

from tests.live.daemon import eventually
from tests.live.service.documented import blocks, service, write_files
from tests.live.service.documented_clients import Pages, browser

PAGE = "howto/accounts.rst"
FIRST, SECOND = "correct horse battery", "staple battery horse"
# Fills the fields that the page shows, clicks its button, and shows in the end what the page says by then.
VISIT = """<script type="module">
const settled = async condition => { while (!condition()) await new Promise(done => setTimeout(done, 20)) }
const status = document.querySelector('[role=status]')
const seen = []
for (const values of %s) {
  const [path, before] = [location.hash, status.textContent]
  for (const [name, value] of Object.entries(values)) document.querySelector(`[name=${name}]`).value = value
  document.querySelector('form button').click()
  await settled(() => location.hash !== path || status.textContent !== before)
  seen.push(status.textContent)
}
const hidden = [...document.querySelectorAll('form input')].filter(input => input.hidden).map(input => input.name)
const told = { seen, hidden, hash: location.hash.split('?')[0], now: status.textContent }
document.body.append(Object.assign(document.createElement('pre'), { id: 'seen', textContent: JSON.stringify(told) }))
</script>"""


@frozen
class Seen:
    """The status after each form (``seen``), and in the end hidden fields, the fragment's path and the status."""

    seen: list[str]
    hidden: list[str]
    hash: str
    now: str


@frozen
class Visitor:
    """Somebody with a browser, which keeps what pages store."""

    folder: Path
    page: str

    def sees(self, address: str, *forms: dict[str, str]) -> Seen:
        """What the page says after each of the forms has been filled in and sent."""
        documented = (self.folder / "account.html").read_text("utf-8")
        (self.folder / "visited.html").write_text(documented + VISIT % json.dumps(forms), "utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/profile"]
        flags += [
            "--virtual-time-budget=2000000",
            "--dump-dom",
            address.replace("account.html", "visited.html"),
        ]
        done = subprocess.run(
            [browser(), *flags], capture_output=True, text=True, timeout=600, check=True
        ).stdout
        told = re.search(r'<pre id="seen">(.*?)</pre>', done)
        assert told is not None, done
        return Seen(**json.loads(html.unescape(told[1])))

    def link(self, path: str, email: str) -> str:
        """The link to a path of the page in the e-mail to that address, once it is there."""
        pattern = re.compile(rf"^{re.escape(self.page + path)}\S*$", re.MULTILINE)

        def links() -> list[str]:
            mails = [one.read_text("utf-8") for one in (self.folder / "var" / "mail").glob("*.eml")]
            return [link for mail in mails if f"To: {email}\n" in mail for link in pattern.findall(mail)]

        eventually(lambda: bool(links()), f"an e-mail to {email}")
        (link,) = links()
        return link


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[Visitor]:
    browser()
    handler = partial(Pages, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        here = {"localhost:3000": f"localhost:{server.server_port}"}
        with service(tmp_path, PAGE, here) as daemon:
            daemon.wait_until_ready()
            credentials = json.loads((tmp_path / "var" / "credentials.json").read_text())
            write_files(tmp_path, blocks(PAGE, **{"http://127.0.0.1:8080": credentials["base_url"]}))
            yield Visitor(tmp_path, f"http://localhost:{server.server_port}/account.html")
        server.shutdown()


def test_somebody_signs_up_confirms_and_sets_a_forgotten_password(visitor: Visitor) -> None:
    page, ann = visitor.page, {"email": "ann@example.com", "password": FIRST}
    weak, sent = visitor.sees(f"{page}#/sign-up", {**ann, "password": "short"}, ann).seen
    assert weak == "This password is not allowed: it must have at least 8 characters."
    assert sent == "Open the link in the e-mail that we have sent."
    ben = {**ann, "email": "ben@example.com"}
    visitor.sees(f"{page}#/sign-up", ben)
    (early,) = visitor.sees(f"{page}#/sign-in", ben).seen
    assert early.startswith("This address has not been confirmed.")

    link = visitor.link("#/confirm?token=", ann["email"])
    # What is opened alone confirms nothing. The session is there after the page has been loaded again.
    assert visitor.sees(link) == Seen([], ["email", "password"], "#/confirm", "")
    assert visitor.sees(link, {}).now == "Signed in as ann@example.com"
    assert visitor.sees(page).now == "Signed in as ann@example.com"
    assert visitor.sees(page, {}).hash == "#/sign-in"

    visitor.sees(f"{page}#/forgot", {"email": ann["email"]})
    link = visitor.link("#/reset?token=", ann["email"])
    weak, after = visitor.sees(link, {"password": "password1"}, {"password": SECOND}).seen
    assert (weak, after) == ("This password is not allowed: it is one of the most common passwords.", "")
    assert visitor.sees(link, {"password": SECOND}).seen == [
        "The token is not valid, or no longer valid; ask for a new one."
    ]
    old, new = visitor.sees(f"{page}#/sign-in", ann, {**ann, "password": SECOND}).seen
    assert (old, new) == ("The e-mail address or the password is wrong.", "Signed in as ann@example.com")
