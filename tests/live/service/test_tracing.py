"""What requests leave at a collector of traces, with the real database, store and SDK; and that nobody waits for it
(docs/operating/tracing.rst)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import pytest_twisted
import requests
from attrs import evolve
from twisted.internet.defer import gatherResults
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from project_service.database import quickness
from project_service.lifecycle import start
from project_service.log import Requests
from project_service.settings.model import Stage, StageDatabase, Store
from project_service.tracing import export
from tests.collector import CollectedSpan, Collector, collecting
from tests.live.application import Api, serving, settings_for
from tests.live.daemon import Daemon, eventually
from tests.live.services import WithDatabase, held_open
from tests.live.sql import run_sql
from tests.live.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"
TABLES = """
create table items (id int primary key, name text);
insert into items values (1, 'one');
create table parts (id int primary key, item_id int references items);
create function broken(n int) returns int stable language sql as 'select 1 / n';
grant select, insert on items, parts to anon, authenticated;
"""


@asynccontextmanager
async def traced(
    collector: Collector, dsn: str, store: Store, directory: Path, **tracing: Any
) -> AsyncIterator[Api]:
    settings = settings_for(
        dsn,
        store,
        directory,
        tracing={"endpoint": collector.url, "sample_ratio": 1.0, **tracing},
        smtp={"mail_dir": str(directory / "mails"), "sender": "us@example.test"},
        auth={"recover_url": "https://www.example.test/recover"},
    )
    settings = evolve(settings, stages={"dev": Stage(databases={"main": StageDatabase(pool_size=4)})})
    async with serving(settings) as api:
        yield api


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(scope="module")
def api(
    collector: Collector,
    module_database: str,
    store_settings: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Api]:
    run_sql(module_database, TABLES)
    directory = tmp_path_factory.mktemp("traced")
    with held_open(traced(collector, module_database, store_settings, directory)) as running:
        yield running


async def trace_of(collector: Collector, route: str, method: str = "GET") -> list[CollectedSpan]:
    """The last trace whose first span is of that method and route, when it has come."""
    name = f"{method} {route}"
    await until(lambda: bool(collector.named(name)))
    return collector.trace(collector.named(name)[-1].trace)


def only(spans: list[CollectedSpan], name: str) -> CollectedSpan:
    [found] = [one for one in spans if one.name == name]
    return found


def answered(spans: list[CollectedSpan]) -> list[CollectedSpan]:
    """Without what may come before the statement that has the answer: after a change of the schema a connection gives
    up its plans for other roles; and what took too long on a shared connection, as any read may on a busy machine,
    is run again."""
    return [one for one in spans if not one.failed and one.name != "DISCARD"]


ROWS = "/<stage>/db/<database>/rest/<path:below>"


@pytest_twisted.ensureDeferred
async def test_a_row_is_a_span_of_the_request_in_the_caller_s_trace_and_one_of_the_statement(
    api: Api, collector: Collector
) -> None:
    headers = {"traceparent": SAMPLED, "tracestate": "vendor=abc"}
    status, _, _ = await api.request("GET", "/dev/db/main/rest/items?id=eq.1", headers=headers)
    assert status == 200
    # The request's span ends last, and may come in the batch after that of the statement.
    await until(lambda: any(one.name == f"GET {ROWS}" for one in collector.trace(TRACE)))
    spans = answered(collector.trace(TRACE))
    request = only(spans, f"GET {ROWS}")
    assert (request.parent, request.kind, request.state, request.failed) == (
        CALLER,
        "SERVER",
        "vendor=abc",
        False,
    )
    assert request.attributes == {
        "http.request.method": "GET",
        "http.route": ROWS,
        "http.response.status_code": 200,
        "url.scheme": "http",
    }
    statement = only(spans, "SELECT public.items")
    assert (statement.parent, statement.kind, statement.state) == (request.id, "CLIENT", "vendor=abc")
    shape = statement.attributes.pop("project_service.db.shape")  # type: ignore[attr-defined]
    assert re.fullmatch("[0-9a-f]{12}", shape)
    assert statement.attributes == {
        "db.system.name": "postgresql",
        "db.namespace": "dev/main",
        "db.operation.name": "SELECT",
        "db.collection.name": "public.items",
        "project_service.db.role": "anon",
    }
    assert request.began <= statement.began <= statement.ended <= request.ended
    assert request.resource["service.name"] == "project-service"


@pytest_twisted.ensureDeferred
async def test_the_caller_s_flag_is_respected_and_what_is_no_traceparent_is_ignored(
    api: Api, collector: Collector
) -> None:
    for sent in (UNSAMPLED, SAMPLED.upper(), f"{SAMPLED}-more", f"00-{'0' * 32}-{CALLER}-01", "x"):
        await api.request("GET", "/live", headers={"traceparent": sent})
    await api.request(
        "GET", "/auth/keys", headers={"traceparent": SAMPLED.replace(CALLER, "00f067aa0ba902b8")}
    )
    await until(lambda: any(one.parent == "00f067aa0ba902b8" for one in collector.spans))
    own = collector.named("GET /live")
    # Four begin a trace of their own, and the one that is not sampled is none.
    assert len(own) == 4
    assert all(one.trace != TRACE and one.parent == "" for one in own)


@pytest_twisted.ensureDeferred
async def test_sign_up_shows_the_hash_and_the_statements_by_their_database(
    api: Api, collector: Collector
) -> None:
    await api.sign_up("traced@example.test")
    spans = await trace_of(collector, "/auth/signup", "POST")
    request = only(spans, "POST /auth/signup")
    assert only(spans, "hash a password").parent == request.id
    statements = [one for one in spans if "db.system.name" in one.attributes]
    assert {one.attributes["db.namespace"] for one in statements} == {"system"}
    assert all(one.parent == request.id for one in statements)


@pytest_twisted.ensureDeferred
async def test_an_e_mail_is_in_the_trace_of_the_request_that_asked_for_it(
    api: Api, collector: Collector
) -> None:
    await api.sign_up("mailed@example.test")
    await api.request("POST", "/auth/recover", json={"email": "mailed@example.test"})
    await until(lambda: bool(collector.named("send an e-mail")))
    [mail] = collector.named("send an e-mail")
    request = only(await trace_of(collector, "/auth/recover", "POST"), "POST /auth/recover")
    assert (mail.trace, mail.parent, mail.failed) == (request.trace, request.id, False)
    # After the response: its time does not tell whether there is such a user.
    assert mail.began >= request.ended


@pytest_twisted.ensureDeferred
async def test_an_object_is_a_request_to_the_store_by_its_method_and_status(
    api: Api, collector: Collector
) -> None:
    session = (await api.sign_up("store@example.test"))["access_token"]
    path = "/storage/buckets/private/objects/traced"
    assert (await api.request("PUT", path, token=session, data=b"x" * 100_000))[0] == 201
    route = "/storage/buckets/<bucket>/objects/<path:key>"
    spans = await trace_of(collector, route, "PUT")
    request, sent = only(spans, f"PUT {route}"), only(spans, "PUT")
    assert (sent.parent, sent.kind) == (request.id, "CLIENT")
    assert sent.attributes == {
        "http.request.method": "PUT",
        "http.response.status_code": 200,
        "project_service.store": "s3",
    }
    assert (await api.request("GET", path, token=session))[2] == b"x" * 100_000
    assert only(await trace_of(collector, route), "GET").attributes["http.response.status_code"] == 200


@pytest_twisted.ensureDeferred
async def test_what_postgresql_refuses_has_its_sqlstate_and_the_response_its_status(
    api: Api, collector: Collector
) -> None:
    status, _, _ = await api.request("GET", "/dev/db/main/rest/rpc/broken?n=0", key="service")
    assert status == 400
    await until(lambda: any(one.attributes.get("error.type") == "22012" for one in collector.spans))
    failed = next(one for one in collector.spans if one.attributes.get("error.type") == "22012")
    assert failed.failed
    assert failed.attributes["db.response.status_code"] == "22012"
    # The request's span ends later, and may come in the next batch.
    await until(lambda: any(one.kind == "SERVER" for one in collector.trace(failed.trace)))
    request = next(one for one in collector.trace(failed.trace) if one.kind == "SERVER")
    # A refusal is no failure of the service.
    assert (request.attributes["http.response.status_code"], request.failed) == (400, False)


@pytest_twisted.ensureDeferred
async def test_a_wait_for_a_connection_is_a_span(api: Api, collector: Collector) -> None:
    run_sql(
        api.dsn,
        "create function slow() returns int language sql as 'select 1 from pg_sleep(0.2)'; notify pgrst",
    )

    async def works() -> bool:
        return bool((await api.request("POST", "/dev/db/main/rest/rpc/slow", json={}))[0] == 200)

    await until(works)
    await gatherResults([start(works()) for _ in range(8)])

    def waits() -> list[CollectedSpan]:
        """Those for the table API. On a busy machine others wait too, for a connection that is being opened."""
        named = collector.named("wait for a connection")
        return [one for one in named if one.ended - one.began > 1e8 and "dev/main" in one.attributes.values()]

    await until(lambda: bool(waits()))
    waited = waits()[0]
    assert waited.attributes == {"db.namespace": "dev/main"}
    await until(lambda: any(one.id == waited.parent for one in collector.spans if one.kind == "SERVER"))


@pytest_twisted.ensureDeferred
async def test_requests_at_the_same_time_do_not_get_into_each_other_s_traces(
    api: Api, collector: Collector
) -> None:
    ids = [f"{number:032x}" for number in range(1, 41)]

    async def ask(trace_id: str, number: int) -> None:
        headers = {"traceparent": f"00-{trace_id}-{CALLER}-01"}
        table, key = ("items", "anon") if number % 2 else ("parts", "service")
        assert (await api.request("GET", f"/dev/db/main/rest/{table}", headers=headers, key=key))[0] == 200

    await gatherResults([start(ask(one, number)) for number, one in enumerate(ids)])
    await until(
        lambda: all({"SERVER", "CLIENT"} <= {span.kind for span in collector.trace(one)} for one in ids)
    )
    for number, one in enumerate(ids):
        spans = answered(collector.trace(one))
        request = only(spans, f"GET {ROWS}")
        [statement] = [span for span in spans if "db.operation.name" in span.attributes]
        expected = ("public.items", "anon") if number % 2 else ("public.parts", "service_role")
        shown = statement.attributes
        assert (shown["db.collection.name"], shown["project_service.db.role"]) == expected
        assert statement.parent == request.id


LOCKED = "create table locked (id int primary key); grant select on locked to anon; notify pgrst"
# Longer than a statement may take on a shared connection.
WAITS_LONG = """select true from pg_locks where relation = 'locked'::regclass and not granted
and clock_timestamp() - waitstart > interval '0.3 s'"""


@pytest_twisted.ensureDeferred
async def test_a_read_that_a_shared_connection_did_not_answer_is_two_statements(
    api: Api, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine even the quickest read takes longer now and then.
    monkeypatch.setattr(quickness, "QUICK_SECONDS", 0.02)
    monkeypatch.setattr(quickness, "RUNS_AFTER_LIMIT", 3)
    run_sql(api.dsn, LOCKED)
    number, statements = count(1), list[CollectedSpan]()

    async def read() -> tuple[str, int]:
        trace_id = f"a{next(number):031x}"
        headers = {"traceparent": f"00-{trace_id}-{CALLER}-01"}
        return trace_id, (await api.request("GET", "/dev/db/main/rest/locked", headers=headers))[0]

    async def is_known() -> bool:
        return (await read())[1] == 200

    async def is_asked_twice() -> bool:
        # What was quick several times in a row goes out on a shared connection.
        for _ in range(10):
            await read()
        with closing(psycopg2.connect(api.dsn)) as other, other.cursor() as cursor:
            await deferToThread(cursor.execute, "lock table locked")
            reading = start(read())
            await until(lambda: bool(run_sql(api.dsn, WAITS_LONG)))
        trace_id, status = await reading
        assert status == 200
        await until(lambda: any(one.kind == "SERVER" for one in collector.trace(trace_id)))
        spans = collector.trace(trace_id)
        statements[:] = [one for one in spans if one.name == "SELECT public.locked"]
        assert {one.parent for one in statements} == {only(spans, f"GET {ROWS}").id}
        return len(statements) == 2

    await until(is_known)
    await until(is_asked_twice)
    first, second = sorted(statements, key=lambda one: one.ended)
    assert first.failed and first.attributes["error.type"] in ("57014", "Moved", "DatabaseGone")
    assert not second.failed


@pytest_twisted.ensureDeferred
async def test_lines_of_the_log_about_a_traced_request_have_its_trace(api: Api) -> None:
    trace_id = "5" * 32
    with capturedLogs() as captured:
        await api.request("GET", "/live", headers={"traceparent": f"00-{trace_id}-{CALLER}-01"})
        await api.request("GET", "/live", headers={"traceparent": UNSAMPLED})
        await until(lambda: len(lines_of(captured)) == 2)
    first, second = lines_of(captured)
    assert first.endswith(f" trace={trace_id}")
    assert "trace=" not in second


def lines_of(captured: Any) -> list[str]:
    events = [one["access"] for one in captured if isinstance(one.get("access"), Requests)]
    return [line for event in events for line in str(event).split("\n") if "/live" in line]


@pytest_twisted.ensureDeferred
async def test_nothing_that_came_with_a_request_is_exported(api: Api, collector: Collector) -> None:
    first = len(collector.bodies)
    secrets = await session_full_of_secrets(api)
    last = "7" * 32
    await api.request("GET", "/live", headers={"traceparent": f"00-{last}-{CALLER}-01"})
    await until(lambda: bool(collector.trace(last)))
    exported = b"".join(collector.bodies[first:])
    assert exported.count(b"http.route") > 20
    shown = [one for one in secrets if one.encode() in exported]
    assert shown == []


async def session_full_of_secrets(api: Api) -> list[str]:
    """Puts a secret of its own into every place that a request has. Returns all of them."""
    numbers = count()

    def secret(place: str) -> str:
        secrets.append(f"canary{next(numbers)}{place}")
        return secrets[-1]

    secrets: list[str] = [api.anon_key, api.service_key, "127.0.0.1"]
    email, password = f"{secret('mail')}@example.test", secret("password")
    session = await api.sign_up(email, password)
    token = session["access_token"]
    secrets += [token, session["refresh_token"], session["user"]["id"]]
    rest, objects = "/dev/db/main/rest", "/storage/buckets/private/objects"
    headers = {
        "X-Request-Id": secret("request"),
        "User-Agent": secret("agent"),
        "Referer": f"https://www.example.test/{secret('referer')}",
        "Cookie": f"a={secret('cookie')}",
        "Accept": f"application/{secret('accept')}, */*",
        "Prefer": f"tx={secret('prefer')}",
        "X-Forwarded-For": "192.0.2.77",
        "Host": f"{secret('host')}.example.test",
        "baggage": f"user={secret('baggage')}",
    }
    secrets.append("192.0.2.77")
    run_sql(
        api.dsn,
        "create function refusing(reason text) returns int language plpgsql as "
        "$$ begin raise exception '%', reason using hint = reason, detail = reason; end $$; notify pgrst",
    )
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"{rest}/items?select={secret('alias')}:name&name=eq.{secret('value')}", {}),
        ("GET", f"{rest}/items?select=name->>{secret('path')}", {}),
        ("GET", f"{rest}/items?select=id,{secret('embedded')}:parts(id)", {"key": "service"}),
        ("GET", f"{rest}/{secret('table')}?{secret('column')}=eq.1", {}),
        ("GET", f"{rest}/items?select=id::{secret('type')}", {}),
        ("GET", f"{rest}/items", {"headers": {**headers, "Prefer": "count=planned"}}),
        ("POST", f"{rest}/items", {"json": {"id": 100, "name": secret("body")}}),
        ("POST", f"{rest}/items", {"json": {"id": 100, "name": secret("twice")}}),
        ("POST", f"{rest}/items", {"json": {secret("unknown"): 1}}),
        ("POST", f"{rest}/rpc/refusing", {"json": {"reason": secret("raised")}, "key": "service"}),
        ("PUT", f"{objects}/{secret('key')}", {"data": secret("bytes").encode() * 2000, "token": token}),
        ("GET", f"{objects}/{secret('absent')}?download={secret('name')}", {"token": token}),
        ("GET", f"/storage/buckets/private/objects?prefix={secret('prefix')}", {"token": token}),
        ("GET", f"/storage/buckets/{secret('bucket')}/objects/x", {"token": token}),
        ("GET", f"/storage/download?token={secret('link')}", {}),
        ("POST", "/auth/login", {"json": {"email": email, "password": secret("wrong")}}),
        ("POST", "/auth/recover", {"json": {"email": email}}),
        ("POST", "/auth/refresh", {"json": {"refresh_token": secret("refresh")}}),
        ("GET", "/auth/user", {"token": secret("token")}),
        ("GET", "/auth/user", {"key": secret("apikey")}),
        ("GET", "/auth/user", {"token": token}),
        ("GET", f"/{secret('nowhere')}", {}),
        ("GET", f"/{secret('stage')}/db/{secret('database')}/rest/x", {}),
        (secret("METHOD").upper(), "/live", {}),
        ("POST", "/admin/sql", {"json": {"sql": f"select '{secret('sql')}'"}, "key": "service"}),
        ("POST", "/admin/sql", {"json": {"sql": f"select {secret('fault')} from"}, "key": "service"}),
    ]
    for method, path, more in asked:
        await api.request(method, path, **{"headers": headers, **more})
    return [*secrets, *(one.upper() for one in secrets), *(one.lower() for one in secrets)]


@pytest_twisted.ensureDeferred
async def test_a_collector_that_is_away_holds_nothing_up_and_what_is_lost_is_counted(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first batch is not given up as long as the test lasts, however slow the machine is.
    for name, value in {"QUEUE": 20, "BATCH": 10, "FLUSH_SECONDS": 0.5, "EXPORT_SECONDS": 60.0}.items():
        monkeypatch.setattr(export, name, value)
    with collecting() as collector:
        collector.held.clear()
        async with traced(collector, database, store_settings, tmp_path) as api:
            for _ in range(60):
                assert (await api.request("GET", "/live"))[0] == 200
            _, _, metrics = await api.request("GET", "/metrics")
            # One batch may be on its way, and as many spans wait as there is room for.
            assert 60 - 10 - 20 <= lost_spans(metrics)["queue_full"] <= 60 - 20
            began = api.reactor.seconds()
        # It ends without the collector, which does not answer for as long as that.
        assert api.reactor.seconds() - began < export.EXPORT_SECONDS
        assert collector.spans == []


@pytest_twisted.ensureDeferred
async def test_a_collector_that_refuses_is_named_in_the_log_once_and_when_it_is_back(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    with capturedLogs() as captured, collecting() as collector:
        collector.status = 401
        async with traced(collector, database, store_settings, tmp_path) as api:

            async def are_lost(outcome: str) -> bool:
                _, _, metrics = await api.request("GET", "/metrics")
                return lost_spans(metrics).get(outcome, 0) > 2

            await until(lambda: are_lost("not_taken"))
            collector.status = 200
            await until(lambda: are_lost("exported"))
    told = [formatEvent(one) for one in captured if "tracing" in str(one.get("log_namespace"))]
    # The exporter of the test before may end late.
    told = [line for line in told if line.startswith(collector.url)]
    assert len(told) == 2, told
    assert told[0].startswith(f"{collector.url} does not take traces: ")
    assert "401" in told[0]
    assert told[1] == f"{collector.url} takes traces again"


def lost_spans(metrics: bytes) -> dict[str, float]:
    """How many spans had which outcome."""
    lines = re.findall(r'project_service_trace_spans_total\{outcome="(\w+)"\} (\S+)', metrics.decode())
    return {outcome: float(number) for outcome, number in lines}


def test_each_worker_exports_its_own_spans_and_all_of_them_before_it_ends(
    with_database: WithDatabase, tmp_path: Path
) -> None:
    (tmp_path / "headers").write_text("authorization: Bearer of-the-collector\nx-tenant: 7\n")
    (tmp_path / "config.toml").write_text(
        f"""[server]
workers = 2
[tracing]
endpoint = "PLACE"
sample_ratio = 1.0
service_name = "shop"
headers_file = "{tmp_path / "headers"}"
"""
    )
    with collecting() as collector:
        config = (tmp_path / "config.toml").read_text().replace("PLACE", collector.url)
        (tmp_path / "config.toml").write_text(config)
        daemon = Daemon(with_database(tmp_path / "var"), "--config", str(tmp_path / "config.toml"))
        try:
            url = daemon.wait_until_ready()
            asked: set[str] = set()

            def both_have_answered() -> bool:
                """Asks once more, on a connection that either worker may take."""
                trace = f"{len(asked) + 1:032x}"
                asked.add(trace)
                headers = {"traceparent": f"00-{trace}-{CALLER}-01", "Connection": "close"}
                assert requests.get(f"{url}/live", headers=headers, timeout=60).ok
                return len({one.resource["service.instance.id"] for one in list(collector.spans)}) == 2

            eventually(both_have_answered, "spans of both workers")
            for _ in range(40):
                both_have_answered()
        finally:
            assert daemon.stop() == 0
    spans = [one for one in collector.spans if one.trace in asked]
    assert len(spans) == len(asked)
    assert len({one.resource["service.instance.id"] for one in spans}) == 2
    assert {one.resource["service.name"] for one in spans} == {"shop"}
    assert all(one["authorization"] == "Bearer of-the-collector" for one in collector.headers)
    assert all(one["x-tenant"] == "7" for one in collector.headers)
    assert "of-the-collector" not in daemon.text
    assert daemon.text.count(" trace=") == len(asked)
