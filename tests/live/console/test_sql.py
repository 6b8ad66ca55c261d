"""The page for SQL, as a person uses it: statements, errors, plans, and the forms that write SQL."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, Locator, Route, expect

from tests.live.console.browsing import NARROW, Axe, Running, Tab, opened, running_service
from tests.live.daemon import eventually
from tests.live.services import WithDatabase
from tests.unit.database.test_sql_statements import OPAQUE

PICTURES = os.environ.get("CONSOLE_PICTURES")
SLEEPING = "select count(*) from pg_stat_activity where state = 'active' and query = 'select pg_sleep(600)'"
PLANNED = """
create table planned (id int primary key, n int);
insert into planned select i, i % 7 from generate_series(1, 20000) i;
analyze planned
"""
COLOURS = """-- The largest
select c.relname as "The name", 12.5 as x, 'it''s' || $a$ dollar $a$, null as nothing
from pg_class c /* nested /* comment */ */ where relkind = 'r'
order by 1 limit 300;

select missing from pg_class;"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migrations")


@pytest.fixture(scope="module")
def running(
    with_database: WithDatabase, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    data_dir = with_database(tmp_path_factory.mktemp("sql"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_SERVICE__SERVER__MIGRATIONS_DIR", str(folder))
        with running_service(data_dir) as made:
            made.sql(PLANNED)
            yield made


def shot(tab: Tab, name: str) -> None:
    """Into the folder that ``CONSOLE_PICTURES`` names."""
    if PICTURES:
        tab.page.screenshot(path=Path(PICTURES) / f"sql-{name}.png")


def editor(tab: Tab) -> Locator:
    return tab.page.get_by_label("SQL", exact=True)


def write(tab: Tab, text: str) -> None:
    """Instead of what is there. The cursor is at the beginning."""
    editor(tab).fill(text)
    tab.page.keyboard.press("Control+Home")


def button(tab: Tab, name: str) -> Locator:
    return tab.page.get_by_role("button", name=name, exact=True)


def form(tab: Tab, name: str, **query: str) -> None:
    more = "".join(f"&{key}={value}" for key, value in query.items())
    tab.go(f"sql/{name}?database=dev/main&schema=public{more}")
    expect(tab.page.locator("ps-sql-form").get_by_role("heading", level=1)).to_be_visible()
    expect(tab.page.locator(".busy")).to_have_count(0)


def modules(tab: Tab, text: str, *arguments: Any) -> Any:
    """What a function with the body ``text`` returns, which has the modules of SQL."""
    return tab.page.evaluate(
        f"""async given => {{
          const at = document.querySelector('script[type=module]').src.replace('main.js', '')
          const paths = ['ideas/sql.js', 'pages/sql/statements.js']
          const [sql, made] = await Promise.all(paths.map(path => import(at + path)))
          {text}
        }}""",
        list(arguments),
    )


# Running


def test_rows_of_a_statement(tab: Tab) -> None:
    tab.go("sql")
    write(tab, "select 9007199254740993 as big, null as nothing, E'a\\tb' as text;\n\nselect 2 as second")
    button(tab, "Run").click()
    grid = tab.page.get_by_role("grid", name="Rows of the result")
    expect(grid.get_by_role("columnheader", name="big bigint")).to_be_visible()
    expect(grid.get_by_text("9007199254740993")).to_be_visible()
    expect(tab.page.get_by_text("1 row in")).to_be_visible()
    # The statement at the cursor, by the keyboard.
    editor(tab).press("Control+End")
    editor(tab).press("Control+Enter")
    expect(grid.get_by_role("columnheader", name="second integer")).to_be_visible()
    button(tab, "Run all").click()
    tabs = tab.page.get_by_role("tablist", name="Results")
    expect(tabs.get_by_role("tab")).to_have_text(["1 SELECT 1", "2 SELECT 1"])
    tabs.get_by_role("tab", selected=True).press("ArrowLeft")
    expect(grid.get_by_role("columnheader", name="big bigint")).to_be_visible()


def test_what_is_too_much_is_cut_and_said(tab: Tab) -> None:
    tab.go("sql")
    write(tab, "select generate_series(1, 2000000000)")
    button(tab, "Run").click()
    expect(tab.page.get_by_text("The first 1,000 rows in")).to_be_visible()
    # What writes although it begins as what reads is run all the same.
    write(tab, "with made as (insert into planned values (0, 0) returning id) select * from made")
    button(tab, "Run").click()
    expect(tab.page.get_by_text("1 row in")).to_be_visible()
    assert tab.running.sql("delete from planned where id = 0 returning id") == [(0,)]


def test_a_slow_statement_is_stopped(tab: Tab) -> None:
    tab.go("sql")
    # Longer than anything here waits.
    tab.page.get_by_label("Time limit of a statement").select_option("10 min")
    write(tab, "select pg_sleep(600)")
    button(tab, "Run").click()
    expect(tab.page.get_by_text(re.compile("Running for .* of 10 min"))).to_be_visible()
    eventually(lambda: tab.running.sql(SLEEPING) == [(1,)], "the statement to run")
    button(tab, "Stop").click()
    expect(tab.page.get_by_text("Stopped. The statement was cancelled")).to_be_visible()
    eventually(lambda: tab.running.sql(SLEEPING) == [(0,)], "the statement to end")
    # And so does one whose page is left.
    button(tab, "Run").click()
    eventually(lambda: tab.running.sql(SLEEPING) == [(1,)], "the statement to run")
    tab.page.reload()
    eventually(lambda: tab.running.sql(SLEEPING) == [(0,)], "the statement to end")
    expect(editor(tab)).to_have_value("select pg_sleep(600)")


def test_a_statement_has_a_time_limit_that_is_chosen(tab: Tab) -> None:
    tab.go("sql")
    tab.page.get_by_label("Time limit of a statement").select_option("10 s")
    write(tab, "set statement_timeout = '50ms'; select pg_sleep(60)")
    with tab.page.expect_request(lambda request: "pg_sleep" in (request.post_data or "")) as sent:
        button(tab, "Run all").click()
    assert json.loads(sent.value.post_data or "")["timeout_seconds"] == 10
    expect(tab.page.get_by_role("alert")).to_contain_text("canceling statement due to statement timeout")


def test_an_error_is_marked_at_its_place(tab: Tab) -> None:
    tab.go("sql")
    write(tab, "select 'é𝄞';\n\nselect 'é𝄞', missing from pg_class")
    editor(tab).press("Control+End")
    button(tab, "Run").click()
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text('column "missing" does not exist')
    expect(alert).to_contain_text("Line 3, column 14")
    assert marked(tab) == ["missing"]
    expect(editor(tab)).to_have_attribute("aria-invalid", "true")
    button(tab, "Show the place").click()
    tab.page.keyboard.type("x")
    expect(editor(tab)).to_have_value("select 'é𝄞';\n\nselect 'é𝄞', xmissing from pg_class")
    assert marked(tab) == []


def marked(tab: Tab) -> Any:
    text = "one => one.startContainer.data.slice(one.startOffset, one.endOffset)"
    return tab.page.evaluate(f"[...CSS.highlights.get('sql-error')].map({text})")


def test_plans_are_trees(tab: Tab) -> None:
    tab.go("sql")
    write(tab, "select n, count(*) from planned where id < 500 group by 1 order by 2 desc;")
    button(tab, "Explain").click()
    plan = tab.page.get_by_role("region", name="Plan")
    expect(plan).to_contain_text("Not run: these are estimates.")
    expect(plan.get_by_text("Costs most")).to_be_visible()
    button(tab, "Measure").click()
    expect(plan.get_by_text("Takes longest")).to_be_visible()
    expect(plan).to_contain_text("planned, planned_pkey")
    expect(plan).to_contain_text("499 rows, ")
    write(tab, "delete from planned")
    button(tab, "Measure").click()
    expect(plan).to_contain_text("What it changed was undone.")
    assert tab.running.sql("select count(*) from planned") == [(20000,)]


def test_notices_and_history_and_snippets(tab: Tab) -> None:
    tab.go("sql")
    write(tab, "do $$ begin raise notice 'seen <b>%</b>', 7; end $$")
    button(tab, "Run").click()
    expect(tab.page.get_by_text("seen <b>7</b>")).to_be_visible()
    editor(tab).fill("")
    button(tab, "History").click()
    tab.page.get_by_role("dialog").get_by_text("raise notice").click()
    expect(editor(tab)).to_have_value("do $$ begin raise notice 'seen <b>%</b>', 7; end $$")
    editor(tab).fill("")
    button(tab, "More").click()
    button(tab, "Snippets").click()
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    names = tab.page.get_by_role("dialog").locator(".list button").all_inner_texts()
    assert names
    for name in names:
        tab.page.get_by_role("dialog").get_by_role("button", name=name).click()
        expect(editor(tab)).not_to_have_value("")
        # The results of the one before are shown until then.
        with tab.page.expect_response("**/admin/sql"):
            tab.page.get_by_role("button", name="Run all").click()
        expect(tab.page.get_by_text(re.compile(r"rows? in"))).to_be_visible()
        editor(tab).fill("")
        button(tab, "More").click()
        button(tab, "Snippets").click()


def test_where_sql_is_off_the_page_says_so(tab: Tab) -> None:
    refusal = '{"data": null, "error": {"code": "console_sql_off", "message": "server.console_sql is off."}}'

    def refuse(route: Route) -> None:
        route.fulfill(status=403, body=refusal, content_type="application/json")

    tab.page.route("**/admin/sql", refuse)
    tab.go("sql")
    tab.page.reload()
    expect(tab.page.get_by_text("server.console_sql is off.")).to_be_visible()
    expect(button(tab, "Run")).to_be_disabled()


# The editor


def test_the_editor_lets_whoever_has_no_mouse_out(tab: Tab) -> None:
    tab.go("sql")
    write(tab, "select 1")
    tab.page.keyboard.press("Tab")
    expect(editor(tab)).to_have_value("  select 1")
    tab.page.keyboard.press("Shift+Tab")
    expect(editor(tab)).to_have_value("select 1")
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Tab")
    expect(editor(tab)).not_to_be_focused()
    expect(editor(tab)).to_have_value("select 1")


def test_names_are_completed_by_the_keyboard(tab: Tab) -> None:
    tab.running.sql(
        'create schema if not exists "my things"; create table if not exists "my things"."T 1" (id int)'
    )
    tab.go("sql")
    tab.page.reload()
    write(tab, "")
    keyboard = tab.page.keyboard
    tab.page.reload()
    # What is typed before they are known is completed without them.
    tab.page.wait_for_function("() => document.querySelector('ps-editor')?.names.relations.length > 0")
    editor(tab).click()
    keyboard.type("select * from plann")
    completions = tab.page.get_by_role("listbox", name="Completions")
    option = completions.get_by_role("option", selected=True)
    expect(option).to_have_text("plannedtable")
    keyboard.press("Tab")
    keyboard.type(" p where p.")
    expect(completions.get_by_role("option")).to_have_text(["idcolumn", "ncolumn"])
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    expect(editor(tab)).to_have_value("select * from planned p where p.n")
    keyboard.press("Control+Z")
    expect(editor(tab)).to_have_value("select * from planned p where p.")
    # What comes by itself is taken as well; a word that is whole, and one after Escape, ends in a new line.
    write(tab, "")
    keyboard.type("sel")
    expect(option).to_be_visible()
    keyboard.press("Enter")
    expect(editor(tab)).to_have_value("select")
    keyboard.press("Control+Space")
    expect(option).to_have_text("selectkeyword")
    keyboard.press("Enter")
    expect(editor(tab)).to_have_value("select\n")
    write(tab, "")
    keyboard.type("sel")
    expect(option).to_be_visible()
    keyboard.press("Escape")
    keyboard.press("Enter")
    expect(editor(tab)).to_have_value("sel\n")
    keyboard.type("select * from my")
    keyboard.press("Control+Space")
    expect(completions.get_by_role("option")).to_have_text(["my things.T 1table", "my thingsschema"])
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    keyboard.type(".")
    keyboard.press("Tab")
    expect(editor(tab)).to_have_value('sel\nselect * from "my things"."T 1"')
    # Within texts and comments there is nothing to complete.
    write(tab, "")
    keyboard.type("select 'plann")
    expect(completions).not_to_be_visible()


def test_statements_are_split_as_the_service_does(tab: Tab) -> None:
    """Each of these hides a semicolon, or a quote."""
    tab.go("sql")
    texts = [f"select {each} x ; select 2" for each in OPAQUE]
    texts += [
        "create function f() returns int begin atomic select 1; select case when true then 1 end; end; select 2"
    ]
    found = modules(
        tab,
        "return given[0].map(text => sql.statements(text).map(each => text.slice(each.start, each.end)))",
        texts,
    )
    for text, parts in zip(texts, found, strict=True):
        assert parts == [text.rpartition(";")[0].strip(), "select 2"], text


def test_the_editor_grows_as_it_is_dragged(tab: Tab) -> None:
    tab.go("sql")
    box = tab.page.locator("ps-editor").bounding_box()
    assert box
    x, y = box["x"] + box["width"] - 4, box["y"] + box["height"] - 4
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    tab.page.mouse.move(x, y + 50, steps=3)
    tab.page.mouse.up()
    grown = "height => Math.abs(document.querySelector('ps-editor').offsetHeight - height) < 5"
    tab.page.wait_for_function(grown, arg=box["height"] + 50)


def test_a_letter_in_a_long_text_does_not_wait_for_colours(tab: Tab) -> None:
    tab.go("sql")
    line = "select t.id, 'text', \"Name\" from things t where t.n > 17 -- comment\n"
    write(tab, line * 800)
    coloured_at_once = tab.page.evaluate(
        """() => {
          let changes = 0
          const { add } = Highlight.prototype
          Highlight.prototype.add = function (range) { changes++; return add.call(this, range) }
          const text = document.querySelector('ps-editor textarea')
          text.focus()
          text.setSelectionRange(0, 0)
          document.execCommand('insertText', false, 'x')
          Highlight.prototype.add = add
          return changes
        }"""
    )
    assert coloured_at_once == 0
    coloured = "CSS.highlights.get('sql-comment').size"
    eventually(lambda: tab.page.evaluate(coloured) == 800, "the colours")


# Forms


def test_a_person_makes_a_table_and_saves_it(tab: Tab, folder: Path) -> None:
    form(tab, "new-table")
    tab.page.get_by_label("Name", exact=True).fill("notes")
    button(tab, "Add a column").click()
    tab.page.get_by_label("Column 5: name").fill("Stars")
    tab.page.get_by_label("Column 5: type").fill("int")
    tab.page.get_by_label("Column 5: default").fill("3")
    shown = tab.page.get_by_label("SQL of the form")
    expect(shown).to_have_value(
        re.compile(r'"Stars" int default 3\n\);\nalter table .* enable row level security')
    )
    button(tab, "Make the table").click()
    expect(tab.page.get_by_role("link", name="Show the table")).to_be_visible()
    # The API knows it at once.
    assert tab.running.call("GET", "/dev/db/main/rest/notes?select=Stars").json() == []
    body = {"email": "person@example.com", "password": "a long enough one"}
    token = requests.post(f"{tab.running.url}/auth/signup", json=body, timeout=60).json()["data"][
        "access_token"
    ]
    key = {"apikey": tab.running.anon_key}
    headers = {**key, "Authorization": f"Bearer {token}", "Prefer": "return=representation"}
    url = f"{tab.running.url}/dev/db/main/rest/notes"
    made = requests.post(url, json={"title": "mine"}, headers=headers, timeout=60)
    assert made.status_code == 201, made.text
    assert made.json()[0]["Stars"] == 3
    # Nobody else sees it.
    assert requests.get(url, headers=key, timeout=60).status_code == 401
    sql = shown.input_value()
    button(tab, "Save as migration").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog.get_by_label("It has been run on this database")).to_be_checked()
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(tab.page.get_by_text("Saved as 0001_table_notes.sql.")).to_be_visible()
    assert (folder / "0001_table_notes.sql").read_text() == sql + "\n"
    history = tab.running.sql("select name from _project_service.project_migrations")
    assert history == [("0001_table_notes.sql",)]


def test_enter_in_a_field_runs_nothing(tab: Tab) -> None:
    form(tab, "new-table")
    name = tab.page.get_by_label("Name", exact=True)
    expect(name).to_be_focused()
    tab.page.keyboard.type("entered")
    tab.page.keyboard.press("Enter")
    for label in ("What it holds", "Column 1: name", "Column 2: default", "Column 2: type", "Primary key"):
        tab.page.get_by_label(label).first.press("Enter")
    assert tab.running.sql("select to_regclass('entered')") == [(None,)]
    expect(name).to_have_value("entered")
    # The order of columns, and what a default may be.
    shown = tab.page.get_by_label("SQL of the form")
    expect(shown).to_have_value(
        re.compile(r"bigint generated by default as identity.*,\n  title text not null,")
    )
    expect(tab.page.get_by_label("Column 1: default")).to_have_attribute("placeholder", "generated")
    button(tab, "Move column title up").click()
    expect(shown).to_have_value(re.compile(r"\(\n  title text not null,\n  id bigint"))
    button(tab, "Add a column").click()
    expect(tab.page.get_by_label("Column 5: name")).to_be_focused()
    tab.page.keyboard.type("finished")
    tab.page.get_by_label("Column 5: type").fill("boolean")
    tab.page.get_by_label("Column 5: default").select_option("false")
    # What PostgreSQL says of a column stands there.
    tab.page.get_by_label("Column 1: type").fill("txet")
    button(tab, "Make the table").click()
    at_fault = tab.page.get_by_role("listitem").filter(has=tab.page.get_by_label("Column 1: type"))
    expect(at_fault.get_by_text('type "txet" does not exist')).to_be_visible()
    tab.page.get_by_label("Column 1: type").fill("text")
    with tab.page.expect_response("**/admin/sql"):
        tab.page.get_by_label("Column 5: name").press("Control+Enter")
    expect(tab.page.get_by_text("The table entered was made.", exact=True)).to_be_visible()
    expect(tab.page.get_by_role("link", name="Show the table")).to_be_visible()
    expect(tab.page.get_by_role("link", name="Add a policy")).to_be_visible()
    expect(tab.page.get_by_role("link", name="Back to the tables")).to_be_visible()
    tab.page.get_by_role("link", name="New row").click()
    expect(tab.page.get_by_role("dialog").get_by_label("title")).to_be_visible()
    expect(tab.page).to_have_url(re.compile("public/entered$"))
    columns = "select string_agg(attname, ' ' order by attnum) from pg_attribute"
    assert tab.running.sql(f"{columns} where attnum > 0 and attrelid = 'entered'::regclass") == [
        ("title id owner created_at finished",)
    ]


def test_a_column_a_policy_and_a_grant(tab: Tab) -> None:
    tab.running.sql(
        "create table if not exists shelves (id int, owner uuid); alter table shelves enable row level security"
    )
    form(tab, "new-column", relation="shelves")
    tab.page.get_by_label("Column: name").fill("place")
    button(tab, "Add the column").click()
    expect(tab.page.get_by_text("The column place was added.", exact=True)).to_be_visible()
    form(tab, "new-policy", relation="shelves")
    tab.page.get_by_label("Begin with").select_option("Anyone, even not signed in: read")
    shown = tab.page.get_by_label("SQL of the form")
    expect(shown).to_have_value(re.compile("\ngrant select on public.shelves to anon, authenticated;$"))
    tab.page.get_by_label("And grant what it needs").uncheck()
    expect(shown).to_have_value(re.compile(r"using \(true\);$"))
    button(tab, "Make the policy").click()
    expect(tab.page.get_by_text("The policy Everybody may read was made.", exact=True)).to_be_visible()
    # Nothing comes of it without a grant, and that is said.
    tab.page.get_by_role("link", name="Show its rights").click()
    expect(tab.page.get_by_text("has no effect until anon has a grant")).to_be_visible()
    tab.page.get_by_role("link", name="Grant authenticated what").click()
    expect(shown).to_have_value("grant select on public.shelves to authenticated;")
    with tab.page.expect_response("**/names"):
        button(tab, "Grant").click()
    tab.page.get_by_role("link", name="Show its rights").click()
    expect(tab.page.get_by_text(re.compile("has no effect until"))).to_have_count(1)
    form(tab, "new-grant", relation="shelves")
    tab.page.get_by_label("Not signed in").check()
    button(tab, "Grant").click()
    expect(tab.page.get_by_text("The rights on shelves were granted.", exact=True)).to_be_visible()
    link = tab.page.get_by_role("link", name="Show its rights")
    expect(link).to_have_attribute("href", "#/tables/dev/main/public/shelves?%40tab=rights")
    url = f"{tab.running.url}/dev/db/main/rest/shelves?select=place"
    assert requests.get(url, headers={"apikey": tab.running.anon_key}, timeout=60).json() == []
    # The same once more is refused, and the form says why.
    form(tab, "new-column", relation="shelves")
    tab.page.get_by_label("Column: name").fill("place")
    button(tab, "Add the column").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("already exists")
    button(tab, "Open in the editor").click()
    expect(editor(tab)).to_have_value("alter table public.shelves add column place text;")


def change(tab: Tab, link: str, action: str, said: str) -> None:
    """Follow the link of the table ``hives``, and do what its form says."""
    tab.page.get_by_role("link", name=link, exact=True).click()
    with tab.page.expect_response("**/names"):
        button(tab, action).click()
    expect(tab.page.get_by_text(said, exact=True)).to_be_visible()


def test_what_was_made_is_changed_and_taken_back(tab: Tab) -> None:
    tab.running.sql(
        "create table hives (id int primary key, bees text default '3', owner uuid);"
        "insert into hives select generate_series(1, 1234); alter table hives enable row level security;"
        "create policy mine on hives using (owner = auth.uid()); create policy mine2 on hives using (true);"
        "grant select, insert on hives to anon"
    )
    page = tab.page
    tab.go("tables/dev/main/public/hives?@tab=columns")
    page.get_by_role("link", name="Change column bees").click()
    expect(page.get_by_label("Column: default")).to_have_value("'3'::text")
    page.get_by_label("Column: name").fill("number")
    page.get_by_label("Column: type").fill("bigint")
    page.get_by_label("Column: default").fill("7")
    button(tab, "Change it").click()
    # The old default does not become a number by itself, so PostgreSQL refuses all of it.
    expect(page.get_by_text("Nothing of it was done.")).to_be_visible()
    page.get_by_label("Column: default").fill("")
    button(tab, "Change it").click()
    expect(page.get_by_text("The column bees was changed.")).to_be_visible()
    page.get_by_role("link", name="Show its columns").click()
    page.get_by_role("link", name="Delete column number").click()
    expect(page.get_by_text("in 1,234 rows is deleted")).to_be_visible()
    expect(button(tab, "Delete it")).to_be_disabled()
    page.get_by_label("to go on").fill("number")
    button(tab, "Delete it").click()
    page.get_by_role("link", name="Show its columns").click()
    page.get_by_role("link", name="Rights", exact=True).click()
    page.get_by_role("link", name="Change policy mine", exact=True).click()
    page.get_by_label(re.compile(r"^Which rows\s+A condition")).fill("id < 3")
    page.get_by_label("Signed in authenticated", exact=True).check()
    page.get_by_label("Everybody PUBLIC").uncheck()
    button(tab, "Change it").click()
    page.get_by_role("link", name="Show its rights").click()
    policies = page.get_by_role("region", name="Policies")
    expect(policies.get_by_role("row").nth(1)).to_contain_text("(id < 3)")
    expect(policies.get_by_role("row").nth(1)).to_contain_text("authenticated")
    change(tab, "Delete policy mine2", "Delete it", "The policy mine2 was deleted.")
    page.get_by_role("link", name="Back to hives").click()
    expect(page.get_by_role("region", name="Grants")).to_contain_text("read, add")
    change(tab, "Revoke rights of anon", "Revoke", "The rights of anon were revoked.")
    page.get_by_role("link", name="Show its rights").click()
    # That of the service key is there from the beginning.
    expect(page.get_by_role("region", name="Grants").get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("link", name="Revoke rights of anon")).to_have_count(0)
    change(tab, "Switch it off", "Switch it off", "Row-level security of hives is off.")


def test_a_table_is_renamed_and_deleted(tab: Tab) -> None:
    tab.running.sql("create table swarms (id int); insert into swarms select generate_series(1, 1234)")
    page = tab.page
    tab.go("tables/dev/main/public/swarms")
    button(tab, "More for this table").click()
    page.get_by_role("link", name="Rename the table").click()
    page.get_by_label("New name").fill("old swarms")
    button(tab, "Rename it").click()
    page.get_by_role("link", name="Show the table").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("old swarms")
    button(tab, "More for this table").click()
    page.get_by_role("link", name="Delete the table").click()
    expect(page.get_by_text("1,234 rows are deleted with it")).to_be_visible()
    expect(page.get_by_label("to go on")).to_be_focused()
    expect(page.get_by_role("link", name="Back to old swarms")).to_be_visible()
    page.get_by_label("to go on").fill("old swarms")
    button(tab, "Delete it").click()
    expect(page.get_by_role("link", name="Show the tables")).to_be_visible()
    assert tab.running.sql("""select to_regclass('swarms'), to_regclass('"old swarms"')""") == [(None, None)]


NAMES = (
    *('a"b', "it's", "x; drop table y", "sp ace", "Größe", "\u202eevil", "$$", "\\", "select"),
    *("a\nb", "𝄞", "--", "/*", "A", "1"),
)
# As the forms would, with the name wherever a name or a text can be.
MADE = """
const [name] = given, relation = { schema: name, name }
const column = { name, type: 'text', required: true, default: sql.literal(name), primary: false, unique: true,
                 references: null }
const id = { ...column, name: 'id', type: 'int', default: '', primary: true }
const referring = { ...column, name: name + '2', type: 'int', default: '', required: false,
                    references: { ...relation, column: 'id', onDelete: 'cascade' } }
const own = `${sql.ident(name)} = ${sql.literal(name)}`
return [
  `create schema ${sql.ident(name)};`,
  made.createTable({ relation, columns: [id, column], security: true, comment: name, owner: "",
                     access: made.ACCESS[2] }),
  made.addColumn(relation, referring, name),
  made.createPolicy(relation, { name, command: 'all', roles: ['PUBLIC'], using: own, check: '' }),
  made.grant(relation, { privileges: ['select', 'delete'], roles: ['anon', 'PUBLIC'], columns: [name] }),
  `insert into ${sql.qualified(name, name)} (id) overriding system value values (1);`,
].join('\\n')
"""
# What was made, changed and taken away again.
TAKEN_BACK = """
const [name] = given, relation = { schema: name, name }, next = { schema: name, name: name + '3' }
const before = { name, type: 'text', required: true, default: '' }
const policy = { name, roles: ['PUBLIC'], using: 'true', check: '' }
return [
  made.alterPolicy(relation, policy,
    { name: name + '4', roles: ['anon'], using: `${sql.ident(name)} <> ''`, check: 'false' }),
  made.dropPolicy(relation, name + '4'),
  made.changeColumn(relation, before,
    { name: name + '5', type: 'varchar', required: false, default: sql.literal(name) }),
  made.revoke(relation, { roles: ['anon', 'PUBLIC'], privileges: ['select', 'delete'] }),
  made.setSecurity(relation, false),
  made.renameTable(relation, next.name),
  made.dropColumn(next, name + '5', true),
].join('\\n')
"""
LEFT = """
select relrowsecurity, has_table_privilege('anon', c.oid, 'select'),
  array(select attname::text from pg_attribute
    where attrelid = c.oid and attnum > 0 and not attisdropped order by attnum),
  array(select polname::text from pg_policy where polrelid = c.oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s
"""
FACTS = """
select obj_description(c.oid, 'pg_class'), col_description(c.oid, 3),
  array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0 order by attnum),
  array(select polname::text from pg_policy where polrelid = c.oid order by oid)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s
"""


def test_forms_quote_whatever_names_are(tab: Tab) -> None:
    tab.go("sql")
    for name in NAMES:
        tab.running.sql(modules(tab, MADE, name))
        (found,) = tab.running.sql(FACTS, name, name)
        assert found == (name, name, ["id", name, f"{name}2"], ["Everybody may read", name])
        quoted = '"' + name.replace('"', '""') + '"'
        assert tab.running.sql(f"select {quoted} from {quoted}.{quoted}") == [(name,)]
        tab.running.sql(modules(tab, TAKEN_BACK, name))
        (left,) = tab.running.sql(LEFT, name, f"{name}3")
        assert left == (False, False, ["id", f"{name}2"], ["Everybody may read"])
        dropping = "return made.dropTable({ schema: given[0], name: given[0] + '3' }, true)"
        tab.running.sql(modules(tab, dropping, name))
        tab.running.sql(f"drop schema {quoted}")


# What it looks like


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_keeps_nobody_out(chrome: Browser, running: Running, axe: Axe, theme: Any) -> None:
    with opened(chrome, running, color_scheme=theme) as tab:
        tab.go("sql")
        write(tab, COLOURS)
        button(tab, "Run all").click()
        expect(tab.page.get_by_role("alert")).to_be_visible()
        shot(tab, f"error-{theme}")
        axe.check(tab)
        tab.page.get_by_role("tab").first.click()
        expect(tab.page.get_by_role("grid")).to_be_visible()
        shot(tab, f"rows-{theme}")
        write(tab, "select n, count(*) from planned where id < 500 group by 1 order by 2 desc;")
        button(tab, "Measure").click()
        expect(tab.page.get_by_text("Takes longest")).to_be_visible()
        shot(tab, f"plan-{theme}")
        axe.check(tab)
        for name in ("new-table", "new-column", "new-policy", "new-grant", "change-column", "delete-table"):
            form(tab, name, relation="planned", of="n" if name == "change-column" else "")
            if name == "new-table":
                tab.page.get_by_label("Name", exact=True).fill("notes")
            if name == "delete-table":
                expect(tab.page.get_by_text("20,000 rows are deleted")).to_be_visible()
            shot(tab, f"{name}-{theme}")
            axe.check(tab)


def test_it_fits_into_a_telephone_in_both_directions(chrome: Browser, running: Running, axe: Axe) -> None:
    with opened(chrome, running, viewport=NARROW) as tab:
        for direction in ("ltr", "rtl"):
            tab.page.evaluate("to => { document.documentElement.dir = to }", direction)
            tab.go("sql")
            write(tab, "select relname, oid from pg_class;")
            # The second time there are rows already.
            with tab.page.expect_response("**/admin/sql"):
                button(tab, "Run").click()
            expect(button(tab, "Run")).to_be_visible()
            expect(tab.page.get_by_role("grid")).to_be_visible()
            shot(tab, f"small-{direction}")
            tab.has_no_sideways_scrolling()
            axe.check(tab)
            form(tab, "new-table")
            shot(tab, f"small-new-table-{direction}")
            tab.has_no_sideways_scrolling()
            axe.check(tab)
