"""The API in the console: what there is, and trying it as somebody."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.live.console.browsing import NARROW, Axe, Running, Tab, opened
from tests.live.daemon import eventually

NOTES = """
create table notes (id int generated always as identity primary key,
                    owner uuid default auth.uid(), words text not null);
alter table notes enable row level security;
create policy own on notes to authenticated using (owner = auth.uid()) with check (owner = auth.uid());
grant select, insert on notes to authenticated;
grant select on notes to anon;
comment on table notes is 'What people write down';

"""
PASSWORD = "long enough a password"


@pytest.fixture(scope="module")
def notes(running: Running) -> str:
    """A table with a note of somebody's, whose id is returned."""
    running.sql(NOTES)
    made = running.call("POST", "/admin/users", json={"email": "ann@example.com", "password": PASSWORD})
    user_id: str = made.json()["data"]["user"]["id"]
    running.sql("insert into notes (owner, words) values (%s, 'Of Ann')", user_id)
    described = "/dev/db/main/rest/"
    eventually(lambda: "/notes" in running.call("GET", described).json()["paths"], "the table is described")
    return user_id


def answer(tab: Tab) -> Locator:
    return tab.page.get_by_label("Body of the answer")


def send(tab: Tab, method: str = "GET") -> None:
    tab.page.get_by_role("button", name=f"Send {method}").click()


def test_an_endpoint_is_found_by_words_and_says_what_it_takes(tab: Tab, axe: Axe) -> None:
    tab.go("api")
    search = tab.page.get_by_label("Find an endpoint")
    search.fill("bucket delete")
    expect(tab.page.locator(".side").get_by_role("link", name=re.compile("DELETE"))).not_to_have_count(0)
    tab.page.get_by_role("link", name="DELETE /admin/buckets/{bucket}", exact=True).click()
    expect(tab.page.get_by_role("heading", name="Delete a bucket")).to_be_visible()
    expect(tab.page.get_by_role("rowheader", name=re.compile("force"))).to_be_visible()
    expect(tab.page.get_by_text("With the service key.")).to_be_visible()
    conflict = tab.page.locator("details", has=tab.page.get_by_text("409", exact=True))
    conflict.locator("summary").click()
    expect(conflict).to_contain_text("bucket_not_empty")
    axe.check(tab)
    search.fill("no endpoint has this")
    expect(tab.page.get_by_text("Nothing fits.")).to_be_visible()


def test_it_is_tried_with_parameters_and_a_body(tab: Tab, running: Running) -> None:
    tab.go("api/service/createBucket")
    body = tab.page.get_by_label("Body", exact=True)
    # What is required is there already.
    assert "name" in json.loads(body.input_value())
    body.fill('{"name": "tried", "visibility": "private"}')
    send(tab, "POST")
    expect(tab.page.get_by_text("201 Created")).to_be_visible()
    expect(answer(tab)).to_contain_text('"name": "tried"')
    send(tab, "POST")
    expect(tab.page.get_by_text("409 Conflict")).to_be_visible()
    expect(answer(tab)).to_contain_text("bucket_exists")

    tab.go("api/service/showBucket")
    tab.page.get_by_label(re.compile("^bucket")).fill("tried")
    send(tab)
    expect(answer(tab)).to_contain_text('"object_count": 0')
    tab.page.get_by_text(re.compile(r"Headers \(\d+\)")).click()
    expect(tab.page.get_by_role("region", name="The answer")).to_contain_text("no-store")
    tab.go("api/service/deleteBucket")
    tab.page.get_by_label(re.compile("^bucket")).fill("tried")
    send(tab, "DELETE")
    expect(tab.page.get_by_text("It has no body.")).to_be_visible()
    assert running.call("GET", "/admin/buckets/tried").status_code == 404


def test_what_a_database_answers_depends_on_who_asks(tab: Tab, notes: str) -> None:
    tab.go("api")
    tab.page.get_by_label("Description of").select_option("Database dev/main")
    tab.page.get_by_role("link", name="GET /notes", exact=True).click()
    expect(tab.page.get_by_role("heading", name="What people write down")).to_be_visible()
    send(tab)
    expect(answer(tab)).to_contain_text("Of Ann")

    tab.page.get_by_role("button", name="as service").click()
    tab.page.get_by_role("dialog").get_by_role("button", name=re.compile("^Anon")).click()
    expect(tab.page.get_by_role("button", name="as anon")).to_be_visible()
    send(tab)
    expect(answer(tab)).to_have_text("[]")
    tab.page.get_by_role("button", name="as anon").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="ann@example.com").click()
    expect(tab.page.get_by_role("button", name="as ann@example.com")).to_be_visible()
    tab.page.get_by_text(re.compile("Optional parameters")).click()
    tab.page.get_by_label("select", exact=False).first.fill("words")
    send(tab)
    expect(answer(tab)).to_contain_text('"words": "Of Ann"')
    expect(answer(tab)).not_to_contain_text("owner")
    # And a script that asks the same.
    tab.page.get_by_role("button", name="As code").click()
    expect(tab.page.get_by_role("dialog")).to_contain_text("/dev/db/main/rest/notes?select=words")
    expect(tab.page.get_by_role("dialog")).not_to_contain_text("eyJ")


def test_what_was_filled_in_stays_and_the_answer_is_in_view(tab: Tab, notes: str) -> None:
    tab.page.set_viewport_size({"width": 1280, "height": 400})
    tab.go("api/dev%2Fmain/get%20%2Fnotes")
    tab.page.get_by_text(re.compile("Optional parameters")).click()
    words = tab.page.get_by_label(re.compile("^words"))
    expect(words).to_have_attribute("placeholder", "eq.Buy milk")
    expect(tab.page.get_by_label(re.compile("^id "))).to_have_attribute("placeholder", "eq.1")
    expect(tab.page.locator("label", has=words)).to_contain_text("operator.value: eq. gt. lt. like.")
    # Columns and what is asked of them are told, but not that "order" is for ordering.
    expect(tab.page.get_by_label(re.compile("^select"))).to_be_visible()
    expect(tab.page.locator("form").get_by_text("Filtering Columns")).to_be_visible()
    expect(tab.page.locator("form").get_by_text("Ordering", exact=True)).to_have_count(0)
    words.fill("eq.Nothing like that")
    send(tab)
    expect(answer(tab)).to_have_text("[]")
    expect(answer(tab)).to_be_in_viewport()
    expect(words).to_be_visible()
    send(tab)
    expect(answer(tab)).to_be_in_viewport()
    # What the body of a table is called says nothing about it.
    tab.go("api/dev%2Fmain/post%20%2Fnotes")
    body = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Body", exact=True))
    expect(body).to_contain_text("application/json")
    expect(body.get_by_text("notes", exact=True)).to_have_count(0)


def test_schemas_that_contain_themselves_are_named(tab: Tab) -> None:
    again = {"$ref": "#/components/schemas/loop"}
    loop = {"oneOf": [{"type": "array", "minItems": 1, "items": again}, {"allOf": [again, again]}, again]}
    content = {"application/json": {"schema": again}}
    operation = {"operationId": "looping", "requestBody": {"content": content}, "responses": {}}
    document = {"paths": {"/x": {"post": operation}}, "components": {"schemas": {"loop": loop}}}
    tab.page.route("**/openapi.json", lambda route: route.fulfill(json=document))
    tab.go("api/service/looping")
    expect(tab.page.get_by_label("Schema of the body")).to_have_text("loop[] | loop & loop | loop")
    expect(tab.page.get_by_label("Body (optional)")).to_have_value("[\n  null\n]")


def test_keys_and_tokens_are_not_in_the_page(tab: Tab, notes: str) -> None:
    tab.go("api/service/logIn")
    tab.page.get_by_label("Body", exact=True).fill(
        json.dumps({"email": "ann@example.com", "password": PASSWORD})
    )
    with tab.page.expect_response("**/auth/login") as waiting:
        send(tab, "POST")
    session = waiting.value.json()["data"]
    expect(answer(tab)).to_contain_text("ann@example.com")
    text = tab.page.content()
    assert session["access_token"] not in text
    assert session["refresh_token"] not in text
    assert tab.running.service_key not in text
    expect(tab.page.get_by_text("Keys and tokens are hidden")).to_be_visible()


def test_a_file_is_sent(tab: Tab, running: Running, tmp_path: Path) -> None:
    file = tmp_path / "hello.txt"
    file.write_text("Hello")
    tab.go("api/service/uploadForm")
    tab.page.get_by_label(re.compile("^bucket")).fill("private")
    tab.page.get_by_label("File").set_input_files(file)
    tab.page.get_by_text(re.compile("Optional parameters")).click()
    send(tab, "POST")
    expect(
        tab.page.get_by_role("region", name="The answer").get_by_text(re.compile("20[01] "))
    ).to_be_visible()
    expect(answer(tab)).to_contain_text("hello.txt")


def test_a_request_can_be_stopped(tab: Tab) -> None:

    def never(route: Route) -> None:
        """It is not answered."""

    tab.page.route("**/live", never)
    tab.go("api/service/live")
    send(tab)
    tab.page.get_by_role("button", name="Stop").click()
    expect(tab.page.get_by_role("button", name="Send GET")).to_be_enabled()
    tab.page.unroute_all(behavior="ignoreErrors")
    send(tab)
    expect(answer(tab)).to_contain_text("live")


def test_descriptions_of_strangers_are_only_text(chrome: Browser, running: Running) -> None:
    hostile = '<img src=x onerror="window.done = 1"><script>window.done = 1</script>\u202e' + "x" * 2000
    operation = {
        "operationId": "hostile",
        "tags": [hostile],
        "summary": hostile,
        "description": f"{hostile}\n- `{hostile}`: {hostile}",
        "parameters": [
            {"name": hostile, "in": "query", "schema": {"enum": [hostile]}, "description": hostile}
        ],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/loop"}}}},
        "responses": {"200": {"description": hostile}},
    }
    loop = {
        "type": "object",
        "required": ["again"],
        "properties": {"again": {"$ref": "#/components/schemas/loop"}},
    }
    document = {"paths": {"/x": {"post": operation}}, "components": {"schemas": {"loop": loop}}}
    with opened(chrome, running, viewport=NARROW) as tab:
        tab.page.route("**/openapi.json", lambda route: route.fulfill(json=document))
        tab.go("api/service/hostile")
        expect(tab.page.get_by_role("heading", level=2, name=re.compile("<img src=x")).first).to_be_visible()
        tab.has_no_sideways_scrolling()
        assert tab.page.locator("main img, main script").count() == 0
        assert tab.page.evaluate("window.done") is None
