"""The last lines of the log, kept in memory for those who look at them at ``/admin/log``.

``KeptLog`` stands in front of the log's output and keeps the text that goes there as it is, with secrets removed
already: it costs requests nothing. Lines are taken apart when somebody asks (``LogQuery``). With several workers the
supervisor writes the log, so it keeps the lines of all of them, and workers ask it.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import orjson
from attrs import asdict, define, field, frozen

# What is kept: so many lines, but no more than so many bytes of memory.
MAX_LINES = 10_000
MAX_BYTES = 4 * 1024 * 1024
# An answer has at most so many lines, and ends after so many characters.
MAX_ANSWERED = 1000
MAX_ANSWERED_CHARACTERS = 512 * 1024
# A single line is cut there, such as a traceback of many frames.
MAX_LINE_CHARACTERS = 16 * 1024
# So many lines are looked at in one turn of the reactor: about a millisecond.
TURN_LINES = 200

LEVELS = ("debug", "info", "warn", "error", "critical")

_LINE = re.compile(r"(\d{4}-\S+Z) (\w+) +\[([^\]]*)\] (.*)", re.DOTALL)
_REQUEST_ID = re.compile(r"\bid=([A-Za-z0-9._-]{1,128})\Z")
_NUMBER = re.compile("[0-9]{1,15}")

Turn = Callable[[], Awaitable[None]]


class LogOutput(Protocol):
    """Where lines are written: a text stream, or what stands in front of one."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


@frozen
class LogQuery:
    """Which lines are asked for. ``level`` is the least one; ``part`` is what the logger's name begins with; ``text``
    is contained in a line, whatever its case, and none of ``without`` is, which has ``|`` between several. ``after``
    and ``before`` are cursors of an earlier answer. Of more than ``limit`` lines the last ones are answered."""

    level: str = "debug"
    part: str = ""
    request_id: str = ""
    text: str = ""
    without: str = ""
    after: str = ""
    before: str = ""
    limit: int = 200

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes) -> LogQuery:
        return cls(**orjson.loads(raw))

    def fits(self, line: Line) -> bool:
        return (
            _rank(line.level) >= LEVELS.index(self.level)
            and line.part.startswith(self.part)
            and (not self.request_id or line.request_id == self.request_id)
            and (not self.text or self.text.casefold() in line.text.casefold())
            and not any(one and one.casefold() in line.text.casefold() for one in self.without.split("|"))
        )


# Reads the log of all processes of this service: the JSON of ``KeptLog.answer``.
ReadLog = Callable[[LogQuery], Awaitable[bytes]]


@frozen
class Line:
    """An event, whose text may have several lines. ``number`` counts the lines of the log from its beginning."""

    number: int
    time: str | None
    level: str
    part: str
    text: str
    request_id: str | None


@define(eq=False)
class KeptLog:
    """Passes text on to ``output``, if there is one, and keeps the last of it. ``write`` takes whole lines."""

    output: LogOutput | None = None
    # Of this process: cursors of an earlier one mean nothing.
    name: str = field(factory=lambda: secrets.token_hex(4))
    _texts: deque[tuple[int, str]] = field(factory=deque, init=False)
    _lines: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)

    def write(self, text: str) -> None:
        self._lines += text.count("\n")
        kept = text if len(text) < MAX_BYTES // 8 else text[-MAX_BYTES // 8 :]
        self._texts.append((self._lines - kept.count("\n"), kept))
        self._bytes += sys.getsizeof(kept)
        while self._bytes > MAX_BYTES or (
            self._lines - self._texts[0][0] > MAX_LINES and len(self._texts) > 1
        ):
            self._bytes -= sys.getsizeof(self._texts.popleft()[1])
        if self.output is not None:
            self.output.write(text)

    def flush(self) -> None:
        if self.output is not None:
            self.output.flush()

    async def answer(self, query: LogQuery, turn: Turn) -> bytes:
        """The JSON of an answer: ``lines``, the oldest first; ``newest``, for those that come after them; ``oldest``,
        for those before, null if there are no more; ``complete``: whether all that are new have been answered.

        ``turn`` lets the reactor do something else."""
        newest, first = self._lines, self._texts[0][0] if self._texts else 0
        after, before = self._number(query.after, -1), self._number(query.before, newest)
        found: list[dict[str, Any]] = []
        characters = 0
        oldest: int | None = None
        for n, line in enumerate(self._backwards(min(before, newest), after)):
            if n % TURN_LINES == TURN_LINES - 1:
                await turn()
            if not query.fits(line):
                continue
            if len(found) == query.limit or characters > MAX_ANSWERED_CHARACTERS:
                oldest = found[-1]["number"]
                break
            found.append(_as_json(line))
            characters += len(line.text)
        return orjson.dumps(
            {
                "lines": found[::-1],
                "newest": self._cursor(newest),
                "oldest": None if oldest is None else self._cursor(oldest),
                "complete": oldest is None and (not query.after or after >= first),
            }
        )

    def _backwards(self, before: int, after: int) -> Iterator[Line]:
        """The events whose first line is not before ``after``, and is before ``before``; the last one first."""
        rest: list[str] = []
        for first, text in reversed(list(self._texts)):
            if first >= before:
                continue
            lines = text.split("\n")
            for n in range(len(lines) - 2, -1, -1):
                number = first + n
                if number >= before:
                    continue
                if number < after:
                    return
                if lines[n].startswith("\t"):  # it goes on with the line before
                    rest.append(lines[n])
                    continue
                yield _read(number, "\n".join((lines[n], *reversed(rest))))
                rest = []

    def _cursor(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _number(self, cursor: str, otherwise: int) -> int:
        """That of a cursor of this process, else ``otherwise``."""
        name, _, number = cursor.rpartition("-")
        return int(number) if name == self.name and _NUMBER.fullmatch(number) else otherwise


def _read(number: int, text: str) -> Line:
    """A line of the log as text or JSON; what is neither, such as what SQL or a library prints, is at level info."""
    if text.startswith("{") and (line := _read_json(number, text)) is not None:
        return line
    match = _LINE.fullmatch(text)
    if match is None:
        return Line(number, None, "info", "-", text, None)
    time, level, part, message = match.groups()
    found = _REQUEST_ID.search(message)
    return Line(number, time, level, part, message.replace("\n\t", "\n"), found and found[1])


def _read_json(number: int, text: str) -> Line | None:
    try:
        record: dict[str, Any] = orjson.loads(text)
        message, traceback = str(record["message"]), record.get("traceback")
        request_id = record.get("request_id")
        return Line(
            number,
            str(record["time"]),
            str(record["level"]),
            str(record["logger"]),
            message if traceback is None else f"{message}\n{traceback}",
            None if request_id is None else str(request_id),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else 1


def _as_json(line: Line) -> dict[str, Any]:
    return {
        "number": line.number,
        "time": line.time,
        "level": line.level if line.level in LEVELS else "info",
        "part": line.part.encode("utf-8", "backslashreplace").decode(),
        # Names of files may have bytes that are no characters.
        "text": line.text[:MAX_LINE_CHARACTERS].encode("utf-8", "backslashreplace").decode(),
        "request_id": line.request_id,
    }
