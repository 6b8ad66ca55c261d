"""All of authentication with a real PostgreSQL, threads and sockets, and two workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import bcrypt
import jwt
import pytest_twisted
from twisted.logger import capturedLogs, formatEvent

from project_service.settings.model import Store
from tests.live.application import Api
from tests.live.auth.service import PASSWORD, all_of, api_on, code_for, log_in, post
from tests.live.sql import run_sql
from tests.live.waiting import until


@pytest_twisted.ensureDeferred
async def test_a_session_from_signup_to_deletion(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("Ada@Example.test")
        assert (await post(api, "/auth/signup", {"email": "ADA@example.test", "password": PASSWORD}))[
            0
        ] == 409
        status, answer = await log_in(api, "ada@example.test")
        assert (status, answer["data"]["user"]) == (200, session["user"])
        status, answer = await post(api, "/auth/refresh", {"refresh_token": session["refresh_token"]})
        assert status == 200
        access = answer["data"]["access_token"]
        status, _, jwks = await api.request("GET", "/.well-known/jwks.json", key=None)
        keys = jwt.PyJWKSet.from_dict(jwks)
        key = next(key for key in keys.keys if key.key_id == jwt.get_unverified_header(access)["kid"])
        claims = jwt.decode(access, key.key, ["ES256"], audience="authenticated", issuer="project-service")
        assert (claims["sub"], claims["email"]) == (session["user"]["id"], "Ada@example.test")
        status, _, answer = await api.request(
            "DELETE", "/auth/user", key=None, token=access, json={"current_password": PASSWORD}
        )
        assert status == 200
        assert await code_for(api, access) == "session_revoked"
    stored = str(run_sql(database, "select * from auth.audit")) + str(
        run_sql(database, "select * from auth.sessions")
    )
    assert PASSWORD not in stored
    assert run_sql(database, "select action, result from auth.audit order by id")[-1] == ("delete_user", "ok")


@pytest_twisted.ensureDeferred
async def test_six_tabs_go_on_after_a_lost_answer_and_a_restart_on_two_hosts(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async def refreshed(api: Api, token: str) -> str:
        status, answer = await post(api, "/auth/refresh", {"refresh_token": token})
        assert status == 200, answer
        return str(answer["data"]["refresh_token"])

    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        lost = await refreshed(api, session["refresh_token"])
    run_sql(database, "update auth.sessions set rotated_at = rotated_at - interval '1 hour'")
    async with (
        api_on(database, store_settings, tmp_path) as here,
        api_on(database, store_settings, tmp_path) as there,
    ):
        hosts = (here, there) * 3
        assert set(await all_of(*(refreshed(api, session["refresh_token"]) for api in hosts))) == {lost}
        (following,) = set(await all_of(*(refreshed(api, lost) for api in hosts)))
        run_sql(database, "update auth.sessions set rotated_at = rotated_at - interval '1 hour'")
        assert await refreshed(there, lost) == following
        run_sql(database, "update auth.refresh_tokens set replaced_at = replaced_at - interval '1 hour'")
        status, answer = await post(here, "/auth/refresh", {"refresh_token": session["refresh_token"]})
        assert (status, answer["error"]["code"]) == (401, "refresh_token_reused")


@pytest_twisted.ensureDeferred
async def test_why_the_database_refuses_is_logged_without_its_values(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """The response does not tell of a full disk, say, and the embedded server's own log leaves out the statements
    it refuses."""
    full = "raise exception 'no space left' using errcode = '53100', detail = to_json(new)"
    run_sql(
        database, f"create function full_disk() returns trigger language plpgsql as $$ begin {full}; end $$"
    )
    run_sql(
        database,
        "create trigger full_disk before insert on auth.users for each row execute function full_disk()",
    )
    async with api_on(database, store_settings, tmp_path) as api:
        with capturedLogs() as events:
            status, answer = await post(api, "/auth/signup", {"email": "ada@x.test", "password": PASSWORD})
        assert (status, answer["error"]["code"]) == (503, "database_unavailable")
    said = "\n".join(formatEvent(event) for event in events)
    assert "database_unavailable: no space left (53100) id=" in said
    assert "ada@x.test" not in said


@pytest_twisted.ensureDeferred
async def test_a_user_referenced_by_other_tables_is_not_deleted(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """A foreign key says what becomes of the rows; by default it keeps the user."""
    run_sql(database, "create table kept (owner uuid references auth.users)")
    run_sql(database, "create table kept_by_name (owner uuid references auth.users on delete restrict)")
    run_sql(database, "create table gone (owner uuid references auth.users on delete cascade)")
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        token, path = session["access_token"], f"/admin/users/{session['user']['id']}"
        run_sql(database, "insert into gone select id from auth.users")
        for table in ("kept", "kept_by_name"):
            run_sql(database, f"insert into {table} select id from auth.users")
            for status, _, answer in (
                await api.request("DELETE", "/auth/user", token=token, json={"current_password": PASSWORD}),
                await api.request("DELETE", path, key="service"),
            ):
                assert (status, answer["error"]["code"]) == (409, "user_in_use")
            run_sql(database, f"delete from {table}")
        assert await code_for(api, token) == "ok"
        assert (await api.request("DELETE", path, key="service"))[0] == 200
    assert run_sql(database, "select * from gone") == []


@pytest_twisted.ensureDeferred
async def test_no_token_or_password_is_stored_in_clear(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        status, answer = await post(api, "/auth/refresh", {"refresh_token": session["refresh_token"]})
        assert status == 200
    tables = [
        row[0] for row in run_sql(database, "select tablename from pg_tables where schemaname = 'auth'")
    ]
    everything = "".join(str(run_sql(database, f'select t::text from auth."{table}" t')) for table in tables)
    for secret in (
        PASSWORD,
        session["refresh_token"],
        answer["data"]["refresh_token"],
        session["access_token"],
    ):
        assert secret not in everything
    stored = run_sql(database, "select password_hash from auth.users")[0][0]
    assert bcrypt.checkpw(PASSWORD.encode(), stored.encode())


@pytest_twisted.ensureDeferred
async def test_simultaneous_guesses_are_limited_and_simultaneous_logins_do_not_lock_out(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        await api.sign_up("ada@example.test")
        right = await all_of(*(log_in(api, "ada@example.test") for _ in range(25)))
        assert Counter(status for status, _ in right) == {200: 25}
        wrong = await all_of(*(log_in(api, "ada@example.test", f"wrong {n}") for n in range(40)))
        assert Counter(status for status, _ in wrong) == {401: 10, 429: 30}
        assert (await log_in(api, "ada@example.test"))[0] == 429
        unknown = await all_of(*(log_in(api, "nobody@example.test", f"wrong {n}") for n in range(40)))
        assert Counter(status for status, _ in unknown) == {401: 10, 429: 30}


@pytest_twisted.ensureDeferred
async def test_logins_that_wait_in_vain_are_503_and_the_next_login_works(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    limits = {"bcrypt_cost": 12, "login_failures_max": 0, "login_failures_max_per_address": 0}
    async with api_on(database, store_settings, tmp_path, auth=limits) as api:
        await api.sign_up("ada@example.test")
        answers = await all_of(*(log_in(api, f"u{n}@example.test", "wrong") for n in range(150)))
        seen = Counter(status for status, _ in answers)
        assert set(seen) == {401, 503}
        assert {answer["error"]["code"] for status, answer in answers if status == 503} == {"overloaded"}
        assert (await log_in(api, "ada@example.test"))[0] == 200


@pytest_twisted.ensureDeferred
async def test_an_ended_session_is_refused_by_every_process(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        sessions = [await one.sign_up(f"user{n}@example.test") for n in range(4)]
        tokens = [session["access_token"] for session in sessions]
        assert [await code_for(other, token) for token in tokens] == ["ok"] * 4

        async def refused(token: str) -> None:
            async def seen() -> bool:
                return bool(await code_for(other, token) == "session_revoked")

            await until(seen)

        await one.request("POST", "/auth/logout", key=None, token=tokens[0])
        assert await code_for(one, tokens[0]) == "session_revoked"
        await refused(tokens[0])
        # The listening connections are cut; what is announced until they are back is read then.
        run_sql(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity where query ~ '^(listen|LISTEN)'",
        )
        await one.request("POST", "/auth/logout", key=None, token=tokens[1])
        await refused(tokens[1])
        # The user is deleted by hand, in SQL.
        run_sql(database, "delete from auth.users where id = %s", sessions[2]["user"]["id"])
        await refused(tokens[2])
        path = f"/admin/users/{sessions[3]['user']['id']}"
        await one.request("PATCH", path, key="service", json={"disabled": True})
        await refused(tokens[3])
        # Storage and tables use the same verifier.
        for path in ("/storage/buckets/public/objects", "/dev/db/main/rest/"):
            status, _, answer = await other.request("GET", path, token=tokens[0])
            assert status == 401
            assert "session_revoked" in str(answer)


@pytest_twisted.ensureDeferred
async def test_an_ended_session_is_refused_even_if_notifications_are_lost(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    (body,) = run_sql(database, "select pg_get_functiondef('auth.revoke_ended_session'::regproc)")[0]
    assert "pg_notify(" in body
    run_sql(database, body.replace("pg_notify(", "concat(").replace("%", "%%"))
    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        token = (await one.sign_up("ada@example.test"))["access_token"]
        assert await code_for(other, token) == "ok"
        await one.request("POST", "/auth/logout", key=None, token=token)

        async def refused() -> bool:
            return bool(await code_for(other, token) == "session_revoked")

        await until(refused)


@pytest_twisted.ensureDeferred
async def test_a_change_of_password_wins_over_logins_with_the_old_one(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        for number in range(5):
            old, new = (PASSWORD, "the other one") if number % 2 == 0 else ("the other one", PASSWORD)
            status, _, answer = await api.request(
                "GET", "/auth/user", key=None, token=session["access_token"]
            )
            assert status == 200, answer
            change = api.request(
                "PATCH",
                "/auth/user",
                key=None,
                token=session["access_token"],
                json={"password": new, "current_password": old},
            )
            changed, *logins = await all_of(change, *(log_in(api, "ada@example.test", old) for _ in range(4)))
            assert changed[0] == 200
            living = run_sql(database, "select id::text from auth.sessions where ended_at is null")
            sid = jwt.decode(session["access_token"], options={"verify_signature": False})["sid"]
            assert living == [(sid,)]
            assert {status for status, _ in logins} <= {200, 401}
            run_sql(database, "update auth.throttle set failed = '{}'")


@pytest_twisted.ensureDeferred
async def test_a_user_is_shown_as_the_database_has_it_whoever_has_changed_it(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    """The two may be on different hosts: they share only the database."""

    async def shown(api: Api) -> object:
        status, headers, answer = await api.request("GET", "/auth/user", key=None, token=token)
        assert (status, headers.getRawHeaders("cache-control")) == (200, ["no-store"])
        return answer["data"]["user"]["metadata"]

    async with (
        api_on(database, store_settings, tmp_path) as one,
        api_on(database, store_settings, tmp_path) as other,
    ):
        token = (await one.sign_up("ada@example.test"))["access_token"]
        for number in range(10):
            metadata = {"number": number}
            body = {"metadata": metadata}
            assert (await one.request("PATCH", "/auth/user", key=None, token=token, json=body))[0] == 200
            assert (await shown(one), await shown(other)) == (metadata, metadata)
        run_sql(database, 'update auth.users set metadata = \'{"by": "SQL"}\'')
        assert (await shown(one), await shown(other)) == ({"by": "SQL"}, {"by": "SQL"})
        assert run_sql(database, "select tgname from pg_trigger where tgname like 'user\\_%'") == []
