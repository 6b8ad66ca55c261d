"""The overview: what is wrong comes first, and figures of the last hour move on by themselves."""

from __future__ import annotations

import re

import requests
from playwright.sync_api import Browser, Route, expect

from tests.live.console.browsing import NARROW, Running, Tab, opened
from tests.live.daemon import eventually


def test_it_is_the_first_page_and_says_that_everything_works(tab: Tab) -> None:
    expect(tab.page).to_have_title(re.compile("Overview"))
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(re.compile("Everything works|Needs a look"))
    parts = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Parts"))
    expect(parts.get_by_text("works", exact=True)).to_have_count(4)
    buckets = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Buckets"))
    expect(buckets.get_by_role("link", name="private")).to_be_visible()
    expect(tab.page.get_by_role("rowheader", name="dev/main")).to_be_visible()
    expect(tab.page.get_by_role("rowheader", name="System (users, files)")).to_be_visible()
    databases = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Databases", exact=True))
    # Where it has no database of its own, dev/main is in that of the system.
    expect(databases.get_by_role("listitem")).to_have_text(
        [re.compile(r"^System \(users, files, dev/main\)")]
    )


def test_requests_and_errors_appear_in_the_figures_and_lead_to_the_log(tab: Tab, running: Running) -> None:
    for _ in range(30):
        requests.get(f"{running.url}/auth/user", timeout=60)

    def counted() -> bool:
        hour = running.call("GET", "/admin/overview").json()["last_hour"]
        return {"status": 401, "code": "authentication_required", "count": 30} in hour["codes"]

    eventually(counted, "a sample with the requests")
    # It asks by itself.
    errors = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Errors by code"))
    expect(errors.get_by_role("listitem").filter(has_text="authentication_required")).to_contain_text("30")
    expect(tab.page.get_by_text(re.compile(r"30 refused"))).to_be_visible()
    chart = tab.page.locator("ps-chart", has=tab.page.get_by_role("heading", name="Requests a second"))
    expect(chart.locator("svg path").first).to_be_attached()
    expect(errors.get_by_role("link", name="authentication_required")).to_have_attribute(
        "href", "#/log?text=authentication_required"
    )


def test_what_is_away_is_named_first(tab: Tab, running: Running) -> None:
    def with_trouble(route: Route) -> None:
        shown = route.fetch().json()
        shown["parts"] = [{"name": "database", "works": True}, {"name": "store", "works": False}]
        shown["pools"][0]["waiting"] = 3
        shown["last_hour"]["failed"] = 17
        # Monitors are told while a part is away; that is no failure of its own.
        codes = ((401, "invalid_token", 90), (503, "store_unavailable", 12), (503, "not_ready", 5))
        shown["last_hour"]["codes"] = [{"status": a, "code": b, "count": c} for a, b, c in codes]
        route.fulfill(json=shown)

    tab.page.route("**/admin/overview*", with_trouble)
    tab.page.reload()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Needs a look")
    troubles = tab.page.get_by_role("list", name="What is wrong").get_by_role("listitem")
    expect(troubles).to_have_count(3)
    expect(troubles.nth(0)).to_have_text("Object store does not answer as it should.")
    expect(troubles.nth(1)).to_have_text("12 answers of the last hour failed: store_unavailable. See the log")
    expect(troubles.nth(2)).to_contain_text("3 statements wait for one of the")


def test_while_the_service_knows_no_key_it_still_says_what_is_away(tab: Tab) -> None:
    error = {"code": "database_unavailable", "message": "The database is away."}
    away = {"code": "not_ready", "message": "A part is away.", "details": {"database": "does not answer"}}
    tab.page.route(
        "**/admin/overview*", lambda route: route.fulfill(status=503, json={"data": None, "error": error})
    )
    tab.page.route("**/ready", lambda route: route.fulfill(status=503, json={"data": None, "error": away}))
    tab.page.reload()
    expect(tab.page.get_by_role("alert")).to_contain_text("The database is away.")
    expect(tab.page.get_by_role("list", name="What is wrong")).to_contain_text("System database")
    tab.page.unroute_all()
    # It goes on when the service is back.
    expect(tab.page.get_by_role("heading", name="Parts")).to_be_visible()


def test_names_of_strangers_are_only_text(chrome: Browser, running: Running) -> None:
    hostile = '<img src=x onerror="alert(1)">\u202e' + "x" * 300

    def with_names(route: Route) -> None:
        shown = route.fetch().json()
        shown["last_hour"]["codes"] = [{"status": 400, "code": hostile, "count": 7}]
        shown["pools"][0]["name"] = shown["sizes"]["databases"][0]["name"] = hostile
        shown["sizes"]["buckets"][0]["name"] = hostile
        route.fulfill(json=shown)

    # They come with the first answer only if the database is quick.
    eventually(lambda: running.call("GET", "/admin/overview").json()["sizes"], "the sizes")
    with opened(chrome, running, viewport=NARROW) as tab:
        tab.page.route("**/admin/overview*", with_names)
        tab.page.reload()
        expect(tab.page.get_by_text(hostile).first).to_be_visible()
        assert tab.page.locator("main img").count() == 0
        tab.has_no_sideways_scrolling()
