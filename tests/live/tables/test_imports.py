"""Imports, bodies larger than others may be: all rows or none, with the caller's rights, and from slow clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from project_service.database.pool import Pool
from project_service.tables.assemble import Tables as Part
from tests.live.tables.service import BASE, Tables, impatient, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

DATABASES = ("careful", "narrow")

MIB = 1024 * 1024
# What a body has of which a client sends ``csv(1200)``, and then line feeds.
WHOLE = MIB * 5 // 4
CSV, NDJSON = "text/csv", "application/x-ndjson"
HELD = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and state <> 'idle' and pid <> pg_backend_pid() and query like '%pgrst_rows%'"
)


@pytest.fixture
def imported(tables: Tables) -> Iterable[Tables]:
    tables.sql(
        "create table imported (id bigint primary key, value int, note text default 'none',"
        " run bigint default txid_current());"
        "grant all on imported to service_role, authenticated;"
    )
    yield tables
    tables.sql("drop table imported")


async def send(tables: Tables, body: bytes, query: str = "", **more: Any) -> tuple[int, Any, Any]:
    media, prefer = more.pop("media", CSV), more.pop("prefer", "")
    more.setdefault("key", "service")
    headers = {"Content-Type": media, "Prefer": prefer}
    await until_answered(tables, "HEAD", "/imported", 200, key="service")
    return await tables.request("POST", f"/imported{query}", headers=headers, data=body, **more)


def csv(count: int, first: int = 0) -> list[str]:
    """The lines of a body of about ``count`` KB."""
    return ["id,note", *(f"{number},{'n' * 1000}" for number in range(first, first + count))]


def joined(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


@pytest_twisted.ensureDeferred
async def test_a_hundred_thousand_rows_are_one_transaction_or_nothing(imported: Tables) -> None:
    lines = ["id,value", *(f"{number},{number % 1000}" for number in range(200_000))]
    assert len(joined(lines)) > MIB
    status, headers, body = await send(imported, joined(lines), prefer="count=exact")
    assert (status, body, headers.getRawHeaders("content-range")) == (201, b"", ["*/200000"])
    assert imported.sql("select count(*), count(distinct run), sum(value) from imported") == [
        (200_000, 1, 99_900_000)
    ]
    imported.sql("truncate imported")
    for broken, code, details in (
        ("69998,many", "22P02", "Line 70000 of the body"),
        ("69998", "PGRST102", "Line 70000 of the body"),
        ("5,5", "23505", "Line 70000 of the body: Key (id)=(5) already exists."),
    ):
        status, _, body = await send(imported, joined([*lines[:69_999], broken, *lines[70_000:]]))
        assert (status // 100, body["code"], body["details"]) == (4, code, details)
        assert imported.sql("select count(*) from imported") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_ndjson_is_imported_with_columns_and_defaults(imported: Tables) -> None:
    rows = [{"id": number, "note": "x" * 1000, "other": 1} for number in range(1200)]
    rows[100] = {"id": 100}
    body = "\n".join(map(json.dumps, rows)).encode()
    assert len(body) > MIB
    status, _, answer = await send(imported, body, media=NDJSON)
    assert (status, answer["code"], answer["details"]) == (400, "PGRST102", "Line 101 of the body")
    status, headers, _ = await send(
        imported, body, "?columns=id,note", media=NDJSON, prefer="missing=default, return=minimal"
    )
    assert status == 201
    assert headers.getRawHeaders("preference-applied") == ["missing=default, return=minimal"]
    assert imported.sql("select count(*), min(note) from imported") == [(1200, "none")]
    # As a small body is.
    status, _, answer = await send(
        imported,
        b'{"id": 9001}\n\n{"id": 9002}\n',
        "?select=id",
        media=NDJSON,
        prefer="return=representation",
    )
    assert (status, answer) == (201, [{"id": 9001}, {"id": 9002}])


@pytest_twisted.ensureDeferred
async def test_a_conflict_is_resolved_as_asked_and_of_two_lines_the_later_one_counts(
    imported: Tables,
) -> None:
    imported.sql("insert into imported (id, note) values (3, 'old')")
    lines = [*csv(1200), "7,later", "3,later"]
    for prefer, status, notes in (
        ("resolution=ignore-duplicates", 201, {"old", "n" * 1000}),
        ("resolution=merge-duplicates", 200, {"later"}),
    ):
        answer = await send(imported, joined(lines), "?on_conflict=id", prefer=prefer)
        assert answer[0] == status
        assert {note for (note,) in imported.sql("select note from imported where id in (3, 7)")} == notes
        assert imported.sql("select count(*) from imported") == [(1200,)]
    answer = await send(imported, joined(csv(1200, first=1000)), prefer="resolution=merge-duplicates")
    assert answer[0] == 201  # some are new


@pytest_twisted.ensureDeferred
async def test_rows_are_written_with_the_callers_rights_and_policies(imported: Tables) -> None:
    body, user = joined(csv(1200)), {"key": "anon", "token": imported.token}
    status, _, answer = await send(imported, body, key="anon")
    assert (status, answer["code"], answer["details"]) == (401, "42501", None)
    assert "authenticated has the right" in answer["hint"]
    imported.sql(
        "alter table imported enable row level security;"
        "create policy own on imported for insert to authenticated"
        " with check (id < 1100 and auth.uid() is not null)"
    )
    status, _, answer = await send(imported, body, **user)
    # The first line has the names.
    assert (status, answer["code"], answer["details"]) == (403, "42501", "Line 1102 of the body")
    assert imported.sql("select count(*) from imported") == [(0,)]
    imported.sql("alter policy own on imported with check (auth.uid() is not null)")
    assert (await send(imported, body, **user))[0] == 201
    assert imported.sql("select count(*) from imported") == [(1200,)]


@pytest_twisted.ensureDeferred
async def test_what_cannot_be_streamed_is_refused(imported: Tables) -> None:
    body = joined(csv(1200))
    careful, narrow = BASE.replace("main", "careful"), BASE.replace("main", "narrow")
    status, _, answer = await send(imported, body, prefer="return=representation")
    assert (status, answer["code"]) == (413, "payload_too_large")
    await until_answered(imported, "HEAD", "/imported?limit=0", 200, base=careful, key="service")
    accept = {"Content-Type": CSV, "Accept": "application/vnd.pgrst.plan"}
    answers = [
        await imported.request("POST", "/imported", base=careful, key="service", headers=accept, data=body),
        await send(imported, joined(csv(1600)), base=narrow),
        await send(imported, body, media="application/json"),
        await imported.request(
            "PATCH", "/imported?id=eq.1", key="service", headers={"Content-Type": CSV}, data=body
        ),
    ]
    assert [answer[0] for answer in answers] == [413] * 4
    assert imported.sql("select count(*) from imported") == [(0,)]
    assert (await send(imported, body, base=narrow))[0] == 201


@pytest_twisted.ensureDeferred
async def test_an_import_may_be_a_trial(imported: Tables) -> None:
    careful = BASE.replace("main", "careful")
    await until_answered(imported, "HEAD", "/imported?limit=0", 200, base=careful, key="service")
    answer = await send(imported, joined(csv(1200)), base=careful, prefer="tx=rollback")
    assert answer[0] == 201
    assert imported.sql("select count(*) from imported") == [(0,)]
    # The pre-request function is called once, before the first row.
    headers = {"Content-Type": CSV, "X-Refuse": "service_role"}
    status, _, answer = await imported.request(
        "POST", "/imported", base=careful, key="service", headers=headers, data=joined(csv(1200))
    )
    assert (status, answer["message"]) == (418, "/imported")


@pytest_twisted.ensureDeferred
async def test_a_constraint_that_is_checked_at_the_commit_undoes_everything(imported: Tables) -> None:
    imported.sql("alter table imported add unique (note) deferrable initially deferred")
    status, _, answer = await send(imported, joined(csv(1200)))
    assert (status, answer["code"]) == (409, "23505")
    assert not answer["details"].startswith("Line")
    assert imported.sql("select count(*) from imported") == [(0,)]
    assert (await imported.request("GET", "/books?select=id&id=eq.1"))[2] == [{"id": 1}]


def begun(tables: Tables, base: str = BASE, token: str | None = None) -> socket.socket:
    """A client that has sent most of a body, after which it sends nothing more, with the service key or as a user."""
    client = socket.create_connection(("127.0.0.1", tables.api.port))
    key = tables.api.service_key if token is None else tables.api.anon_key
    lines = f"Host: x\r\nX-Service-Key: {key}\r\nContent-Type: {CSV}\r\n"
    lines += "" if token is None else f"Authorization: Bearer {token}\r\n"
    head = f"POST {base}/imported HTTP/1.1\r\n{lines}Content-Length: {WHOLE}\r\n\r\n"
    client.sendall(head.encode() + joined(csv(1200)))
    return client


@pytest_twisted.ensureDeferred
async def test_a_client_that_leaves_in_the_middle_has_written_nothing(imported: Tables) -> None:
    await until_answered(imported, "HEAD", "/imported", 200, key="service")
    client = begun(imported)
    await until(lambda: bool(imported.sql(HELD)[0][0]))
    client.close()
    await until(lambda: not imported.sql(HELD)[0][0])
    assert imported.sql("select count(*) from imported") == [(0,)]
    assert (await send(imported, joined(csv(1200))))[0] == 201
    assert imported.sql("select count(*) from imported") == [(1200,)]
    # Its connection can be lent again.
    pool = pool_of_main(imported)
    await until(lambda: pool.busy == 0)
    assert pool.open <= pool.size


def pool_of_main(tables: Tables) -> Pool:
    built = tables.api.application._assembled
    assert built is not None
    (part,) = [part for part in built.mounted if isinstance(part, Part)]
    return part.pool_of["dev", "main"]


@pytest_twisted.ensureDeferred
async def test_nothing_is_written_for_a_session_that_has_ended_meanwhile(imported: Tables) -> None:
    await until_answered(imported, "HEAD", "/imported", 200, key="service")
    rest = b"\n" * (WHOLE - len(joined(csv(1200))))
    for ends, answered, written in ((False, b"HTTP/1.1 201", 1200), (True, b"HTTP/1.1 401", 0)):
        token = (await imported.api.sign_up(f"ends{ends}@example.test".lower()))["access_token"]
        client = begun(imported, token=token)
        await until(lambda: bool(imported.sql(HELD)[0][0]))
        if ends:
            assert (await imported.api.request("POST", "/auth/logout", key=None, token=token))[0] == 200
        client.sendall(rest)
        assert await first_bytes(client) == answered
        assert imported.sql("select count(*) from imported") == [(written,)]
        imported.sql("truncate imported")


@pytest_twisted.ensureDeferred
async def test_slow_clients_leave_connections_to_others_and_are_timed_out(imported: Tables) -> None:
    """With one connection too: imports have the second one then, as streams do."""
    async with impatient(imported, 2.0) as service:
        for base in (BASE, BASE.replace("main", "narrow")):
            await until_answered(service, "HEAD", "/imported", 200, key="service", base=base)
            slow = [begun(service, base) for _ in range(3)]
            await until(lambda: bool(imported.sql(HELD)[0][0]))
            for _ in range(5):
                assert (await service.request("GET", "/books?select=id&id=eq.1", base=base))[0] == 200
                assert imported.sql(HELD)[0][0] <= 1
            answers = {await first_bytes(client) for client in slow}
            assert answers <= {b"HTTP/1.1 408", b"HTTP/1.1 504"}
            assert b"HTTP/1.1 408" in answers
            await until(lambda: not imported.sql(HELD)[0][0])
    assert imported.sql("select count(*) from imported") == [(0,)]


async def first_bytes(client: socket.socket) -> bytes:
    """What the answer begins with that a client waits for."""
    client.setblocking(False)
    received: list[bytes] = []

    def arrived() -> bool:
        with suppress(BlockingIOError):
            received.append(client.recv(12))
        return bool(received)

    await until(arrived)
    client.close()
    return received[0]


@pytest_twisted.ensureDeferred
async def test_an_import_that_nobody_may_make_is_refused_before_its_body_comes(imported: Tables) -> None:
    await until_answered(imported, "HEAD", "/imported", 200, key="service")

    def refused(path: str, token: str, framing: str) -> bytes:
        head = (
            f"POST {BASE}{path} HTTP/1.1\r\nHost: x\r\napikey: {imported.api.anon_key}\r\n{token}"
            f"Content-Type: {CSV}\r\n{framing}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", imported.api.port), timeout=20) as client:
            # Nothing of the body is sent.
            client.sendall(head.encode())
            return client.recv(65536)

    token = f"Authorization: Bearer {imported.token}\r\n"
    for framing in (f"Content-Length: {2 * MIB}", "Transfer-Encoding: chunked"):
        for path, sent, status, code in (
            ("/none", "", b"404", b"PGRST205"),
            ("/none", token, b"404", b"PGRST205"),
            ("/imported", "", b"401", b"42501"),
            ("/imported?columns=id,none", token, b"400", b"PGRST204"),
            ("/authors", "", b"401", b"42501"),
        ):
            response = await deferToThread(refused, path, sent, framing)
            assert response.split(b" ", 2)[1] == status, (path, response)
            assert b'"code":"%b"' % code in response, (path, response)
