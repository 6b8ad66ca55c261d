"""What ``storage_machine`` draws from, and how it reaches the service."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any, Protocol

from attrs import frozen
from hypothesis import strategies as st

from tests.fakes.common import Response
from tests.models.storage import AGES, PICTURES, Bucket, Caller, Condition, Details, Rules

ALICE, BOB = "alice", "bob"
SERVICE = Caller(key="service")
CALLERS = st.sampled_from(
    [Caller(ALICE), Caller(ALICE), Caller(BOB), Caller(), SERVICE, Caller(ALICE, "service"), Caller(key=None)]
)
WRITERS = st.sampled_from([Caller(ALICE), Caller(ALICE), Caller(BOB), SERVICE])
NAMES = st.sampled_from(["open", "shut", "third"])
KEYS = st.sampled_from(["a", "b", "b/c", "b/c d.png", "b/d/é", "%2F+?#"])
PAYLOADS = st.sampled_from([b"", b"x", b"y" * 60, b"z" * 5000, *PICTURES])
TYPES = st.sampled_from(["", "image/png", "text/plain; charset=utf-8"])
DETAILS = st.builds(
    Details,
    st.sampled_from([None, *AGES]),
    st.sampled_from([None, "de", "en-GB, en"]),
    st.sampled_from([None, "trip", "é"]),
)
CONDITIONS = st.sampled_from(["", "", "", "If-Match", "If-None-Match", "If-Unmodified-Since"])
RULES = st.builds(
    Rules,
    st.sampled_from([None, None, None, 10]),
    st.sampled_from([None, None, 70, 5100]),
    st.sampled_from([None, None, None, ("image/*", "application/octet-stream")]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, None, "max-age=60, immutable", "private, max-age=60"]),
)


class Open(Protocol):
    """A request whose body is not complete."""

    def send(self, data: bytes) -> None: ...

    def answer(self) -> Response: ...

    def hang_up(self) -> None: ...


class World(Protocol):
    """A running service, whose buckets have ``prefix`` before their names. Links live ``lifetime_factor`` times as
    long as the machine requests."""

    @property
    def prefix(self) -> str: ...

    @property
    def lifetime_factor(self) -> int: ...

    def now(self) -> float: ...

    def credentials(self, caller: Caller) -> dict[str, str]: ...

    def user_id(self, user: str) -> str: ...

    def shows(self, resized: bytes, picture: bytes, width: int) -> bool:
        """Whether ``resized`` is ``picture``, one of ``PICTURES``, in this width."""

    def request(self, method: str, target: str, headers: dict[str, str], body: bytes | None) -> Response: ...

    def begin(self, method: str, target: str, headers: dict[str, str]) -> Open: ...

    def rules_changed(self) -> None: ...


@frozen
class Held:
    """An upload under way. ``early`` are the refusals that applied when it began, at ``since``. With ``token`` it is
    by that link, and ``caller`` is who made the link."""

    since: float
    request: Open
    caller: Caller
    bucket: str
    number: int
    key: str
    payload: bytes
    content_type: str
    condition: Condition
    early: frozenset[str]
    token: str = ""


def code(answer: Response) -> str:
    """The error code; "" for a success."""
    return "" if answer.status < 400 else str(json.loads(answer.body)["error"]["code"])


def sent_rules(bucket: Bucket) -> dict[str, Any]:
    rules = bucket.rules
    types = rules.allowed_content_types
    return {
        "visibility": "public" if bucket.public else "private",
        "max_object_bytes": rules.max_object_bytes,
        "max_bucket_bytes": rules.max_bucket_bytes,
        "allowed_content_types": None if types is None else list(types),
        "owner_only_writes": rules.owner_only_writes,
        "owner_only_reads": rules.owner_only_reads,
        "anonymous_reads": rules.anonymous_reads,
        "cache_control": rules.cache_control,
    }


def sent_condition(condition: Condition) -> dict[str, str]:
    if not condition.header:
        return {}
    if condition.header == "If-Unmodified-Since":
        return {condition.header: formatdate(condition.seconds, usegmt=True)}
    return {condition.header: condition.tag if condition.tag == "*" else f'"{condition.tag}"'}


def guessed(key: str) -> str:
    return "image/png" if key.endswith(".png") else "application/octet-stream"


def part(disposition: str, content: bytes) -> bytes:
    return f"---\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"
