"""The application that the attack corpus is sent to, and the parsing of its responses."""

from __future__ import annotations

from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Router
from tests.attacks.corpus import Answer, Case, Then
from tests.route_description import operation_at

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
PROBE = b"GET /echo?probe HTTP/1.1\r\nHost: a\r\n\r\n"
PROBED: Answer = (200, "GET /echo?probe||")


def router() -> Router:
    async def echo(request: Request) -> Reply:
        body = await request.body.read(1 << 20)
        target = request.raw_path + (b"?" + request.raw_query if request.raw_query else b"")
        mark = request.headers.get(b"x-mark") or b""
        return Reply(200, (), b"%b %b|%b|%b" % (request.method.encode(), target, body, mark))

    async def early(request: Request) -> Reply:
        return Reply(200, (), b"EARLY")

    async def hidden(request: Request) -> Reply:
        return Reply(200, (), b"HIDDEN")

    made = Router()
    made.route("/echo", operation_at("/echo"), methods=METHODS, key="optional")(echo)
    made.route("/early", operation_at("/early"), methods=("POST",), key="optional")(early)
    made.route("/hidden", operation_at("/hidden"), methods=("GET",), key="optional")(hidden)
    return made


def answers_in(raw: bytes, to_head: bool = False) -> list[Answer]:
    """All responses in ``raw``, which must consist of complete ones with a length.

    ``to_head``: the first is the response to a HEAD and has no body, whatever length it says.
    """
    answers: list[Answer] = []
    while raw:
        head, separator, raw = raw.partition(b"\r\n\r\n")
        assert separator, f"not a whole response: {head!r}"
        status_line, *lines = head.decode("latin-1").split("\r\n")
        assert status_line.startswith("HTTP/1.1 "), status_line
        status = int(status_line[9:12])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = 0 if (to_head and not answers) or status == 100 else int(headers["content-length"])
        body, raw = raw[:length], raw[length:]
        assert len(body) == length, f"{len(body)} of {length} bytes"
        answers.append((status, None if status == 100 else body.decode("latin-1")))
    return answers


def fault_in(case: Case, answers: list[Answer], then: Then) -> str | None:
    """What is wrong with the way a case has ended; None if it is one of the allowed outcomes."""
    for outcome in case.outcomes:
        wanted = outcome.answers
        matches = len(wanted) == len(answers) and all(
            status == got and (body is None or body == seen)
            for (status, body), (got, seen) in zip(wanted, answers, strict=True)
        )
        if matches and then == outcome.then:
            return None
    return f"{case.name} ({case.section}): {answers} then {then}; allowed: {case.outcomes}"
