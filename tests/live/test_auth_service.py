"""Authentication whole: real PostgreSQL, real threads, real sockets, two workers, a real mail server."""

from __future__ import annotations

import re
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import psycopg2
import pytest
import pytest_twisted
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from attrs import evolve
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from twisted.internet import reactor as _reactor
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater

from project_service.auth.mail import Letter, SmtpTransport
from project_service.auth.sql.upkeep import BATCH, LOCK, SqlHousekeeping
from project_service.database import dsn as dsns
from project_service.database.connect import Connector
from project_service.database.pool import Pool
from project_service.deferreds import start
from project_service.settings import Secret, Smtp, Store
from tests.live.application import Api, serving, settings_for

reactor: Any = _reactor
PASSWORD = "a long enough one"


@asynccontextmanager
async def api_on(database: str, store: Store, place: Path, **sections: Any) -> AsyncIterator[Api]:
    async with serving(settings_for(database, store, place, **sections)) as api:
        yield api


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for ``condition()``, at most half a minute."""
    end = reactor.seconds() + 30
    while not await condition():
        assert reactor.seconds() < end, "waited in vain"
        await deferLater(reactor, 0.005, lambda: None)


async def all_of(*work: Any) -> list[Any]:
    return list(await gatherResults([start(one) for one in work]))


def sql(database: str, text: str, *params: Any) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(database)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(text, params)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


async def post(api: Api, path: str, body: Any, **more: Any) -> tuple[int, Any]:
    status, _, answer = await api.request("POST", path, key=None, json=body, **more)
    return status, answer


async def log_in(api: Api, email: str, password: str = PASSWORD) -> tuple[int, Any]:
    return await post(api, "/auth/login", {"email": email, "password": password})


async def code_for(api: Api, token: str) -> Any:
    status, _, answer = await api.request("GET", "/auth/user", key=None, token=token)
    return "ok" if status == 200 else answer["error"]["code"]


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
    stored = str(sql(database, "select * from auth.audit")) + str(
        sql(database, "select * from auth.sessions")
    )
    assert PASSWORD not in stored
    assert sql(database, "select action, result from auth.audit order by id")[-1] == ("delete_user", "ok")


@pytest_twisted.ensureDeferred
async def test_no_token_or_password_is_stored_in_clear(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        status, answer = await post(api, "/auth/refresh", {"refresh_token": session["refresh_token"]})
        assert status == 200
    tables = [row[0] for row in sql(database, "select tablename from pg_tables where schemaname = 'auth'")]
    everything = "".join(str(sql(database, f'select t::text from auth."{table}" t')) for table in tables)
    for secret in (
        PASSWORD,
        session["refresh_token"],
        answer["data"]["refresh_token"],
        session["access_token"],
    ):
        assert secret not in everything
    stored = sql(database, "select password_hash from auth.users")[0][0]
    assert bcrypt.checkpw(PASSWORD.encode(), stored.encode())


@pytest_twisted.ensureDeferred
async def test_two_signups_of_one_address_at_the_same_instant(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        bodies = [
            {"email": email, "password": PASSWORD}
            for email in ("two@example.test", "TWO@example.test", "Two@EXAMPLE.test") * 4
        ]
        answers = await all_of(*(post(api, "/auth/signup", body) for body in bodies))
    assert Counter(status for status, _ in answers) == {201: 1, 409: 11}


@pytest_twisted.ensureDeferred
async def test_fifty_refreshes_at_once_end_in_one_living_session(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with api_on(database, store_settings, tmp_path) as api:
        session = await api.sign_up("ada@example.test")
        body = {"refresh_token": session["refresh_token"]}
        answers = await all_of(*(post(api, "/auth/refresh", body) for _ in range(50)))
        assert Counter(status for status, _ in answers) == {200: 50}
        assert len({answer["data"]["refresh_token"] for _, answer in answers}) == 1
        following = {"refresh_token": answers[0][1]["data"]["refresh_token"]}
        assert (await post(api, "/auth/refresh", following))[0] == 200
    assert sql(database, "select count(*) from auth.sessions where ended_at is null") == [(1,)]
    assert sql(database, "select count(*) from auth.refresh_tokens") == [(3,)]


@pytest_twisted.ensureDeferred
async def test_a_burst_of_guesses_does_not_slip_past_and_a_burst_of_logins_does_not_lock_out(
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
async def test_a_full_queue_is_503_and_the_next_login_works(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    limits = {"bcrypt_cost": 10, "login_failures_max": 0, "login_failures_max_per_address": 0}
    async with api_on(database, store_settings, tmp_path, auth=limits) as api:
        await api.sign_up("ada@example.test")
        answers = await all_of(*(log_in(api, f"u{n}@example.test", "wrong") for n in range(150)))
        seen = Counter(status for status, _ in answers)
        assert set(seen) == {401, 503}
        assert {answer["error"]["code"] for status, answer in answers if status == 503} == {"overloaded"}
        assert (await log_in(api, "ada@example.test"))[0] == 200


@pytest_twisted.ensureDeferred
async def test_an_ended_session_is_refused_by_every_worker(
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
        # The listening connections are cut; what is announced meanwhile is read when they are back.
        sql(
            database,
            "select pg_terminate_backend(pid) from pg_stat_activity where query ~ '^(listen|LISTEN)'",
        )
        await one.request("POST", "/auth/logout", key=None, token=tokens[1])
        await refused(tokens[1])
        # By hand, at a prompt.
        sql(database, "delete from auth.users where id = %s", sessions[2]["user"]["id"])
        await refused(tokens[2])
        path = f"/admin/users/{sessions[3]['user']['id']}"
        await one.request("PATCH", path, key="service", json={"disabled": True})
        await refused(tokens[3])
        # Storage and tables ask the same verifier.
        for path in ("/storage/buckets/public/objects", "/dev/db/main/rest/"):
            status, _, answer = await other.request("GET", path, token=tokens[0])
            assert status == 401
            assert "session_revoked" in str(answer)


@pytest_twisted.ensureDeferred
async def test_an_ended_session_is_refused_although_no_notification_arrives(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    (body,) = sql(database, "select pg_get_functiondef('auth.revoke_ended_session'::regproc)")[0]
    assert "pg_notify(" in body
    sql(database, body.replace("pg_notify(", "concat(").replace("%", "%%"))
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
async def test_a_change_of_password_wins_over_a_login_with_the_old_one(
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
            living = sql(database, "select id::text from auth.sessions where ended_at is null")
            sid = jwt.decode(session["access_token"], options={"verify_signature": False})["sid"]
            assert living == [(sid,)]
            assert {status for status, _ in logins} <= {200, 401}
            sql(database, "update auth.throttle set failed = '{}'")


@pytest_twisted.ensureDeferred
async def test_one_worker_at_a_time_cleans_up(database: str) -> None:
    more_than_a_batch = """insert into auth.audit (at, actor, action, result)
        select now() - interval '91 days', '', '', '' from generate_series(1, %s)"""
    sql(database, more_than_a_batch, 2 * BATCH + 1)
    sql(database, "insert into auth.revocations values (gen_random_uuid(), now() - interval '1 second')")
    sql(database, "insert into auth.throttle values ('login', 'x', '{}', '{}', now() - interval '1 second')")
    pool = Pool(Connector(reactor, dsns.parse(database), 10.0), 2, 5.0, reactor)
    now = datetime.now(UTC)
    housekeeping = SqlHousekeeping(pool)
    other = psycopg2.connect(database)
    try:
        with other.cursor() as cursor:
            cursor.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
            assert await housekeeping.clean(now, now, now - timedelta(days=90)) is False
        other.rollback()
        assert await housekeeping.clean(now, now, now - timedelta(days=90)) is True
    finally:
        other.close()
        await pool.close()
    for table in ("audit", "revocations", "throttle"):
        assert sql(database, f"select count(*) from auth.{table}") == [(0,)], table


class Mailbox:
    """What a mail server took."""

    def __init__(self) -> None:
        self.letters: list[Any] = []

    async def has_mail(self) -> bool:
        return bool(self.letters)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.letters.append(envelope)
        return "250 OK"


@asynccontextmanager
async def mail_server(**options: Any) -> AsyncIterator[tuple[Mailbox, int]]:
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=0, **options)
    controller.port = _free_port()
    controller.start()
    try:
        yield mailbox, controller.port
    finally:
        controller.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest_twisted.ensureDeferred
async def test_a_password_is_recovered_through_a_real_mail_server(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with mail_server() as (mailbox, port):
        smtp = {"host": "127.0.0.1", "port": port, "sender": "Project <noreply@example.test>", "tls": "none"}
        async with api_on(database, store_settings, tmp_path, smtp=smtp) as api:
            await api.sign_up("ada@bücher.test")
            for email in ("ada@bücher.test", "nobody@example.test"):
                assert await post(api, "/auth/recover", {"email": email}) == (
                    200,
                    {"data": None, "error": None},
                )
            await until(mailbox.has_mail)
            (letter,) = mailbox.letters
            assert (letter.mail_from, letter.rcpt_tos) == ("noreply@example.test", ["ada@xn--bcher-kva.test"])
            token = re.findall(rb"^([A-Za-z0-9_-]{43})\r$", letter.content, re.MULTILINE)[0].decode()
            body = {"token": token, "password": "a brand new one"}
            assert (await post(api, "/auth/reset", body))[0] == 200
            assert (await log_in(api, "ada@bücher.test", "a brand new one"))[0] == 200


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest_twisted.ensureDeferred
async def test_the_mail_server_s_password_is_used(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    options = {"auth_required": True, "auth_require_tls": False}
    logins: list[bytes] = []

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        assert isinstance(data, LoginPassword)
        logins.append(data.login)
        return AuthResult(success=data.password == b"secret")

    async with mail_server(**options, authenticator=authenticate) as (mailbox, port):
        smtp = {
            "host": "127.0.0.1",
            "port": port,
            "sender": "noreply@example.test",
            "tls": "none",
            "username": "mailer",
            "password": Secret("secret"),
        }
        async with api_on(database, store_settings, tmp_path, smtp=smtp, auth={"confirm_email": True}) as api:
            status, answer = await post(
                api, "/auth/signup", {"email": "a@example.test", "password": PASSWORD}
            )
            assert (status, answer["data"]["session"]) == (200, None)
            await until(mailbox.has_mail)
            assert logins == [b"mailer"]
            token = re.findall(rb"^([A-Za-z0-9_-]{43})\r$", mailbox.letters[0].content, re.MULTILINE)[0]
            status, answer = await post(api, "/auth/verify", {"token": token.decode()})
            assert status == 200
            assert await code_for(api, answer["data"]["access_token"]) == "ok"


@pytest_twisted.ensureDeferred
async def test_starttls_is_insisted_on() -> None:
    """A server without it gets neither password nor letter."""
    async with mail_server() as (mailbox, port):
        settings = Smtp(host="127.0.0.1", port=port, sender="noreply@example.test", tls="starttls")
        transport = SmtpTransport(reactor, settings, time.time, lambda: "id")
        with pytest.raises(Exception, match="TLS"):
            await transport(Letter("ada@example.test", "s", "t"))
        assert mailbox.letters == []
        with pytest.raises(Exception, match="refused"):
            await SmtpTransport(reactor, evolve(settings, port=_free_port()), time.time, lambda: "id")(
                Letter("ada@example.test", "s", "t")
            )


def certificate(place: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for localhost that signs itself, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, key_path = place / "certificate.pem", place / "key.pem"
    path.write_bytes(made.public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key_path)
    return path, context


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest_twisted.ensureDeferred
async def test_tls_goes_to_a_server_whose_certificate_is_trusted_and_to_no_other(
    tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, context = certificate(tmp_path)
    options = (
        {"tls_context": context, "require_starttls": True} if tls == "starttls" else {"ssl_context": context}
    )
    async with mail_server(**options) as (mailbox, port):
        settings = Smtp(host="localhost", port=port, sender="noreply@example.test", tls=tls)
        transport = SmtpTransport(reactor, settings, time.time, lambda: "id")
        with pytest.raises(Exception, match="certificate verify failed"):
            await transport(Letter("ada@example.test", "s", "t"))
        assert mailbox.letters == []
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        await transport(Letter("ada@example.test", "s", "t"))
        assert len(mailbox.letters) == 1
