"""What an error of missing rights says is to be done: doing it makes the same request succeed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from tests.live.tables.service import BASE, Tables, tables, until_answered

__all__ = ["tables"]

DATABASES = ("literal",)

SCHEMA = """
create table "Odd names" (id int primary key, "the text" text);
insert into "Odd names" values (1, 'x');
create table kinds (id int primary key);
create table letters (id int primary key, kind int references kinds, secret text);
create table labels (id int primary key);
create table letters_labels (letter int references letters, tag int references labels, primary key (letter, tag));
create table numbered (id serial primary key, note text);
create function doubled(n int, "with" text default '') returns int language sql as 'select n * 2';
revoke execute on function doubled from public;
create table secrets (id int);
create function counted() returns bigint language sql as 'select count(*) from secrets';
create schema types; create type types.state as enum ('new');
create table typed (id int primary key, state types.state); grant all on typed to anon;
create table rows_of_users (id int primary key, owner uuid default auth.uid());
alter table rows_of_users enable row level security;
grant all on rows_of_users to anon, authenticated;
create view rows_seen as select * from rows_of_users; grant all on rows_seen to authenticated;
"""


@pytest.fixture(scope="module")
def hinted(tables: Tables) -> Iterator[Tables]:
    tables.sql(SCHEMA)
    tables.sql("alter view rows_seen set (security_invoker = true)")
    yield tables


async def refused(tables: Tables, method: str, path: str, **more: Any) -> str:
    """The hint of the refusal. The request is repeated, so that it is also run prepared and on shared connections."""
    hints = set()
    for _ in range(2):
        status, _, body = await tables.request(method, path, **more)
        assert body["code"] == "42501", body
        assert status == (403 if more.get("token") else 401)
        hints.add(body["hint"])
    (hint,) = hints
    return str(hint)


def granted(tables: Tables, hint: str) -> str:
    """Run the GRANT that ``hint`` contains, and return it."""
    statement = hint[hint.index("GRANT ") : hint.index(";") + 1]
    tables.sql(statement)
    return statement


@pytest_twisted.ensureDeferred
async def test_the_grant_of_a_read_is_written_out_with_quoted_names(hinted: Tables) -> None:
    hint = await refused(hinted, "GET", "/Odd%20names", token=hinted.token)
    assert hint == 'The right is missing: GRANT SELECT ON public."Odd names" TO authenticated;'
    granted(hinted, hint)
    assert (await hinted.request("GET", "/Odd%20names", token=hinted.token))[0] == 200


@pytest_twisted.ensureDeferred
async def test_without_a_token_the_hint_says_whether_a_token_would_do(hinted: Tables) -> None:
    hinted.sql("create table half (id int)")
    await until_answered(hinted, "GET", "/half", 401)
    hint = await refused(hinted, "GET", "/half")
    assert hint.startswith("No user token came with the request, so it acted in the role anon. ")
    assert "GRANT SELECT ON public.half TO anon;" in hint
    assert hint.endswith("To let signed-in users do it, grant it to authenticated instead.")
    hinted.sql("grant select on half to authenticated")
    hint = await refused(hinted, "GET", "/half")
    assert "The role authenticated has the right: send the access token of a signed-in user" in hint
    assert (await hinted.request("GET", "/half", token=hinted.token))[0] == 200
    granted(hinted, hint)
    assert (await hinted.request("GET", "/half"))[0] == 200
    hinted.sql("drop table half")


@pytest_twisted.ensureDeferred
async def test_a_write_needs_what_its_parts_need(hinted: Tables) -> None:
    """The hint names all that is missing at once, and nothing that is not needed."""
    token, table = hinted.token, "/kinds"
    hinted.sql("revoke all on kinds from authenticated")
    hint = await refused(hinted, "POST", table, token=token, json={"id": 1})
    assert granted(hinted, hint) == "GRANT INSERT ON public.kinds TO authenticated;"
    assert (await hinted.request("POST", table, token=token, json={"id": 1}))[0] == 201
    returning = {"Prefer": "return=representation"}
    hint = await refused(hinted, "POST", table, token=token, json={"id": 2}, headers=returning)
    assert granted(hinted, hint) == "GRANT SELECT ON public.kinds TO authenticated;"
    merging = {"Prefer": "resolution=merge-duplicates"}
    hint = await refused(hinted, "POST", table, token=token, json={"id": 2}, headers=merging)
    assert granted(hinted, hint) == "GRANT UPDATE ON public.kinds TO authenticated;"
    hinted.sql("revoke all on kinds from authenticated")
    hint = await refused(hinted, "DELETE", table + "?id=eq.1", token=token)
    assert granted(hinted, hint) == "GRANT SELECT, DELETE ON public.kinds TO authenticated;"
    assert (await hinted.request("DELETE", table + "?id=eq.1", token=token))[0] == 204


@pytest_twisted.ensureDeferred
async def test_embedded_relations_and_junctions_are_named_too(hinted: Tables) -> None:
    hinted.sql(
        "grant select on letters to authenticated; revoke all on labels, letters_labels from authenticated"
    )
    path = "/letters?select=id,labels(id)"
    hints = set()
    for _ in range(2):
        hints.add(granted(hinted, await refused(hinted, "GET", path, token=hinted.token)))
    assert hints == {
        f"GRANT SELECT ON public.{name} TO authenticated;" for name in ("labels", "letters_labels")
    }
    assert (await hinted.request("GET", path, token=hinted.token))[0] == 200


@pytest_twisted.ensureDeferred
async def test_rights_on_some_columns_are_recognised(hinted: Tables) -> None:
    hinted.sql(
        "revoke all on letters from authenticated; grant select (id, kind) on letters to authenticated"
    )
    assert (await hinted.request("GET", "/letters?select=id", token=hinted.token))[0] == 200
    hint = await refused(hinted, "GET", "/letters", token=hinted.token)
    assert "The role has it for some columns only, and the request needs others." in hint
    assert granted(hinted, hint) == "GRANT SELECT ON public.letters TO authenticated;"


@pytest_twisted.ensureDeferred
async def test_sequences_functions_and_schemas(hinted: Tables) -> None:
    token = hinted.token
    hinted.sql("grant insert on numbered to authenticated")
    hint = await refused(hinted, "POST", "/numbered", token=token, json={"note": "x"})
    assert granted(hinted, hint) == "GRANT USAGE ON SEQUENCE public.numbered_id_seq TO authenticated;"
    assert (await hinted.request("POST", "/numbered", token=token, json={"note": "x"}))[0] == 201
    hint = await refused(hinted, "GET", "/rpc/doubled?n=2", token=token)
    assert (
        granted(hinted, hint) == "GRANT EXECUTE ON FUNCTION public.doubled(integer, text) TO authenticated;"
    )
    assert (await hinted.request("GET", "/rpc/doubled?n=2", token=token))[2] == 4
    hint = await refused(hinted, "POST", "/typed?columns=id,state", json={"id": 1, "state": "new"})
    assert "Something that the request uses, such as a type or a function, is in that schema." in hint
    assert granted(hinted, hint) == "GRANT USAGE ON SCHEMA types TO anon;"
    hinted.sql(
        "revoke usage on schema public from public, anon; grant usage on schema public to authenticated"
    )
    try:
        hint = await refused(hinted, "GET", "/kinds")
        assert "GRANT USAGE ON SCHEMA public TO anon;" in hint
    finally:
        hinted.sql("grant usage on schema public to public, anon")


@pytest_twisted.ensureDeferred
async def test_what_the_request_does_not_name_is_not_explained(hinted: Tables) -> None:
    for token in (None, hinted.token):
        hint = await refused(hinted, "POST", "/rpc/counted", token=token)
        assert hint.startswith("The request does not name it: "), hint
        assert "GRANT" not in hint
        assert "public" not in hint


@pytest_twisted.ensureDeferred
async def test_a_row_that_policies_refuse(hinted: Tables) -> None:
    rows, token = "/rows_of_users", hinted.token
    hint = await refused(hinted, "POST", rows, token=token, json={"id": 1})
    create = "CREATE POLICY name ON public.rows_of_users FOR INSERT TO authenticated WITH CHECK (condition);"
    assert hint == f"No policy allows it: {create}"
    hinted.sql(create.replace("condition", "owner = auth.uid()"))
    assert (await hinted.request("POST", rows, token=token, json={"id": 1}))[0] == 201
    hint = await refused(hinted, "POST", rows, json={"id": 2})
    assert hint.startswith(
        "No user token came with the request, so it acted in the role anon. No policy allows it: "
    )
    hint = await refused(hinted, "POST", rows, token=token, json={"id": 2, "owner": None})
    assert hint.startswith("There are policies for the role, but the row does not satisfy their conditions. ")
    assert "Prefer" not in hint
    hint = await refused(
        hinted, "POST", rows, token=token, json={"id": 2}, headers={"Prefer": "return=representation"}
    )
    assert "FOR SELECT TO authenticated USING (condition);" in hint
    assert hint.endswith("show the new row too, unless 'Prefer: return=minimal' is sent.")
    hint = await refused(hinted, "POST", "/rows_seen", token=token, json={"id": 2, "owner": None})
    assert hint.startswith("The request does not name it: ")


@pytest_twisted.ensureDeferred
async def test_only_postgresqls_own_messages_get_hints(hinted: Tables) -> None:
    hinted.sql(
        "create function refuses() returns void language plpgsql as"
        " $$ begin raise insufficient_privilege using message = 'not for you'; end $$;"
        "create function advises() returns void language plpgsql as $$ begin"
        " raise insufficient_privilege using message = 'permission denied for table kinds', hint = 'own'; end $$"
    )
    await until_answered(hinted, "POST", "/rpc/advises", 401)
    for name, hint in (("refuses", None), ("advises", "own")):
        assert (await hinted.request("POST", f"/rpc/{name}"))[2]["hint"] == hint


@pytest_twisted.ensureDeferred
async def test_error_hints_off_gives_postgrests_bodies(hinted: Tables) -> None:
    hinted.sql("create table unhinted (id int)")
    await until_answered(hinted, "GET", "/unhinted", 401)
    exact = {
        "code": "42501",
        "message": "permission denied for table unhinted",
        "details": None,
        "hint": None,
    }
    literal = BASE.replace("main", "literal")
    await until_answered(hinted, "GET", "/unhinted", 401, base=literal)
    assert (await hinted.request("GET", "/unhinted", base=literal))[2] == exact
    assert (await hinted.request("HEAD", "/unhinted"))[0] == 401
