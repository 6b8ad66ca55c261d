"""Bodies, queries and headers that are made to take long: nobody else waits for them. However long a request is, each
of the reactor's turns is short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
import pytest_twisted

from tests.hostile_bodies import array, csv_bodies, json_bodies
from tests.live.attacks.attacked import DEV, Project, project
from tests.live.attacks.turns import measured_turns, send

__all__ = ["project"]

LONGEST_SECONDS = 0.02
SIZE = 1_000_000
MAINS, GIVEN = f"{DEV}/mains", f"{DEV}/rpc/given"
JSON, CSV, NDJSON = "application/json", "text/csv", "application/x-ndjson"
FORM = "application/x-www-form-urlencoded"
# Method, path, Content-Type and body, or the header that is sent instead.
Sent = tuple[str, str, Mapping[str, str], Sequence[bytes]]


VALUES, LINES = json_bodies(SIZE), csv_bodies(SIZE)
JSON_LINES = {
    "rows": b'{"id":"1"}\n' * (SIZE // 11),
    "empty rows": b"{}\n" * (SIZE // 3),
    "blank lines": b"\n" * SIZE,
    "infinite numbers": b'{"id":1e999}\n' * (SIZE // 13),
    "one row": b'{"id":"x","j":' + array(b"[]", SIZE) + b"}\n",
}
FIELDS = {
    "fields": b"a=1&" * 24_999,
    "names": b"&".join([b"k%d=%%41" % number for number in range(24_999)]),
    "separators": b"&" * SIZE,
    "escapes": b"a=" + b"%41" * (SIZE // 3),
}
PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
UPLOADS = {
    "parts": b"".join([PART % (b"f%d" % number, b"y" * 1000) for number in range(99)]),
    "a file": FILE + b"z" * 4 * SIZE + b"\r\n--x--\r\n",
    "carriage returns": FILE + b"\r" * 4 * SIZE + b"\r\n--x--\r\n",
    "almost boundaries": FILE + b"\r\n--" * SIZE + b"\r\n--x--\r\n",
    "headers": b"--x\r\n" + (b"A: " + b"b" * 8000 + b"\r\n") * 16 + b"\r\n",
    "parameters": b"--x\r\nContent-Disposition: form-data" + b"; a=b" * 1500 + b"\r\n\r\n",
    "no boundary": b"\r\n--" * 20_000,
}
QUERIES = {
    "filters": "&".join(["id=eq.1"] * 6000),
    "a logic tree": "or=(" + ",".join(["and(id.eq.1,id.eq.2)"] * 1000) + ")",
    "a deep logic tree": "and=" + "(or" * 9000,
    "values": "id=in.(" + ",".join(["1"] * 24_000) + ")",
    "columns": "select=" + ",".join(["id"] * 16_000),
    "casts": "select=" + ",".join(["id::text"] * 5000),
    "embeddings": "select=" + ",".join([f"a{number}:mains(id)" for number in range(3000)]),
    "order": "order=" + ",".join(["id.asc"] * 7000),
    "a JSON path": "j" + "->b" * 12_000 + "=eq.1",
    "escapes": "id=eq." + "%41" * 16_000,
    "nothing": "&" * 49_000,
}
HEADERS = {
    "If-None-Match": ",".join(['"a"'] * 12_000),
    "Range": "bytes=" + ",".join(["0-1"] * 12_000),
    "Cookie": ";".join(["a=b"] * 14_000),
    "Accept": ",".join(["text/x;q=0.1"] * 4500),
    "Prefer": ",".join(["count=exact"] * 4500),
    "Authorization": "Bearer " + "a." * 25_000,
    "Access-Control-Request-Headers": ",".join(["a"] * 25_000),
    "Want-Repr-Digest": "," * 50_000,
    "X-Forwarded-For": ",".join(["1.1.1.1"] * 6000),
}


def whole(method: str, path: str, kind: str, bodies: Mapping[str, bytes]) -> Iterator[tuple[str, Sent]]:
    for name, body in bodies.items():
        yield name, (method, path, {"Content-Type": kind, "Content-Length": str(len(body))}, [body])


def chunked(method: str, path: str, kind: str, bodies: Mapping[str, bytes]) -> Iterator[tuple[str, Sent]]:
    """In chunks of one byte, some of which have an extension."""
    headers = {"Content-Type": kind, "Transfer-Encoding": "chunked"}
    for name, body in bodies.items():
        cut = body[:20_000]
        chunks = [b"1;e%b\r\n%c\r\n" % (b"e" * (at % 16), cut[at]) for at in range(len(cut))]
        yield name, (method, path, headers, [b"".join(chunks), b"0\r\n\r\n"])


def in_pieces(method: str, path: str, kind: str, bodies: Mapping[str, bytes]) -> Iterator[tuple[str, Sent]]:
    """Sent byte by byte, each a chunk."""
    headers = {"Content-Type": kind, "Transfer-Encoding": "chunked"}
    for name, body in bodies.items():
        pieces = [b"1\r\n%c\r\n" % byte for byte in body[:500]]
        yield name, (method, path, headers, [*pieces, b"0\r\n\r\n"])


OBJECTS, RESUMABLE = "/storage/buckets/private/objects", "/storage/buckets/private/uploads"
MULTIPART = "multipart/form-data; boundary=x"
KINDS: Mapping[str, Sequence[tuple[str, Sent]]] = {
    "JSON": [*whole("POST", MAINS, JSON, VALUES)],
    "JSON for some columns": [*whole("POST", f"{MAINS}?columns=id", JSON, VALUES)],
    "JSON for a function": [*whole("POST", GIVEN, JSON, VALUES)],
    "JSON in chunks": [*chunked("POST", MAINS, JSON, VALUES)],
    "JSON of endpoints": [*whole("POST", "/auth/login", JSON, VALUES)],
    "CSV": [*whole("POST", MAINS, CSV, LINES)],
    "large CSV": [*whole("POST", MAINS, CSV, {name: 3 * body for name, body in LINES.items()})],
    "CSV in chunks": [*chunked("POST", MAINS, CSV, LINES), *in_pieces("POST", MAINS, CSV, LINES)],
    "NDJSON": [*whole("POST", MAINS, NDJSON, JSON_LINES), *chunked("POST", MAINS, NDJSON, JSON_LINES)],
    "large NDJSON": [*whole("POST", MAINS, NDJSON, {name: 3 * body for name, body in JSON_LINES.items()})],
    "forms": [*whole("POST", GIVEN, FORM, FIELDS), *chunked("POST", GIVEN, FORM, FIELDS)],
    "uploads": [*whole("POST", OBJECTS, MULTIPART, UPLOADS), *chunked("POST", OBJECTS, MULTIPART, UPLOADS)],
    "queries": [(name, ("GET", f"{MAINS}?{query}", {}, [])) for name, query in QUERIES.items()],
    "headers": [
        (f"{name} {path}", ("GET", path, {name: value}, []))
        for name, value in HEADERS.items()
        for path in (MAINS, f"{OBJECTS}/x", "/auth/user")
    ],
    "resumable uploads": [
        (
            name,
            (
                "POST",
                RESUMABLE,
                {
                    "Tus-Resumable": "1.0.0",
                    "Upload-Length": "100000",
                    "Upload-Metadata": metadata,
                    "Content-Type": "application/offset+octet-stream",
                    "Transfer-Encoding": "chunked",
                },
                [b"1\r\nx\r\n" * 20_000, b"0\r\n\r\n"],
            ),
        )
        for name, metadata in (
            ("metadata", ",".join([f"a{number} YQ==" for number in range(4500)])),
            ("a key", "key YQ=="),
        )
    ],
}  # fmt: skip


def head(project: Project, sent: Sent) -> bytes:
    method, path, headers, _ = sent
    lines = {
        "Host": "x",
        "X-Service-Key": project.api.anon_key,
        "Authorization": f"Bearer {project.ann}",
        "Connection": "close",
        **headers,
    }
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
    ).encode()


@pytest.mark.parametrize("kind", KINDS)
@pytest_twisted.ensureDeferred
async def test_no_turn_of_the_reactor_is_long(project: Project, kind: str) -> None:
    long = {}
    for name, sent in KINDS[kind]:
        measured: list[float] = []
        # The time does not count what other threads and processes take, but it does vary.
        while len(measured) < 3 and min(measured, default=1.0) > LONGEST_SECONDS:
            with measured_turns() as turns:
                response = await send(project.api.port, [head(project, sent), *sent[3]])
            assert response.startswith(b"HTTP/1.1 "), name
            measured.append(turns.longest)
        if min(measured) > LONGEST_SECONDS:
            long[name] = min(measured), response[:15]
    assert not long
