"""Large results: complete in every format, and without taking too many connections or too much memory."""

from __future__ import annotations

import json
import random
import socket
from contextlib import suppress

import pytest
import pytest_twisted
import treq
from twisted.internet.defer import DeferredList
from twisted.web.client import ResponseFailed

from project_service.lifecycle import start
from tests.live.logged import LoggedErrors
from tests.live.tables.service import BASE, Tables, impatient, tables, until_answered
from tests.live.waiting import until

__all__ = ["tables"]

DATABASES = ("narrow",)

# Larger than all buffers between the service and a client that does not read.
WIDE = (
    "create or replace function wide() returns setof text language sql stable "
    "as $$ select repeat('x', 1000) from generate_series(1, 50000) $$"
)
STREAMING = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and state <> 'idle' and pid <> pg_backend_pid() and query like '%pgrst_rows%'"
)


@pytest_twisted.ensureDeferred
async def test_large_results_are_complete_in_every_format(tables: Tables) -> None:
    tables.sql(
        "create table big as select i as id, 'row '||i as name from generate_series(1, 20000) i; "
        "grant select on big to anon; analyze big"
    )
    expected = [{"id": number, "name": f"row {number}"} for number in range(1, 20001)]
    status, headers, body = await tables.request("GET", "/big?order=id")
    assert (status, body) == (200, expected)
    assert headers.getRawHeaders("content-range") is None
    lines = (await tables.request("GET", "/big?order=id", headers={"Accept": "application/x-ndjson"}))[2]
    assert [json.loads(line) for line in lines.splitlines()] == expected
    rows = (
        (await tables.request("GET", "/big?order=id", headers={"Accept": "text/csv"}))[2].decode().split("\n")
    )
    assert (rows[0], rows[1], rows[-1], len(rows)) == ("id,name", '1,"row 1"', '20000,"row 20000"', 20001)
    status, headers, body = await tables.request(
        "GET", "/big?order=id&limit=15000&offset=10", headers={"Prefer": "count=exact"}
    )
    assert (status, headers.getRawHeaders("content-range")) == (206, ["10-15009/20000"])
    assert body == expected[10:15010]
    # The result is known to be large from the query before, even if this page is past its end.
    for first, status, result in (
        (1, 206, "5-19999/20000"),
        (19996, 206, "*/5"),
        (1, 206, "5-19999/20000"),
        (19998, 416, "*/3"),
    ):
        path = f"/big?id=gte.{first}&offset=5"
        answer = await tables.request("GET", path, headers={"Prefer": "count=exact"})
        assert (answer[0], answer[1].getRawHeaders("content-range")) == (status, [result]), path


@pytest_twisted.ensureDeferred
async def test_a_result_below_the_threshold_has_its_range(tables: Tables) -> None:
    """The threshold is 4096 bytes: 300 of these rows (600 of these numbers) are below it, 9000 (18000) are not."""
    tables.sql(
        "create view numbers as select i as id from generate_series(1, 10000) i; grant select on numbers to anon;"
        "create function counted(most int) returns setof int language sql stable as"
        " $$ select generate_series(1, most) $$"
    )
    await until_answered(tables, "GET", "/rpc/counted?most=1", 200)
    for asked in (300, 9000, 9000, 300, 300):
        for path in (f"/numbers?id=lte.{asked}", f"/rpc/counted?most={asked * 2}"):
            status, headers, body = await tables.request("GET", path)
            result = headers.getRawHeaders("content-range")
            assert (status, result) == (200, [f"0-{len(body) - 1}/*"] if asked == 300 else None), path
        assert len(body) == asked * 2
    status, headers, _ = await tables.request("HEAD", "/numbers", headers={"Prefer": "count=exact"})
    assert (status, headers.getRawHeaders("content-range")) == (200, ["0-9999/10000"])
    tables.sql("drop view numbers; drop function counted")


@pytest_twisted.ensureDeferred
async def test_rows_that_grew_since_analyze_are_streamed(tables: Tables) -> None:
    tables.sql(
        "create table grown (id int, txt text); alter table grown alter txt set storage external;"
        "insert into grown select i, 'x' from generate_series(1, 1000) i; grant select on grown to anon;"
        "analyze grown; insert into grown select i, repeat('x', 200000) from generate_series(1001, 1020) i"
    )
    status, headers, body = await tables.request("GET", "/grown?select=id,txt&id=gt.1000")
    assert (status, len(body), len(body[0]["txt"])) == (200, 20, 200000)
    assert headers.getRawHeaders("content-range") is None  # as of a stream
    tables.sql("drop table grown")


@pytest_twisted.ensureDeferred
async def test_a_status_without_a_body_has_none_however_large_the_result(tables: Tables) -> None:
    tables.sql(
        "create function many_unsaid(said text) returns setof int language plpgsql stable as $$ begin "
        "perform set_config('response.status', said, true); "
        "return query select generate_series(1, 50000); end $$"
    )
    for stated in (204, 304):
        path = f"/rpc/many_unsaid?said={stated}"
        await until_answered(tables, "GET", path, stated)
        status, _, body = await tables.request("GET", path)
        assert (status, body or b"") == (stated, b"")
        assert (await tables.request("GET", "/books?select=id&id=eq.1"))[2] == [{"id": 1}]


@pytest_twisted.ensureDeferred
async def test_an_error_in_the_middle_breaks_the_response_off(
    tables: Tables, logged_errors: LoggedErrors
) -> None:
    tables.sql(
        "create view breaks as select id, 1/(15000-id) as x from generate_series(1, 20000) id;"
        "grant select on breaks to anon"
    )
    with pytest.raises(ResponseFailed):
        await tables.request("GET", "/breaks")
    logged_errors.flush()
    assert (await tables.request("GET", "/books?select=id&id=eq.1"))[2] == [{"id": 1}]


@pytest_twisted.ensureDeferred
async def test_a_client_that_stops_reading_is_dropped_and_blocks_nobody(tables: Tables) -> None:
    """Not even with one connection: streams have another one, whose next user waits until the client has been
    dropped."""
    narrow = BASE.replace("main", "narrow")
    path = f"{narrow}/rpc/wide"
    tables.sql(WIDE)
    # Long enough to be asked for something in between, also where the machine stands still for some seconds.
    async with impatient(tables, 6.0) as service:
        await until_answered(service, "HEAD", "/rpc/wide", 200, base=narrow)
        # Not earlier, since the service closes a connection on which nothing is asked.
        stalled = socket.create_connection(("127.0.0.1", service.api.port))
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Service-Key: {service.api.anon_key}\r\n\r\n".encode()
        )
        await until(lambda: bool(tables.sql(STREAMING)[0][0]))
        assert (await service.request("GET", "/books?select=id&id=eq.1", base=narrow))[0] == 200
        assert tables.sql(STREAMING) == [(1,)]
        status, _, body = await service.request("GET", "/rpc/wide", base=narrow)
        assert (status, len(body)) == (200, 50000)
        stalled.close()


@pytest_twisted.ensureDeferred
async def test_slow_readers_leave_connections_to_others(tables: Tables) -> None:
    """There are more slow readers than connections, and than slots for requests; no other request waits for
    them."""
    tables.sql(WIDE)
    await until_answered(tables, "HEAD", "/rpc/wide", 200)
    slow = [socket.create_connection(("127.0.0.1", tables.api.port)) for _ in range(12)]
    head = f"GET {BASE}/rpc/wide HTTP/1.1\r\nHost: x\r\nX-Service-Key: {tables.api.anon_key}\r\n\r\n".encode()
    for client in slow:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(head)
    await until(lambda: bool(tables.sql(STREAMING)[0][0]))
    largest = 0
    for _ in range(20):
        assert (await tables.request("GET", "/books?select=id&id=eq.1"))[0] == 200
        largest = max(largest, tables.sql(STREAMING)[0][0])
    for client in slow:
        client.close()
    assert largest == 1  # of three connections


@pytest_twisted.ensureDeferred
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(tables: Tables) -> None:
    """Whether before, while or after their stream is opened, its slot and its connection become free again."""
    from twisted.internet import reactor

    tables.sql(WIDE)
    await until_answered(tables, "HEAD", "/rpc/wide", 200)
    chance = random.Random(11)

    async def hang_up() -> None:
        sent: dict[bytes | str, bytes | str] = {"X-Service-Key": tables.api.anon_key}
        waiting = treq.get(f"{tables.api.base_url}{BASE}/rpc/wide", headers=sent, persistent=False)
        reactor.callLater(chance.random() * 0.1, waiting.cancel)
        with suppress(Exception):  # cancelled at any point
            (await waiting)._transport.abortConnection()

    for _ in range(5):
        await DeferredList([start(hang_up()) for _ in range(6)])
    await until(lambda: not tables.sql(STREAMING)[0][0])
    status, _, body = await tables.request("GET", "/rpc/wide")
    assert (status, len(body)) == (200, 50000)
