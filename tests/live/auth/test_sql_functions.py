"""What SQL of a project may do with users: ``auth.accounts``, ``auth.set_disabled`` and ``auth.end_sessions`` do what
``/admin/users`` does, for whom the owner lets."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from psycopg2 import errors as pg

from project_service.auth.values import Account, User
from project_service.lifecycle import start
from project_service.settings.model import Store
from tests.contracts.auth.users import HASH, HOUR, LONG_AGO, NOW, event, made, session
from tests.live.auth.service import api_on, code_for, listening, log_in, payloads, post, repository_on
from tests.live.sql import run_each, run_sql
from tests.live.waiting import until

NOBODY = "00000000-0000-4000-8000-000000000000"
CALLS = (
    f"select auth.set_disabled('{NOBODY}', true)",
    f"select auth.end_sessions('{NOBODY}')",
    "select * from auth.accounts",
)
# As a project might put them in front, and as it had better not: they ask nobody.
WRAPPERS = """
create function set_disabled(id uuid, disabled boolean) returns void language plpgsql security definer
    set search_path = '' as $$ begin perform auth.set_disabled(id, disabled); end $$;
create function end_sessions(id uuid) returns int language plpgsql security definer
    set search_path = '' as $$ begin return auth.end_sessions(id); end $$;
"""


@pytest.mark.parametrize("role", ["anon", "authenticated", "service_role", "support"])
def test_nobody_may_use_them_until_the_owner_grants_it(database: str, role: str) -> None:
    if role == "support":
        run_sql(
            database,
            "create role support; grant support to current_user; grant usage on schema auth to support",
        )
    try:
        for call in (*CALLS, f"select auth.record_change('{NOBODY}', 'any')"):
            with pytest.raises(pg.InsufficientPrivilege):
                run_each(database, f"set role {role}", call)
        run_sql(
            database,
            f"grant execute on function auth.set_disabled, auth.end_sessions to {role};"
            f" grant select on auth.accounts to {role}",
        )
        for call in CALLS[:2]:
            with pytest.raises(psycopg2.Error) as refused:
                run_each(database, f"set role {role}", call)
            assert (refused.value.pgcode, refused.value.diag.message_primary) == (
                "PT404",
                "There is no such user.",
            )
        assert run_each(database, f"set role {role}", CALLS[2]) == []
    finally:
        if role == "support":
            run_sql(database, "drop owned by support; drop role support")


def test_a_null_is_refused(database: str) -> None:
    user = run_sql(
        database, "insert into auth.users (email, email_key) values ('a@b.test', 'a@b.test') returning id"
    )
    with pytest.raises(pg.NullValueNotAllowed):
        run_sql(database, "select auth.set_disabled(%s, null)", user[0][0])
    for call in ("auth.set_disabled(null, true)", "auth.end_sessions(null)"):
        with pytest.raises(psycopg2.Error, match="no such user"):
            run_sql(database, f"select {call}")


@pytest_twisted.ensureDeferred
async def test_who_is_disabled_by_sql_is_so_for_good(database: str) -> None:
    """Whatever an operator has decided for some time before."""
    async with repository_on(database) as repository:
        account = await made(repository)
        for until_when in (NOW + HOUR, NOW - HOUR):
            await repository.set_disabled(account.user.id, True, event(), until_when)
            run_sql(database, "select auth.set_disabled(%s, true)", account.user.id)
            await repository.delete_expired(NOW + 2 * HOUR, LONG_AGO, LONG_AGO, LONG_AGO)
            known = await repository.find_user(account.user.id)
            assert known is not None and known.disabled_at is not None


AFTERWARDS = """
select json_build_object(
    'disabled', (select disabled_at is not null from auth.users where id = u.id),
    'sessions', (select json_agg(json_build_array(s.ended_at is null, s.end_reason) order by s.created_at)
                 from auth.sessions s where s.user_id = u.id),
    'revoked', (select count(*) from auth.revocations r join auth.sessions s on s.id = r.session_id
                where s.user_id = u.id and r.expires_at > now()),
    'audit', (select json_agg(json_build_array(a.action, a.result, a.email = u.email) order by a.id)
              from auth.audit a where a.user_id = u.id))
from auth.users u where email = %s
"""


@pytest_twisted.ensureDeferred
async def test_they_do_what_admin_users_does(database: str, store_settings: Store, tmp_path: Path) -> None:
    async with api_on(database, store_settings, tmp_path) as api:

        async def by_admin(user: str) -> None:
            for method, path, body in (
                ("DELETE", "/sessions", None),
                ("PATCH", "", {"disabled": True}),
                ("PATCH", "", {"disabled": True}),
                ("PATCH", "", {"disabled": False}),
            ):
                more: dict[str, Any] = {} if body is None else {"json": body}
                assert (await api.request(method, f"/admin/users/{user}{path}", key="service", **more))[
                    0
                ] == 200
                states.append(run_sql(database, AFTERWARDS, email)[0][0])
                await log_in(api, email)

        async def by_sql(user: str) -> None:
            for call in (
                "select auth.end_sessions(%s)",
                "select auth.set_disabled(%s, true)",
                "select auth.set_disabled(%s, true)",
                "select auth.set_disabled(%s, false)",
            ):
                run_sql(database, call, user)
                states.append(run_sql(database, AFTERWARDS, email)[0][0])
                await log_in(api, email)

        both = []
        for name, way in (("ann", by_admin), ("bob", by_sql)):
            email = f"{name}@example.test"
            states: list[Any] = []
            user = (await api.sign_up(email))["user"]["id"]
            await log_in(api, email)
            await way(user)
            both.append(states)
    assert both[0] == both[1]
    assert [state["disabled"] for state in both[0]] == [False, True, True, False]


@pytest_twisted.ensureDeferred
async def test_access_tokens_end_on_every_worker(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        for call, code in (
            ("auth.end_sessions(%s)", "ok"),
            ("auth.set_disabled(%s, true)", "user_disabled"),
        ):
            email = f"{code}@example.test"
            signed_up = await api.sign_up(email)
            user, token = signed_up["user"]["id"], signed_up["access_token"]
            assert await code_for(api, token) == "ok"
            with listening(database, "auth_revocations") as notifications:
                run_sql(database, f"select {call}", user)
                (notice,) = payloads(notifications)
            assert notice.split()[0] == str(
                run_sql(database, "select id from auth.sessions where user_id = %s", user)[0][0]
            )

            async def refused(token: str = token) -> bool:
                return bool(await code_for(api, token) == "session_revoked")

            await until(refused)
            status, answer = await post(api, "/auth/refresh", {"refresh_token": signed_up["refresh_token"]})
            assert (status, answer["error"]["code"]) == (401, "invalid_refresh_token")
            _, answer = await log_in(api, email)
            assert (answer["error"] or {"code": "ok"})["code"] == code
        run_sql(database, "select auth.set_disabled(id, false) from auth.users")
        assert (await log_in(api, email))[0] == 200


def test_what_is_rolled_back_has_not_happened(database: str) -> None:
    user = run_sql(
        database, "insert into auth.users (email, email_key) values ('a@b.test', 'a@b.test') returning id"
    )
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("select auth.set_disabled(%s, true)", user[0])
        connection.rollback()
    assert run_sql(database, "select disabled_at, (select count(*) from auth.audit) from auth.users") == [
        (None, 0)
    ]


@pytest_twisted.ensureDeferred
async def test_a_login_at_the_same_time_starts_no_session_that_stays(database: str) -> None:
    async with repository_on(database) as repository:
        account = await made(repository)
        with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("select auth.set_disabled(%s, true)", (account.user.id,))
            starting = start(repository.start_session(account, None, session(), event("login")))
            await until(lambda: bool(run_sql(database, "select 1 from pg_locks where not granted")))
            connection.commit()
        assert await starting is None
    assert run_sql(database, "select 1 from auth.sessions where ended_at is null") == []


def claims(**members: str) -> str:
    return f"set request.jwt.claims = '{json.dumps(members)}'"


def test_the_audit_says_who(database: str) -> None:
    """By the claims of the caller, which the table API sets, and by its headers."""
    user, admin = (
        run_sql(
            database,
            "insert into auth.users (email, email_key) values (%s, %s) returning id::text",
            f"{name}@b.test",
            f"{name}@b.test",
        )[0][0]
        for name in ("user", "admin")
    )
    headers = {"user-agent": "x" * 300, "x-request-id": "page-7"}
    for before, actor, actor_id in (
        ((), "operator", None),
        ((claims(role="service_role"),), "service", None),
        ((claims(role="anon"),), "anonymous", None),
        ((claims(role="authenticated", sub=admin),), "user", admin),
        # Of tokens that somebody else signs.
        ((claims(role="support", sub="somebody"),), "user", None),
        (("set request.jwt.claims = ''",), "operator", None),
    ):
        run_each(database, *before, f"select auth.end_sessions('{user}')")
        found = "select actor, actor_id::text, user_id::text, email, action, result, address, user_agent, request_id"
        assert run_sql(database, f"{found} from auth.audit order by id desc limit 1") == [
            (actor, actor_id, user, "user@b.test", "end_sessions", "ok", "", "", "")
        ]
    for sent, request_id in ((headers, "page-7"), ({"x-request-id": "not one"}, "")):
        run_each(
            database,
            f"set request.headers = '{json.dumps(sent)}'",
            f"select auth.set_disabled('{user}', true)",
        )
        assert run_sql(
            database, "select user_agent, request_id from auth.audit order by id desc limit 1"
        ) == [(sent.get("user-agent", "")[:256], request_id)]


@pytest_twisted.ensureDeferred
async def test_through_the_table_api(database: str, store_settings: Store, tmp_path: Path) -> None:
    run_sql(database, WRAPPERS)
    async with api_on(database, store_settings, tmp_path) as api:
        ann, bob = [await api.sign_up(f"{name}@example.test") for name in ("ann", "bob")]

        async def call(
            function: str, token: str | None = ann["access_token"], **body: Any
        ) -> tuple[int, Any]:
            headers = {"X-Request-Id": "from-the-page", "User-Agent": "a page"}
            path = f"/dev/db/main/rest/rpc/{function}"
            status, _, answer = await api.request("POST", path, token=token, json=body, headers=headers)
            return status, answer

        user = bob["user"]["id"]
        assert await call("end_sessions", id=user) == (200, 1)
        assert (await call("set_disabled", id=user, disabled=True))[0] == 204
        status, answer = await call("end_sessions", id=NOBODY)
        assert (status, answer["code"], answer["message"]) == (404, "PT404", "There is no such user.")
        assert run_sql(
            database,
            "select action, actor, actor_id::text, user_agent, request_id from auth.audit"
            " where user_id = %s and action <> 'signup' order by id",
            user,
        ) == [
            (action, "user", ann["user"]["id"], "a page", "from-the-page")
            for action in ("end_sessions", "disable_user")
        ]


def shown(account: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in account.items() if name not in ("created_at", "last_login_at")}


@pytest_twisted.ensureDeferred
async def test_the_view_shows_what_admin_users_shows(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        await api.sign_up("ann@example.test")
        new = {"email": "bob@example.test", "email_confirmed": False, "metadata": {"a": 1}}
        assert (await api.request("POST", "/admin/users", key="service", json=new))[0] == 201
        run_sql(
            database, "select auth.set_disabled(id, true) from auth.users where email = 'ann@example.test'"
        )
        _, _, answer = await api.request("GET", "/admin/users", key="service")
    rows = run_sql(database, "select to_json(a) from auth.accounts a order by created_at")
    assert [shown(row) for (row,) in rows] == [shown(one) for one in answer["data"]["users"]]
    columns = run_sql(
        database,
        "select array_agg(attname::text order by attnum) from pg_attribute"
        " where attrelid = 'auth.accounts'::regclass and attnum > 0",
    )
    assert columns == [(list(Account(User("", "", NOW), HASH).view()),)]
