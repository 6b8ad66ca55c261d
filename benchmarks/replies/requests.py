"""What is sent: the lines of ``requests.txt`` in many manners, crowds of readers, and hostile HTTP. Always the same.

What a step needs to know of the replies before it (tokens, links) is in ``known`` by the time the step is made.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import jwt
from attrs import frozen

from benchmarks.replies.wire import Exchange
from tests.attacks.corpus import CORPUS

HOST = "project.example"
PASSWORD = "correct horse battery"
# Of the database "other", which has tokens of its own.
SECRET = "the secret of another issuer, 32 bytes"
MAIN = "/dev/db/main/rest"
CROWDS, CROWD = 40, 16
# What neighbours in a crowd might notice: errors, and what is left in the session.
_INTRUSIVE = re.compile(r"/rpc/(raise|leave_|whoami)")

# Steps are played in turn; the exchanges of one step at once, each on a connection of its own.
Step = tuple[Exchange, ...]
Headers = tuple[tuple[str, str], ...]
Known = Mapping[str, bytes]

_USERS = ("ann", "bob", "carl", "dora", "left")
# Tokens that are no good, or good for the database "other" alone.
_TOKENS = (
    *("expired", "early", "forged", "unsigned", "audience"),
    *(
        "reporter",
        "auditor",
        "stranger",
        "unknown_role",
        "no_role",
        "long_expired",
        "short_expired",
        "other_secret",
    ),
)
_ANON, _SERVICE = ("X-Service-Key", "<<anon>>"), ("X-Service-Key", "<<service>>")
CALLERS: dict[str, Headers] = {
    "nobody": (),
    "anon": (_ANON,),
    "service": (_SERVICE,),
    **{name: (_ANON, ("Authorization", f"Bearer <<{name}>>")) for name in (*_USERS, *_TOKENS)},
    "both": (_SERVICE, ("Authorization", "Bearer <<ann>>")),
    "apikey": (("apikey", "<<anon>>"),),
    "two_keys": (_ANON, ("apikey", "<<service>>")),
    "wrong": (("X-Service-Key", f"psk_anon_{'A' * 49}"),),
    "mistyped": (("X-Service-Key", "not a key"),),
    "garbled": (_ANON, ("Authorization", "Bearer not.a.token")),
    "basic": (_ANON, ("Authorization", "Basic YW5uOnB3")),
    "empty_token": (_ANON, ("Authorization", "Bearer ")),
    "lower_case": (_ANON, ("authorization", "bearer <<ann>>")),
    "token": (("Authorization", "Bearer <<ann>>"),),
    "token_carl": (("Authorization", "Bearer <<carl>>"),),
}


def bodies() -> dict[str, bytes]:
    """Those that are too long for a line."""
    part = b'--cut\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    file = part % (b"file", b'; filename="from form.txt"\r\nContent-Type: text/plain', b"of a form")
    key, end = part % (b"key", b"", b"form/key.txt"), b"--cut--\r\n"
    seeded = random.Random(1)
    return {
        "csv": b'text,amount\r\nfrom csv,2\r\n"quoted, ""so""",NULL\r\n',
        "4k": seeded.randbytes(4096),
        "large": seeded.randbytes(300_000),
        "form": file + end,
        "form_key_after": file + key + end,
        "form_no_file": key + end,
        "form_two_files": file + file + end,
    }


@frozen
class Request:
    name: str
    method: str
    target: bytes
    headers: tuple[bytes, ...]
    body: bytes | None = None
    version: bytes = b"1.1"
    link: str = ""  # what the token in the reply is to be known by

    def head(self, *more: bytes) -> bytes:
        first = b"%b %b HTTP/%b" % (self.method.encode(), self.target, self.version)
        return b"\r\n".join([first, b"Host: " + HOST.encode(), *self.headers, *more, b"", b""])

    def whole(self) -> bytes:
        if self.body is None and self.method in {"GET", "HEAD", "DELETE", "OPTIONS"}:
            return self.head()
        return self.head(b"Content-Length: %d" % len(self.body or b"")) + (self.body or b"")

    def chunked(self) -> bytes:
        body = self.body or b""
        pieces = [piece for piece in (body[:5], body[5:]) if piece]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return self.head(b"Transfer-Encoding: chunked") + framed + b"0\r\n\r\n"

    def plus(self, *headers: bytes) -> Request:
        return attrs.evolve(self, headers=(*self.headers, *headers))


@frozen
class Section:
    """Lines of ``requests.txt`` that are sent alike."""

    manner: str
    base: str
    lines: tuple[str, ...]

    def request(self, line: str, known: Known) -> Request:
        head, _, body = line.partition(" > ")
        first, *fields = (field.strip() for field in head.split(" | "))
        caller, method, target = f"{first} ".split(" ", 2)
        link, _, caller = caller.rpartition("=")
        given = [f"{name}: {value}" for name, value in CALLERS[caller]] + fields
        return Request(
            f"{self.base} {line}",
            method,
            _filled((self.base + target.strip()).encode(), known),
            tuple(_filled(field.encode(), known) for field in given),
            _filled(body.encode(), known) if body else None,
            link=link,
        )


def _filled(text: bytes, known: Known) -> bytes:
    return re.sub(rb"<<(\w+)>>", lambda name: known[name[1].decode()], text)


def sections() -> list[Section]:
    lines = Path(__file__).with_name("requests.txt").read_text().splitlines()
    made: list[Section] = []
    for line in lines:
        if line.startswith("=="):
            _, manner, *base = line.split()
            made.append(Section(manner, base[0] if base else "", ()))
        elif line and not line.startswith("#"):
            made[-1] = attrs.evolve(made[-1], lines=(*made[-1].lines, line))
    return made


def steps(known: dict[str, bytes], key: dict[str, Any]) -> Iterator[Step]:
    """Everything. ``known`` has the project keys; ``key`` is the JWK that the service signs with."""
    seeded = random.Random(34)
    known |= bodies()
    yield from _accounts(known)
    known |= _tokens(known, key)
    crowd: list[tuple[Section, str]] = []
    for section in sections():
        for line in section.lines:
            yield from MANNERS[section.manner](section.request(line, known), seeded)
            if " GET " in line and (section.manner == "everyday" or _INTRUSIVE.search(line)):
                crowd.append((section, line))
    yield from _crowds([section.request(line, known) for section, line in crowd], seeded)
    yield from _hostile(known)


def _accounts(known: Known) -> Iterator[Step]:
    for user in _USERS:
        account = json.dumps({"email": f"{user}@example.test", "password": PASSWORD}).encode()
        typed = (b"Content-Type: application/json",)
        for path, name, token in (
            ("signup", user, "access_token"),
            ("login", f"refresh_{user}", "refresh_token"),
        ):
            request = Request(f"{user} {path}", "POST", f"/auth/{path}".encode(), typed, account)
            yield (_exchange(request, "signed up", keep=(name, b'"%b":"([^"]+)"' % token.encode())),)
    leaving = (b"Authorization: Bearer " + known["left"],)
    yield (_exchange(Request("left leaves", "POST", b"/auth/logout", leaving), "once"),)


def _tokens(known: Known, key: dict[str, Any]) -> dict[str, bytes]:
    """Ann's token changed in one way each, and tokens of the issuer that the database "other" believes."""
    ann = jwt.decode(known["ann"], options={"verify_signature": False})
    now, kid = int(time.time()), {"kid": key["kid"]}

    def own(**changed: Any) -> bytes:
        return jwt.encode({**ann, **changed}, jwt.PyJWK(key).key, key["alg"], kid).encode()

    def other(secret: str = SECRET, **claims: Any) -> bytes:
        return jwt.encode(claims, secret, "HS256").encode()

    return {
        "expired": own(exp=now - 3600),
        "early": own(nbf=now + 3600),
        "audience": own(aud="somebody else"),
        "forged": known["ann"].rpartition(b".")[0] + b"." + b"A" * 86,
        "unsigned": jwt.encode(ann, "", "none").encode(),
        "reporter": other(role="reporter", sub="7"),
        "auditor": other(role="auditor", exp=4_000_000_000),
        "stranger": other(role="postgres"),
        "unknown_role": other(role="nobody_at_all"),
        "no_role": other(sub="7"),
        "long_expired": other(role="reporter", exp=1_000_000_000),
        "short_expired": other(role="reporter", exp=now - 120),
        "other_secret": other("another secret, and also of 32 bytes or more", role="reporter"),
    }


def _exchange(request: Request, how: str, *pieces: bytes, **more: Any) -> Exchange:
    return Exchange(
        f"{how}: {request.name}", pieces or (request.whole(),), more.pop("methods", (request.method,)), **more
    )


def _once(request: Request, seeded: random.Random) -> Iterator[Step]:
    keep = (request.link, rb"token=([\w-]{43})") if request.link else None
    yield (_exchange(request, "once", keep=keep),)


def _pieces(request: Request, seeded: random.Random) -> Iterator[Step]:
    whole = request.whole()
    cuts = sorted(seeded.sample(range(1, len(whole)), 3))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    yield (_exchange(request, "in pieces", *pieces),)


def _pipelined(request: Request, seeded: random.Random) -> Iterator[Step]:
    same, head = request.whole(), attrs.evolve(request, method="HEAD").whole()
    other = request.plus(b"X-Other: %d" % seeded.randrange(1000)).whole()
    sent = [same, same, other, head, same]
    methods = (request.method,) * 3 + ("HEAD", request.method)
    yield (_exchange(request, "pipelined", b"".join(sent), methods=methods),)


def _closing(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield (_exchange(request.plus(b"Connection: close"), "closing", connection=None),)


def _old(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield (_exchange(attrs.evolve(request, version=b"1.0"), "HTTP/1.0", connection=None),)


def _old_kept(request: Request, seeded: random.Random) -> Iterator[Step]:
    kept = attrs.evolve(request, version=b"1.0").plus(b"Connection: keep-alive")
    yield (_exchange(kept, "HTTP/1.0, kept"),)


def _with(how: str, *headers: bytes) -> Callable[[Request, random.Random], Iterator[Step]]:
    def manner(request: Request, seeded: random.Random) -> Iterator[Step]:
        yield (_exchange(request.plus(*headers), how),)

    return manner


def _head(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield (_exchange(attrs.evolve(request, method="HEAD"), "HEAD"),)


def _preflight(request: Request, seeded: random.Random) -> Iterator[Step]:
    asked = (
        b"Origin: https://page.example",
        b"Access-Control-Request-Method: " + request.method.encode(),
        b"Access-Control-Request-Headers: x-service-key, x-own",
    )
    yield (_exchange(attrs.evolve(request, method="OPTIONS", headers=asked, body=None), "preflight"),)


def _options(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield (_exchange(attrs.evolve(request, method="OPTIONS", body=None), "OPTIONS"),)


def _renamed(request: Request, seeded: random.Random) -> Iterator[Step]:
    """The same headers in the other order, with names in small letters."""
    split = [line.partition(b":") for line in reversed(request.headers)]
    headers = tuple(name.lower() + b":" + value.strip() for name, _, value in split)
    yield (_exchange(attrs.evolve(request, headers=headers), "renamed"),)


def _absolute(request: Request, seeded: random.Random) -> Iterator[Step]:
    absolute = attrs.evolve(request, target=b"http://" + HOST.encode() + request.target)
    yield (_exchange(absolute, "absolute"),)


def _chunked(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield (_exchange(request, "chunked", request.chunked()),)


_RARE = (
    _head,
    _pieces,
    _pipelined,
    _closing,
    _old,
    _old_kept,
    _preflight,
    _options,
    _renamed,
    _absolute,
    _with("from a page", b"Origin: https://page.example"),
    _with("with an id", b"X-Request-Id: own-id.1"),
    _with("with a bad id", b"X-Request-Id: not an id"),
    _with("with an empty body", b"Content-Length: 0"),
    _with("with a body", b"Content-Length: 0", b"Expect: 100-continue"),
    _with("encoded", b"Accept-Encoding: gzip, br", b"User-Agent: a browser", b"Accept-Language: de"),
)


def _everyday(request: Request, seeded: random.Random) -> Iterator[Step]:
    """Cold, then warm, with other header lines between, and so often that whatever is learnt of it is learnt."""
    for number in range(5):
        yield (_exchange(request, f"{number + 1}"),)
    yield (_exchange(request.plus(b"X-Other: 1"), "other lines"),)
    yield (_exchange(request, "as before"),)
    for manner in _RARE:
        yield from manner(request, seeded)
        yield (_exchange(request, "as before"),)


def _read(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield (_exchange(request, "1"),)
    yield (_exchange(request, "2"),)
    yield from seeded.choice(_RARE)(request, seeded)


def _write(request: Request, seeded: random.Random) -> Iterator[Step]:
    yield from _once(request, seeded)
    yield from _chunked(request, seeded)
    yield from seeded.choice((_pieces, _closing, _with("continued", b"Expect: 100-continue")))(
        request, seeded
    )


MANNERS = {"everyday": _everyday, "reads": _read, "writes": _write, "once": _once}


def _crowds(requests: list[Request], seeded: random.Random) -> Iterator[Step]:
    """Many callers at once, each with several requests in one go: nobody may see what is another's."""
    for number in range(CROWDS):
        step = []
        for member in range(CROWD):
            chosen = [seeded.choice(requests) for _ in range(seeded.randrange(1, 6))]
            sent = b"".join(request.whole() for request in chosen)
            name = f"crowd {number}: " + " + ".join(request.name for request in chosen)
            step.append(
                Exchange(name, (sent,), tuple(request.method for request in chosen), f"member {member}")
            )
        yield tuple(step)


def _hostile(known: Known) -> Iterator[Step]:
    """The attack corpus, sent to a function that returns the body, without what waits for a timeout or is answered a
    thousand times."""
    lines = b"Host: a\r\nX-Service-Key: " + known["anon"] + b"\r\nContent-Type: text/plain\r\n"
    last = b"GET /live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    step: list[Exchange] = []
    for case in CORPUS:
        if case.outcomes[0].then == "waiting" or len(case.outcomes[0].answers) > 100:
            continue
        if len(step) == CROWD:
            yield tuple(step)
            step = []
        sent = (
            case.sent.replace(b" /echo", f" {MAIN}/rpc/text_back".encode()).replace(b"Host: a\r\n", lines)
            + last
        )
        methods = ("HEAD",) if sent.startswith(b"HEAD ") else ()
        step.append(Exchange(f"hostile: {case.name}", (sent,), methods, None))
    yield tuple(step)
