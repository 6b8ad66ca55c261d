"""A cursor over the text of one query parameter, with the names, quoted values and JSON paths that it may contain.

For error messages the cursor remembers how far it got and what it expected there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import NoReturn

from attrs import define
from attrs import field as attrs_field

from project_service.tables import errors
from project_service.tables.errors import TableError
from project_service.tables.request.syntax import Field, JsonStep
from project_service.whole_numbers import from_digits

# Names of parameters that are not filters: those of the whole request, and those that may come after the path to an
# embedded relation.
REQUEST_PARAMETERS = ("select", "columns", "on_conflict")
PATH_PARAMETERS = ("order", "limit", "offset", "and", "or")

# What errors say was expected.
END = "end of input"
FIELD_NAME = "field name (* or [a..z0..9_$])"
DELIMITER = "delimiter (.)"

# Deeper than any real request, and shallow enough for the stacks of Python and PostgreSQL.
MAX_DEPTH = 50
# PostgreSQL takes an index as an int. No array has as many elements.
_MAX_INDEX = 2**31 - 1

_NAME = re.compile(r"[\w$ ]+(?:-(?!>)[\w$ ]+)*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_INDEX = re.compile(r"-?[0-9]+(?=$|->|::|[.,)\s])")
_DIGITS = re.compile(r"\d+")
_KEY = re.compile(r"[^(\-:.,>)]+(?:-(?!>)[^(\-:.,>)]+)*")
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@define
class Scanner:
    """``parameter`` names the parameter in messages; ``shown`` is its text as the client sent it."""

    text: str
    parameter: str
    shown: str
    pos: int = 0
    depth: int = attrs_field(default=0, init=False)
    _furthest: int = attrs_field(default=-1, init=False)
    _expected: list[str] = attrs_field(factory=list, init=False)
    _token: str = attrs_field(default="", init=False)

    # Errors.

    def expect(self, *labels: str, token: str = "") -> None:
        """Note that each of ``labels`` would have been accepted here. Forgotten once the cursor has got further.

        ``token`` is what was looked for. The error message then quotes the first character that differs from it, and
        not the one where it should have begun.
        """
        if self.pos > self._furthest:
            self._furthest, self._expected, self._token = self.pos, [], token
        self._expected.extend(label for label in labels if label not in self._expected)

    def fail(self, *labels: str) -> NoReturn:
        """Raise PGRST100 for the furthest position that was reached, with everything that was expected there."""
        self.expect(*labels)
        *others, last = self._expected
        expected = ", ".join(others) + " or " + last if others else last
        raise self.error(self._furthest, f"unexpected {self._unexpected()} expecting {expected}")

    def _unexpected(self) -> str:
        """The unexpected character, quoted as PostgREST does: in single quotes if the end was expected as well."""
        here = self.text[self._furthest : self._furthest + max(1, len(self._token))]
        if END in self._expected:
            return _quoted(here[0], "'") if here else END
        for ours, theirs in zip_longest(here, self._token):
            if ours is not None and ours != theirs:
                return _quoted(ours, '"')
        return END

    def error(self, position: int, details: str) -> TableError:
        return errors.unreadable(f"{self.parameter} ({self.shown})", position + 1, details)

    # Tokens.

    @property
    def at_end(self) -> bool:
        return self.pos >= len(self.text)

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.pos)

    def take(self, token: str, label: str | None = None) -> bool:
        """Whether ``token`` is here; then step over it. Otherwise note that it was expected."""
        if self.text.startswith(token, self.pos):
            self.pos += len(token)
            return True
        self.expect(label if label is not None else f'"{token}"', token=token)
        return False

    def need(self, token: str, label: str | None = None) -> None:
        """Step over ``token``. Raises PGRST100 if it is not here."""
        if not self.take(token, label):
            self.fail()

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Step over the text here that ``pattern`` matches."""
        match = pattern.match(self.text, self.pos)
        if match is None:
            return None
        self.pos = match.end()
        return match.group()

    def skip_common_prefix(self, words: Sequence[str]) -> None:
        """Step over the longest text here with which one of ``words`` begins, ignoring case."""
        rest = self.text[self.pos : self.pos + max(map(len, words))].lower()
        while not any(word.startswith(rest) for word in words):
            rest = rest[:-1]
        self.pos += len(rest)

    def spaces(self) -> None:
        while self.pos < len(self.text) and self.text[self.pos].isspace():
            self.pos += 1

    def end(self) -> None:
        if not self.at_end:
            self.fail(END)

    def end_past_brackets(self) -> None:
        """Expect the end, but allow closing brackets before it, as PostgREST does."""
        while self.take(")"):
            pass
        self.end()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(self.pos, f"nested deeper than {MAX_DEPTH} levels")

    # Names and fields.

    def quoted(self) -> str | None:
        """The text within double quotes, in which ``\\`` escapes the next character; None where there is no quote."""
        text = self.match(_QUOTED)
        return None if text is None else _ESCAPED.sub(r"\1", text[1:-1])

    def at_name(self) -> bool:
        """Whether a name begins here."""
        return any(pattern.match(self.text, self.pos) for pattern in (_QUOTED, _NAME))

    def name(self) -> str:
        """A name: quoted, or of letters, digits, ``_``, ``$``, inner spaces and single dashes."""
        start = self.pos
        name = self.quoted()
        if name is None:
            name = (self.match(_NAME) or "").strip()
            if name:
                self._expect_more_of_name()
        if not name:
            self.pos = start
            self.spaces()
            self.fail(FIELD_NAME)
        return name

    def _expect_more_of_name(self) -> None:
        """Note that the name could have gone on here, for an error message. Raises PGRST100 for a dash at its end."""
        if self.peek("-") and not self.peek("->"):
            self.pos += 1
            self.fail("letter", "digit")
        self.expect("letter", "digit", '"-"')

    def names(self) -> list[str]:
        """One or more names, with dots between."""
        names = [self.name()]
        while self.take("."):
            names.append(self.name())
        return names

    def field(self) -> Field:
        """A name followed by any number of ``->`` and ``->>`` steps."""
        return Field(self.name(), self.json_path())

    def json_path(self) -> tuple[JsonStep, ...]:
        steps = []
        while self.peek("->"):
            self.pos += 2
            as_text = self.peek(">")
            self.pos += as_text
            steps.append(JsonStep(self._json_key(), as_text))
        self.expect('"->>"', '"->"')
        return tuple(steps)

    def _json_key(self) -> str | int:
        index = from_digits(self.match(_INDEX) or "")
        if index is not None:
            return max(-_MAX_INDEX, min(index, _MAX_INDEX))
        if self.peek("-"):
            self._reject_index()
        key = self.quoted()
        if key is None:
            key = self.match(_KEY)
        if key is None:
            self.fail('"-"', "digit", "any non reserved character different from: .,>()")
        return key

    def _reject_index(self) -> NoReturn:
        """Raise PGRST100 for a dash. No key starts with one, so a negative index must have been meant."""
        self.pos += 1
        digits = self.match(_DIGITS)
        if digits is None or self.at_end:
            self.fail("digit")
        self.fail("digit", '"->"', '"::"', '"."', '","', END)


def _quoted(character: str, quote: str) -> str:
    if character in (quote, "\\"):
        return f"{quote}\\{character}{quote}"
    shown = character if " " <= character <= "~" else _CONTROL.get(character, f"\\{ord(character)}")
    return f"{quote}{shown}{quote}"


def as_parameter(name: str) -> str:
    """The parameter name for a filter on a column: quoted where the bare name would be read as something else."""
    reserved = name in (*REQUEST_PARAMETERS, *PATH_PARAMETERS)
    if _NAME.fullmatch(name) and name == name.strip() and not reserved:
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
