"""A cursor over one query parameter. For error messages it remembers how far it got and what it expected there."""

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

END = "end of input"

# Deeper than any real request, and shallow enough for the stacks of Python and PostgreSQL.
MAX_DEPTH = 50


@define
class Scanner:
    """``what`` names the parameter in messages; ``shown`` is its text as the client sent it."""

    text: str
    what: str
    shown: str
    pos: int = 0
    depth: int = attrs_field(default=0, init=False)
    _furthest: int = attrs_field(default=-1, init=False)
    _expected: list[str] = attrs_field(factory=list, init=False)
    _tried: str = attrs_field(default="", init=False)

    def expecting(self, *labels: str, tried: str = "") -> None:
        """Note that each of ``labels`` would have been accepted here. Forgotten once the cursor has got further.

        ``tried`` is the token that was looked for. The error message then quotes the first character that differs
        from it, and not the one where it should have begun.
        """
        if self.pos > self._furthest:
            self._furthest, self._expected, self._tried = self.pos, [], tried
        self._expected.extend(label for label in labels if label not in self._expected)

    def fail(self, *labels: str) -> NoReturn:
        """Raise PGRST100 for the furthest place that was reached, with everything that was expected there."""
        self.expecting(*labels)
        details = f"unexpected {self._shown()}"
        *most, last = self._expected
        details += " expecting " + (", ".join(most) + " or " + last if most else last)
        raise self.error(self._furthest, details)

    def _shown(self) -> str:
        """The unexpected character, quoted as PostgREST does: in single quotes if the end was expected as well."""
        here = self.text[self._furthest : self._furthest + max(1, len(self._tried))]
        if END in self._expected:
            return _quoted(here[0], "'") if here else END
        pairs = zip_longest(here, self._tried)
        found = next((ours for ours, theirs in pairs if ours is not None and ours != theirs), None)
        return _quoted(found, '"') if found is not None else END

    def error(self, at: int, details: str) -> TableError:
        return errors.unreadable(f"{self.what} ({self.shown})", at + 1, details)

    @property
    def at_end(self) -> bool:
        return self.pos >= len(self.text)

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.pos)

    def take(self, token: str, label: str | None = None) -> bool:
        """Step over ``token`` if it is here, and True. Otherwise note that it was expected, and False."""
        if self.text.startswith(token, self.pos):
            self.pos += len(token)
            return True
        self.expecting(label if label is not None else f'"{token}"', tried=token)
        return False

    def need(self, token: str, label: str | None = None) -> None:
        if not self.take(token, label):
            self.fail()

    def match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.pos)
        if found is None:
            return None
        self.pos = found.end()
        return found.group()

    def along(self, words: Sequence[str]) -> None:
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


def _quoted(character: str, quote: str) -> str:
    if character in (quote, "\\"):
        return f"{quote}\\{character}{quote}"
    shown = character if " " <= character <= "~" else _NAMED.get(character, f"\\{ord(character)}")
    return f"{quote}{shown}{quote}"


_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


# Names, quoted values and JSON paths: what all parameters are made of.


FIELD_NAME = "field name (* or [a..z0..9_$])"
# Names of parameters that are not filters: those of the whole request, and those that may come after the path to an
# embedded relation.
REQUEST_PARAMETERS = ("select", "columns", "on_conflict")
PATH_PARAMETERS = ("order", "limit", "offset", "and", "or")

_NAME = re.compile(r"[\w$ ]+(?:-(?!>)[\w$ ]+)*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_UNESCAPE = re.compile(r"\\(.)", re.DOTALL)
_INDEX = re.compile(r"-?[0-9]+(?=$|->|::|[.,)\s])")
# PostgreSQL takes an index as an int. No array has as many elements.
_MOST_INDEX = 2**31 - 1
_DIGITS = re.compile(r"\d+")
_KEY = re.compile(r"[^(\-:.,>)]+(?:-(?!>)[^(\-:.,>)]+)*")


def quoted(scanner: Scanner) -> str | None:
    """The text within double quotes, in which ``\\`` escapes the next character; None where there is no quote."""
    found = scanner.match(_QUOTED)
    return None if found is None else _UNESCAPE.sub(r"\1", found[1:-1])


def begins(scanner: Scanner) -> bool:
    """Whether a name begins here."""
    return (
        _QUOTED.match(scanner.text, scanner.pos) is not None
        or _NAME.match(scanner.text, scanner.pos) is not None
    )


def name(scanner: Scanner) -> str:
    """A name: quoted, or of letters, digits, ``_``, ``$``, inner spaces and single dashes."""
    start = scanner.pos
    found = quoted(scanner)
    if found is None:
        raw = scanner.match(_NAME)
        found = None if raw is None else raw.strip()
        if found:
            _note_what_continues(scanner)
    if not found:
        scanner.pos = start
        scanner.spaces()
        scanner.fail(FIELD_NAME)
    return found


def _note_what_continues(scanner: Scanner) -> None:
    """Note that the name could have gone on here, for an error message. Raises PGRST100 for a dash at its end."""
    if scanner.peek("-") and not scanner.peek("->"):
        scanner.pos += 1
        scanner.fail("letter", "digit")
    scanner.expecting("letter", "digit", '"-"')


def as_parameter(name: str) -> str:
    """The parameter name for a filter on a column: quoted where the bare name would be read as something else."""
    if _NAME.fullmatch(name) and name == name.strip() and name not in (*REQUEST_PARAMETERS, *PATH_PARAMETERS):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def field(scanner: Scanner) -> Field:
    """A name followed by any number of ``->`` and ``->>`` steps."""
    return Field(name(scanner), json_path(scanner))


def json_path(scanner: Scanner) -> tuple[JsonStep, ...]:
    steps = []
    while scanner.peek("->"):
        scanner.pos += 2
        as_text = scanner.peek(">")
        scanner.pos += as_text
        steps.append(JsonStep(_json_key(scanner), as_text))
    scanner.expecting('"->>"', '"->"')
    return tuple(steps)


def _json_key(scanner: Scanner) -> str | int:
    index = from_digits(scanner.match(_INDEX) or "")
    if index is not None:
        return max(-_MOST_INDEX, min(index, _MOST_INDEX))
    if scanner.peek("-"):
        _refuse_index(scanner)
    key = quoted(scanner)
    if key is None:
        key = scanner.match(_KEY)
    if key is None:
        scanner.fail('"-"', "digit", "any non reserved character different from: .,>()")
    return key


def _refuse_index(scanner: Scanner) -> NoReturn:
    """Raise PGRST100 for a dash. No key starts with one, so a negative index must have been meant."""
    scanner.pos += 1
    digits = scanner.match(_DIGITS)
    if digits is None or scanner.at_end:
        scanner.fail("digit")
    scanner.fail("digit", '"->"', '"::"', '"."', '","', END)
