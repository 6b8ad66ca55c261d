"""What migrations of Supabase projects write in SQL: buckets in their form, extensions, the publication, triggers on
users and references to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import pytest_twisted
from psycopg2 import errors as pg
from psycopg2.extensions import make_dsn

from project_service.database.migrate import Definitions, Migration, migrate, shipped
from project_service.settings.model import Store
from tests.live.application import Api, serving, settings_for
from tests.live.services import Services, held_open
from tests.live.sql import connection_to, run_each, run_sql

BUCKETS = """
insert into storage.buckets (id, name, public) values ('avatars', 'avatars', true);
insert into storage.buckets (id, name, public, file_size_limit, allowed_mime_types)
values ('papers', 'papers', false, 10, array['text/plain', 'image/*']) on conflict (id) do nothing;
insert into "storage"."buckets" ("id", "name", "owner", "created_at", "updated_at", "public", "avif_autodetection",
  "file_size_limit", "allowed_mime_types", "owner_id", "type")
values ('Old & new', 'Old & new', null, '2024-01-02T03:04:05Z', '2024-01-02T03:04:05Z', false, false, null, null,
  null, 'STANDARD');
insert into storage.buckets (id, name) values ('papers', 'papers') on conflict do nothing;
create policy "Anybody reads" on storage.objects for select using ( bucket_id in ('avatars', 'papers', 'Old & new') );
create policy "Anybody writes" on storage.objects for insert with check ( bucket_id in ('papers', 'Old & new') );
"""
ONE = "/storage/v1/bucket"


@pytest.fixture(scope="module")
def api(
    module_database: str, store_settings: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    data_dir = Path(tmp_path_factory.mktemp("sql"))
    with held_open(serving(settings_for(module_database, store_settings, data_dir))) as running:
        run_sql(running.dsn, BUCKETS)
        yield running


async def code(api: Api, method: str, path: str, key: str = "anon", **more: object) -> str | None:
    _, _, body = await api.request(method, path, key=key, **more)  # type: ignore[arg-type]
    return body["code"] if isinstance(body, dict) and "statusCode" in body else None


def rules(api: Api, bucket: str) -> tuple[object, ...]:
    (row,) = run_sql(
        api.dsn,
        "select visibility, anonymous_reads, policies, max_object_bytes, allowed_content_types, public, name = id,"
        " (select count(*)::int from storage.usage where bucket = name) from storage.buckets where id = %s",
        bucket,
    )
    return row


@pytest_twisted.ensureDeferred
async def test_a_bucket_that_sql_makes_works_at_both_interfaces(api: Api) -> None:
    assert rules(api, "avatars") == ("public", True, True, None, None, True, True, 16)
    assert rules(api, "papers") == ("private", False, True, 10, ["text/plain", "image/*"], False, True, 16)
    put = partial(code, api, "POST", headers={"Content-Type": "text/plain"})
    assert await put("/storage/v1/object/papers/a", data=b"x") is None
    assert await put("/storage/v1/object/papers/b", data=b"x" * 11) == "EntityTooLarge"
    assert await put("/storage/v1/object/avatars/a", data=b"x") == "AccessDenied"
    status, _, shown = await api.request("GET", f"{ONE}/papers", key="service")
    assert (status, shown["file_size_limit"], shown["allowed_mime_types"]) == (
        200,
        10,
        ["text/plain", "image/*"],
    )
    token = (await api.sign_up("reader@example.test"))["access_token"]
    status, _, body = await api.request("GET", "/storage/buckets/papers/objects/a", token=token)
    assert (status, body) == (200, b"x")
    assert run_sql(api.dsn, "select object_count::int from storage.usage where object_count > 0") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_sql_changes_one_and_so_do_both_interfaces(api: Api) -> None:
    run_sql(api.dsn, "insert into storage.buckets (id, name) values ('changed', 'changed')")
    run_sql(api.dsn, "update storage.buckets set public = true, file_size_limit = 7 where id = 'changed'")
    assert rules(api, "changed")[:6] == ("public", True, True, 7, None, True)
    run_sql(api.dsn, "update storage.buckets set allowed_mime_types = '{}', file_size_limit = 0")
    assert rules(api, "changed")[3:5] == (None, None)
    more = {"json": {"allowed_mime_types": ["a/b"], "public": False}}
    assert await code(api, "PUT", f"{ONE}/changed", "service", **more) is None
    assert rules(api, "changed")[:6] == ("private", False, True, None, ["a/b"], False)
    # Of our own form the columns of theirs follow.
    status, _, _ = await api.request(
        "PATCH", "/admin/buckets/changed", key="service", json={"max_object_bytes": 9}
    )
    assert status == 200
    columns = "file_size_limit, allowed_mime_types, updated_at > created_at"
    assert run_sql(api.dsn, f"select {columns} from storage.buckets where id = 'changed'") == [
        (9, ["a/b"], True)
    ]


@pytest_twisted.ensureDeferred
async def test_ids_that_are_no_names_of_ours_work_for_clients_alone(api: Api) -> None:
    quoted = "Old%20%26%20new"
    put = partial(code, api, "POST", headers={"Content-Type": "text/plain"})
    assert await put(f"/storage/v1/object/{quoted}/f/a", data=b"kept") is None
    status, _, body = await api.request("GET", f"/storage/v1/object/{quoted}/f/a")
    assert (status, body) == (200, b"kept")
    _, _, signed = await api.request("POST", f"/storage/v1/object/sign/{quoted}/f/a", json={"expiresIn": 60})
    status, _, body = await api.request(
        "GET", "/storage/v1" + signed["signedURL"].replace(" ", "%20").replace("&", "%26"), key=None
    )
    assert (status, body) == (200, b"kept")
    for method, path in (
        ("GET", f"/admin/buckets/{quoted}"),
        ("DELETE", f"/admin/buckets/{quoted}?force=true"),
        ("GET", f"/storage/buckets/{quoted}/objects"),
        ("GET", f"/storage/buckets/{quoted}/objects/f/a"),
    ):
        status, _, body = await api.request(method, path, key="service")
        assert (status, body["error"]["code"]) == (404, "bucket_not_found"), path
    _, _, body = await api.request("GET", "/admin/buckets", key="service")
    names = [one["name"] for one in body["buckets"]]
    assert "papers" in names and "Old & new" not in names
    status, _, _ = await api.request("POST", "/admin/buckets", key="service", json={"name": "No Such Name"})
    assert status == 422
    # Every character that they may have, to the end of its life.
    for number, name in enumerate(("A_z!.*'()", "a&$@=;:+,?-", "x" * 100, "it's 100% + 1".replace("%", ""))):
        body = {"name": name}
        assert await code(api, "POST", ONE, "service", json=body) is None, name
        path = "".join(f"%{byte:02X}" for byte in name.encode())
        assert await code(api, "POST", f"/storage/v1/object/{path}/k", "service", data=b"%d" % number) is None
        status, _, read = await api.request("GET", f"/storage/v1/object/{path}/k", key="service")
        assert (status, read) == (200, b"%d" % number), name
        assert await code(api, "POST", f"{ONE}/{path}/empty", "service", json={}) is None
        assert await code(api, "DELETE", f"{ONE}/{path}", "service", json={}) is None
    assert run_sql(api.dsn, "select from storage.garbage where bucket <> 'papers'") == []
    for name in ("", ".", "..", " a", "a ", "a/b", "a\\b", "é", "x" * 101, "a\n", "a%"):
        assert await code(api, "POST", ONE, "service", json={"name": name}) == "InvalidRequest", name
        with pytest.raises(pg.CheckViolation):
            run_sql(api.dsn, "insert into storage.buckets (id, name) values (%s, %s)", name, name)


def test_id_and_name_are_one(api: Api) -> None:
    with pytest.raises(pg.CheckViolation, match="'docs' has the name 'Documents'"):
        run_sql(api.dsn, "insert into storage.buckets (id, name) values ('docs', 'Documents')")


@pytest_twisted.ensureDeferred
async def test_policies_read_the_columns_of_theirs(api: Api) -> None:
    run_sql(
        api.dsn,
        """create policy "Tagged" on storage.objects for insert
           with check (bucket_id = 'avatars' and user_metadata ->> 'tag' = 'ok')""",
    )
    for tag, refusal in (("eyJ0YWciOiJvayJ9", None), ("eyJ0YWciOiJubyJ9", "AccessDenied")):
        headers = {"x-metadata": tag, "Content-Type": "text/plain"}
        path = f"/storage/v1/object/avatars/{tag}"
        assert await code(api, "POST", path, headers=headers, data=b"x") == refusal


# The schema, the publication, triggers and references.


async def migrated(
    dsn: str, known: Sequence[Migration] = shipped(), defining: Definitions | None = None
) -> None:
    connection = await connection_to(dsn)
    try:
        await migrate(connection, known, defining=defining)
    finally:
        connection.close()


@pytest_twisted.ensureDeferred
async def test_extensions_go_into_their_schema_which_is_in_the_search_path(empty_database: str) -> None:
    await migrated(empty_database)
    made = (
        "create extension if not exists citext with schema extensions",
        "create table t (id uuid primary key default extensions.uuid_generate_v4(), name extensions.citext)",
        "insert into t (name) values ('A')",
        "select uuid_generate_v4() <> id, name = 'a' from t",
    )
    assert run_each(empty_database, *made) == [(True, True)]
    called = "select extensions.uuid_generate_v4() is not null"
    assert run_each(empty_database, "set role anon", called) == [(True,)]
    assert run_sql(empty_database, "show search_path") == [('"$user", public, extensions',)]


@pytest_twisted.ensureDeferred
async def test_a_search_path_of_the_operators_own_is_kept(empty_database: str) -> None:
    database = run_sql(empty_database, "select current_database()")[0][0]
    run_sql(empty_database, f'alter database "{database}" set search_path = mine, public')
    await migrated(empty_database)
    assert run_sql(empty_database, "show search_path") == [("mine, public, extensions",)]


@pytest_twisted.ensureDeferred
async def test_the_owner_adds_tables_to_the_publication(empty_database: str) -> None:
    await migrated(empty_database)
    assert run_sql(empty_database, "select * from pg_publication_tables") == []
    run_sql(empty_database, "create table messages (id int primary key)")
    run_sql(empty_database, "alter publication supabase_realtime add table messages")
    found = run_sql(empty_database, "select pubname, tablename from pg_publication_tables")
    assert found == [("supabase_realtime", "messages")]


@pytest_twisted.ensureDeferred
async def test_in_a_database_of_somebody_else_the_search_path_stays(
    services: Services, empty_database: str
) -> None:
    """With the rights that migrations need anyway. Buckets that are there get the columns of theirs."""
    name = services.unique("poor").replace("-", "_")
    database = run_sql(empty_database, "select current_database()")[0][0]
    admin = services.admin_dsn(empty_database)
    services.admin(f"create role {name} login noinherit password 'poor'")
    try:
        services.admin(f"grant anon, authenticated, service_role to {name}")
        run_sql(admin, f'alter database "{database}" owner to current_user')
        run_sql(admin, f'grant create on database "{database}" to {name}')
        dsn = make_dsn(empty_database, user=name, password="poor")
        await migrated(dsn, [one for one in shipped() if one.number < 37], Definitions(0, ()))
        run_sql(dsn, "insert into storage.buckets (name, max_object_bytes) values ('before', 5)")
        run_sql(
            dsn, "grant usage on schema storage to pg_monitor; grant select on storage.buckets to pg_monitor"
        )
        await migrated(dsn)
        assert run_sql(admin, "show search_path") == [('"$user", public',)]
        assert run_sql(dsn, "select extensions.uuid_generate_v4() is not null") == [(True,)]
        run_sql(dsn, "alter publication supabase_realtime add table storage.usage")
        # Row-level security does not take what was granted before.
        assert run_each(admin, "set role pg_monitor", "select id from storage.buckets") == [("before",)]
        columns = run_sql(admin, "select id, file_size_limit from storage.buckets")
        assert columns == [("before", 5)]
    finally:
        run_sql(admin, f"drop owned by {name} cascade")
        services.admin(f"drop role {name}")


PROFILES = """
create table public.profiles (
  id uuid not null references auth.users on delete cascade primary key, full_name text, avatar_url text,
  email text, provider text);
create table public.posts (id int generated always as identity primary key,
  author uuid default auth.uid() references auth.users (id) on delete cascade, by text);
create function public.handle_new_user() returns trigger as $$
begin
  insert into public.profiles (id, full_name, avatar_url, email, provider)
  values (new.id, new.raw_user_meta_data->>'full_name', new.raw_user_meta_data->>'avatar_url', new.email,
    new.raw_app_meta_data->>'provider');
  return new;
end;
$$ language plpgsql security definer;
create trigger on_auth_user_created after insert on auth.users
  for each row execute procedure public.handle_new_user();
"""


@pytest_twisted.ensureDeferred
async def test_profiles_follow_their_users(api: Api) -> None:
    run_sql(api.dsn, PROFILES)
    body = {"email": "new@example.test", "password": "a long enough one", "data": {"full_name": "N. Ew"}}
    status, _, session = await api.request("POST", "/auth/v1/signup", json=body)
    assert status == 200
    user = session["user"]["id"]
    run_sql(api.dsn, "insert into posts (author) values (%s)", user)
    rows = run_sql(api.dsn, "select id::text, full_name, avatar_url, email, provider from profiles")
    assert rows == [(user, "N. Ew", None, "new@example.test", "email")]
    assert await code(api, "DELETE", f"/auth/v1/admin/users/{user}", "service") is None
    assert run_sql(api.dsn, "select id from profiles union all select author from posts") == []
