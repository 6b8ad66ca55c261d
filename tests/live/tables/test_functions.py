"""Functions in a real database: how they are called, the bodies they make, and the rights of their callers."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest_twisted
import treq

from tests.live.tables.service import BASE, Tables, tables, until_answered

__all__ = ["tables"]

DATABASES = ("careful", "narrow")

NDJSON = {"Accept": "application/x-ndjson"}


@pytest_twisted.ensureDeferred
async def test_a_function_whose_type_is_a_media_type_makes_the_body(tables: Tables) -> None:
    tables.sql(
        'create domain "text/x-lines" as text; create domain "application/x-pieces" as bytea;'
        'create domain "application/x-doc" as json;'
        'create function lines() returns setof "text/x-lines" language sql stable as'
        " $$ select 'line ' || i || E'\\n' from generate_series(1, 3) i $$;"
        'create function pieces() returns "application/x-pieces" language sql stable as'
        " $$ select '\\x000102'::bytea $$;"
        'create domain "text/X-Number" as int;'
        'create function number() returns "text/X-Number" language sql stable as $$ select 42 $$;'
        'create function doc() returns "application/x-doc" language sql stable as $$ select \'{"a": 1}\'::json $$;'
        'create function no_line() returns "text/x-lines" language sql stable as $$ select null::text $$'
    )
    await until_answered(tables, "GET", "/rpc/doc", 200)
    for name, kind, expected in (
        ("pieces", "application/x-pieces", b"\x00\x01\x02"),
        ("number", "text/x-number", b"42"),
        ("doc", "application/x-doc", b'{"a": 1}'),
        ("no_line", "text/x-lines", b""),
    ):
        status, headers, body = await tables.request("GET", f"/rpc/{name}", headers={"Accept": kind})
        assert (status, body or b"") == (200, expected), body
        assert headers.getRawHeaders("content-type")[0].startswith(kind)
    assert (await tables.request("GET", "/rpc/number"))[2] == 42
    for term, expected in (("eq.1", b""), ("eq.42", b"42")):
        path, accept = f"/rpc/number?pgrst_scalar={term}", {"Accept": "text/x-number"}
        status, _, body = await tables.request("GET", path, headers=accept)
        assert (status, body or b"") == (200, expected)
    status, _, body = await tables.request("GET", "/rpc/lines", headers={"Accept": "text/x-lines"})
    assert (status, body["code"]) == (406, "PGRST107")
    assert (await tables.request("GET", "/rpc/lines"))[2] == ["line 1\n", "line 2\n", "line 3\n"]


@pytest_twisted.ensureDeferred
async def test_ambiguous_overloads_are_listed_with_their_arguments(tables: Tables) -> None:
    tables.sql(
        "create function either(a text, n int default 0) returns int language sql stable as 'select 1';"
        "create function either(a text) returns int language sql stable as 'select 2';"
        "create function either(a int) returns int language sql stable as 'select 3'"
    )
    status, _, body = await tables.request("GET", "/rpc/either?a=1")
    assert (status, body["code"]) == (300, "PGRST203")
    overloads = ("either(a => integer)", "either(a => text)", "either(a => text, n => integer)")
    assert body["message"].endswith(", ".join(f"public.{one}" for one in overloads))


@pytest_twisted.ensureDeferred
async def test_functions_with_unnamed_arguments_cannot_be_called(tables: Tables) -> None:
    """Except one with a single argument, which is given the body. Computed columns keep working."""
    tables.sql(
        "create function shouted(text) returns text language sql immutable as 'select upper($1)';"
        "create function shouter(int) returns int language sql immutable as 'select $1';"
        "create function summed(int, int) returns int language sql immutable as 'select $1 + $2';"
        "create function twice(authors) returns int language sql immutable as 'select $1.id * 2'"
    )
    plain = {"Content-Type": "text/plain"}
    await until_answered(tables, "POST", "/rpc/shouted", 200, headers=plain, data=b"a")
    _, _, described = await tables.request("GET", "/", headers={"Accept": "application/json"})
    listed = {path for path in described["paths"] if path.startswith("/rpc/")}
    assert ("/rpc/shouted" in listed, listed & {"/rpc/shouter", "/rpc/summed", "/rpc/twice"}) == (True, set())
    status, _, body = await tables.request("POST", "/rpc/shouter", json={"n": 1})
    hint = "Perhaps you meant to call the function public.shouted"
    assert (status, body["code"], body["hint"]) == (404, "PGRST202", hint)
    assert (await tables.request("OPTIONS", "/rpc/summed"))[0] == 404
    assert (await tables.request("GET", "/authors?select=id,twice&limit=0"))[0] == 200


@pytest_twisted.ensureDeferred
async def test_scalars_have_no_columns_to_select_or_filter_by(tables: Tables) -> None:
    tables.sql(
        "create function pairs() returns setof record language sql stable as 'select 1 as n, 2 as m';"
        "create function numbers() returns setof int language sql stable as 'select generate_series(1, 3)';"
        "create function nobody() returns setof authors language sql stable as 'select * from authors limit 0'"
    )
    await until_answered(tables, "GET", "/rpc/numbers", 200)
    assert (await tables.request("GET", "/rpc/pairs?select=*&limit=1"))[2] == [{"n": 1, "m": 2}]
    for name, asked in (
        ("pairs", "select=n"),
        ("pairs", "n=eq.1"),
        ("numbers", "order=n"),
        ("pairs", "or=(n.eq.1)"),
    ):
        status, _, body = await tables.request("GET", f"/rpc/{name}?{asked}")
        assert (status, body["code"], body["message"]) == (400, "42703", f"column {name}.n does not exist")
    status, _, body = await tables.request("GET", "/rpc/numbers?select=of(n)")
    assert (status, body["code"]) == (400, "PGRST200")
    counted = await tables.request("GET", "/rpc/nobody?limit=1", headers={"Prefer": "count=exact"})
    assert (counted[0], counted[1].getRawHeaders("content-range"), counted[2]) == (200, ["*/0"], [])


@pytest_twisted.ensureDeferred
async def test_headers_are_utf_8_both_ways(tables: Tables) -> None:
    tables.sql(
        "create function echoed(raises bool) returns json language plpgsql as $$ declare named text ="
        " current_setting('request.headers')::json->>'x-name'; begin"
        " perform set_config('response.headers', json_build_array(json_build_object('X-Name', named))::text, true);"
        ' if raises then raise sqlstate \'PGRST\' using message = \'{"code": "1", "message": "m"}\', detail ='
        " json_build_object('status', 418, 'headers', json_build_object('X-Name', named))::text; end if;"
        " return json_build_array(named, current_setting('request.cookies')::json->>'city'); end $$"
    )
    sent = {"X-Name": "Łódź 日本", "Cookie": "city=Łódź"}
    status, headers, body = await tables.request("POST", "/rpc/echoed", headers=sent, json={"raises": False})
    assert (status, body) == (200, ["Łódź 日本", "Łódź"])
    assert headers.getRawHeaders(b"x-name") == ["Łódź 日本".encode()]
    status, headers, _ = await tables.request("POST", "/rpc/echoed", headers=sent, json={"raises": True})
    assert (status, headers.getRawHeaders(b"x-name")) == (418, ["Łódź 日本".encode()])
    # A value that is not UTF-8 is read as Latin-1.
    latin = {b"X-Name": [b"caf\xe9"]}
    _, _, body = await tables.request("POST", "/rpc/echoed", headers=latin, json={"raises": False})
    assert body[0] == "café"


@pytest_twisted.ensureDeferred
async def test_a_variadic_argument_is_given_all_values_of_its_name(tables: Tables) -> None:
    tables.sql(
        "create function joined(glue text, variadic parts varchar(2)[] default '{}') returns text"
        " language sql stable as $$ select array_to_string(parts, glue) $$"
    )
    await until_answered(tables, "GET", "/rpc/joined?glue=x&parts=", 200)
    for parts in (["one"], ["one", "", "three,4"]):
        asked = "".join(f"&parts={part}" for part in parts)
        assert (await tables.request("GET", f"/rpc/joined?glue=-{asked}"))[2] == "-".join(parts)
        sent = {"glue": "-", "parts": parts}
        assert (await tables.request("POST", "/rpc/joined", json=sent))[2] == "-".join(parts)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        status, _, body = await tables.request(
            "POST", "/rpc/joined", headers=form, data=f"glue=-{asked}".encode()
        )
        assert (status, body) == (200, "-".join(parts))
    # For an ordinary argument the last value counts.
    assert (await tables.request("GET", "/rpc/joined?glue=a&glue=b&parts=1&parts=2"))[2] == "1b2"


@pytest_twisted.ensureDeferred
async def test_arguments_come_as_an_object_the_first_of_a_list_or_a_form(tables: Tables) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for sent in (
        {"json": {"a": 4, "b": 3}},
        {"json": [{"a": 4, "b": 3}, {"a": 9, "b": 9}]},
        {"headers": form, "data": b"b=3&a=4"},
    ):
        assert (await tables.request("POST", "/rpc/add", **sent))[2] == 7, sent
    for sent in ({"json": {"most": 10}}, {"json": [{"most": 10}]}, {"headers": form, "data": b"most=10"}):
        result = (await tables.request("POST", "/rpc/affordable", **sent))[2]
        assert result == (await tables.request("GET", "/rpc/affordable?most=10"))[2] != [], sent


@pytest_twisted.ensureDeferred
async def test_an_aggregate_with_a_media_type_makes_the_body(tables: Tables) -> None:
    tables.sql(
        'create domain "text/x-titles" as text;'
        "create function titled(text, books) returns text language sql as $$ select $1 || $2.title || '|' $$;"
        'create function as_titles(text) returns "text/x-titles" language sql as'
        " $$ select $1 where set_config('response.headers', '[{\"X-Made\": \"yes\"}]', true) is not null $$;"
        "create aggregate titles(books) (sfunc = titled, stype = text, initcond = '|', finalfunc = as_titles);"
    )
    accept = {"Accept": "text/x-titles"}
    status, headers, body = await tables.request("GET", "/books?id=lte.2&order=id", headers=accept)
    assert (status, headers.getRawHeaders("content-type")) == (200, ["text/x-titles"])
    titles = [row["title"] for row in (await tables.request("GET", "/books?id=lte.2&order=id"))[2]]
    assert body.decode() == "|" + "".join(f"{title}|" for title in titles)
    # It may set headers, for a HEAD too.
    for method in ("GET", "HEAD"):
        _, headers, _ = await tables.request(method, "/books", headers=accept)
        assert headers.getRawHeaders("x-made") == ["yes"], method
    # It is an aggregate of books, so rows of another table are not acceptable.
    status, _, body = await tables.request("GET", "/authors", headers=accept)
    assert (status, body["code"]) == (406, "PGRST107")


@pytest_twisted.ensureDeferred
async def test_a_stable_function_runs_even_if_its_result_is_not_needed(tables: Tables) -> None:
    checked = (
        " language plpgsql stable as $$ begin if a > 1 then raise sqlstate 'PT418' using message = 'no'; end if;"
        " perform set_config('response.headers', '[{\"X-Checked\": \"yes\"}]', true);"
    )
    tables.sql(
        f"create function checked(a int) returns void {checked} end $$;"
        f"create function valued(a int) returns int {checked} return 1; end $$;"
        f"create function written(a int, out x int, out y int) {checked} end $$"
    )
    await until_answered(tables, "GET", "/rpc/written?a=1", 200)
    for name, expected in (("checked", 204), ("valued", 200), ("written", 200)):
        for method in ("GET", "HEAD", "POST"):
            for a, answered, header in ((1, expected, ["yes"]), (2, 418, None)):
                path, json = f"/rpc/{name}", {"a": a} if method == "POST" else None
                asked = path if json else f"{path}?a={a}"
                status, headers, _ = await tables.request(method, asked, json=json)
                assert (status, headers.getRawHeaders("x-checked")) == (answered, header), (method, asked)


@pytest_twisted.ensureDeferred
async def test_a_function_that_writes_runs_to_its_end_whatever_is_shown(tables: Tables) -> None:
    tables.sql(
        "create table noted (id int); create function note(i int) returns int language plpgsql security definer as $$"
        " begin insert into noted values (i); perform set_config('response.headers',"
        ' format(\'[{"X-Noted": "%s"}]\', i), true); return i; end $$;'
        "create function note_all() returns setof int language sql as"
        " $$ select note(i) from generate_series(1, 5) i $$;"
        "create function note_books() returns setof books language sql as $$ select note_all();"
        " select i, 'new', null::int, 1.0, 1999, '{}'::jsonb from generate_series(1, 5) i $$;"
        "create function note_book() returns books language sql as $$ select note_all();"
        " select 1, 'new', null::int, 1.0, 1999, '{}'::jsonb $$"
    )
    await until_answered(tables, "POST", "/rpc/note", 200, json={"i": 0})
    queries = ["", "?limit=1", "?limit=0", "?limit=1&offset=3"]
    hidden = ["?id=eq.8&id=eq.9", "?select=id,authors!inner(id)&authors.id=eq.-1"]
    for name, asked in (
        ("note_all", queries),
        ("note_books", queries + hidden),
        ("note_book", queries + hidden),
    ):
        for query in asked:
            # "careful" has a limit of two rows.
            for base in (BASE, BASE.replace("main", "careful")):
                tables.sql("truncate noted")
                status, headers, _ = await tables.request("POST", f"/rpc/{name}{query}", base=base, json={})
                result = (status, headers.getRawHeaders("x-noted"), tables.sql("select count(*) from noted"))
                assert result == (200, ["5"], [(5,)]), (name, query, base)
    tables.sql("truncate noted")
    past = tables.request("POST", "/rpc/note_all?offset=6", headers={"Prefer": "count=exact"}, json={})
    assert ((await past)[0], tables.sql("select count(*) from noted")) == (416, [(0,)])


@pytest_twisted.ensureDeferred
async def test_a_null_is_an_item_and_each_item_is_one_line(tables: Tables) -> None:
    tables.sql(
        "create function broken(most int) returns setof json language sql stable as"
        " $$ select case when i % 2 = 1 then E'{\\r\\n\"a\":\\n1}'::json end from generate_series(1, most) i $$"
    )
    await until_answered(tables, "GET", "/rpc/broken?most=1", 200)
    # The second result is large enough to be streamed.
    for most in (4, 2000):
        expected = [{"a": 1}, None] * (most // 2)
        assert (await tables.request("GET", f"/rpc/broken?most={most}"))[2] == expected
        lines = (await tables.request("GET", f"/rpc/broken?most={most}", headers=NDJSON))[2]
        assert [json.loads(line) for line in lines.splitlines()] == expected
    lines = (await tables.request("GET", "/authors?select=books(id)&id=eq.1", headers=NDJSON))[2]
    assert [json.loads(line) for line in lines.splitlines()] == [{"books": [{"id": 1}, {"id": 2}]}]


@pytest_twisted.ensureDeferred
async def test_max_affected_counts_all_rows_of_a_function(
    tables: Tables,
) -> None:
    tables.sql(
        "create function counted() returns setof authors language sql stable as"
        " $$ select i, 'n', i from generate_series(1, 2000) i $$"
    )
    await until_answered(tables, "GET", "/rpc/counted?limit=1", 200)
    for most, query, refused in (
        (1999, "", "2000"),
        (1999, "?id=gt.0&offset=0", "2000"),
        (2000, "", None),
        (1000, "?limit=1000", None),
        (5, "?id=lt.7", "6"),
    ):
        more = {"Prefer": f"handling=strict, max-affected={most}"}
        status, _, body = await tables.request("GET", f"/rpc/counted{query}", headers=more)
        if refused is None:
            assert (status, len(body)) == (200, most)
        else:
            assert (status, body["details"]) == (400, f"The query affects {refused} rows")


@pytest_twisted.ensureDeferred
async def test_a_plan_made_for_one_role_is_not_used_for_a_role_without_the_right(tables: Tables) -> None:
    """PostgreSQL inlines functions, and values of immutable ones, that the role a plan is made for may call. With
    one connection the next request would be answered by that plan."""
    tables.sql(
        "create table shelf (id int); insert into shelf values (1); grant select on shelf to anon, authenticated;"
        "create function plain(x int) returns int language sql stable as 'select x + 1';"
        "create function fixed() returns text language plpgsql immutable security definer as "
        "$$ begin return 'secret'; end $$;"
        "create view shown as select id, fixed() from shelf; grant select on shown to anon, authenticated;"
        "revoke execute on function plain(int), fixed() from public;"
        "grant execute on function plain(int), fixed() to authenticated"
    )
    narrow = BASE.replace("main", "narrow")
    await until_answered(tables, "GET", "/shown", 200, base=narrow, token=tables.token)
    for path in ("/rpc/plain?x=1", "/rpc/fixed", "/shown"):
        # After five executions PostgreSQL keeps one plan for all values.
        for _ in range(8):
            assert (await tables.request("GET", path, base=narrow, token=tables.token))[0] == 200
        for _ in range(3):
            status, _, body = await tables.request("GET", path, base=narrow)
            assert (status, body["code"]) == (401, "42501"), path
    tables.sql("drop view shown; drop table shelf; drop function plain, fixed")


@pytest_twisted.ensureDeferred
async def test_unnamed_arguments_are_given_by_the_empty_name(tables: Tables) -> None:
    tables.sql(
        "create function plus_one(text) returns text language sql immutable as $$ select $1 || '1' $$;"
        "create function hexed(bytea default 'z') returns text language sql immutable"
        " as $$ select encode($1, 'hex') $$;"
        "create function same(json) returns json language sql immutable as 'select $1';"
        "create function joined_to(text, b int[]) returns text language sql immutable as 'select $1 || b[2]';"
        "create function one_of_two() returns int language sql immutable as 'select 1';"
        "create function one_of_two(text default 'x') returns int language sql immutable as 'select 2'"
    )
    await until_answered(tables, "GET", "/rpc/hexed", 200)
    for path, body, expected in (
        ("plus_one?=a", None, "a1"),
        ("plus_one", {"": "a"}, "a1"),
        ("plus_one", [{"": "a"}], "a1"),
        ("plus_one", {"": 4}, "41"),
        ("plus_one", {"": None}, None),
        ("hexed", None, "7a"),
        ("hexed?=a", None, "61"),
        ("hexed", {"": "\\x00ff"}, "00ff"),
        ("same", {"": [1]}, [1]),
        ("same", [1], [1]),
        ("same", [{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        ("joined_to", {"": "a", "b": [1, 2]}, "a2"),
        ("joined_to?=a&b={1,2}", None, "a2"),
        ("one_of_two", {"": "x"}, 2),
    ):
        method = "GET" if body is None else "POST"
        more: dict[str, Any] = {} if body is None else {"json": body}
        result = await tables.request(method, f"/rpc/{path}", **more)
        assert (result[0], result[2]) == (200, expected), (path, body, result[2])
    status, _, body = await tables.request("GET", "/rpc/one_of_two")
    assert (status, body["code"]) == (300, "PGRST203")
    assert body["message"].endswith("between: public.one_of_two(), public.one_of_two( => text)")


def without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


@pytest_twisted.ensureDeferred
async def test_rows_without_a_declared_type_have_no_key_twice(tables: Tables) -> None:
    tables.sql(
        "create function same() returns record language sql stable as 'select 1 as a, 2 as a';"
        "create function unnamed() returns setof record language sql stable as"
        " $$ select 1, i + 1 from generate_series(1, 2) i $$;"
        "create function within() returns record language sql stable as $$ select 1.50 as n, x as one,"
        """ array[x, null] as two, '{}'::json as "o""b", '[]'::json as e, '"ü\\n"'::json as t"""
        " from (select null::int as b, 8 as b) x $$;"
        "create function many(n int) returns setof record language sql stable as"
        " $$ select i as a, repeat('x', 1000), i + 1 as a from generate_series(1, n) i $$;"
        "create function numbered(out column2 int, out int) language sql stable as 'select 1, 2';"
        "create function pair(authors) returns record language sql stable as 'select $1.id as k, $1.name as k';"
        "grant execute on all functions in schema public to anon"
    )
    await until_answered(tables, "GET", "/rpc/numbered", 200)
    within = {"n": 1.5, "one": {"b": 8}, "two": [{"b": 8}, None], 'o"b': {}, "e": [], "t": "ü\n"}
    row = {"?column?": 3}
    _, _, body = await tables.request("GET", "/authors?select=id,name&order=id&limit=1")
    first = body[0]
    cases: dict[str, Any] = {
        "/rpc/same": {"a": 2},
        "/rpc/unnamed?offset=1": [row],
        "/rpc/within": within,
        "/rpc/numbered": {"column2": 2},
        "/rpc/numbered?column2=eq.2&select=x:column2": {"x": 2},
        "/authors?select=id,pair&order=id&limit=1": [{"id": first["id"], "pair": {"k": first["name"]}}],
    }
    for path, expected in cases.items():
        url = tables.api.base_url + BASE + path
        for media in ("application/json", "application/x-ndjson", "application/vnd.pgrst.object+json"):
            sent: dict[bytes | str, bytes | str] = {"X-Service-Key": tables.api.anon_key, "Accept": media}
            text = await treq.text_content(await treq.get(url, headers=sent, persistent=False))
            result = json.loads(text, object_pairs_hook=without_repetitions)
            alone = media != "application/json" and isinstance(expected, list)
            assert result == (expected[0] if alone else expected), path
    status, _, body = await tables.request("GET", "/rpc/many?n=5000", headers=NDJSON)
    assert status == 200
    lines = [json.loads(line, object_pairs_hook=without_repetitions) for line in body.splitlines()]
    assert [line["a"] for line in lines] == list(range(2, len(lines) + 2))
    _, _, body = await tables.request("GET", "/rpc/same", headers={"Accept": "text/csv"})
    assert body == b'pgrst_scalar\n"(1,2)"'
    for path in ("/books?select=authors(pair)&limit=1", "/authors?select=books(authors(pair))&limit=1"):
        _, _, body = await tables.request("GET", path, headers={"Accept": "text/csv"})
        cell = next(csv.reader(body.decode().splitlines()[1:]))[0]
        assert '"pair"' in cell, cell
        json.loads(cell, object_pairs_hook=without_repetitions)


@pytest_twisted.ensureDeferred
async def test_a_call_that_postgresql_finds_ambiguous_by_an_unnamed_default_lists_the_overloads(
    tables: Tables,
) -> None:
    tables.sql(
        "create function vague() returns int language sql as 'select 1';"
        "create function vague(int default 5) returns int language sql as 'select 2';"
        "create function vague(date default now(), int default 5) returns int language sql as 'select 3';"
        "create function partly(a int) returns int language sql as 'select 1';"
        "create function partly(a int, int default 5) returns int language sql as 'select 2';"
        "create function defaulted(int default 5) returns int language sql as 'select 1';"
        "create function needing() returns int language sql as 'select 1';"
        "create function needing(int) returns int language sql as 'select 2';"
        "create function needing(int, int default 1) returns int language sql as 'select 2'"
    )
    await until_answered(tables, "GET", "/rpc/needing", 200)
    for method, path, body in (
        ("GET", "/rpc/vague", None),
        ("POST", "/rpc/vague", b"{}"),
        ("POST", "/rpc/vague", b""),
        ("GET", "/rpc/partly?a=1", None),
        ("POST", "/rpc/partly", b'{"a": 1}'),
    ):
        more: dict[str, Any] = (
            {} if body is None else {"data": body, "headers": {"Content-Type": "application/json"}}
        )
        status, _, answer = await tables.request(method, path, **more)
        assert (status, answer["code"]) == (300, "PGRST203"), answer
    listed = "public.vague(), public.vague( => integer), public.vague( => date,  => integer)"
    assert listed in (await tables.request("GET", "/rpc/vague"))[2]["message"]
    # As in PostgREST, nothing calls a function that no argument can be given.
    assert (await tables.request("GET", "/rpc/defaulted"))[2]["code"] == "PGRST202"
    described = json.loads((await tables.request("GET", "/"))[2])["paths"]
    assert "/rpc/vague" in described and "/rpc/defaulted" not in described
    tables.sql(
        "drop function vague(), vague(int), vague(date, int), partly(int), partly(int, int), defaulted"
    )
