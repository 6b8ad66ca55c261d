"""A file of SQL as the statements that it consists of, each with its line and its first words.

Everything in PostgreSQL's lexical structure (its manual, section 4.1) that can hide a semicolon or a word is known:
strings, with backslashes or without, quoted identifiers, dollar quotes, nested comments, and the bodies of rules and
of functions with BEGIN ATOMIC. Whether it is valid SQL is for PostgreSQL to say: what is not closed lasts until the
end of the file, and is the last statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

# How many of a statement's first words are kept.
_WORDS = 6

_LETTER = r"A-Za-z_\x80-\U0010ffff"
_NEWLINE = r"[ \t\f\v]*(?:--[^\n\r]*)?[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*"
_ESCAPED = r"'(?:[^'\\]++|\\.?|'')*+(?:'|\Z)"
# A doubled quote needs no mention in a plain string or identifier: these are then two, side by side.
_TOKEN = re.compile(
    rf"""
      (?P<space> [ \t\n\r\f\v]+ )
    | (?P<comment> --[^\n\r]* )
    | (?P<block> /\* )
    | (?P<string> [eE]{_ESCAPED}(?:{_NEWLINE}{_ESCAPED})* | '[^']*(?:'|\Z) | "[^"]*(?:"|\Z) )
    | (?P<word> [{_LETTER}][{_LETTER}0-9$]* )
    | (?P<dollar> \$(?:[{_LETTER}][{_LETTER}0-9]*)?\$ )
    | (?P<other> [^{_LETTER} \t\n\r\f\v'"$();/-]+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@frozen
class Statement:
    """``text`` is without the semicolon. ``line`` is that of its first character in the file, counted from 1, and
    ``start`` is the index of that character. ``words`` are the first ones in lower case; what is no word, such as a
    string, is its first character."""

    text: str
    line: int
    start: int
    words: tuple[str, ...]

    def line_at(self, position: int) -> int:
        """The line in the file of the character at ``position``, counted from 1 as PostgreSQL does."""
        return self.line + self.text.count("\n", 0, position - 1)


@frozen
class Comment:
    """A comment outside all strings, with its dashes or slashes."""

    text: str
    line: int
    # How many tokens of statements are before it.
    after: int
    # Whether it is the first on its line.
    alone: bool


@frozen
class Script:
    statements: tuple[Statement, ...]
    comments: tuple[Comment, ...]
    # How many tokens all statements have together.
    tokens: int


def read_script(text: str) -> Script:
    statements: list[Statement] = []
    comments = []
    current: _Current | None = None
    line, counted, tokens = 1, 0, 0
    for kind, start, end in _tokens(text):
        line += text.count("\n", counted, start)
        counted = start
        if kind == "space":
            continue
        if kind == "comment":
            alone = not text[text.rfind("\n", 0, start) + 1 : start].strip()
            comments.append(Comment(text[start:end], line, tokens, alone))
            continue
        if current is None:
            if text[start] == ";":
                continue
            current = _Current(start, line)
        if current.takes(text[start:end].lower() if kind == "word" else text[start]):
            tokens += 1
        else:
            statements.append(current.statement(text, start))
            current = None
    if current is not None:
        statements.append(current.statement(text, len(text)))
    return Script(tuple(statements), tuple(comments), tokens)


class _Current:
    """The statement that is being read."""

    def __init__(self, start: int, line: int) -> None:
        self._start = start
        self._line = line
        self._words: list[str] = []
        self._depth = 0
        # Whether it is within BEGIN ATOMIC … END. Each statement there ends with a semicolon, so END stands behind
        # one, or behind ATOMIC; any other END belongs to a CASE.
        self._in_body = False
        self._last = ""

    def takes(self, word: str) -> bool:
        """Add ``word`` to the statement. False for the semicolon at its end, which is not added."""
        if word == ";" and self._depth == 0 and not self._in_body:
            return False
        if len(self._words) < _WORDS:
            self._words.append(word)
        if word == "(":
            self._depth += 1
        elif word == ")":
            self._depth = max(0, self._depth - 1)
        elif word == "atomic" and self._last == "begin" and self._words[0] == "create":
            self._in_body = True
        elif word == "end" and self._in_body and self._last in (";", "atomic"):
            self._in_body = False
        self._last = word
        return True

    def statement(self, text: str, end: int) -> Statement:
        return Statement(text[self._start : end], self._line, self._start, tuple(self._words))


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """The kind of each token, where it begins, and where it ends. Together they are all of the text."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None, "the pattern takes any character"
        kind, end = str(match.lastgroup), match.end()
        if kind == "block":
            kind, end = "comment", _end_of_comment(text, end)
        elif kind == "dollar":
            closed = text.find(match[0], end)
            kind, end = "string", len(text) if closed < 0 else closed + len(match[0])
        yield kind, position, end
        position = end


def _end_of_comment(text: str, position: int) -> int:
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
