"""Triggers of the project refuse signups and uploads with a status and a message of their own (docs/auth.rst, "In the
database", whose example is run here; docs/storage.rst)."""

from __future__ import annotations

from pathlib import Path

import pytest_twisted

from project_service.settings.model import Store
from tests.live.application import serving, settings_for
from tests.live.auth.service import PASSWORD, api_on, post
from tests.live.service.documented_clients import BLOCK
from tests.live.sql import run_sql
from tests.live.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "auth.rst"
# The functions of triggers see an empty search path, hence the schema.
NO_DRAFTS = """
create function public.no_drafts() returns trigger language plpgsql as $$
begin
    if new.key like 'draft%' then
        raise sqlstate 'PT409' using message = 'No drafts.';
    end if;
    return new;
end $$;
create trigger no_drafts before insert or update on storage.objects
    for each row execute function public.no_drafts()
"""


def documented() -> str:
    blocks = {name: text for _, name, text in BLOCK.findall(PAGE.read_text("utf-8"))}
    return str(blocks["only-members"])


@pytest_twisted.ensureDeferred
async def test_a_trigger_refuses_signups(database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, documented())
    async with api_on(database, store_settings, tmp_path) as api:
        status, answer = await post(api, "/auth/signup", {"email": "eve@example.net", "password": PASSWORD})
        assert (status, answer["error"]) == (
            403,
            {"code": "refused_by_project", "message": "Sign up with your address at example.com."},
        )
        await api.sign_up("ada@example.com")
    assert run_sql(database, "select email from auth.users") == [("ada@example.com",)]


@pytest_twisted.ensureDeferred
async def test_a_trigger_refuses_uploads_and_moves(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, NO_DRAFTS)
    objects = "/storage/buckets/private/objects"
    settings = settings_for(database, store_settings, tmp_path, storage={"sweep_seconds": 0.05})
    async with serving(settings) as api:

        async def refused(method: str, path: str, **sent: object) -> tuple[int, str]:
            status, _, body = await api.request(method, path, key="service", **sent)  # type: ignore[arg-type]  # what treq takes
            return status, body["error"]["code"]

        assert await refused("PUT", f"{objects}/draft", data=b"bytes") == (409, "refused_by_project")
        assert (await api.request("PUT", f"{objects}/final", key="service", data=b"bytes"))[0] == 201
        move = {"from": "final", "to": "draft-2"}
        assert await refused("POST", "/storage/buckets/private/move", json=move) == (
            409,
            "refused_by_project",
        )
        assert run_sql(database, "select key from storage.objects") == [("final",)]
        # Of what was refused nothing is left in the store.
        await until(
            lambda: (
                not run_sql(
                    database, "select version from storage.uploads union select version from storage.garbage"
                )
            )
        )


# A trigger on users that keeps a profile of each, and raises errors of its own.
PROFILES = """
create table public.profiles (
    id uuid primary key,
    nick text not null constraint nick_unique unique constraint nick_short check (length(nick) < 9),
    team int constraint team_known references public.teams,
    age int
);
create function public.keep_profile() returns trigger language plpgsql as $$
begin
    if new.metadata ->> 'nick' = 'root' then
        raise exception 'That name is reserved.';
    end if;
    insert into public.profiles
        values (new.id, new.metadata ->> 'nick', (new.metadata ->> 'team')::int, (new.metadata ->> 'age')::int)
        on conflict (id) do update set nick = excluded.nick, team = excluded.team, age = excluded.age;
    return new;
end $$;
create trigger keep_profile after insert or update on auth.users
    for each row execute function public.keep_profile()
"""
FAREWELLS = """
create table public.farewells (said text constraint one_farewell unique);
insert into public.farewells values ('bye');
create function public.say() returns trigger language plpgsql as $$
begin
    insert into public.farewells values ('bye');
    return old;
end $$;
create trigger say before delete on auth.users for each row execute function public.say()
"""


@pytest_twisted.ensureDeferred
async def test_constraints_met_by_triggers_on_users_are_the_users_input(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    run_sql(database, "create table public.teams (id int primary key); " + PROFILES)
    async with api_on(database, store_settings, tmp_path) as api:

        async def sign_up(name: str, **metadata: object) -> tuple[int, str, str]:
            body = {"email": f"{name}@example.test", "password": PASSWORD, "metadata": metadata}
            status, answer = await post(api, "/auth/signup", body)
            error = answer["error"] or {"code": "ok", "message": ""}
            return status, error["code"], error["message"]

        assert (await sign_up("ada", nick="ada"))[0] == 201
        for metadata, expected, named in (
            ({"nick": "ada"}, 409, "nick_unique"),
            ({"nick": "x", "team": 7}, 409, "team_known"),
            ({"nick": "far too long"}, 422, "nick_short"),
            ({}, 422, "nick"),
            ({"nick": "x", "age": "young"}, 422, "integer"),
            ({"nick": "root"}, 400, "That name is reserved."),
        ):
            status, code, message = await sign_up("eve", **metadata)
            assert (status, code) == (expected, "refused_by_project"), (metadata, message)
            assert named in message
        # What the service itself expects keeps its code.
        assert (await sign_up("ada", nick="other"))[:2] == (409, "email_taken")
        user_id = run_sql(database, "select id::text from auth.users")[0][0]
        body = {"id": user_id, "email": "bea@example.test", "password": PASSWORD, "metadata": {"nick": "bea"}}
        status, _, answer = await api.request("POST", "/admin/users", key="service", json=body)
        assert (status, answer["error"]["code"]) == (409, "id_taken")
        change = {"metadata": {"nick": "far too long"}}
        status, _, answer = await api.request("PATCH", f"/admin/users/{user_id}", key="service", json=change)
        assert (status, answer["error"]["code"]) == (422, "refused_by_project")
        run_sql(database, "alter table auth.users add constraint stays check (disabled_at is null)")
        change_disabled = {"disabled": True}
        status, _, answer = await api.request(
            "PATCH", f"/admin/users/{user_id}", key="service", json=change_disabled
        )
        assert (status, answer["error"]["code"]) == (422, "refused_by_project")
        assert "stays" in answer["error"]["message"]
        run_sql(database, FAREWELLS)
        status, _, answer = await api.request("DELETE", f"/admin/users/{user_id}", key="service")
        assert (status, answer["error"]["code"]) == (409, "refused_by_project")
        assert "one_farewell" in answer["error"]["message"]
    assert run_sql(database, "select email from auth.users") == [("ada@example.test",)]


KEYED = """
create table public.pages (bucket text, key text, constraint page_unique unique (key),
    constraint page_short check (length(key) < 9));
create function public.keep_page() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        if old.key = 'kept' then
            raise exception 'It is kept.';
        end if;
        return old;
    end if;
    insert into public.pages values (new.bucket, new.key);
    return new;
end $$;
create trigger keep_page before insert or update of version, key or delete on storage.objects
    for each row execute function public.keep_page();
alter table storage.objects add constraint no_html check (content_type <> 'text/html');
alter table storage.buckets add constraint small check (max_object_bytes < 1000)
"""


@pytest_twisted.ensureDeferred
async def test_constraints_met_by_objects_and_buckets_are_the_users_input(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    settings = settings_for(database, store_settings, tmp_path)
    async with serving(settings) as api:
        run_sql(database, KEYED)
        objects = "/storage/buckets/private/objects"

        async def outcome(method: str, path: str, **sent: object) -> tuple[int, str]:
            status, _, body = await api.request(method, path, key="service", **sent)  # type: ignore[arg-type]  # what treq takes
            error = (body or {}).get("error") if isinstance(body, dict) else None
            return status, f"{error['code']}: {error['message']}" if error else ""

        assert (await outcome("PUT", f"{objects}/kept", data=b"x"))[0] == 201
        page = {"Content-Type": "text/html"}
        for method, path, more, expected, named in (
            ("PUT", f"{objects}/kept", {"data": b"y"}, 409, "page_unique"),
            ("PUT", f"{objects}/far-too-long", {"data": b"y"}, 422, "page_short"),
            ("PUT", f"{objects}/page", {"data": b"y", "headers": page}, 422, "no_html"),
            (
                "POST",
                "/storage/buckets/private/move",
                {"json": {"from": "kept", "to": "far-too-long"}},
                422,
                "page_short",
            ),
            ("DELETE", f"{objects}/kept", {}, 400, "It is kept."),
            ("PATCH", "/admin/buckets/private", {"json": {"max_object_bytes": 5000}}, 422, "small"),
        ):
            status, error = await outcome(method, path, **more)
            assert (status, error.partition(":")[0]) == (expected, "refused_by_project"), (path, error)
            assert named in error
    assert run_sql(database, "select key from storage.objects") == [("kept",)]
