"""Names, quoted values and JSON paths: what all parameters are made of."""

from __future__ import annotations

import re
from typing import NoReturn

from project_service.tables.parse.scanner import END, Scanner
from project_service.tables.syntax import Field, JsonStep
from project_service.whole_numbers import from_digits

FIELD_NAME = "field name (* or [a..z0..9_$])"
# Names of parameters that are not filters: those of the whole request, and those that may come after the path to an
# embedded relation.
WHOLE = ("select", "columns", "on_conflict")
AT_PATH = ("order", "limit", "offset", "and", "or")

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
    if _NAME.fullmatch(name) and name == name.strip() and name not in (*WHOLE, *AT_PATH):
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
