"""E-mails in the console: as they look, without what they could do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.live.console.browsing import Axe, Running, Tab

HOSTILE = """To: "<b>x</b>" <x@example.com>
Subject: <script>alert(1)</script> =?utf-8?q?=E2=80=AEdesrever?=
Content-Type: text/html; charset=utf-8

<html><head><title>x</title>
<style>p { color: rgb(1, 2, 3); background: url(https://elsewhere.invalid/a.png) } @import "https://elsewhere.invalid/a.css";</style>
<meta http-equiv="refresh" content="0;url=https://elsewhere.invalid/"><base href="https://elsewhere.invalid/">
<link rel="stylesheet" href="https://elsewhere.invalid/b.css"></head>
<body onload="top.done = 1">
<p>Plain</p><div style="font-weight: 700; background: url(https://elsewhere.invalid/c.png)">Bold</div>
<img src="https://elsewhere.invalid/pixel" alt="pixel"><img src=x onerror="top.done = 2">
<script>top.done = 3</script><svg onload="top.done = 4"></svg><a title=">" onmouseover="top.done = 5">hover</a>
<a href="https://elsewhere.invalid/login?token=abc&amp;next=1">Sign in</a>
<a href="javascript:top.done = 6">Script</a>
<a href="/console" target="_top">Top</a>
<form action="https://elsewhere.invalid/"><button>Send</button></form>
<iframe src="https://elsewhere.invalid/"></iframe><object data="https://elsewhere.invalid/"></object>
</body></html>
"""


@pytest.fixture(scope="module")
def mails(running: Running) -> Path:
    running.call(
        "POST", "/admin/users", json={"email": "ann@example.com", "password": "long enough a password"}
    )
    running.call("POST", "/auth/recover", json={"email": "ann@example.com"})
    folder = running.data_dir / "mail"
    assert running.call("GET", "/admin/mail").status_code == 200
    folder.mkdir(exist_ok=True)
    name = "20200101T000000.000000Z-deadbeef.eml"
    (folder / name).write_text(HOSTILE.replace("\n", "\r\n"), "utf-8")
    return folder


def test_an_email_is_seen_as_it_looks_as_text_and_with_its_headers(tab: Tab, mails: Path, axe: Axe) -> None:
    tab.go("mail")
    tab.page.get_by_role("link", name=re.compile("Set a new password.*ann@example.com")).click()
    frame = tab.page.frame_locator("iframe[title='The e-mail as it looks']")
    heading = frame.get_by_role("heading", name="Set a new password")
    expect(heading).to_be_visible()
    # Its own styles hold.
    expect(heading).to_have_css("font-size", "22px")
    expect(tab.page.get_by_text("It has a token and no link.")).to_contain_text("auth.recover_url")
    axe.check(tab)
    tab.page.get_by_role("tab", name="Text").click()
    expect(tab.page.get_by_label("Text of the e-mail")).to_contain_text("this is your token")
    tab.page.get_by_role("tab", name="Headers").click()
    expect(tab.page.get_by_role("tabpanel")).to_contain_text("auto-generated")


def test_a_new_one_appears_by_itself(tab: Tab, mails: Path, running: Running) -> None:
    tab.go("mail")
    expect(tab.page.get_by_role("link", name=re.compile("ann@example.com")).first).to_be_visible()
    running.call(
        "POST", "/admin/users", json={"email": "new@example.com", "password": "long enough a password"}
    )
    running.call("POST", "/auth/recover", json={"email": "new@example.com"})
    expect(tab.page.get_by_role("link", name=re.compile("new@example.com"))).to_be_visible()


def test_a_hostile_one_runs_nothing_loads_nothing_and_leads_nowhere(tab: Tab, mails: Path) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.go("mail/20200101T000000.000000Z-deadbeef")
    frame = tab.page.frame_locator("iframe[title='The e-mail as it looks']")
    expect(frame.get_by_text("Plain")).to_have_css("color", "rgb(1, 2, 3)")
    expect(frame.get_by_text("Bold")).to_have_css("font-weight", "700")
    expect(tab.page.get_by_role("heading", level=2)).to_contain_text("<script>alert(1)</script>")
    expect(tab.page.get_by_text("Pictures from elsewhere are not loaded.")).to_be_visible()
    frame.get_by_text("hover").hover()
    frame.get_by_role("button", name="Send").click()
    for link in ("Script", "Top", "Sign in"):
        frame.get_by_text(link, exact=True).click()
    expect(
        tab.page.get_by_text("Links are not followed from here: https://elsewhere.invalid/login")
    ).to_be_visible()
    assert tab.page.evaluate("window.done") is None
    assert not [url for url in asked if "elsewhere" in url]
    expect(frame.get_by_text("Plain")).to_be_visible()
    opening = tab.page.get_by_role("link", name="Open in a new tab")
    expect(opening).to_have_attribute("href", "https://elsewhere.invalid/login?token=abc&next=1")
    expect(opening).to_have_attribute("rel", "noreferrer noopener")
    tab.has_no_sideways_scrolling()


def test_one_that_deceives_the_first_look_asks_nothing_of_the_service_either(
    tab: Tab, mails: Path, running: Running
) -> None:
    name = "20200101T000000.000000Z-0badbeef"
    # A quote within a value that has none around it.
    html = f'<!doctype html><p>Plain<img title=a" src={running.url}/live?pixel>'
    (mails / f"{name}.eml").write_text(f"Content-Type: text/html\r\n\r\n{html}", "utf-8")
    answered: list[str] = []
    tab.page.on("response", lambda response: answered.append(response.url))
    tab.expected.append("img-src")
    tab.go(f"mail/{name}")
    frame = tab.page.frame_locator("iframe[title='The e-mail as it looks']")
    expect(frame.get_by_text("Plain")).to_be_visible()
    tab.page.wait_for_load_state("networkidle")
    assert not [url for url in answered if "pixel" in url]
    assert frame.locator("body").evaluate("body => body.ownerDocument.compatMode") == "CSS1Compat"


def test_where_mails_are_sent_it_says_so(tab: Tab) -> None:
    error = {"data": None, "error": {"code": "mails_not_kept", "message": "No e-mails are kept here."}}
    tab.page.route("**/admin/mail*", lambda route: route.fulfill(status=409, body=json.dumps(error)))
    tab.go("mail")
    expect(tab.page.get_by_role("heading", name="E-mails of this service are not kept")).to_be_visible()
