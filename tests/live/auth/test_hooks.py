"""Hooks, as functions of a real database and as servers on real sockets: what they are sent, what their answers mean,
and that one that fails refuses."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.logger import formatEvent

from project_service.auth import hooks
from project_service.auth.hooks import FIXED_CLAIMS, MAX_REPLY_BYTES, Hooks, signature
from project_service.database.acting import Actor
from project_service.database.pool import Pool
from project_service.database.trust import Trust
from project_service.errors import ApiError
from project_service.outgoing import Outgoing
from project_service.settings.model import Hooks as HookSettings
from project_service.settings.model import Secret
from tests.captured_log import captured_logs
from tests.live.outgoing_server import Answer, answers, hangs, ok, outgoing_server
from tests.live.services import pool_on, wait
from tests.live.sql import run_sql

clock: Any = reactor
NOW = datetime(2026, 11, 28, 17, 0, tzinfo=UTC)
SECRET = Secret(f"v1,whsec_{b64encode(b'k' * 24).decode()}")
USER = {"id": "7b7a6a5c-0000-4000-8000-000000000001", "email": "ada@example.test"}
CLAIMS: dict[str, Any] = {
    **{name: f"the {name}" for name in FIXED_CLAIMS},
    **{"role": "authenticated", "email": "ada@example.test", "phone": ""},
}


@pytest.fixture
def pool(database: str) -> Iterator[Pool]:
    pool = pool_on(database)
    yield pool
    wait(pool.close)


def asking(settings: HookSettings, pool: Pool | None = None) -> Hooks:
    actor: Any = None if pool is None else Actor(pool, Trust)
    return Hooks(lambda: settings, Outgoing(clock, lambda: True), actor, lambda: NOW, lambda: "id-1")


def at(url: str, secret: Secret = SECRET) -> Hooks:
    return asking(
        HookSettings(
            before_user_created=url,
            before_user_created_secret=secret,
            custom_access_token=url,
            custom_access_token_secret=secret,
            send_email=url,
            send_email_secret=secret,
        )
    )


async def refused(call: Any) -> tuple[int, str, str, str]:
    """Status, code and message, and what the log says."""
    with captured_logs() as logs, pytest.raises(ApiError) as caught:
        await call
    fault = caught.value
    return fault.status, fault.code, fault.message, " ".join(formatEvent(one) or "" for one in logs)


# Addresses.


@pytest_twisted.ensureDeferred
async def test_an_address_is_sent_the_event_and_its_signature() -> None:
    async with outgoing_server(answers(ok(b"{}"))) as server:
        await at(f"{server.url}/hook?a=b").before_user_created(USER, "192.0.2.1", "captcha")
        (request,) = server.requests
        head, _, body = request.decode().partition("\r\n\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
        assert head.startswith("POST /hook?a=b HTTP/1.1\r\n")
        assert orjson.loads(body) == {
            "metadata": {
                "uuid": "id-1",
                "time": "2026-11-28T17:00:00.000Z",
                "name": "before-user-created",
                "ip_address": "192.0.2.1",
                "captcha_token": "captcha",
            },
            "user": USER,
        }
        assert (headers["content-type"], headers["webhook-id"]) == ("application/json", "id-1")
        assert headers["webhook-timestamp"] == str(int(NOW.timestamp()))
        signed = f"id-1.{int(NOW.timestamp())}.{body}".encode()
        wanted = b64encode(hmac.digest(b"k" * 24, signed, "sha256")).decode()
        assert f"webhook-signature: v1,{wanted}" in head.replace("Webhook-Signature", "webhook-signature")


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The example of its libraries."""
    made = signature(
        Secret("v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_two_secrets_make_two_signatures() -> None:
    other = f"v1,whsec_{b64encode(b'm' * 24).decode()}"
    both = signature(Secret(f"{SECRET.reveal()}|{other}"), "id", 1, b"{}")
    assert both == f"{signature(SECRET, 'id', 1, b'{}')} {signature(Secret(other), 'id', 1, b'{}')}"
    assert b64decode(both.split(" ")[1].removeprefix("v1,"))


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "reply", [ok(b"{}"), ok(b"", status="204 No Content"), ok(b""), ok(b"{}", status="202 Ok")]
)
async def test_an_answer_without_an_error_allows(reply: bytes) -> None:
    async with outgoing_server(answers(reply)) as server:
        await at(server.url).before_user_created(USER, None)


def error(status: str, **members: Any) -> Answer:
    return answers(ok(orjson.dumps({"error": members}), status=status))


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (error("200 Ok", http_code=403, message="Not you."), 403, "Not you."),
        (error("403 No", http_code=422, message="Not you."), 422, "Not you."),
        (error("403 No", message="Not you."), 403, "Not you."),
        (error("200 Ok", message="Not you."), 400, "Not you."),
        (error("200 Ok", http_code=400), 400, "This project refuses it."),
        (error("200 Ok", http_code=400, message="x" * 501), 400, "This project refuses it."),
        (error("200 Ok"), 400, "This project refuses it."),
    ],
)
async def test_an_error_refuses_with_its_status_and_message(
    answer: Answer, status: int, message: str
) -> None:
    async with outgoing_server(answer) as server:
        told = await refused(at(server.url).before_user_created(USER, None))
        assert told[:3] == (status, "hook_refused", message)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answers(ok(b"hush", status="500 Oh")), "answered 500"),
        (answers(ok(b"hush", status="404 No")), "answered 404"),
        (answers(ok(b"", "Location: https://evil/", status="302 Found")), "answered 302"),
        (answers(ok(b"hush")), "answered without a JSON object"),
        (answers(ok(b'["hush"]')), "answered without a JSON object"),
        (answers(ok(b'{"error": "hush"}')), "answered with an error that is no object"),
        (
            error("200 Ok", http_code=500, message="hush"),
            "answered with an error whose http_code is not from 400 to 499",
        ),
        (
            error("200 Ok", http_code="403", message="hush"),
            "answered with an error whose http_code is not from 400 to 499",
        ),
        (
            error("200 Ok", http_code=True, message="hush"),
            "answered with an error whose http_code is not from 400 to 499",
        ),
        (answers(b"hush"), "did not answer in HTTP"),
        (answers(ok(b" " * (MAX_REPLY_BYTES + 1))), "sent more than is taken"),
    ],
)
async def test_a_hook_that_fails_refuses_and_the_log_says_why(answer: Answer, why: str) -> None:
    async with outgoing_server(answer) as server:
        status, code, message, logged = await refused(
            at(f"{server.url}/hush").before_user_created(USER, None)
        )
        assert (status, code) == (500, "hook_failed")
        assert f"the hook before_user_created {why}" in logged.replace("cannot be used: localhost ", "")
        for secret in ("hush", "ada@", SECRET.reveal()):
            assert secret not in f"{message} {logged}"


@pytest_twisted.ensureDeferred
async def test_a_hook_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "SECONDS", 2.0)
    async with outgoing_server(hangs) as server:
        told = await refused(at(server.url).send_email(USER, {}))
        assert told[:2] == (500, "hook_failed") and "within 2 seconds" in told[3]


@pytest_twisted.ensureDeferred
async def test_where_there_is_no_hook_nobody_is_asked() -> None:
    none = asking(HookSettings())
    await none.before_user_created(USER, None)
    await none.send_email(USER, {})
    assert await none.custom_access_token(CLAIMS, "password", None) == CLAIMS
    assert not none.has("send_email")


@pytest_twisted.ensureDeferred
async def test_an_e_mail_is_handed_over() -> None:
    async with outgoing_server(answers(ok(b"{}"))) as server:
        await at(server.url).send_email(USER, {"token": "123456", "email_action_type": "signup"})
        sent = orjson.loads(server.requests[0].partition(b"\r\n\r\n")[2])
        assert sent["email_data"] == {"token": "123456", "email_action_type": "signup"}
        assert (sent["metadata"]["name"], sent["user"]) == ("send-email", USER)


@pytest_twisted.ensureDeferred
async def test_claims_are_those_that_the_hook_answers() -> None:
    given = {**CLAIMS, "user_role": "admin", "role": "editor"}
    async with outgoing_server(answers(ok(orjson.dumps({"claims": given})))) as server:
        assert await at(server.url).custom_access_token(CLAIMS, "token_refresh", "192.0.2.1") == given
        sent = orjson.loads(server.requests[0].partition(b"\r\n\r\n")[2])
        assert (sent["user_id"], sent["authentication_method"]) == ("the sub", "token_refresh")
        assert (sent["claims"], sent["metadata"]["name"]) == (CLAIMS, "customize-access-token")


@pytest_twisted.ensureDeferred
async def test_claims_that_say_what_a_token_is_for_can_neither_be_changed_nor_left_out() -> None:
    wrong: list[Any] = [{**CLAIMS, name: "another"} for name in FIXED_CLAIMS]
    wrong += [{key: value for key, value in CLAIMS.items() if key != name} for name in CLAIMS]
    wrong += [{**CLAIMS, "role": None}, {**CLAIMS, "role": 1}, {}, [], None, "x"]
    for claims in wrong:
        async with outgoing_server(answers(ok(orjson.dumps({"claims": claims})))) as server:
            told = await refused(at(server.url).custom_access_token(CLAIMS, "password", None))
            assert told[:2] == (500, "hook_failed"), claims
    async with outgoing_server(answers(ok(b"{}"))) as server:
        told = await refused(at(server.url).custom_access_token(CLAIMS, "password", None))
        assert "answered without claims" in told[3]


# Functions.


def function(database: str, body: str, more: str = "") -> HookSettings:
    run_sql(
        database,
        f"""create or replace function public.hook(event jsonb) returns jsonb language plpgsql {more} as
        $$ begin {body} end $$""",
    )
    return HookSettings(before_user_created="sql:public.hook", custom_access_token="sql:public.hook")


@pytest_twisted.ensureDeferred
async def test_a_function_allows_refuses_and_changes_claims(database: str, pool: Pool) -> None:
    settings = function(
        database,
        """if event ? 'claims' then
             return jsonb_set(event, '{claims,user_role}', '"admin"') - 'user_id';
           end if;
           if event->'user'->>'email' like '%@example.test' then
             return '{"error": {"http_code": 403, "message": "Not you: ''ada'' %s"}}';
           end if;
           return null;""",
    )
    asked = asking(settings, pool)
    told = await refused(asked.before_user_created(USER, "192.0.2.1"))
    assert told[:3] == (403, "hook_refused", "Not you: 'ada' %s")
    await asked.before_user_created({**USER, "email": "a%s@other.test"}, "192.0.2.1")
    claims = await asked.custom_access_token(CLAIMS, "password", None)
    assert claims == {**CLAIMS, "user_role": "admin"}


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise exception 'hush %', event;", "failed with SQLSTATE P0001"),
        ("return '[]';", "answered without a JSON object"),
        (f"return jsonb_build_object('a', repeat('x', {MAX_REPLY_BYTES}));", "answered too much"),
        ('return \'{"error": {"http_code": 500, "message": "hush"}}\';', "http_code is not from 400 to 499"),
    ],
)
async def test_a_function_that_fails_refuses(database: str, pool: Pool, body: str, why: str) -> None:
    asked = asking(function(database, body), pool)
    status, code, message, logged = await refused(asked.before_user_created(USER, None))
    assert (status, code) == (500, "hook_failed")
    assert why in logged and "hush" not in f"{message} {logged}"


@pytest_twisted.ensureDeferred
async def test_a_function_that_is_not_there_refuses(pool: Pool) -> None:
    asked = asking(HookSettings(before_user_created="sql:public.nowhere"), pool)
    assert "SQLSTATE 42883" in (await refused(asked.before_user_created(USER, None)))[3]


@pytest_twisted.ensureDeferred
async def test_a_function_that_takes_long_is_interrupted(
    database: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Enough for the function that does not sleep, also on a busy machine.
    monkeypatch.setattr(hooks, "SECONDS", 4.0)
    asked = asking(function(database, "perform pg_sleep(60); return null;"), pool)
    assert "SQLSTATE 57014" in (await refused(asked.before_user_created(USER, None)))[3]
    # That is the hook's limit and not the connection's, which has its own again.
    shown = "return jsonb_build_object('error', jsonb_build_object('message', current_setting('statement_timeout')));"
    assert (await refused(asking(function(database, shown), pool).before_user_created(USER, None)))[2] == "4s"
    assert await pool.query("show statement_timeout") != [("4s",)]


@pytest_twisted.ensureDeferred
async def test_what_a_function_does_and_then_fails_is_undone(database: str, pool: Pool) -> None:
    run_sql(database, "create table public.seen (id int)")
    asked = asking(function(database, "insert into public.seen values (1); raise exception 'no';"), pool)
    await refused(asked.before_user_created(USER, None))
    assert run_sql(database, "select * from public.seen") == []
    kept = asking(function(database, "insert into public.seen values (1); return null;"), pool)
    await kept.before_user_created(USER, None)
    assert run_sql(database, "select * from public.seen") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_function_leaves_nothing_on_the_connection(database: str) -> None:
    """Whoever gets it next must not find the settings, temporary tables or locks of the function."""
    one = pool_on(database, connections=1)
    body = """perform set_config('search_path', 'evil', false); perform set_config('a.b', 'left', false);
    create temporary table left_behind (id int); perform pg_advisory_lock(7); return null;"""
    try:
        asked = asking(function(database, body), one)
        before = await one.query("show search_path")
        process = await one.query("select pg_backend_pid()")
        await asked.before_user_created(USER, None)
        seen = await one.query(
            "select current_setting('a.b', true), to_regclass('pg_temp.left_behind')::text, "
            "(select count(*) from pg_locks where locktype = 'advisory')"
        )
        assert seen in ([("", None, 0)], [(None, None, 0)])
        assert await one.query("show search_path") == before
        assert await one.query("select pg_backend_pid()") == process
    finally:
        await one.close()
