"""Each request shown in ``docs/tables.rst`` gets the response shown there."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any

import pytest
import pytest_twisted

from tests.live.tables.service import Tables, blocks, tables

__all__ = ["tables"]


def examples() -> list[tuple[str, dict[str, str], str, Any]]:
    """Request line, headers, body and response (JSON as a value, other text as bytes) of each example."""
    answers = [(line, json.loads(text)) for line, text in blocks("json")]
    answers = sorted([*answers, *((line, text.encode()) for line, text in blocks("text"))], key=itemgetter(0))
    result = []
    for line, text in blocks("http"):
        head, _, body = text.partition("\n\n")
        first, *rest = head.split("\n")
        headers = dict(header.split(": ", 1) for header in rest)
        result.append((first, headers, body, next(answer for at, answer in answers if at > line)))
    return result


@pytest.mark.parametrize(("line", "headers", "body", "answer"), examples(), ids=lambda value: str(value)[:60])
@pytest_twisted.ensureDeferred
async def test_an_example_gets_the_response_shown(
    tables: Tables, line: str, headers: dict[str, str], body: str, answer: Any
) -> None:
    method, _, path = line.partition(" ")
    sent = {name: value for name, value in headers.items() if name != "Authorization"}
    token = tables.token if "Authorization" in headers else None
    if body:
        sent["Content-Type"] = "application/json"
    _, _, got = await tables.request(
        method, path.replace(" ", "%20"), token=token, headers=sent, data=body.encode() or None
    )
    assert (json.loads(got) if isinstance(got, bytes) and not isinstance(answer, bytes) else got) == answer
