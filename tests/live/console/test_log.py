"""The log in the console: lines as they come, filters, one request, and lines that are not what they seem."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Locator, Route, expect

from tests.live.console.browsing import NARROW, Axe, Running, Tab, opened
from tests.live.daemon import eventually


def ask(running: Running, request_id: str, path: str = "/auth/user") -> None:
    requests.get(running.url + path, headers={"X-Request-Id": request_id}, timeout=60)


def lines(tab: Tab) -> Locator:
    return tab.page.get_by_role("grid", name="Lines of the log").get_by_role("row")


def line(tab: Tab, text: str) -> Locator:
    return lines(tab).filter(has_text=text)


def test_lines_appear_as_they_come_and_pausing_holds_them(tab: Tab, running: Running, axe: Axe) -> None:
    ask(running, "first-one")
    tab.go("log")
    expect(line(tab, "first-one")).to_be_visible()
    ask(running, "second-one")
    expect(line(tab, "second-one")).to_contain_text("GET /auth/user 401")
    axe.check(tab)
    tab.page.get_by_role("button", name="Pause").click()
    with tab.page.expect_response("**/admin/log*"):
        ask(running, "third-one")
        # What is asked for from now on is asked by the button.
        expect(line(tab, "third-one")).to_have_count(0)
        tab.page.get_by_role("button", name="Follow").click()
    expect(line(tab, "third-one")).to_be_visible()


def test_what_the_console_asks_is_hidden_until_it_is_wanted(tab: Tab, running: Running) -> None:
    with tab.page.expect_response("**/rest/"):
        tab.go("api/dev%2Fmain")
    running.call("GET", "/admin/users")
    tab.go("log")
    own = tab.page.get_by_label("Hide requests of the console")
    expect(own).to_be_checked()
    # Whoever else asks for the same is shown.
    expect(line(tab, "GET /admin/users 200").first).to_be_visible()
    expect(line(tab, "/admin/log")).to_have_count(0)
    expect(line(tab, "GET /dev/db/main/rest/ 200")).to_have_count(0)
    own.uncheck()
    expect(line(tab, "GET /admin/log 200").first).to_be_visible()
    expect(line(tab, "GET /dev/db/main/rest/ 200").first).to_be_attached()


def test_what_is_typed_stays_and_filters_by_itself(tab: Tab, running: Running) -> None:
    ask(running, "typed-1", "/dev/db/main/rest/nothing")
    ask(running, "typed-2")
    tab.go("log")
    expect(line(tab, "typed-2")).to_be_visible()
    # Lines that come meanwhile show the page anew.
    kept = tab.page.evaluate(
        """async () => {
            const page = document.querySelector("ps-log")
            const field = page.querySelector("input[type=search]")
            field.focus()
            field.value = "rest/noth"
            field.dispatchEvent(new Event("input", { bubbles: true }))
            page.update()
            await new Promise(requestAnimationFrame)
            return field.value
        }"""
    )
    assert kept == "rest/noth"
    search = tab.page.get_by_label("Lines with this text")
    expect(line(tab, "typed-2")).to_have_count(0)
    expect(line(tab, "typed-1")).to_be_visible()
    expect(search).to_be_focused()
    search.press_sequentially("ing ")
    expect(tab.page).to_have_url(re.compile(r"#/log\?text=rest%2Fnothing$"))
    expect(search).to_have_value("rest/nothing ")
    row = line(tab, "typed-1")
    row.hover()
    row.get_by_role("button", name="Related row").last.click()
    expect(tab.page.get_by_role("button", name="Request typed-1")).to_be_visible()
    expect(search).to_have_value("rest/nothing ")
    tab.go("log")
    expect(search).to_have_value("")


def test_what_is_typed_while_the_address_changes_stays(tab: Tab) -> None:
    tab.go("log")
    kept = tab.page.evaluate(
        """async () => {
            const page = document.querySelector("ps-log")
            const field = page.querySelector("input[type=search]")
            const type = text => {
              field.value = text
              field.dispatchEvent(new Event("input", { bubbles: true }))
            }
            type("not")
            page.narrow({})
            type("noth")
            while (!page.route.query.has("text")) await new Promise(requestAnimationFrame)
            await new Promise(requestAnimationFrame)
            return field.value
        }"""
    )
    assert kept == "noth"
    expect(tab.page).to_have_url(re.compile("text=noth$"))


def test_names_are_shown_by_their_ends(tab: Tab) -> None:
    shown = [made(1, part="project_service.storage.lifecycle.uploads", request_id="0123456789abcdef-tail")]
    tab.page.route("**/admin/log*", answering(lambda url: whole([] if "after=" in url else shown)))
    tab.go("log")
    for text in ("…fecycle.uploads", "…abcdef-tail"):
        end = line(tab, "line 1").get_by_text(text)
        expect(end).to_be_visible()
        assert end.evaluate("each => each.scrollWidth <= each.clientWidth"), f"{text} is cut"


def test_filters_are_in_the_address(tab: Tab, running: Running) -> None:
    ask(running, "wanted-1", "/dev/db/main/rest/nothing")
    ask(running, "other-1")
    tab.go("log")
    search = tab.page.get_by_label("Lines with this text")
    search.fill("rest/nothing")
    search.press("Enter")
    expect(line(tab, "wanted-1")).to_be_visible()
    expect(line(tab, "other-1")).to_have_count(0)
    assert tab.page.evaluate("location.hash") == "#/log?text=rest%2Fnothing"
    tab.page.get_by_label("Level").select_option("Errors and worse")
    expect(tab.page.get_by_text("No line fits.")).to_be_visible()
    tab.page.reload()
    expect(tab.page.get_by_label("Level")).to_have_value("error")
    expect(search).to_have_value("rest/nothing")
    tab.go("log?part=project_service.network")
    expect(line(tab, "listening on")).to_be_visible()
    expect(line(tab, "GET /")).to_have_count(0)


def test_a_request_is_followed_by_its_id(tab: Tab, running: Running) -> None:
    ask(running, "chosen-1")
    ask(running, "ignored-1")
    tab.go("log")
    # When both are there, nothing moves any more between the clicks.
    expect(line(tab, "ignored-1")).to_be_visible()
    row = line(tab, "chosen-1")
    row.get_by_text("GET /auth/user").dblclick()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog.get_by_label("The whole line")).to_contain_text("GET /auth/user 401")
    dialog.get_by_role("button", name="Only this request").click()
    expect(line(tab, "ignored-1")).to_have_count(0)
    expect(line(tab, "chosen-1")).to_be_visible()
    tab.page.get_by_role("button", name="Request chosen-1").click()
    expect(line(tab, "ignored-1")).to_be_visible()


def answering(answer: Callable[[str], dict[str, Any]]) -> Callable[[Route], None]:
    return lambda route: route.fulfill(json=answer(route.request.url))


def made(number: int, text: str = "line", **more: Any) -> dict[str, Any]:
    moment = "2026-11-28T20:31:00.000Z"
    about = {"number": number, "time": moment, "level": "info", "part": "here", "text": f"{text} {number}"}
    return {**about, "request_id": None, **more}


def whole(shown: list[dict[str, Any]]) -> dict[str, Any]:
    return {"lines": shown, "newest": "x-9", "oldest": None, "complete": True}


def test_what_was_asked_for_before_a_pause_is_shown_after_it(tab: Tab) -> None:
    held: list[Route] = []

    def answer(route: Route) -> None:
        if "after=" in route.request.url:
            held.append(route)
        else:
            route.fulfill(json=whole([made(1)]))

    tab.page.route("**/admin/log*", answer)
    tab.go("log")
    expect(line(tab, "line 1")).to_be_visible()
    eventually(lambda: tab.page.evaluate("true") and bool(held), "the question for new lines")
    tab.page.get_by_role("button", name="Pause").click()
    held.pop().fulfill(json=whole([made(2)]))
    tab.page.wait_for_function("() => !document.querySelector('ps-log').busy")
    tab.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(line(tab, "line 2")).to_have_count(0)
    tab.page.get_by_role("button", name="Follow").click()
    eventually(lambda: tab.page.evaluate("true") and bool(held), "the same question")
    held.pop().fulfill(json=whole([made(2)]))
    expect(line(tab, "line 2")).to_be_visible()


def test_older_lines_are_a_click_away(tab: Tab) -> None:
    def answer(url: str) -> dict[str, Any]:
        before = re.search(r"before=x-(\d+)", url)
        end = int(before[1]) if before else 2000
        shown = [] if "after=" in url else [made(n) for n in range(max(0, end - 1000), end)]
        oldest = f"x-{end - 1000}" if end > 1000 else None
        return {"lines": shown, "newest": "x-2000", "oldest": oldest, "complete": True}

    tab.page.route("**/admin/log*", answering(answer))
    tab.go("log")
    expect(line(tab, "line 1999")).to_be_visible()
    tab.page.get_by_role("button", name="Older lines").click()
    expect(line(tab, "line 999")).to_be_visible()
    expect(tab.page.get_by_role("grid")).to_have_attribute("aria-rowcount", "2001")


def test_after_another_start_of_the_service_it_begins_anew(tab: Tab) -> None:
    started = False

    def answer(url: str) -> dict[str, Any]:
        if started:
            complete = "after=b-" in url
            return {
                "lines": [] if complete else [made(0, "anew")],
                "newest": "b-1",
                "oldest": None,
                "complete": complete,
            }
        return {
            "lines": [] if "after=" in url else [made(7, "before")],
            "newest": "a-8",
            "oldest": None,
            "complete": True,
        }

    tab.page.route("**/admin/log*", answering(answer))
    tab.go("log")
    expect(line(tab, "before 7")).to_be_visible()
    started = True
    expect(line(tab, "anew 0")).to_be_visible()
    expect(line(tab, "before 7")).to_have_count(0)


@pytest.mark.parametrize("viewport", [None, NARROW])
def test_lines_of_strangers_are_only_text(chrome: Browser, running: Running, viewport: Any) -> None:
    hostile = '<img src=x onerror="window.done = 1"><script>window.done = 1</script>\u202edesrever'
    shown = [
        made(1, hostile, part=hostile, request_id="x" * 128, level="error"),
        made(2, "x" * 16_000 + "\n" * 1000),
    ]

    def answer(url: str) -> dict[str, Any]:
        return {"lines": [] if "after=" in url else shown, "newest": "a-9", "oldest": None, "complete": True}

    options = {} if viewport is None else {"viewport": viewport}
    with opened(chrome, running, **options) as tab:
        tab.page.route("**/admin/log*", answering(answer))
        tab.go("log")
        expect(line(tab, "<img src=x")).to_be_visible()
        tab.page.get_by_role("gridcell").filter(has_text="xxxx").first.dblclick()
        expect(tab.page.get_by_role("dialog")).to_be_visible()
        tab.has_no_sideways_scrolling()
        assert tab.page.locator("main img, main script").count() == 0
        assert tab.page.evaluate("window.done") is None


def test_where_the_setting_forbids_it_it_says_which(tab: Tab) -> None:
    error = {"data": None, "error": {"code": "log_not_shown", "message": "It is not shown."}}
    tab.page.route("**/admin/log*", lambda route: route.fulfill(status=403, json=error))
    tab.go("log")
    expect(tab.page.get_by_role("heading", name="The log is not shown here")).to_be_visible()
    expect(tab.page.get_by_text("server.console_log = true")).to_be_visible()
