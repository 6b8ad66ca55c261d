"""What a trace shows of a statement: what it does, to what, and its shape. Pure.

A statement may hold names that a client made up, and one that is sent as text may hold values. So none is shown, but
for its verb and the first relation or function that it names with its schema.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from attrs import frozen

from project_service.database.sql_lexer import Token, Unreadable, tokens

# Longer ones are not read.
MAX_CHARACTERS = 10_000
_VERBS = frozenset(
    {
        *(
            "select",
            "insert",
            "update",
            "delete",
            "merge",
            "call",
            "begin",
            "commit",
            "rollback",
            "fetch",
            "declare",
        ),
        *(
            "close",
            "explain",
            "set",
            "lock",
            "discard",
            "savepoint",
            "release",
            "truncate",
            "listen",
            "notify",
        ),
    }
)
_WRITES = {"insert": "into", "delete": "from", "merge": "into"}


@frozen
class Shape:
    """``operation`` is a verb such as SELECT, ``target`` what it is about, as schema.name, or "". Statements that
    differ only in their values have the same ``digest``."""

    operation: str
    target: str
    digest: str


UNREAD = Shape("", "", "")


def shape_of(text: str) -> Shape:
    """The shape of a statement, or of the last of several."""
    return UNREAD if len(text) > MAX_CHARACTERS else _shape_of(text)


# With those that are sent as text, which are of one request, this takes five megabytes at most.
@lru_cache(maxsize=512)
def _shape_of(text: str) -> Shape:
    try:
        read = tokens(text)
    except Unreadable:
        return UNREAD
    end = len(text)
    while read and _ends(read[-1]):
        end = read.pop().position
    if not read:
        return UNREAD
    ends = [at for at, token in enumerate(read) if _ends(token)]
    last = read[ends[-1] + 1 :] if ends else read
    operation, target = _read(last)
    return Shape(operation, target, sha256(text[last[0].position : end].rstrip().encode()).hexdigest()[:12])


def _ends(token: Token) -> bool:
    return token.kind == "punctuation" and token.text == ";"


def _read(read: list[Token]) -> tuple[str, str]:
    """The verb, that of a write if there is one in a WITH, and its target."""
    first = ""
    for at, token in enumerate(read):
        following = read[at + 1] if at + 1 < len(read) else None
        if following is not None and following.is_word(_WRITES.get(token.text, "")) and token.kind == "name":
            return token.text.upper(), _name_at(read, at + 2)
        # Not FOR UPDATE or ON CONFLICT DO UPDATE, which no such name follows.
        if token.is_word("update") and (target := _name_at(read, at + 1)):
            return "UPDATE", target
        if not first and token.is_word("from"):
            first = _name_at(read, at + 1)
    verb = next((token.text for token in read if token.kind == "name" and token.text in _VERBS), "")
    return verb.upper(), first


def _name_at(read: list[Token], at: int) -> str:
    """The name with its schema that stands there; "" if there is none."""
    three = read[at : at + 3]
    if len(three) == 3 and three[1].text == "." and all(one.kind in ("name", "quoted") for one in three[::2]):
        return f"{three[0].text}.{three[2].text}"
    return ""
