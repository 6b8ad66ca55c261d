"""Statements that take long, in the log and counted: what was asked, as whom, for how long and for which request.

No value is ever logged. Of a request that has an outline (the table API's have) that is shown; of other statements
their shape, in which a ``?`` stands for every literal and parameter.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

from twisted.logger import Logger

from project_service.database.sql_lexer import Token, Unreadable, each_token
from project_service.log import request_at_work

# So much of a statement is shown, in characters.
MAX_SHOWN = 1000
# And so many statements a second: when the database as a whole is slow, all are.
MAX_LINES = 5
LINES_SECONDS = 1.0

# A parameter as psycopg2 takes it.
_PLACEHOLDER = re.compile(r"%(?:\(\w+\))?s")
# A blank is left out after the first and before the second.
_OPENING = frozenset(("(", "[", ".", "::"))
_CLOSING = frozenset((")", "]", ".", "::", ",", ";", "[", ":"))


class SlowStatements:
    """Those of one ``database``, as operators name it. What takes ``seconds`` or longer is slow; 0 means that nothing
    is. ``count`` is how many there were."""

    log = Logger()

    def __init__(self, database: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.database = database
        self.count = 0
        self.limit(seconds)
        self._clock = clock
        self._since = float("-inf")
        self._lines = self._left_out = 0

    def limit(self, seconds: float) -> None:
        """Change ``seconds``."""
        # What is asked for each statement is only whether it took longer.
        self.seconds = seconds or float("inf")

    def report(self, seconds: float, sql: str | bytes, role: str) -> None:
        """A statement took ``seconds``. ``role`` is the one that it acted as, "" for the service's own."""
        self.count += 1
        now = self._clock()
        if now - self._since >= LINES_SECONDS:
            if self._left_out:
                self.log.warn(
                    "{count} more statements on {database} were slow",
                    count=self._left_out,
                    database=self.database,
                )
            self._since, self._lines, self._left_out = now, 0, 0
        if self._lines >= MAX_LINES:
            self._left_out += 1
            return
        self._lines += 1
        request = request_at_work.get()
        outline = "" if request is None or not role else request.outlined()
        self.log.warn(
            "slow statement on {database}: {seconds} s as {role}: {statement} id={request_id}",
            database=self.database,
            seconds=round(seconds, 3),
            role=role or "the service",
            statement=outline[:MAX_SHOWN] or shape_of(sql),
            request_id="-" if request is None else request.request_id,
            trace_id="" if request is None else request.trace_id,
        )


NOT_WATCHED = SlowStatements("-", 0)


def shape_of(sql: str | bytes) -> str:
    """``sql`` on one line, with ``?`` in place of every literal and parameter, and without comments. It ends with
    ``...`` where it is cut off, or cannot be read."""
    text = sql.decode("utf-8", "replace") if isinstance(sql, bytes) else sql
    shown, before = "", ""
    with suppress(Unreadable):
        for token in each_token(_PLACEHOLDER.sub(" ? ", text).replace("%%", "%")):
            if len(shown) > MAX_SHOWN:
                break
            written = _written(token)
            blank = bool(shown) and before not in _OPENING and written not in _CLOSING and written != "("
            shown, before = f"{shown} {written}" if blank else shown + written, written
        else:
            return shown
    return f"{shown[:MAX_SHOWN]} ..."


def _written(token: Token) -> str:
    if token.kind in ("literal", "number", "parameter"):
        return "?"
    return '"' + token.text.replace('"', '""') + '"' if token.kind == "quoted" else token.text
