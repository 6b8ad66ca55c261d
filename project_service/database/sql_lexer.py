"""Lexical analysis of PostgreSQL's SQL and PL/pgSQL (PostgreSQL's manual, "Lexical Structure"). Pure.

What a text does is judged by its tokens: comments are gone, and neither a literal nor a quoted name can pass for a
word of the language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from attrs import frozen

Kind = Literal["name", "quoted", "literal", "number", "parameter", "operator", "punctuation"]

# A name is cut off after so many bytes (NAMEDATALEN).
MAX_NAME_BYTES = 63

_NAME_START = r"A-Za-z_\u0080-\U0010ffff"
_NAME = rf"[{_NAME_START}][{_NAME_START}0-9$]*"
_SPACE = re.compile(r"(?:[ \t\n\r\f\v]+|--[^\n\r]*)+")
_TOKEN = re.compile(
    rf"""
      (?P<unicode> [uU]&["'] )
    | (?P<escaped> [eE]' )
    | (?P<literal> [bBxXnN]?' )
    | (?P<quoted> " )
    | (?P<dollar> \$(?:[{_NAME_START}][{_NAME_START}0-9]*)?\$ )
    | (?P<parameter> \$[0-9]+ )
    | (?P<name> {_NAME} )
    | (?P<number> 0[xX][0-9a-fA-F_]+ | 0[oO][0-7_]+ | 0[bB][01_]+
                | (?:[0-9][0-9_]*(?:\.(?!\.)[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)? )
    | (?P<punctuation> \.\.|::|:=|[()\[\],;:.] )
    | (?P<operator> (?:[+*<>=~!@\#%^&|`?]|-(?!-)|/(?!\*))+ )
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"(?:[^']|'')*'")
_ESCAPED = re.compile(r"(?:[^'\\]|''|\\.)*'", re.DOTALL)
_QUOTED = re.compile(r'(?:[^"]|"")*"')
# What is written without a space after a number is part of it in some versions, and a token of its own in others.
_JUNK = re.compile(f"[{_NAME_START}0-9$]")
_COMMENT = re.compile(r"/\*|\*/")


class Unreadable(ValueError):
    """The text is not SQL, such as one in which a literal does not end, or has a form that is not read here."""


@frozen
class Token:
    """``text`` is the name as PostgreSQL looks it up, the value of a literal, or what is written. ``position`` is the
    index of its first character. A literal that has escapes is not ``exact``: its text is what is written."""

    kind: Kind
    text: str
    position: int
    exact: bool = True

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of ``words`` of the language, which are given in lower case."""
        return self.kind == "name" and self.text in words


def tokens(text: str) -> list[Token]:
    """The tokens of ``text``, as a session with ``standard_conforming_strings`` reads it. Raises ``Unreadable``."""
    return list(each_token(text))


def each_token(text: str) -> Iterator[Token]:
    """As ``tokens``, one after the other, as far as the text can be read."""
    at = 0
    while True:
        at = _skipped(text, at)
        if at >= len(text):
            return
        token, at = _next(text, at)
        yield token


def _skipped(text: str, at: int) -> int:
    """Where the next token begins, after white space and comments. Comments may be nested."""
    while True:
        space = _SPACE.match(text, at)
        if space is not None:
            at = space.end()
        if not text.startswith("/*", at):
            return at
        depth = 0
        for mark in _COMMENT.finditer(text, at):
            depth += 1 if mark[0] == "/*" else -1
            if depth == 0:
                at = mark.end()
                break
        else:
            raise Unreadable("a comment does not end")


def _next(text: str, at: int) -> tuple[Token, int]:  # noqa: PLR0911  # one return for each kind
    match = _TOKEN.match(text, at)
    if match is None:
        raise Unreadable(f"no token begins with {text[at]!r}")
    kind, end = match.lastgroup, match.end()
    if kind == "name":
        return Token("name", cut(folded(match[0])), at), end
    if kind == "dollar":
        closing = text.find(match[0], end)
        if closing < 0:
            raise Unreadable("a dollar-quoted literal does not end")
        return Token("literal", text[end:closing], at), closing + len(match[0])
    if kind == "literal":
        value, end = _until(_PLAIN, text, end)
        return Token("literal", value.replace("''", "'"), at), end
    if kind == "escaped":
        value, end = _until(_ESCAPED, text, end)
        if text.startswith("'", _skipped(text, end)):
            raise Unreadable("a literal with escapes that is continued is not read")
        return Token("literal", value, at, "\\" not in value and "'" not in value), end
    if kind == "quoted":
        value, end = _until(_QUOTED, text, end)
        return Token("quoted", cut(value.replace('""', '"')), at), end
    if kind == "unicode":
        if match[0].endswith('"'):
            raise Unreadable("names with Unicode escapes are not read")
        value, end = _until(_PLAIN, text, end)
        return Token("literal", value, at, exact=False), end
    assert kind in ("number", "parameter", "punctuation", "operator")
    if kind in ("number", "parameter") and _JUNK.match(text, end):
        raise Unreadable(f"{match[0]} is followed by something without a space")
    return Token(kind, match[0], at), end  # type: ignore[arg-type]  # asserted above


def _until(pattern: re.Pattern[str], text: str, at: int) -> tuple[str, int]:
    """What stands before the closing quote, and the position after it."""
    match = pattern.match(text, at)
    if match is None:
        raise Unreadable("a quoted text does not end")
    return match[0][:-1], match.end()


def folded(name: str) -> str:
    """An unquoted name in lower case. In UTF-8 databases only ASCII letters are folded."""
    return re.sub("[A-Z]+", lambda letters: letters[0].lower(), name)


def cut(name: str) -> str:
    """A name as far as PostgreSQL reads it."""
    encoded = name.encode()
    return name if len(encoded) <= MAX_NAME_BYTES else encoded[:MAX_NAME_BYTES].decode(errors="ignore")
