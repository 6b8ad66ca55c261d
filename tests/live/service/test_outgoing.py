"""Outgoing calls on real sockets, to servers that hang, trickle, send too much, redirect, or are where they must not
be."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import CancelledError
from twisted.internet.ssl import (
    Certificate,
    DefaultOpenSSLContextFactory,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from twisted.internet.task import LoopingCall
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from project_service.lifecycle import all_of, start
from project_service.outgoing import MAX_CALLS_PER_HOST, Documents, Outgoing, OutgoingFailed
from tests.certificates import Issued, issue
from tests.live.outgoing_server import answers, hangs, ok, outgoing_server
from tests.live.waiting import until

SECRET = "hush-hush"
clock: Any = reactor


def outgoing(private: bool = True, **more: Any) -> Outgoing:
    return Outgoing(clock, lambda: private, **more)


async def why_not(call: Any) -> str:
    """Why it fails, which says nothing that is secret."""
    with pytest.raises(OutgoingFailed) as fault:
        await call
    assert SECRET not in f"{fault.value} {fault.value!r} {fault.value.__cause__}"
    return str(fault.value)


@pytest_twisted.ensureDeferred
async def test_a_reply_comes_with_status_headers_and_body() -> None:
    async with outgoing_server(answers(ok(b'{"a": 1}', "X-One: 1", status="201 Made"))) as server:
        url = f"{server.url}/token?x=%20"
        reply = await outgoing().call("POST", url, headers={"Authorization": "Bearer x"}, body=b"a=b")
        assert (reply.status, reply.headers["x-one"], reply.json()) == (201, "1", {"a": 1})
        (request,) = server.requests
        assert request.startswith(b"POST /token?x=%20 HTTP/1.1\r\n") and request.endswith(b"\r\n\r\na=b")
        assert b"accept-encoding: identity\r\n" in request.lower()
        assert b"authorization: bearer x\r\n" in request.lower()


@pytest_twisted.ensureDeferred
async def test_a_server_that_hangs_is_given_up() -> None:
    async with outgoing_server(hangs) as server:
        why = await why_not(outgoing().call("GET", f"{server.url}/{SECRET}", seconds=0.3))
        assert why == "localhost did not answer within 0.3 seconds"
        await until(lambda: server.lost == server.opened)


@pytest_twisted.ensureDeferred
async def test_a_server_that_answers_byte_by_byte_is_given_up() -> None:
    def trickle(request: bytes, transport: Any) -> None:
        transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        call = LoopingCall(lambda: transport.write(b" ") if transport.connected else call.stop())
        call.start(0.02).addErrback(lambda failure: None)

    async with outgoing_server(trickle) as server:
        assert "within 0.4 seconds" in await why_not(outgoing().call("GET", server.url, seconds=0.4))
        await until(lambda: server.lost == server.opened)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "head", [b"", b"X: y\r\n", b"Content-Length: 99999999\r\n", b"Transfer-Encoding: chunked\r\n"]
)
async def test_a_reply_that_is_too_large_is_cut_off(head: bytes) -> None:
    """However its end is told, and in a head without end too."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if b"chunked" in head else b"x" * 65536
    end = b"" if head == b"X: y\r\n" else b"\r\n"
    if not end:
        piece = b"X: y\r\n" * 10000

    def flood(request: bytes, transport: Any) -> None:
        transport.write(b"HTTP/1.1 200 OK\r\n" + head + end)
        call = LoopingCall(lambda: transport.write(piece) if transport.connected else call.stop())
        call.start(0).addErrback(lambda failure: None)

    async with outgoing_server(flood) as server:
        why = await why_not(outgoing().call("GET", server.url, max_bytes=1000))
        assert why == "localhost sent more than is taken"
        await until(lambda: server.lost == server.opened)


@pytest_twisted.ensureDeferred
async def test_a_body_just_within_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    async with outgoing_server(answers(ok(b"x" * 1000))) as server:
        assert len((await outgoing().call("GET", server.url, max_bytes=1000)).body) == 1000
        assert "more than" in await why_not(outgoing().call("GET", server.url, max_bytes=999))


@pytest_twisted.ensureDeferred
async def test_a_compressed_reply_is_refused() -> None:
    """A small one may become a thousand times as large."""
    bomb = gzip.compress(b"x" * 1_000_000)
    async with outgoing_server(answers(ok(bomb, "Content-Encoding: gzip"))) as server:
        assert await why_not(outgoing().call("GET", server.url)) == "localhost did not answer in HTTP"


@pytest_twisted.ensureDeferred
async def test_a_redirect_is_not_followed() -> None:
    async with outgoing_server(answers(ok(b"{}"))) as other:
        moved = ok(b"", f"Location: {other.url}/stolen", status="302 Found")
        async with outgoing_server(answers(moved)) as server:
            reply = await outgoing().call("POST", server.url, body=SECRET.encode())
            assert (reply.status, other.opened) == (302, 0)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"]
)
async def test_a_name_that_resolves_to_a_private_address_is_not_called(address: str) -> None:
    async with outgoing_server(answers(ok(b"{}"))) as server:
        calls = outgoing(private=False, get_addresses=lambda host, port: [address])
        why = await why_not(calls.call("GET", f"https://rebound.example.test:{server.port}/"))
        assert "has no public address" in why and server.opened == 0


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "localhost", "0.0.0.0", "127.1", "2130706433", "0x7f000001"]
)
async def test_a_private_address_in_the_url_is_not_called_however_it_is_written(host: str) -> None:
    async with outgoing_server(answers(ok(b"{}"))) as server:
        why = await why_not(outgoing(private=False).call("GET", f"https://{host}:{server.port}/"))
        assert ("has no public address" in why or "cannot be resolved" in why) and server.opened == 0


@pytest_twisted.ensureDeferred
async def test_the_address_that_was_checked_is_the_one_that_is_connected_to() -> None:
    """A name that resolves to another address the second time gains nothing: there is no second time."""
    asked: list[str] = []

    def rebinding(host: str, port: int) -> Iterable[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    async with outgoing_server(answers(ok(b"{}"))) as server:
        calls = outgoing(get_addresses=rebinding)
        await calls.call("GET", f"http://rebound.example.test:{server.port}/")
        assert asked == ["rebound.example.test"] and b"rebound.example.test" in server.requests[0]


@pytest_twisted.ensureDeferred
async def test_http_is_for_loopback_only_and_needs_the_setting() -> None:
    async with outgoing_server(answers(ok(b"{}"))) as server:
        assert "must begin with https://" in await why_not(outgoing(private=False).call("GET", server.url))
        calls = outgoing(get_addresses=lambda host, port: ["10.0.0.1"])
        assert "by https only" in await why_not(calls.call("GET", "http://inside.example.test/"))
        assert server.opened == 0


@pytest_twisted.ensureDeferred
async def test_a_name_without_an_address_and_a_port_without_a_server_are_told_apart() -> None:
    def unknown(host: str, port: int) -> Iterable[str]:
        raise OSError

    why = await why_not(outgoing(get_addresses=unknown).call("GET", "https://nowhere.example.test/"))
    assert "cannot be resolved" in why
    async with outgoing_server(hangs) as server:
        url = server.url
    assert await why_not(outgoing().call("GET", url)) == "localhost cannot be connected to"


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    "reply", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
async def test_what_is_not_http_is_an_error(reply: bytes) -> None:
    async with outgoing_server(answers(reply)) as server:
        assert await why_not(outgoing().call("GET", server.url)) == "localhost did not answer in HTTP"


@pytest_twisted.ensureDeferred
async def test_a_host_that_hangs_costs_only_those_who_call_it() -> None:
    """Calls to one host wait for their turn; those to others do not notice."""
    async with outgoing_server(hangs) as slow, outgoing_server(answers(ok(b"{}"))) as quick:
        calls = outgoing()
        # Longer than a busy machine stands still: none is to be given up before the others are looked at.
        late = [start(calls.call("GET", slow.url, seconds=5.0)) for _ in range(MAX_CALLS_PER_HOST + 5)]
        await until(lambda: len(slow.requests) == MAX_CALLS_PER_HOST)
        assert (await calls.call("GET", f"http://127.0.0.1:{quick.port}/")).status == 200
        assert len(slow.requests) == MAX_CALLS_PER_HOST
        for one in late:
            assert "within 5 seconds" in await why_not(one)


@pytest_twisted.ensureDeferred
async def test_a_host_whose_name_hangs_holds_one_thread() -> None:
    from threading import Event

    let_go, threads = Event(), []

    def stuck(host: str, port: int) -> Iterable[str]:
        threads.append(host)
        let_go.wait(30)
        return ["127.0.0.1"]

    calls = outgoing(get_addresses=stuck)
    late = [start(calls.call("GET", "http://stuck.example.test/", seconds=0.2)) for _ in range(5)]
    for one in late:
        assert "within 0.2 seconds" in await why_not(one)
    assert "within 0.2 seconds" in await why_not(calls.call("GET", "http://stuck.example.test/", seconds=0.2))
    let_go.set()
    assert threads == ["stuck.example.test"]


@pytest_twisted.ensureDeferred
async def test_a_caller_that_leaves_ends_the_call() -> None:
    async with outgoing_server(hangs) as server:
        calling = start(outgoing().call("GET", server.url))
        await until(lambda: len(server.requests) == 1)
        calling.cancel()
        with pytest.raises(CancelledError):
            await calling
        await until(lambda: server.lost == server.opened)


@implementer(IPolicyForHTTPS)
class Trusting:
    def __init__(self, authority: Issued) -> None:
        self.root = trustRootFromCertificates([Certificate.loadPEM(authority.pem)])

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        return optionsForClientTLS(hostname.decode(), trustRoot=self.root)


@pytest_twisted.ensureDeferred
async def test_by_https_the_certificate_must_be_trusted_and_for_the_host(tmp_path: Path) -> None:
    issued = issue("an authority")
    certificate, key = issued.written(tmp_path)
    tls = DefaultOpenSSLContextFactory(str(key), str(certificate))
    async with outgoing_server(answers(ok(b"{}")), tls) as server:
        url = f"https://localhost:{server.port}/{SECRET}"
        assert (await outgoing(policy=Trusting(issued)).call("GET", url)).status == 200
        assert "cannot be trusted" in await why_not(outgoing().call("GET", url))
        here = outgoing(policy=Trusting(issued), get_addresses=lambda host, port: ["127.0.0.1"])
        why = await why_not(here.call("GET", f"https://other.example.test:{server.port}/"))
        assert "certificate for another name" in why
        assert len(server.requests) == 1


# Documents that are kept.


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_twisted.ensureDeferred
async def test_a_document_is_read_once_as_long_as_it_is_kept() -> None:
    time = Clock()
    async with outgoing_server(answers(ok(b'{"keys": []}', "Cache-Control: max-age=300"))) as server:
        documents = Documents(outgoing(), time)
        assert await documents.read(server.url) == {"keys": []}
        time.now += 299
        await documents.read(server.url)
        assert len(server.requests) == 1
        time.now += 2
        await documents.read(server.url)
        assert len(server.requests) == 2


@pytest_twisted.ensureDeferred
async def test_those_who_ask_at_the_same_time_share_one_call() -> None:
    async with outgoing_server(answers(ok(b"{}"))) as server:
        documents = Documents(outgoing(), Clock())
        await all_of(documents.read(server.url) for _ in range(20))
        assert len(server.requests) == 1


@pytest_twisted.ensureDeferred
async def test_a_document_is_read_anew_at_most_once_a_minute() -> None:
    time = Clock()
    async with outgoing_server(answers(ok(b"{}", "Cache-Control: max-age=9999"))) as server:
        documents = Documents(outgoing(), time)
        for _ in range(3):
            await documents.read_again(server.url)
        assert len(server.requests) == 1
        time.now += 60
        for _ in range(3):
            await documents.read_again(server.url)
        assert len(server.requests) == 2


@pytest_twisted.ensureDeferred
async def test_a_document_that_cannot_be_read_anew_stays_and_is_not_asked_for_again() -> None:
    time = Clock()
    async with outgoing_server(answers(ok(b'{"a": 1}', "Cache-Control: max-age=9999"))) as server:
        documents = Documents(outgoing(), time)
        await documents.read(server.url)
        server.answer = answers(ok(b"no", status="500 Oh"))
        time.now += 60
        assert await why_not(documents.read_again(server.url)) == "localhost answered 500"
        assert await documents.read_again(server.url) == {"a": 1}
        assert len(server.requests) == 2


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'"x"', b"null", b"[" * 100_000])
async def test_a_document_that_is_no_object_is_an_error(body: bytes) -> None:
    async with outgoing_server(answers(ok(body))) as server:
        assert "JSON" in await why_not(Documents(outgoing(), Clock()).read(server.url))
