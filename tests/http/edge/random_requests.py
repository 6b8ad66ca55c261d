"""Valid requests that are spoiled at random, from a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

GOOD = [
    b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b'POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}',
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n',
    b"PUT /o/b/k/%C3%A9?x=1&y=%20 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"OPTIONS /x HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nAccess-Control-Request-Method: GET\r\n\r\n",
    b"GET /x HTTP/1.0\r\n\r\n",
]
SPICE = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b"%",
    b"%zz",
    b"%00",
    b"\xff\xfe",
    b"-1",
    b"0x10",
    b"99999999999999999999",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b" folded\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"../",
    b"//",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"GET ",
    b"\x16\x03\x01",
    b"A" * 70_000,
]
STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")


def spoiled(chance: random.Random, good: Sequence[bytes] = GOOD) -> bytes:
    """Valid requests that are cut, doubled and mixed with noise."""
    raw = bytearray(b"".join(chance.choice(good) for _ in range(chance.randint(1, 3))))
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(raw) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            raw[place:place] = chance.choice(SPICE)
        elif kind == 1:
            del raw[place : place + chance.randint(1, 20)]
        elif kind == 2 and place < len(raw):
            raw[place] = chance.randrange(256)
        else:
            raw[place:place] = raw[place : place + chance.randint(1, 40)]
    return bytes(raw)
