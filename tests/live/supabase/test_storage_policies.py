"""Policies as Supabase's guides write them, unchanged, and what they let callers of ``/storage/v1`` do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import frozen

from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import held_open, wait
from tests.live.sql import run_sql

POLICIES = """
create policy "Avatars are public" on storage.objects for select using ( bucket_id = 'avatars' );
create policy "Anyone can upload an avatar" on storage.objects for insert with check ( bucket_id = 'avatars'
  and storage.extension(name) = 'jpg' and lower((storage.foldername(name))[1]) = 'public' and auth.role() = 'anon' );

create policy "Own folder: insert" on storage.objects for insert to authenticated with check (
  bucket_id = 'folders' and (storage.foldername(name))[1] = (select auth.uid()::text) );
create policy "Own folder: select" on storage.objects for select to authenticated using (
  bucket_id = 'folders' and (select auth.uid()::text) = (storage.foldername(name))[1] );

create policy "Uploads" on storage.objects for insert to authenticated with check ( bucket_id = 'owned' );
create policy "Own files: select" on storage.objects for select to authenticated
  using ( bucket_id = 'owned' and (select auth.uid()) = owner );
create policy "Own files: delete" on storage.objects for delete to authenticated
  using ( bucket_id = 'owned' and owner_id = (select auth.uid()::text) );
create policy "Own files: update" on storage.objects for update to authenticated
  using ( bucket_id = 'owned' and (select auth.uid()::text) = owner_id )
  with check ( bucket_id = 'owned' and path_tokens[1] <> 'secret' );

create table teams (team text, member uuid);
grant select on teams to authenticated;
create policy "Team" on storage.objects for all to authenticated
  using ( bucket_id = 'teams' and path_tokens[1] in (select team from teams where member = (select auth.uid())) );
"""
BUCKETS = ("avatars", "folders", "owned", "teams")


@frozen
class Asker:
    api: Api
    user: str
    tokens: dict[str, str]

    async def ask(self, method: str, path: str, who: str = "anon", **more: Any) -> tuple[int, str | None]:
        """The status and, of a refusal, the code of a request by a user, or by ``anon`` or ``service``."""
        bearer = self.tokens.get(who) or {"anon": self.api.anon_key, "service": self.api.service_key}[who]
        headers = {"Authorization": f"Bearer {bearer}"}
        if who in self.tokens:
            headers["apikey"] = self.api.anon_key
        status, _, body = await self.api.request(
            method, f"/storage/v1{path}", key=None, headers={**headers, **more.pop("headers", {})}, **more
        )
        return status, body["code"] if isinstance(body, dict) and "statusCode" in body else None

    async def put(self, path: str, who: str, upsert: bool = False) -> str | None:
        headers = {"x-upsert": str(upsert).lower(), "Content-Type": "text/plain"}
        return (await self.ask("POST", f"/object/{path}", who, headers=headers, data=b"x"))[1]

    async def get(self, path: str, who: str) -> str | None:
        return (await self.ask("GET", f"/object/{path}", who))[1]

    async def delete(self, path: str, who: str) -> str | None:
        return (await self.ask("DELETE", f"/object/{path}", who))[1]


@pytest.fixture(scope="module")
def asker(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asker]:
    data_dir = Path(tmp_path_factory.mktemp("policies"))
    with held_open(serving(settings_for(module_database, store_settings, data_dir))) as api:
        run_sql(api.dsn, POLICIES)
        sessions = {name: wait(partial(api.sign_up, f"{name}@example.test")) for name in ("ann", "bob")}
        tokens = {name: str(one["access_token"]) for name, one in sessions.items()}
        made = Asker(api, str(sessions["ann"]["user"]["id"]), tokens)
        for bucket in BUCKETS:
            body = {"name": bucket, "public": bucket == "avatars"}
            assert wait(partial(made.ask, "POST", "/bucket", "service", json=body)) == (200, None)
        yield made


DENIED, MISSING = "AccessDenied", "NoSuchKey"


@pytest_twisted.ensureDeferred
async def test_public_reads_and_uploads_by_extension(asker: Asker) -> None:
    assert await asker.put("avatars/public/a.jpg", "anon") is None
    assert await asker.put("avatars/public/a.png", "anon") == DENIED
    assert await asker.put("avatars/a.jpg", "anon") == DENIED
    assert await asker.put("avatars/public/b.jpg", "ann") == DENIED  # the policy asks for the role anon
    for who in ("anon", "ann"):
        assert await asker.get("avatars/public/a.jpg", who) is None
    assert await asker.get("public/avatars/public/a.jpg", "anon") is None


@pytest_twisted.ensureDeferred
async def test_own_folders(asker: Asker) -> None:
    key = f"folders/{asker.user}/a"
    assert await asker.put(key, "bob") == DENIED
    assert await asker.put(key, "ann") is None
    assert await asker.get(key, "ann") is None
    for who in ("bob", "anon"):
        assert await asker.get(key, who) == MISSING
    assert await asker.put(key, "ann", upsert=True) == DENIED  # there is no policy for update


@pytest_twisted.ensureDeferred
async def test_owners_by_both_of_their_columns(asker: Asker) -> None:
    assert await asker.put("owned/a", "ann") is None
    for who in ("bob", "anon"):
        assert await asker.get("owned/a", who) == MISSING
        assert await asker.put("owned/a", who, upsert=True) == DENIED
        assert await asker.delete("owned/a", who) == MISSING
    assert await asker.put("owned/a", "ann", upsert=True) is None
    moved = {"bucketId": "owned", "sourceKey": "a", "destinationKey": "secret/a"}
    assert (await asker.ask("POST", "/object/move", "ann", json=moved))[1] == DENIED
    moved["destinationKey"] = "b"
    assert (await asker.ask("POST", "/object/move", "ann", json=moved))[1] is None
    assert await asker.delete("owned/b", "ann") is None


@pytest_twisted.ensureDeferred
async def test_teams(asker: Asker) -> None:
    run_sql(asker.api.dsn, "insert into teams values ('red', %s)", asker.user)
    assert await asker.put("teams/red/a", "ann") is None
    assert await asker.put("teams/blue/a", "ann") == DENIED
    assert await asker.get("teams/red/a", "bob") == MISSING
    assert await asker.delete("teams/red/a", "ann") is None


@pytest_twisted.ensureDeferred
async def test_the_columns_that_policies_read(asker: Asker) -> None:
    assert await asker.put("owned/f/columns", "ann") is None
    rows = run_sql(
        asker.api.dsn,
        "select bucket_id, name, owner_id, path_tokens, last_accessed_at = created_at, id = version"
        " from storage.objects where key = 'f/columns'",
    )
    assert rows == [("owned", "f/columns", asker.user, ["f", "columns"], True, True)]
