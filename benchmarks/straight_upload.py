"""The yardstick of an upload: the shortest way from a PUT to an object, on the libraries that the service uses.

    python -m benchmarks.straight_upload DATA_DIR

It uses the database and the store of the service that runs on ``DATA_DIR``, and prints its address. Each upload does
what every upload has to: the head is read and checked, the key is looked up, the body is hashed twice, one PUT with
these hashes is signed by botocore and sent by treq, its ETag is compared, and one prepared INSERT commits the row
before the reply. A request id, a limit on requests at a time, a counter and a line of a log are kept for each.

It leaves out what makes the service a product: the version that is reserved first, rules of buckets, policies and
quotas, who may write, conditions, digests and details in headers, the removal of what is replaced, parts, large
bodies, retries, timeouts, TLS, and errors worth the name. What the service needs more than this is what these cost.
"""

from __future__ import annotations

import argparse
import ctypes
import hmac
import json
import time
import uuid
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from hashlib import md5, sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httptools
import orjson
import psycopg2
from botocore.auth import S3SigV4Auth
from botocore.credentials import Credentials
from psycopg2 import _psycopg
from treq.client import HTTPClient
from twisted.internet import endpoints, reactor, task
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import Factory, Protocol
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer
from zope.interface import implementer

from project_service.embedded.data_directory import running_beside

WRITERS = 8
MOST_AT_ONCE = 500
CONTENT_TYPE = "application/octet-stream"
TABLE = """
create table if not exists straight_uploads (bucket text, key text, version uuid, size bigint, content_type text,
  etag text, sha256 text, updated_at timestamptz default now(), primary key (bucket, key))
"""
INSERT = """
prepare upload (text, text, uuid, bigint, text, text, text) as
insert into straight_uploads values ($1, $2, $3, $4, $5, $6, $7) on conflict (bucket, key) do update set
  version = excluded.version, size = excluded.size, content_type = excluded.content_type, etag = excluded.etag,
  sha256 = excluded.sha256, updated_at = excluded.updated_at
returning to_char(updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
"""
clock = time.monotonic
loop: Any = reactor


# The database: libpq in pipeline mode, as psycopg2 has loaded it.

_libpq = ctypes.PyDLL(_psycopg.__file__)
_P, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p


def _of_libpq(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function: Any = getattr(_libpq, name)
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]  # ctypes makes it


_execute = _of_libpq("PQsendQueryPrepared", _INT, _P, _TEXT, _INT, _P, _P, _P, _INT)
_sync, _flush = _of_libpq("PQpipelineSync", _INT, _P), _of_libpq("PQflush", _INT, _P)
_consume, _is_busy = _of_libpq("PQconsumeInput", _INT, _P), _of_libpq("PQisBusy", _INT, _P)
_result, _clear = _of_libpq("PQgetResult", _P, _P), _of_libpq("PQclear", None, _P)
_status, _value = _of_libpq("PQresultStatus", _INT, _P), _of_libpq("PQgetvalue", _TEXT, _P, _INT, _INT)
_nonblocking, _pipeline = (
    _of_libpq("PQsetnonblocking", _INT, _P, _INT),
    _of_libpq("PQenterPipelineMode", _INT, _P),
)
_TUPLES_OK, _PIPELINE_SYNC = 2, 10


class Writer:
    """One connection, on which uploads are committed one after the other."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn)
        self._connection.autocommit = True
        self._connection.cursor().execute(INSERT)
        self._raw = self._connection.pgconn_ptr
        if _nonblocking(self._raw, 1) or not _pipeline(self._raw):
            raise SystemExit("no pipeline mode")
        self.waiting: deque[Callable[[bytes | None], None]] = deque()
        self._row: bytes | None = None
        loop.addReader(self)

    def fileno(self) -> int:
        return int(self._connection.fileno())

    def logPrefix(self) -> str:
        return "writer"

    def connectionLost(self, reason: object) -> None:
        raise SystemExit("the database is gone")

    def commit(self, values: tuple[bytes, ...], done: Callable[[bytes | None], None]) -> None:
        count = len(values)
        _execute(self._raw, b"upload", count, (_TEXT * count)(*values), None, None, 0)
        _sync(self._raw)
        _flush(self._raw)
        self.waiting.append(done)

    def doRead(self) -> None:
        _consume(self._raw)
        while self.waiting and not _is_busy(self._raw):
            result = _result(self._raw)
            if not result:
                continue
            status = _status(result)
            if status == _TUPLES_OK:
                self._row = _value(result, 0, 0)
            _clear(result)
            if status == _PIPELINE_SYNC:
                row, self._row = self._row, None
                self.waiting.popleft()(row)


# The store: treq, above connections that are kept open.


class Signer:
    """Signs PUTs, all of which have the same headers. The key of a day is derived once."""

    def __init__(self, key_id: str, secret: str, region: str, host: str) -> None:
        self._auth = S3SigV4Auth(Credentials(key_id, secret), "s3", region)
        self._secret, self._region, self._host = secret, region, host
        self._day, self._key = "", b""

    def headers(self, path: str, digest: str, content_md5: str, stamp: str) -> dict[str, str]:
        day = stamp[:8]
        if day != self._day:
            key = f"AWS4{self._secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day, self._key = day, key
        headers = {
            "content-md5": content_md5,
            "content-type": CONTENT_TYPE,
            "host": self._host,
            "x-amz-content-sha256": digest,
            "x-amz-date": stamp,
        }
        lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
        names = ";".join(headers)
        request: Any = SimpleNamespace(context={"timestamp": stamp})
        text = self._auth.string_to_sign(request, f"PUT\n{path}\n\n{lines}\n{names}\n{digest}")
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        credential = f"Credential={self._auth.scope(request)}"
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        )
        return headers


@implementer(IBodyProducer)
class Payload:
    """A body that is sent together with its head."""

    def __init__(self, data: bytes) -> None:
        self.data, self.length = data, len(data)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        return succeed(None)

    def pauseProducing(self) -> None: ...
    def resumeProducing(self) -> None: ...
    def stopProducing(self) -> None: ...


class StoreResponse:
    def __init__(self, code: int, etag: bytes) -> None:
        self.code, self.etag, self.headers = code, etag, Headers()


class StoreConnection(Protocol):
    """Sends one request at a time; its response has no body."""

    transport: Any
    waiting: Deferred[StoreResponse]

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)

    def send(self, head: bytes, body: bytes) -> Deferred[StoreResponse]:
        self.waiting, self._etag, self._whole = Deferred(), b"", False
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(head + body)
        return self.waiting

    def dataReceived(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self._whole:
            self.agent.idle.append(self)
            self.waiting.callback(StoreResponse(self._parser.get_status_code(), self._etag))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"etag":
            self._etag = value.strip(b'"')

    def on_message_complete(self) -> None:
        self._whole = True


@implementer(IAgent)
class Agent(Factory):
    noisy = False

    def __init__(self, host: str) -> None:
        self._endpoint = endpoints.clientFromString(loop, f"tcp:{host}")
        self.idle: list[StoreConnection] = []

    def buildProtocol(self, address: Any) -> StoreConnection:
        return StoreConnection(self)

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: Any = None
    ) -> Deferred[Any]:
        assert headers is not None
        path = uri[uri.index(b"/", 8) :]
        lines = [b"%b %b HTTP/1.1" % (method, path), b"content-length: %d" % bodyProducer.length]
        lines += [b"%b: %b" % (name, values[0]) for name, values in headers.getAllRawHeaders()]
        head = b"\r\n".join([*lines, b"", b""])
        if self.idle:
            return self.idle.pop().send(head, bodyProducer.data)
        connecting: Deferred[Any] = self._endpoint.connect(self)
        return connecting.addCallback(lambda connection: connection.send(head, bodyProducer.data))


# The service.


class Head:
    """What follows from the header lines of a request; kept as long as a client sends the same ones."""

    def __init__(self, lines: bytes, keys: set[bytes]) -> None:
        self.lines = lines
        self._headers: dict[bytes, bytes] = {}
        httptools.HttpRequestParser(self).feed_data(b"PUT / HTTP/1.1\r\n" + lines)
        key = self._headers.get(b"x-service-key", b"")
        self.may_write = sha256(key).digest() in keys
        self.length = int(self._headers.get(b"content-length", b"0"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value


class Server(Factory):
    """What all connections share."""

    noisy = False

    def __init__(self, dsn: str, key: str, store: Any) -> None:
        with psycopg2.connect(dsn) as connection:
            connection.cursor().execute(TABLE)
        host = store.endpoint_url.partition("://")[2].rstrip("/")
        self.keys = {sha256(key.encode()).digest()}
        self.root, self.bucket = f"http://{host}", store.bucket
        self.signer = Signer(store.access_key_id, store.secret_access_key.reveal(), store.region, host)
        self.client: Any = HTTPClient(Agent(host))
        self.writers = [Writer(dsn) for _ in range(WRITERS)]
        self.at_once = self.count = 0
        self.seconds: dict[int, float] = {}
        self.lines: list[tuple[object, ...]] = []
        self.tick()

    def tick(self) -> None:
        now = time.gmtime()
        self.date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", now)
        self.stamp = time.strftime("%Y%m%dT%H%M%SZ", now)
        self.lines.clear()

    def buildProtocol(self, address: Any) -> Channel:
        return Channel(self)


class Channel(Protocol):
    """One client, whose requests are answered one after the other."""

    transport: Any

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self._head: Head | None = None
        self._busy = False

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)

    def dataReceived(self, data: bytes) -> None:
        self._received += data
        if not self._busy:
            self._next()

    def _next(self) -> None:
        line, _, rest = self._received.partition(b"\r\n")
        end = rest.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = self._head
        if head is None or head.lines != rest[:end]:
            head = self._head = Head(rest[:end], self._server.keys)
        if len(rest) < end + head.length:
            return
        body, self._received = rest[end : end + head.length], rest[end + head.length :]
        method, target, _ = line.split(b" ")
        *_, bucket, _, key = target.decode("ascii").split("/", 5)
        server = self._server
        if method != b"PUT" or not head.may_write or server.at_once >= MOST_AT_ONCE:
            self.transport.write(b"HTTP/1.1 400 Refused\r\nContent-Length: 0\r\n\r\n")
            return
        self._busy = True
        server.at_once += 1
        Deferred.fromCoroutine(self._upload(bucket, key, body)).addErrback(self._failed)

    async def _upload(self, bucket: str, key: str, body: bytes) -> None:
        server, started, version = self._server, clock(), str(uuid.uuid4())
        digest, sum_ = sha256(body).hexdigest(), md5(body, usedforsecurity=False)
        path = f"/{server.bucket}/{bucket}/{version}"
        content_md5 = b64encode(sum_.digest()).decode()
        response = await server.client.put(
            server.root + path,
            Payload(body),
            headers=server.signer.headers(path, digest, content_md5, server.stamp),
            allow_redirects=False,
            unbuffered=True,
            reactor=loop,
        )
        stored = response.original
        etag = stored.etag.decode()
        if stored.code != 200 or etag != sum_.hexdigest():
            raise RuntimeError(f"the store refused: {stored.code}")
        texts = (bucket, key, version, str(len(body)), CONTENT_TYPE, etag, digest)
        committed: Deferred[bytes | None] = Deferred()
        writer = min(server.writers, key=lambda one: len(one.waiting))
        writer.commit(tuple([text.encode() for text in texts]), committed.callback)
        modified = await committed
        if modified is None:
            raise RuntimeError("the database refused")
        shown = {"key": key, "size": len(body), "content_type": CONTENT_TYPE, "etag": etag}
        self._answer(200, orjson.dumps({**shown, "last_modified": modified.decode()}), started)

    def _failed(self, failure: Any) -> None:
        self._answer(500, orjson.dumps({"why": failure.getErrorMessage()}), clock())

    def _answer(self, status: int, body: bytes, started: float) -> None:
        server, seconds = self._server, clock() - started
        server.at_once -= 1
        server.count += 1
        server.seconds[status] = server.seconds.get(status, 0.0) + seconds
        server.lines.append((server.count, status, len(body), seconds))
        head = (
            f"HTTP/1.1 {status} OK\r\nContent-Type: application/json; charset=utf-8\r\nDate: {server.date}\r\n"
            f"X-Request-Id: {server.count:032x}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._busy = False
        if self._received:
            self._next()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("data_dir", type=Path)
    data_dir = options.parse_args().data_dir
    beside, known = running_beside(data_dir), json.loads((data_dir / "credentials.json").read_text())
    assert beside is not None
    server = Server(known["dsn"], known["service_key"], beside.store)
    task.LoopingCall(server.tick).start(1)

    async def listen() -> None:
        port = await endpoints.serverFromString(loop, "tcp:0:interface=127.0.0.1").listen(server)
        print(f"http://127.0.0.1:{port.getHost().port}", flush=True)

    loop.callWhenRunning(lambda: Deferred.fromCoroutine(listen()))
    loop.run()


if __name__ == "__main__":
    main()
