"""Hostile bodies, queries and headers for the table API."""

from __future__ import annotations

import gzip
from urllib.parse import quote

import pytest
import pytest_twisted

from tests.live.attacks.attacked import DEV, Project, project

__all__ = ["project"]

DIGITS = b"1" * 1_000_000
NOT_UTF8 = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80")
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("kind", "body", "statuses"),
    [
        ("application/json", b'{"id": "x", "n": %b}' % DIGITS, (400,)),
        ("application/json", b'{"id": "x", "n": 1e%b}' % DIGITS[:1000], (400,)),
        ("application/json", b'{"id": "x", "n": 1e131071}', (201, 400)),
        ("application/json", b'{"id": "x", "b": 0.%b}' % DIGITS, (201, 400)),
        ("application/json", b'{"id": "x", "n": "%b"}' % DIGITS, (400,)),
        ("application/json", b'{"id": "x", "j": %b%b}' % (b"[" * 100_000, b"]" * 100_000), (400,)),
        ("application/json", b'{"id": "x", "b": %b%b}' % (b"[" * 1_000, b"]" * 1_000), (201, 400)),
        ("application/json", b"[" * 1_000_000, (400,)),
        ("application/json", b"{%b}" % b",".join(b'"c%d":1' % n for n in range(50_000)), (400,)),
        ("application/json", b'{"id": "\\u0000"}', (400,)),
        ("application/json", b'{"id": "\\ud800"}', (400,)),
        ("application/json", gzip.compress(b'{"id": "x"}', mtime=0), (400,)),
        ("text/csv", b"id\n" + b"x\n" * 300_000, (400, 409)),
        ("text/csv", b",".join(b"c%d" % n for n in range(50_000)) + b"\n" + b"1," * 49_999 + b"1", (400,)),
        ("text/csv", b'id\n"' + b"x" * 900_000, (400,)),
        (FORM, b"&".join(b"f%d=v" % n for n in range(100_000)), (400,)),
        (FORM, b"id=%00", (400,)),
        *(
            (kind, body % raw, (400,))
            for raw in NOT_UTF8
            for kind, body in (
                ("application/json", b'{"id": "%b"}'),
                ("text/csv", b"id\n%b"),
                (FORM, b"id=%b"),
            )
        ),
    ],
)  # fmt: skip
@pytest_twisted.ensureDeferred
async def test_hostile_bodies_are_refused_and_harm_nothing(
    project: Project, kind: str, body: bytes, statuses: tuple[int, ...]
) -> None:
    status, _, answer = await project.ask(
        "POST", f"{DEV}/mains", token=project.ann, data=body, headers={"Content-Type": kind}
    )
    assert status in statuses, (status, answer)
    if status != 201:
        assert set(answer) == {"code", "message", "details", "hint"}
        assert len(str(answer)) < 5000
    status, _, rows = await project.ask(
        "DELETE", f"{DEV}/mains?id=eq.x", token=project.ann, headers={"Prefer": "return=minimal"}
    )
    assert status == 204, rows


@pytest_twisted.ensureDeferred
async def test_hostile_queries_and_headers_are_refused_and_harm_nothing(project: Project) -> None:
    for raw in NOT_UTF8:
        asked = quote(raw, safe="")
        for path in (
            f"{DEV}/{asked}",
            f"{DEV}/mains?id=eq.{asked}",
            f"{DEV}/mains?{asked}=eq.1",
            f"{DEV}/mains?select={asked}",
            f"{DEV}/rpc/given?a={asked}",
            f"/dev/db/{asked}/rest/mains",
            f"/{asked}/db/main/rest/mains",
        ):
            status, _, body = await project.ask("GET", path)
            assert status in (400, 404), (path, status, body)
    deep = "(" * 5_000
    for query in (
        f"select={'a(' * 5_000}",
        f"or={deep}",
        f"and=({'or(' * 3_000}",
        f"select={','.join(['id'] * 8_000)}",
        f"id=in.({','.join(['1'] * 12_000)})",
        "&".join(["id=eq.1"] * 3_000),
        f"order={','.join(['id.asc'] * 3_000)}",
        "limit=99999999999999999999",
        "offset=-1",
        "id=eq.%00",
        "n=eq." + "9" * 20_000,
        "j->a" + "->b" * 5_000 + "=eq.1",
        "id=like." + "%25" * 8_000,
    ):
        status, headers, body = await project.ask("GET", f"{DEV}/mains?{query}", token=project.ann)
        # A long request must not lead to response headers that are too long for clients and proxies.
        assert sum(len(value) for _, values in headers.getAllRawHeaders() for value in values) < 4096
        # PostgreSQL's own limits (SQLSTATE class 54) are 500 in PostgREST's table.
        too_complex = status == 500 and body["code"].startswith("54")
        assert too_complex or status in (200, 206, 400, 404, 414, 416), (query[:40], status, body)
    for header, value in (
        ("Range", "0-" + "9" * 1_000),
        ("Prefer", "count=exact," * 1_000),
        ("Prefer", "timezone='; drop table mains"),
        ("Accept", ",".join(["text/x;q=0.1"] * 2_000)),
        ("Accept-Profile", "public, hidden"),
        ("Cookie", ";".join(["a=b"] * 4_000)),
        ("X-Odd", "\xe9\xff"),
    ):
        status, _, body = await project.ask("GET", f"{DEV}/mains", token=project.ann, headers={header: value})
        assert status in (200, 400, 406, 416), (header, status, body)


@pytest_twisted.ensureDeferred
async def test_no_value_breaks_into_a_response_header(project: Project) -> None:
    for value in ("a\r\nSet-Cookie: b=1", "a\nb", "ä\u2028", "a b&c=d#e%"):
        status, headers, body = await project.ask(
            "POST",
            f"{DEV}/mains",
            token=project.ann,
            json={"id": value},
            headers={"Prefer": "return=headers-only"},
        )
        assert status == 201, body
        assert headers.getRawHeaders("set-cookie") is None
        (location,) = headers.getRawHeaders("location")
        status, _, rows = await project.ask(
            "GET", location if location.startswith("/dev") else f"{DEV}{location}", token=project.ann
        )
        assert [row["id"] for row in rows] == [value], location
