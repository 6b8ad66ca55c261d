"""Hostile and odd HTTP/1.1, byte for byte, with the outcomes that are allowed. Pure data.

Sections are RFC 9112's unless another RFC is named. The application that the corpus is meant for is
``tests.attacks.app``: ``/echo`` answers 200 and ``METHOD target|body|X-Mark``, ``/early`` 200 and ``EARLY`` without
reading the body, ``/hidden`` 200 and ``HIDDEN``; anything else is 404.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

# open: the connection accepts another request. closed: the server has closed it and not read what followed.
# waiting: the request is not complete, there is no response, and the connection is closed after a timeout.
Then = Literal["open", "closed", "waiting"]
Answer = tuple[int, str | None]  # status, and the body where it matters


@frozen
class Outcome:
    answers: tuple[Answer, ...]
    then: Then


@frozen
class Case:
    """``sent``, on one connection, has to have one of ``outcomes``, into however many pieces it is split."""

    name: str
    section: str
    sent: bytes
    outcomes: tuple[Outcome, ...]


HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
GET = b"GET /echo HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
EARLY = b"POST /early HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CL3 = POST + b"Content-Length: 3\r\n"

REFUSED = Outcome(((400, None),), "closed")
TOO_LARGE_HEAD = Outcome(((431, None),), "closed")
WAITING = Outcome((), "waiting")
HIDDEN_TOO = (200, "HIDDEN")


def refused(name: str, section: str, sent: bytes, *others: Outcome) -> Case:
    """The outcome of a request that is refused: 400, the connection is closed, and a request hidden behind it is not
    answered."""
    return Case(name, section, sent, (REFUSED, *others))


def answered(name: str, section: str, sent: bytes, status: int, then: Then = "closed") -> Case:
    return Case(name, section, sent, (Outcome(((status, None),), then),))


def taken(name: str, section: str, sent: bytes, *answers: Answer, then: Then = "open") -> Case:
    """The outcome of requests that are answered with exactly these responses, in this order."""
    return Case(name, section, sent, (Outcome(answers, then),))


def ok(body: str) -> Answer:
    return (200, body)


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


HEADERS: list[Case] = [
    *(
        refused(f"header {line!r}", section, GET + line + b"\r\n\r\n" + HIDDEN)
        for section, line in (
            ("5.1", b"X : a"), ("5.1", b"X\t: a"), ("5", b": a"), ("5", b"no colon"), ("5", b"X y: a"),
            ("5", b"(X): a"),
            ("5", b"X\x00: a"), ("5", b"X\x01: a"), ("5", b"X\x7f: a"), ("5", b"\xc3\xa9: a"),
            ("5", b'"X": a'),
            ("5.2", b"X: a\r\n b"), ("5.2", b"X: a\r\n\tb"), ("5.2", b"X:\r\n a"), ("5.2", b"X: a\r\n "),
            ("RFC 9110 5.5", b"X: a\x00b"), ("RFC 9110 5.5", b"X: a\rb"), ("RFC 9110 5.5", b"X: a\nb"),
            ("RFC 9110 5.5", b"X: \x01"), ("RFC 9110 5.5", b"X: \x0b"), ("RFC 9110 5.5", b"X: a\x1b[31m"),
            ("RFC 9110 5.5", b"X: \x7f"), ("2.2", b"X: a\n\nGET /hidden HTTP/1.1"), ("2.2", b"\r"),
            ("2.2", b"\rX: a"),
        )
    ),
    refused("a space before the first header", "2.2", b"GET /echo HTTP/1.1\r\n Host: a\r\n\r\n" + HIDDEN),
    refused("a space alone before the first header", "2.2",
        b"GET /echo HTTP/1.1\r\n \r\nHost: a\r\n\r\n" + HIDDEN),
    refused("LF ends a header", "2.2", b"GET /echo HTTP/1.1\r\nHost: a\nX-Mark: b\r\n\r\n" + HIDDEN),
    refused("LF ends the headers", "2.2", b"GET /echo HTTP/1.1\r\nHost: a\r\n\n" + HIDDEN),
    refused("LF everywhere", "2.2", b"GET /echo HTTP/1.1\nHost: a\n\n" + HIDDEN.replace(b"\r", b"")
            + b"\r\n\r\n"),
    refused("LF ends the request line", "2.2", b"GET /echo HTTP/1.1\nHost: a\r\n\r\n" + HIDDEN),
    refused("CR ends the request line", "2.2", b"GET /echo HTTP/1.1\rHost: a\r\n\r\n" + HIDDEN),
    taken("bytes beyond ASCII in a value", "RFC 9110 5.5", GET + b"X-Mark: \xc3\xa9\xff\r\n\r\n",
          ok("GET /echo||\xc3\xa9\xff")),
    taken("space around a value is not part of it", "5.1", GET + b"X-Mark:\t a b \t\r\n\r\n",
        ok("GET /echo||a b")),
    taken("an empty value", "5", GET + b"X-Mark:\r\n\r\n", ok("GET /echo||")),
    taken("150 headers", "5", GET + b"X: y\r\n" * 150 + b"\r\n", ok("GET /echo||")),
    Case("300 headers", "5.4", GET + b"X: y\r\n" * 300 + b"\r\n" + HIDDEN, (TOO_LARGE_HEAD,)),
    Case("a header of 70,000 bytes", "5.4", GET + b"X: " + b"y" * 70_000 + b"\r\n\r\n" + HIDDEN,
        (TOO_LARGE_HEAD,)),
    Case("a header name of 70,000 bytes", "5.4", GET + b"X" * 70_000 + b": y\r\n\r\n" + HIDDEN,
        (TOO_LARGE_HEAD,)),
    Case("headers of 80,000 bytes", "5.4", GET + (b"X: " + b"y" * 796 + b"\r\n") * 100 + b"\r\n" + HIDDEN,
         (TOO_LARGE_HEAD,)),
    Case("a head without its end", "2.1", GET, (WAITING,)),
]  # fmt: skip


def _line(line: bytes) -> bytes:
    return line + b"\r\nHost: a\r\n\r\n" + HIDDEN


NOT_FOUND_TOO = Outcome(((404, None), HIDDEN_TOO), "open")
NOT_A_METHOD = Outcome(((405, None), HIDDEN_TOO), "open")
UNKNOWN_METHOD = Outcome(((405, None),), "closed")

LINES: list[Case] = [
    *(
        refused(f"request line {line[:60]!r}", section, _line(line))
        for section, line in (
            ("2.3", b"GET /echo"), ("2.3", b"GET /echo "), ("2.3", b"GET /echo HTTP/0.9"),
            ("2.3", b"GET /echo HTTP/3.0"),
            ("2.3", b"GET /echo HTTP/2.0"), ("2.3", b"GET /echo HTTP/2"), ("2.3", b"GET /echo HTTP/1"),
            ("2.3", b"GET /echo HTTP/1.10"), ("2.3", b"GET /echo HTTP/11.1"), ("2.3", b"GET /echo HTTP/01.1"),
            ("2.3", b"GET /echo HTTP/1.1 "), ("2.3", b"GET /echo http/1.1"), ("2.3", b"GET /echo HTTP /1.1"),
            ("2.3", b"GET /echo HTTPS/1.1"), ("2.3", b"GET /echo ICE/1.0"),
            ("2.3", b"GET /echo HTTP/1.1x"), ("2.3", b"GET /echo HTTP/1,1"), ("2.3", b"GET /echo HTTP/-1.1"),
            ("3", b"GET\t/echo HTTP/1.1"),
            ("3", b"GET /echo\tHTTP/1.1"), ("3", b" GET /echo HTTP/1.1"), ("3", b"GET /echo /x HTTP/1.1"),
            ("3", b"GET HTTP/1.1"), ("3", b"/echo HTTP/1.1"), ("3", b"rubbish"),
            ("3", b"\x16\x03\x01\x02\x00\x01"),
            ("3.1", b"G\x00T /echo HTTP/1.1"), ("3.1", b"G@T /echo HTTP/1.1"),
            ("3.1", b"G\xc3\x89T /echo HTTP/1.1"),
            ("3.1", b'"GET" /echo HTTP/1.1'), ("3.2", b"GET echo HTTP/1.1"), ("3.2", b"GET ?x HTTP/1.1"),
            ("3.2", b"GET /echo#part HTTP/1.1"), ("3.2", b"GET #part HTTP/1.1"),
            ("3.2", b"GET /echo?a=b#c HTTP/1.1"),
            ("3.2", b"GET /ec\x00ho HTTP/1.1"), ("3.2", b"GET /ec\x01ho HTTP/1.1"),
            ("3.2", b"GET /ec\x7fho HTTP/1.1"),
            ("3.2", b"GET /echo?\x80 HTTP/1.1"), ("3.2", b"GET /echo?\xc3\xa9 HTTP/1.1"),
            ("3.2", b"GET /\xff HTTP/1.1"), ("3.2", b"GET /ec\rho HTTP/1.1"),
            ("3.2", b"GET /ec\nho HTTP/1.1"),
            ("3.2.2", b"GET ftp://a/echo HTTP/1.1"), ("3.2.2", b"GET file:///etc/passwd HTTP/1.1"),
            ("3.2.2", b"GET http:///echo HTTP/1.1"), ("3.2.2", b"GET http://u:p@a/echo HTTP/1.1"),
            ("3.2.2", b"GET http:/echo HTTP/1.1"), ("3.2.3", b"GET a:80 HTTP/1.1"),
            ("3.2.3", b"CONNECT a:443 HTTP/1.1"),
        )
    ),
    Case("HTTP/2 preface", "RFC 9113 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN, (REFUSED,)),
    refused("CONNECT a path", "3.2.3", _line(b"CONNECT /echo HTTP/1.1"), NOT_A_METHOD),
    refused("GET *", "3.2.4", _line(b"GET * HTTP/1.1"), NOT_FOUND_TOO),
    # llhttp knows that protocol too; taken for HTTP/1.0 it ends the connection.
    refused("RTSP", "2.3", _line(b"GET /echo RTSP/1.0"), Outcome((ok("GET /echo||"),), "closed")),
    Case("HTTP/1.2", "2.3", _line(b"GET /echo HTTP/1.2"), (REFUSED,)),
    Case("HTTP/0.9 alone", "2.3", b"GET /echo\r\n", (REFUSED, WAITING)),
    *(
        refused(f"request line {line!r}", "3", _line(line), Outcome((ok("GET /echo||"), HIDDEN_TOO), "open"))
        for line in (b"GET  /echo HTTP/1.1", b"GET /echo  HTTP/1.1")
    ),
    Case("method in lower case", "RFC 9110 9.1", _line(b"get /echo HTTP/1.1"),
         (REFUSED, NOT_A_METHOD, UNKNOWN_METHOD)),
    Case("a method of 1,000 letters", "3", _line(b"G" * 1000 + b" /echo HTTP/1.1"),
         (REFUSED, NOT_A_METHOD, UNKNOWN_METHOD)),
    Case("an unknown method", "3", _line(b"BREW /echo HTTP/1.1"), (REFUSED, NOT_A_METHOD, UNKNOWN_METHOD)),
    Case("a method that begins as a known one", "3", _line(b"GETX /echo HTTP/1.1"),
         (REFUSED, NOT_A_METHOD, UNKNOWN_METHOD)),
    answered("a target of 52,000 bytes", "3", _line(b"GET /" + b"x" * 52_000 + b" HTTP/1.1"), 414),
    Case("a request line without its end", "3", b"GET /" + b"x" * 70_000, (Outcome(((414, None),),
        "closed"),)),
    Case("a method without its end", "3", b"G" * 70_000,
         (Outcome(((414, None),), "closed"), REFUSED, UNKNOWN_METHOD)),
    taken("a query", "3.2.1", _line(b"GET /echo?a=b&c=%00%zz?/ HTTP/1.1"), ok("GET /echo?a=b&c=%00%zz?/||"),
        HIDDEN_TOO),
    taken("a whole URL", "3.2.2", _line(b"GET http://a/echo?x HTTP/1.1"), ok("GET /echo?x||"), HIDDEN_TOO),
    taken("a whole URL in other letters", "3.2.2", _line(b"GET HTTPS://A:443/echo HTTP/1.1"),
        ok("GET /echo||"),
          HIDDEN_TOO),
    Case("path tricks are not resolved", "3.2.1", _line(b"GET /x/../echo HTTP/1.1"), (NOT_FOUND_TOO,)),
    Case("nor encoded ones", "3.2.1", _line(b"GET /x/%2e%2e/echo HTTP/1.1"), (NOT_FOUND_TOO,)),
    Case("nor slashes merged", "3.2.1", _line(b"GET //echo HTTP/1.1"), (NOT_FOUND_TOO,)),
    Case("nor bad percents", "3.2.1", _line(b"GET /%zz%ff%00 HTTP/1.1"), (NOT_FOUND_TOO, REFUSED)),
    taken("an empty line before", "2.2", b"\r\n" + GET + b"\r\n", ok("GET /echo||")),
    refused("LF before", "2.2", b"\n" + GET + b"\r\n" + HIDDEN, Outcome((ok("GET /echo||"), HIDDEN_TOO),
        "open")),
    refused("five empty lines before", "2.2", b"\r\n" * 5 + GET + b"\r\n" + HIDDEN,
            Outcome((ok("GET /echo||"), HIDDEN_TOO), "open")),
]  # fmt: skip


def _host(lines: bytes) -> bytes:
    return b"GET /echo HTTP/1.1\r\n" + lines + b"\r\n" + HIDDEN


UPGRADE = b"GET /echo HTTP/1.1\r\nHost:a\r\nConnection:upgrade\r\nUpgrade:a\r\n\r\n"

CONNECTIONS: list[Case] = [
    refused("no Host", "3.2", _host(b"")),
    refused("two Hosts", "3.2", _host(b"Host: a\r\nHost: b\r\n")),
    refused("two equal Hosts", "3.2", _host(b"Host: a\r\nHost: a\r\n")),
    *(
        refused(f"Host {host!r}", "3.2", _host(b"Host: " + host + b"\r\n"))
        for host in (
            b"a b", b"a/b", b"u@a", b"u:p@a", b"a#b", b"a?b", b"a,b", b"a\\b", b"[::1", b"::1", b"a:",
            b"a:b", b"a:123456",
            b"http://a", b"a\xff", b"<a>", b"a\"b", b"%61", b"a:80:80", b"x" * 300,
        )
    ),
    *(
        taken(f"Host {host!r}", "3.2", _host(b"Host: " + host + b"\r\n"), ok("GET /echo||"), HIDDEN_TOO)
        for host in (b"a:8080", b"A-b.example", b"127.0.0.1", b"[::1]:80", b"")
    ),
    taken("no Host in HTTP/1.0", "3.2", b"GET /echo HTTP/1.0\r\n\r\n" + HIDDEN, ok("GET /echo||"),
        then="closed"),
    taken("HTTP/1.0 is closed", "9.3", b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + HIDDEN,
          ok("GET /echo||"), then="closed"),
    taken("close is close", "9.6", GET + b"Connection: keep-alive, Close\r\n\r\n" + HIDDEN, ok("GET /echo||"),
          then="closed"),
    taken("close in a second line", "9.6", GET + b"Connection: x\r\nConnection: close\r\n\r\n" + HIDDEN,
          ok("GET /echo||"), then="closed"),
    taken("only Connection says close", "9.6", GET + b"Proxy-Connection: close\r\n\r\n" + HIDDEN, ok("GET /echo||"),
        HIDDEN_TOO),
    taken("closely is not close", "9.6", GET + b"Connection: closely\r\n\r\n" + HIDDEN, ok("GET /echo||"),
        HIDDEN_TOO),
    *(
        taken(f"upgrade to {to}", "RFC 9110 7.8",
            GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + to.encode()
              + b"\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n" + HIDDEN, ok("GET /echo||"),
                  HIDDEN_TOO)
        for to in ("h2c", "websocket", "TLS/1.2", "x")
    ),
    taken("upgrade with a body", "RFC 9110 7.8",
        CL3 + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\nabc" + HIDDEN,
          ok("POST /echo|abc|"), HIDDEN_TOO),
    taken("upgrade with chunks", "RFC 9110 7.8",
        POST + b"Connection: upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: "
          b"chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + HIDDEN, ok("POST /echo|abc|"), HIDDEN_TOO),
    taken("a thousand upgrades behind a body", "RFC 9110 7.8", CL3 + b"\r\nabc" + UPGRADE * 1_200,
          ok("POST /echo|abc|"), *([ok("GET /echo||")] * 1_200)),
    Case("another expectation", "RFC 9110 10.1.1", CL3 + b"Expect: tea\r\n\r\nabc" + HIDDEN,
         (Outcome((ok("POST /echo|abc|"), HIDDEN_TOO), "open"), Outcome(((417, None),), "closed"))),
    taken("continue", "RFC 9110 10.1.1", CL3 + b"Expect: 100-Continue\r\n\r\nabc", (100, None),
        ok("POST /echo|abc|")),
    taken("continue for no body", "RFC 9110 10.1.1", GET + b"Expect: 100-continue\r\n\r\n",
        ok("GET /echo||")),
    taken("continue for HTTP/1.0", "RFC 9110 10.1.1",
        b"POST /echo HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue"
          b"\r\n\r\nabc", ok("POST /echo|abc|"), then="closed"),
    taken("pipelined", "9.3.2", b"".join(b"GET /echo?%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(30)),
          *(ok(f"GET /echo?{n}||") for n in range(30))),
    taken("pipelined with bodies", "9.3.2", (CL3 + b"\r\nabc" + CHUNKED + b"3\r\ndef\r\n0\r\n\r\n") * 5,
          *((ok("POST /echo|abc|"), ok("POST /echo|def|")) * 5)),
    Case("good after bad is not looked at", "9.3.2", GET + b"\r\n" + GET + b"X : a\r\n\r\n" + HIDDEN,
         (Outcome((ok("GET /echo||"), (400, None)), "closed"),)),
    Case("HEAD has no body", "RFC 9110 9.3.2", b"HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n",
        (Outcome((ok(""),), "open"),)),
]  # fmt: skip


CORPUS: list[Case] = [*SMUGGLING, *CHUNKS, *HEADERS, *LINES, *CONNECTIONS]
