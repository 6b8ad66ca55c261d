"""Client libraries made for PostgREST, used against the whole service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import postgrest
import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from tests.live.services import wait
from tests.live.tables.postgrest_js import ran_by_node
from tests.live.tables.service import BASE, Tables, tables

__all__ = ["tables"]

DATABASES = ("careful",)  # the JavaScript client asks it for plans, estimates and rollbacks
SCRIPT = Path(__file__).with_name("postgrest_js.mjs")
SHELVES = """
create table shelves (id int primary key, labels text[], span int4range, words tsvector, "in, order" text);
insert into shelves values
  (1, '{red,"dark blue"}', '[0,5)', 'fat:1 cat:2', 'a,b'),
  (2, '{green}', '[5,10)', 'cat:1 fat:2', '(c)'),
  (3, '{}', '[20,30)', 'cat', 'd'),
  (4, null, null, null, null);
grant select on shelves to authenticated;
create function reversed(labels text[]) returns text language sql immutable as 'select labels[2] || labels[1]';
create function told(about json) returns json language sql immutable as 'select about';
"""


@pytest_twisted.ensureDeferred
async def test_the_python_client(tables: Tables) -> None:
    def session() -> None:
        headers = {"apikey": tables.api.anon_key, "Authorization": f"Bearer {tables.token}"}
        client: Any = postgrest.SyncPostgrestClient(tables.api.base_url + BASE, headers=headers)
        result = client.from_("books").select("title, authors(name)").lt("price", 10).order("title").execute()
        assert [row["title"] for row in result.data] == ["Kindred", "The Lathe of Heaven"]
        assert result.data[0]["authors"] == {"name": "Butler"}
        counted = (
            client.from_("books").select("id", count="exact").lte("id", 4).order("id").range(1, 2).execute()
        )
        assert (counted.count, counted.data) == (4, [{"id": 2}, {"id": 3}])
        assert client.from_("books").select("title").eq("id", 3).single().execute().data == {
            "title": "Solaris"
        }
        with pytest.raises(postgrest.APIError) as refused:
            client.from_("books").select("title").gt("id", 0).single().execute()
        assert refused.value.code == "PGRST116"
        made = client.from_("tags").insert([{"id": 50, "label": "py"}, {"id": 51, "label": "pi"}]).execute()
        assert len(made.data) == 2
        merged = client.from_("tags").upsert({"id": 50, "label": "python"}).execute()
        assert merged.data == [{"id": 50, "label": "python"}]
        changed = client.from_("tags").update({"label": "π"}).eq("id", 51).execute()
        assert changed.data == [{"id": 51, "label": "π"}]
        gone = client.from_("tags").delete().in_("id", [50, 51]).execute()
        assert sorted(row["id"] for row in gone.data) == [50, 51]
        assert client.rpc("add", {"a": 40, "b": 2}).execute().data == 42
        text = client.from_("tags").select("id,label").lte("id", 1).csv().execute().data
        assert text == "id,label\n1,utopia"

    await deferToThread(session)


@pytest.fixture(scope="module")
def shelved(tables: Tables) -> Tables:
    tables.sql(SHELVES)
    return tables


@pytest_twisted.ensureDeferred
async def test_more_of_the_python_client(shelved: Tables) -> None:
    base, headers = shelved.api.base_url + BASE, {"apikey": shelved.api.anon_key}

    def session() -> None:
        client: Any = postgrest.SyncPostgrestClient(base, headers=headers)
        client.auth(shelved.token)
        shelves, books = client.from_("shelves"), client.from_("books")

        def ids(query: Any) -> list[int]:
            return [row["id"] for row in query.order("id").execute().data]

        assert ids(shelves.select("id").contains("labels", ["dark blue"])) == [1]
        assert ids(shelves.select("id").contained_by("labels", ["dark blue", "red", "", None])) == [1, 3]
        assert ids(shelves.select("id").range_adjacent("span", (9, 20))) == [2, 3]
        assert ids(shelves.select("id").in_("in, order", ["a,b", '"', "\\", "(c)"])) == [1, 2]
        assert ids(shelves.select("id").text_search("words", "fat cat", {"type": "phrase"})) == [1]
        assert ids(books.select("id").contains("details", {"pages": 204})) == [3]
        assert ids(books.select("id").not_.or_("id.lt.3,title.eq.Kindred").lt("id", 5)) == [3]
        assert books.select("id").eq("id", -1).maybe_single().execute() is None
        assert shelves.select("id,span").eq("id", 4).strip_nulls().execute().data == [{"id": 4}]
        assert client.rpc("affordable", {"most": 9.95}, head=True, count="exact").execute().count == 2
        assert client.rpc("add", {"a": 1}, get=True).execute().data == 2
        made = [{"title": "py", "price": 1}, {"title": "py"}]
        priced = books.insert(made, default_to_null=False).select("price").execute().data
        assert priced == [{"price": 1}, {"price": 10}]
        for refused, code in (
            (books.delete().eq("title", "py").max_affected(1), "PGRST124"),
            (client.from_("nothing").select("*", head=True), "PGRST205"),
            (client.schema("nope").from_("books").select("*"), "PGRST106"),
            (
                postgrest.SyncPostgrestClient(base).from_("books").select("*", head=True),
                "project_key_required",
            ),
        ):
            with pytest.raises(postgrest.APIError) as caught:
                refused.execute()
            assert caught.value.code == code
        assert books.delete(count="exact").eq("title", "py").max_affected(2).execute().count == 2

    await deferToThread(session)


@pytest_twisted.ensureDeferred
async def test_the_asynchronous_python_client(shelved: Tables) -> None:
    headers = {"apikey": shelved.api.anon_key, "Authorization": f"Bearer {shelved.token}"}

    async def session() -> None:
        async with postgrest.AsyncPostgrestClient(shelved.api.base_url + BASE, headers=headers) as client:
            books: Any = client.from_("books")
            result = (
                await books.select("id", count="exact").gt("id", 1).lt("id", 5).order("id").limit(2).execute()
            )
            assert (result.count, result.data) == (3, [{"id": 2}, {"id": 3}])
            several = [books.select("id").eq("id", number).single().execute() for number in (1, 2, 3, 4)]
            assert [one.data["id"] for one in await asyncio.gather(*several)] == [1, 2, 3, 4]
            made = await client.from_("tags").upsert({"id": 1, "label": "utopia"}, on_conflict="id").execute()
            assert made.data == [{"id": 1, "label": "utopia"}]
            with pytest.raises(postgrest.APIError) as refused:
                await client.rpc("adding", {}).execute()
            assert refused.value.code == "PGRST202"

    await deferToThread(asyncio.run, session())


@pytest.fixture(scope="module")
def reported(shelved: Tables, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    args = (shelved.api.base_url + BASE, shelved.api.anon_key, shelved.token)
    program = SCRIPT.read_text("utf-8")

    async def run() -> dict[str, Any]:
        result: dict[str, Any] = await deferToThread(
            ran_by_node, tmp_path_factory.mktemp("node"), program, *args
        )
        return result

    return wait(run)


def test_the_javascript_client(reported: dict[str, Any]) -> None:
    assert reported["select"]["data"] == [
        {"title": "Kindred", "authors": {"name": "Butler"}},
        {"title": "The Lathe of Heaven", "authors": {"name": "Le Guin"}},
    ]
    assert reported["filters"]["data"] == [{"id": 1}]
    assert reported["count"] == {"data": None, "status": 200, "count": 3}
    assert reported["range"] == {"data": [{"id": 2}, {"id": 3}], "status": 206, "count": 4}
    assert reported["single"]["data"] == {"title": "Solaris"}
    assert reported["notSingle"] == {"data": None, "status": 406, "code": "PGRST116"}
    assert reported["maybeSingle"] == {"data": None, "status": 200}
    assert reported["csv"]["data"] == 'id,label\n1,utopia\n2,"first contact"'
    assert reported["insert"] == {"data": [{"id": 100, "label": "js"}], "status": 201}
    assert reported["upsert"]["data"] == {"id": 100, "label": "javascript"}
    assert reported["update"]["data"] == [{"label": "ecmascript"}]
    assert reported["delete"]["data"] == [{"id": 100}]
    assert reported["unfiltered"] == {"data": None, "status": 400, "code": "21000"}
    assert reported["rpc"]["data"] == 3
    assert reported["rpcRows"]["data"] == [{"title": "Kindred"}]
    assert reported["missing"] == {"data": None, "status": 404, "code": "PGRST205"}


def data_of(reported: dict[str, Any], *names: str) -> list[list[int]]:
    return [[row["id"] for row in reported[name]["data"]] for name in names]


def test_filters_of_the_javascript_client(reported: dict[str, Any]) -> None:
    assert data_of(reported, "contains", "containedBy", "overlaps", "json") == [[1], [1, 3], [1, 2], [3]]
    ranges = ("rangeGt", "rangeGte", "rangeLt", "rangeLte", "rangeAdjacent")
    assert data_of(reported, *ranges) == [[3], [2, 3], [1, 2], [1, 2], [2, 3]]
    assert data_of(reported, "search", "plain", "phrase", "web") == [[1, 2], [1, 2], [1], [3]]
    assert reported["reserved"]["data"] == [{"in, order": "a,b"}, {"in, order": "(c)"}]
    assert data_of(reported, "allOf", "anyOf", "spaced") == [[2], [3, 4], [1, 2, 3]]
    assert reported["related"]["data"] == [{"name": "Le Guin", "books": [{"id": 2}]}]
    assert reported["relatedOr"]["data"] == [
        {"name": "Butler", "books": [{"id": 4}]},
        {"name": "Lem", "books": [{"id": 3}]},
    ]
    assert data_of(reported, "byRelated") == [[4, 1]]
    assert data_of(reported, "notIn", "distinct", "regex", "matched", "bounds") == [
        [3, 4],
        [1, 3, 4],
        [2],
        [2],
        [2, 3],
    ]
    assert reported["relatedRange"]["data"] == [{"name": "Le Guin", "books": [{"id": 2}]}]
    assert reported["counted by"]["data"] == [{"name": "Butler", "books": [{"count": 1}]}]


def test_options_of_the_javascript_client(reported: dict[str, Any]) -> None:
    assert (reported["stripped"]["data"], reported["strippedSingle"]["data"]) == ([{"id": 4}], {"id": 4})
    assert reported["nulls"]["data"] == [{"price": 1}, {"price": None}]
    assert reported["defaults"]["data"] == [{"price": 1}, {"price": 10}]
    assert reported["affected"] == {"data": None, "status": 400, "code": "PGRST124"}
    assert reported["counted"] == {"data": None, "status": 204, "count": 4}
    assert reported["ignored"] == {"data": [], "status": 201}
    assert reported["rpcHead"] == {"data": None, "status": 200, "count": 2}
    assert (reported["rpcGet"]["data"], reported["public"]["data"]) == ("ba", 2)
    # A HEAD cannot carry an object, so the library sends a POST.
    assert reported["rpcHeadOf"] == {"data": {"a": 1}, "status": 200, "count": 1}
    assert reported["rpcCsv"]["data"] == "id,title\n4,Kindred"
    assert reported["estimated"] == {"data": [{"id": 1}], "status": 206, "count": 2}
    assert reported["ranged"] == {"data": [{"id": 2}], "status": 200}
    assert reported["schema"] == {"data": None, "status": 406, "code": "PGRST106"}
    assert (reported["tried"]["data"], reported["untried"]["data"]) == ([{"id": 91}], [])
    assert (reported["plan"], reported["plans"], reported["noPlan"]["code"]) == (
        [200, True],
        [200, "object"],
        "PGRST107",
    )
    assert (reported["aborted"], reported["thrown"]) == ([0, None], "PGRST205")


def test_single_rows_and_lists_of_the_javascript_client(reported: dict[str, Any]) -> None:
    assert reported["many"] == {"data": None, "status": 406, "code": "PGRST116"}
    assert reported["made"] == {"data": "id\n92\n93", "status": 201, "count": 2}
    assert reported["unmade"] == {"data": None, "status": 406, "code": "PGRST116"}
    assert reported["made again"] == {"data": None, "status": 200, "count": 1}
    assert reported["emptied"] == {"data": None, "status": 204, "count": 2}
