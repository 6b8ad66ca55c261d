"""Views as queries and as code, by the modules alone: what means something in a query, a shell or a language is only
a value, and no number is rounded."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.live.console.alone import page_of

HOSTILE = (
    "a,b",
    'quo"te',
    "back\\slash",
    "it's $HOME `x` ${y} \\n",
    "(x)",
    "null",
    "*",
    "",
    " ",
    "ünï→",
    "new\nline",
)


@pytest.fixture(scope="module")
def page(chrome: Browser, address: str) -> Iterator[Page]:
    with page_of(chrome, address) as page:
        yield page


def run(page: Page, module: str, text: str, *given: object) -> Any:
    """What the function ``text`` of a module and values gives."""
    source = f"async given => {{ const m = await import('/{module}'); return ({text})(m, ...given) }}"
    return page.evaluate(source, list(given))


def test_a_filter_is_read_as_it_was_made(page: Page) -> None:
    for value in HOSTILE:
        for operator in ("eq", "neq", "gt", "ilike"):
            made = run(
                page, "pages/tables/query.js", "(m, ...a) => m.makeFilter(...a)", "title", operator, value
            )
            read = run(page, "pages/tables/query.js", "(m, filter) => m.readFilter(filter)", made)
            assert read == {"column": "title", "operator": operator, "value": value}
    several = "m => m.readFilter(m.makeFilter('title', 'in', 'a, b\"c')).value"
    assert run(page, "pages/tables/query.js", several) == 'a, b"c'
    # What the form cannot say is left as it is.
    for one in ('in.("a,b")', "phfts.word", "constructor.a", "ilike.a*", "not.eq.1"):
        assert run(page, "pages/tables/query.js", "(m, one) => m.readFilter(['title', one])", one) is None


def test_names_are_quoted_where_they_would_mean_something_else(page: Page) -> None:
    for name in (*HOSTILE, "order", "select", "not", "@as", "or"):
        back = run(
            page, "pages/tables/query.js", "(m, name) => [m.quoted(name), m.unquoted(m.quoted(name))]", name
        )
        assert back[1] == name
        assert back[0].startswith('"') or name == "null", back
    order = [{"column": name, "descending": name > "b"} for name in HOSTILE]
    text = run(page, "pages/tables/query.js", "(m, order) => m.orderText(order)", order)
    read = "(m, text) => m.orderOf(new URLSearchParams([['order', text]]))"
    assert run(page, "pages/tables/query.js", read, text) == order


def test_what_somebody_types_becomes_a_value_of_the_type_or_is_refused(page: Page) -> None:
    def parse(base: str, typed: str, **more: Any) -> Any:
        column = {"base_type": base, "array": False, "enum": None, **more}
        text = "(m, ...a) => { try { return JSON.stringify(m.parse(...a)) } catch (e) { return `refused: ${e}` } }"
        return run(page, "ideas/fields.js", text, column, typed)

    assert parse("integer", " 12 ") == "12"
    assert parse("bigint", "9007199254740993") == '"9007199254740993"'
    assert parse("numeric(12,2)", "1.50") == '"1.50"'
    assert parse("boolean", "false") == "false"
    assert parse("text", " as it is\n") == '" as it is\\n"'
    assert parse("jsonb", '{"n": 12345678901234567890, "x": 1.5}') == '{"n":12345678901234567890,"x":1.5}'
    assert parse("text", '["a", null]', array=True) == '["a",null]'
    for base, typed, more in (
        ("integer", "1.5", {}),
        ("integer", "", {}),
        ("numeric", "one", {}),
        ("jsonb", "{", {}),
        ("text", "{}", {"array": True}),
        ("date", "", {}),
    ):
        assert parse(base, typed, **more).startswith("refused: ")


def test_numbers_of_rows_are_not_rounded(page: Page) -> None:
    body = '[{"a": 9007199254740993, "b": 1.50, "c": {"d": 12345678901234567890}, "e": 0.1}]'
    told = "(m, body) => { const [row] = m.parseRows(body); return [row.a, row.b, JSON.stringify(row.c), row.e] }"
    assert run(page, "pages/tables/query.js", told, body) == [
        "9007199254740993",
        1.5,
        '{"d":12345678901234567890}',
        0.1,
    ]


def test_code_holds_values_as_they_are(page: Page) -> None:
    for value in HOSTILE:
        body = {"title": value, "none": None, "yes": True, "more": [1, {"a": value}]}
        call = {
            "method": "POST",
            "path": "/dev/db/main/rest/notes",
            "body": body,
            "headers": {"Prefer": "return=minimal"},
        }
        words = shlex.split(run(page, "ideas/code.js", "(m, call) => m.curl(call)", call).replace("\\\n", ""))
        assert json.loads(words[words.index("-d") + 1]) == body
        assert "apikey: $SERVICE_KEY" in words
        tree = ast.parse(run(page, "ideas/code.js", "(m, call) => m.inPython(call)", call))
        [sent] = [
            each.value for each in ast.walk(tree) if isinstance(each, ast.keyword) and each.arg == "json"
        ]
        assert ast.literal_eval(sent) == body
        inserted = run(page, "ideas/code.js", "(m, call) => m.inJavaScript(call)", call)
        given = inserted.partition(".insert(")[2].rpartition(");")[0]
        assert json.loads(given) == body


def test_code_says_who_asks_by_names_of_variables_alone(page: Page) -> None:
    for as_, variables in (
        ("service", {"SERVICE_KEY"}),
        ("anon", {"ANON_KEY"}),
        ({"id": "1", "email": "a@b.test"}, {"ANON_KEY", "ACCESS_TOKEN"}),
    ):
        for path in ("/dev/db/main/rest/notes", "/storage/buckets"):
            call = {"path": path, "as": as_}
            for form in ("curl", "inPython", "inJavaScript"):
                text = run(page, "ideas/code.js", f"(m, call) => m.{form}(call)", call)
                found = {name for name in ("SERVICE_KEY", "ANON_KEY", "ACCESS_TOKEN") if name in text}
                assert found == variables, text
                if form == "inPython":
                    ast.parse(text)


def test_csv_is_read_the_same_in_whatever_pieces_it_comes(page: Page) -> None:
    body = 'a,"b ""c""",NULL\r\n,"",\n\n"x\r\ny,","NULL","N"\nend,2,'
    read = """(m, pieces) => { const all = new m.Records()
      return pieces.flatMap((one, at) => [...all.read(one, at === pieces.length - 1)]) }"""
    expected = [
        {"line": 1, "cells": ["a", 'b "c"', None]},
        {"line": 2, "cells": [None, "", None]},
        {"line": 4, "cells": ["x\r\ny,", "NULL", "N"]},
        {"line": 6, "cells": ["end", "2", None]},
    ]
    assert run(page, "pages/tables/records.js", read, list(body)) == expected
    for at in range(len(body) + 1):
        assert run(page, "pages/tables/records.js", read, [body[:at], body[at:]]) == expected
    refused = """m => {
      try { [...new m.Records().read('a,b\\n"c" d,', true)] } catch (fault) { return fault.message } }"""
    assert run(page, "pages/tables/records.js", refused).startswith("Line 2 is no CSV")


def test_rows_of_csv_are_sent_on_the_lines_that_they_have_there(page: Page) -> None:
    made = """async (m, columns) => new Response(
      new Blob(['id,b,j\\n1,"x\\ny",\\n\\n2,,"{""n"":\\n 12345678901234567890}"'])
        .stream().pipeThrough(new TextDecoderStream()).pipeThrough(m.asNdjson(columns))
        .pipeThrough(new TextEncoderStream())).text()"""
    column = {"array": False, "enum": None}
    columns = [
        None,
        {**column, "name": "b", "base_type": "text"},
        {**column, "name": "j", "base_type": "jsonb"},
    ]
    sent = run(page, "pages/tables/records.js", f"({made.strip()})", columns)
    assert sent == '\n{"b":"x\\ny","j":null}\n\n\n{"b":null,"j":{"n":  12345678901234567890}}'
