"""Attacks on buckets that policies on ``storage.buckets`` open, and on objects by overwriting."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import frozen
from twisted.internet.defer import gatherResults

from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.captured_log import captured_logs
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open, wait
from tests.live.sql import run_sql

# As Supabase's reference has them for createBucket, getBucket, updateBucket, deleteBucket, and one that is slow.
POLICIES = """
create policy "make" on storage.buckets for insert to authenticated with check ( name like 'mine-%' );
create policy "see" on storage.buckets for select to authenticated using ( owner = (select auth.uid()) );
create policy "change" on storage.buckets for update to authenticated
  using ( owner_id = (select auth.uid()::text) ) with check ( not public );
create policy "delete" on storage.buckets for delete to authenticated using ( owner = (select auth.uid()) );
create policy "raise" on storage.buckets for insert to anon
  with check ( case name when 'raises' then 1 / (length(name) - 6) = 0 when 'slow' then pg_sleep(60) is null end );
create policy "own" on storage.objects for all to authenticated using ( owner = (select auth.uid()) );
"""


@frozen
class Asker:
    api: Api
    tokens: dict[str, str]

    async def ask(self, method: str, path: str, who: str, **more: Any) -> str:
        """What a request is answered: "done", or the code of the refusal."""
        key = "service" if who == "service" else "anon"
        path = f"/storage/v1{path}"
        status, _, body = await self.api.request(method, path, key=key, token=self.tokens.get(who), **more)
        return "done" if status == 200 else str(body["code"])


@pytest.fixture(scope="module")
def asker(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asker]:
    data_dir = Path(tmp_path_factory.mktemp("buckets"))
    settings = settings_for(
        module_database, store_settings, data_dir, database={"statement_timeout_seconds": 8.0}
    )
    with held_open(serving(settings)) as api:
        run_sql(api.dsn, POLICIES)
        sessions = {name: wait(partial(api.sign_up, f"{name}@example.test")) for name in ("ann", "bob")}
        yield Asker(api, {name: str(one["access_token"]) for name, one in sessions.items()})


@pytest_twisted.ensureDeferred
async def test_who_has_no_policy_makes_sees_and_changes_no_bucket(asker: Asker) -> None:
    ask = asker.ask
    assert await ask("POST", "/bucket", "ann", json={"name": "mine-a", "file_size_limit": "1kb"}) == "done"
    before = run_sql(asker.api.dsn, "table storage.buckets")
    for who in ("bob", "anon"):
        for name in ("mine-a", "private", "none"):
            for method, path, body in (
                ("GET", f"/bucket/{name}", None),
                ("PUT", f"/bucket/{name}", {"public": True}),
                ("PUT", f"/bucket/{name}", {"file_size_limit": 1}),
                ("PUT", f"/bucket/{name}", {}),
                ("POST", f"/bucket/{name}/empty", {}),
                ("DELETE", f"/bucket/{name}", {}),
            ):
                answer = await ask(method, path, who, json=body)
                assert answer == "NoSuchBucket", (who, method, path)
        # Neither says which there are.
        for name in ("mine-a", "private", "new"):
            answer = await ask("POST", "/bucket", who, json={"name": name})
            known = who == "bob" and name == "mine-a"
            assert answer == ("BucketAlreadyExists" if known else "AccessDenied"), (who, name)
        _, _, listed = await asker.api.request("GET", "/storage/v1/bucket", token=asker.tokens.get(who))
        assert listed == []
    assert run_sql(asker.api.dsn, "table storage.buckets") == before
    assert await ask("PUT", "/bucket/mine-a", "ann", json={"public": True}) == "AccessDenied"
    assert await ask("PUT", "/bucket/mine-a", "ann", json={"file_size_limit": 5}) == "done"
    assert await ask("DELETE", "/bucket/mine-a", "ann", json={}) == "done"


@pytest_twisted.ensureDeferred
async def test_no_caller_says_more_of_a_bucket_than_policies_judge(asker: Asker) -> None:
    """Members of a body that are columns: whose it is, and our own rules."""
    body = {
        "name": "mine-b",
        "owner": "00000000-0000-0000-0000-000000000000",
        "owner_id": "x",
        "policies": False,
        "visibility": "public",
        "anonymous_reads": True,
        "max_bucket_bytes": 1,
    }
    assert await asker.ask("POST", "/bucket", "ann", json=body) == "done"
    assert await asker.ask("PUT", "/bucket/mine-b", "ann", json=body) == "done"
    (row,) = run_sql(
        asker.api.dsn,
        "select u.email, b.owner_id = b.owner::text, policies, visibility, anonymous_reads, max_bucket_bytes"
        " from storage.buckets b join auth.users u on u.id = b.owner where b.id = 'mine-b'",
    )
    assert row == ("ann@example.test", True, True, "private", False, None)
    assert await asker.ask("DELETE", "/bucket/mine-b", "ann", json={}) == "done"


@pytest_twisted.ensureDeferred
async def test_a_policy_that_raises_or_is_slow_refuses_and_others_go_on(asker: Asker) -> None:
    make = partial(asker.ask, "POST", "/bucket")
    with captured_logs() as events:
        assert await make("anon", json={"name": "raises"}) == "AccessDenied"
        slow = [start(make("anon", json={"name": "slow"})) for _ in range(3)]
        # Meanwhile signing in, and buckets for the service, do not wait for them.
        assert await make("service", json={"name": "quick"}) == "done"
        await asker.api.sign_up("meanwhile@example.test")
        assert not any(one.called for one in slow)
        assert await gatherResults(slow) == ["AccessDenied"] * 3
    logged = [event["reason"] for event in events if "A policy on" in str(event.get("log_format"))]
    assert logged[0] == "division by zero (22012)"
    assert [reason.rpartition(" ")[2] for reason in logged[1:]] == ["(57014)"] * 3
    assert run_sql(asker.api.dsn, "select id from storage.buckets where id in ('raises', 'slow')") == []


@pytest_twisted.ensureDeferred
async def test_tables_of_storage_are_closed_to_the_table_api_all_the_same(asker: Asker) -> None:
    """What policies allow is only for who comes by /storage/v1."""
    for who in ("ann", "anon"):
        for path in ("/rest/v1/buckets", "/dev/db/main/rest/buckets"):
            headers = {"Accept-Profile": "storage"}
            status, _, _ = await asker.api.request("GET", path, headers=headers, token=asker.tokens.get(who))
            assert status == 406
    claims = "select set_config('request.jwt.claims', '{\"role\": \"authenticated\"}', false)"
    made = "insert into storage.buckets (id, name) values ('mine-x', 'mine-x')"
    for statement in (made, "update storage.buckets set public = true", "delete from storage.buckets"):
        before = run_sql(asker.api.dsn, "select count(*) from storage.buckets")
        try:
            run_sql(asker.api.dsn, f"{claims}; set role authenticated; {statement}")
        except Exception as refused:
            assert "row-level security" in str(refused)
        assert run_sql(asker.api.dsn, "select count(*) from storage.buckets") == before
        assert run_sql(asker.api.dsn, "select from storage.buckets where public and name = 'private'") == []


@pytest_twisted.ensureDeferred
async def test_an_upsert_passes_no_rule_about_owners(asker: Asker) -> None:
    """With every combination of our rules and policies: what is Ann's stays hers."""
    names = []
    for reads, writes, policies in itertools.product((False, True), repeat=3):
        if not (reads or writes or policies):
            continue  # here everybody who signed in may write everything
        name = f"rules-{reads:d}{writes:d}{policies:d}"
        rules = {"owner_only_reads": reads, "owner_only_writes": writes, "policies": policies}
        body = {"name": name, "visibility": "private", **rules}
        assert (await asker.api.request("POST", "/admin/buckets", key="service", json=body))[0] == 201
        names.append(name)
    assert len(names) == 7
    for name in names:
        put = partial(asker.ask, "POST", f"/object/{name}/k")
        assert await put("ann", data=b"hers") == "done"
        for who, method in itertools.product(("bob", "anon"), ("POST", "PUT")):
            for headers in ({"x-upsert": "true"}, {"x-upsert": "TRUE", "if-match": "*"}, {}):
                answer = await asker.ask(method, f"/object/{name}/k", who, headers=headers, data=b"stolen")
                assert answer in ("AccessDenied", "KeyAlreadyExists"), (name, who, method, headers)
            sent = {"bucketId": name, "sourceKey": "theirs", "destinationKey": "k"}
            if await asker.ask("POST", f"/object/{name}/theirs", who, data=b"stolen") == "done":
                copied = await asker.ask("POST", "/object/copy", who, headers={"x-upsert": "true"}, json=sent)
                moved = await asker.ask("POST", "/object/move", who, json=sent)
                assert {copied, moved} <= {"AccessDenied", "KeyAlreadyExists"}, (name, who, copied, moved)
        _, _, body = await asker.api.request("GET", f"/storage/v1/object/{name}/k", token=asker.tokens["ann"])
        assert body == b"hers", name
        rows = run_sql(
            asker.api.dsn,
            "select u.email from storage.objects join auth.users u on u.id = owner where bucket = %s and key = 'k'",
            name,
        )
        assert rows == [("ann@example.test",)]
        assert await put("ann", headers={"x-upsert": "true"}, data=b"hers again") == "done"
