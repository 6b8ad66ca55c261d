"""The attack corpus: where a body ends, and what hides behind it. Pure data (see ``attack_corpus``)."""

from __future__ import annotations

from tests.attacks.cases import (
    CHUNKED,
    CL3,
    EARLY,
    GET,
    HIDDEN,
    HIDDEN_TOO,
    POST,
    WAITING,
    Case,
    Outcome,
    ok,
    refused,
    taken,
)


def _length(value: bytes) -> bytes:
    return POST + b"Content-Length:" + value + b"\r\n\r\nabc" + HIDDEN


def _coding(value: bytes) -> bytes:
    return POST + b"Transfer-Encoding:" + value + b"\r\n\r\n0\r\n\r\n" + HIDDEN


SMUGGLING: list[Case] = [
    refused("CL then TE", "6.3", CL3 + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN),
    refused(
        "TE then CL", "6.3",
            POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN
    ),
    refused("CL 0 and TE", "6.3", POST + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + HIDDEN),
    refused("CL and identity", "6.1", CL3 + b"Transfer-Encoding: identity\r\n\r\nabc" + HIDDEN),
    refused("CL and unknown TE", "6.1", CL3 + b"Transfer-Encoding: xchunked\r\n\r\nabc" + HIDDEN),
    refused("CL and empty TE", "6.1", CL3 + b"Transfer-Encoding:\r\n\r\nabc" + HIDDEN),
    refused("two equal CL", "6.3", CL3 + b"Content-Length: 3\r\n\r\nabc" + HIDDEN),
    refused("two CL", "6.3", CL3 + b"Content-Length: 37\r\n\r\nabc" + HIDDEN),
    refused("CL and empty CL", "6.3", CL3 + b"Content-Length:\r\n\r\nabc" + HIDDEN),
    refused("CL 0 and CL", "6.3", POST + b"Content-Length: 0\r\nContent-Length: 3\r\n\r\nabc" + HIDDEN),
    *(
        refused(f"CL {value!r}", "RFC 9110 8.6", _length(value))
        for value in (
            b" +3", b" -3", b" -0", b" 3 3", b" 3, 3", b" 3,3", b" 3;", b" 0x3", b" 3.0", b" 3e0", b" 1_0",
            b"",
            b" ", b" \xd9\xa3", b" \xb3", b' "3"', b" 3\x0b", b" \x0c3", b" 3\x00", b"\r\n 3", b" 3\r\n 7",
            b" NaN",
            b" 18446744073709551619", b" " + b"9" * 40, b" " + b"1" * 5000,
        )
    ),
    refused("CL, space before the colon", "5.1", POST + b"Content-Length : 3\r\n\r\nabc" + HIDDEN),
    refused("CL, tab before the colon", "5.1", POST + b"Content-Length\t: 3\r\n\r\nabc" + HIDDEN),
    taken("CL with space around it", "5.1", POST + b"Content-Length: \t 3 \t\r\n\r\nabc",
        ok("POST /echo|abc|")),
    taken("CL with zeros before it", "RFC 9110 8.6", POST + b"content-length:003\r\n\r\nabc",
        ok("POST /echo|abc|")),
    *(
        refused(f"TE {value!r}", "6.1", _coding(value))
        for value in (
            b" chunked, chunked", b" chunked,chunked", b" identity", b" xchunked", b" chunkedx",
            b" chunked;x",
            b" chunked ;q=1", b" chunked, identity", b" identity, chunked", b" gzip, chunked",
            b" chunked, gzip",
            b" gzip", b"", b" ,", b' "chunked"', b" \x0bchunked", b" chunked\x0b", b" chun\x00ked",
            b" \xffchunked",
            b" chunked\x00", b"\r\n chunked", b"\r\n\tchunked", b" chunked\r\n ,gzip", b" chunked\rx",
            b" \nchunked",
            b" chunked\r\nTransfer-Encoding: chunked", b" chunked\r\nTransfer-Encoding: identity",
            b" identity\r\nTransfer-Encoding: chunked", b" chunked\r\nTransfer-Encoding:",
        )
    ),
    *(
        refused(f"TE named {name!r}", "5.1", POST + name + b" chunked\r\n\r\n0\r\n\r\n" + HIDDEN)
        for name in (
            b"Transfer-Encoding :", b"Transfer-Encoding\t:", b"Transfer-Encoding\x0b:",
            b"Transfer-Encoding\x00:",
            b"\x00Transfer-Encoding:", b" Transfer-Encoding:", b"Transfer-Encoding\xa0:",
            b"X: a\nTransfer-Encoding:",
            b"X: a\rTransfer-Encoding:", b"Transfer-\r\n Encoding:", b"Transfer Encoding:", b"X\x00: a\r\nY:",
        )
    ),
    taken("TE in another case", "7", POST + b"transfer-ENCODING:\t chUNKed  \r\n\r\n3\r\nabc\r\n0\r\n\r\n",
          ok("POST /echo|abc|")),
    refused("TE with a tab behind it", "5.1", POST + b"Transfer-Encoding: chunked\t\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            Outcome((ok("POST /echo|abc|"),), "open")),
    taken("TE spelt with an underscore is no TE", "6.1",
        CL3 + b"Transfer_Encoding: chunked\r\n\r\nabc" + HIDDEN,
          ok("POST /echo|abc|"), HIDDEN_TOO),
    taken("TE named hop-by-hop stays", "9.6",
        POST + b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n"
          b"\r\n3\r\nabc\r\n0\r\n\r\n", ok("POST /echo|abc|")),
    taken("a body in a GET is a body", "6", GET + b"Content-Length: 35\r\n\r\n" + HIDDEN.ljust(35),
          ok(f"GET /echo|{HIDDEN.ljust(35).decode()}|")),
    taken("a chunked GET is one", "6",
        GET + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + HIDDEN,
          ok("GET /echo|abc|"), HIDDEN_TOO),
    refused("TE in HTTP/1.0", "6.1",
        b"POST /echo HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            + HIDDEN),
    taken("no length is no body", "6.3", POST + b"\r\n" + HIDDEN, ok("POST /echo||"), HIDDEN_TOO),
    taken("a body longer than its CL is the next request", "6.3", CL3 + b"\r\nabc" + HIDDEN,
          ok("POST /echo|abc|"), HIDDEN_TOO),
    Case("... and has to be one", "6.3", CL3 + b"\r\nabcdef\r\n\r\n" + HIDDEN,
         (Outcome((ok("POST /echo|abc|"), (400, None)), "closed"),)),
    Case("a body shorter than its CL", "6.3", CL3 + b"\r\nab", (WAITING,)),
    taken("an early answer, then the rest of the body", "6.3",
        EARLY + b"Content-Length: 35\r\n\r\n" + HIDDEN.ljust(35)
          + HIDDEN, (200, "EARLY"), HIDDEN_TOO),
]  # fmt: skip


def _chunks(raw: bytes) -> bytes:
    return CHUNKED + raw + HIDDEN


CHUNKS: list[Case] = [
    *(
        refused(f"chunk size {size!r}", "7.1", _chunks(size + b"\r\nabc\r\n0\r\n\r\n"))
        for size in (
            b"+3", b"-3", b" 3", b"3 ", b"\t3", b"0x3", b"3h", b"g", b"", b" ", b"3,", b"3\x00", b"\x003",
            b"3\x0b",
            b"3_0", b"\xb3", b"\xef\xbc\x93", b"3 3", b"fffffffffffffffff", b"10000000000000003", b"f" * 400,
            b"3\n", b"3\rX", b"\n3", b"3\r",
        )
    ),
    refused("a chunk longer than its size", "7.1", _chunks(b"3\r\nabcd\r\n0\r\n\r\n")),
    refused("no CRLF after a chunk", "7.1", _chunks(b"3\r\nabc0\r\n\r\n")),
    refused("LF after a chunk", "7.1", _chunks(b"3\r\nabc\n0\r\n\r\n")),
    refused("CR after a chunk", "7.1", _chunks(b"3\r\nabc\r0\r\n\r\n")),
    refused("LF CR after a chunk", "7.1", _chunks(b"3\r\nabc\n\r0\r\n\r\n")),
    refused("LF after a chunk size", "7.1", _chunks(b"3\nabc\r\n0\r\n\r\n")),
    refused("LF after the last size", "7.1", _chunks(b"3\r\nabc\r\n0\n\r\n")),
    refused("LF for the end", "7.1", _chunks(b"3\r\nabc\r\n0\r\n\n")),
    refused("two LF for the end", "7.1", _chunks(b"3\r\nabc\r\n0\n\n")),
    refused("a chunk after an early answer", "7.1",
        EARLY + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + HIDDEN,
            Outcome(((200, "EARLY"),), "closed")),
    Case("a chunked body without its end", "7.1", CHUNKED + b"3\r\nabc\r\n", (WAITING,)),
    taken("sizes of both cases, with zeros", "7.1",
        _chunks(b"0000a\r\n0123456789\r\nA\r\nabcdefghij\r\n000\r\n\r\n"),
          ok("POST /echo|0123456789abcdefghij|"), HIDDEN_TOO),
    taken("a thousand small chunks", "7.1", _chunks(b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"),
          ok(f"POST /echo|{'x' * 1000}|"), HIDDEN_TOO),
    taken("a request in a chunk is a body", "7.1", _chunks(b"23\r\n" + HIDDEN.ljust(35) + b"\r\n0\r\n\r\n"),
          ok(f"POST /echo|{HIDDEN.ljust(35).decode()}|"), HIDDEN_TOO),
    taken("extensions are ignored", "7.1.1", _chunks(b'3;a;b=c;d="e f"\r\nabc\r\n0;x=y\r\n\r\n'),
          ok("POST /echo|abc|"), HIDDEN_TOO),
    *(
        refused(f"extension {extension!r}", "7.1.1", _chunks(b"3;" + extension + b"\r\nabc\r\n0\r\n\r\n"))
        for extension in (b"a\nb", b"a\rb", b"a\x00b", b"a=\x0b", b"\n", b"a" * 20_000)
    ),
    taken("trailers are ignored", "7.1.2", _chunks(b"3\r\nabc\r\n0\r\nX-Mark: late\r\nX-Other: b\r\n\r\n"),
          ok("POST /echo|abc|"), HIDDEN_TOO),
    taken("forbidden trailers too", "7.1.2", _chunks(b"3\r\nabc\r\n0\r\nHost: b\r\nX-Service-Key: forged\r\n"
          b"Authorization: Bearer forged\r\nConnection: close\r\nProxy-Connection: close\r\nUpgrade: h2c\r\n\r\n"),
         ok("POST /echo|abc|"), HIDDEN_TOO),
    *(
        refused(f"trailer {framing!r}", "7.1.2", _chunks(b"3\r\nabc\r\n0\r\n" + framing + b"\r\n\r\n"),
                Outcome((ok("POST /echo|abc|"), HIDDEN_TOO), "open"))
        for framing in (b"Content-Length: 90", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity")
    ),
    *(
        refused(f"trailer {trailer[:20]!r}", "7.1.2", _chunks(b"3\r\nabc\r\n0\r\n" + trailer + b"\r\n\r\n"),
                Outcome(((431, None),), "closed"))
        for trailer in (
            b"no colon", b": empty", b"a b: c", b"a : c", b"a: b\nc: d", b"a: \x00", b" a: folded",
            b"a: b\r\n folded",
            b"\nGET /hidden HTTP/1.1", b"a: " + b"x" * 70_000, b"\r\n".join([b"a: b"] * 20_000),
        )
    ),
]  # fmt: skip
