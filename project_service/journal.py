"""Structured events by twisted.logger, and what keeps secrets out of them.

The request id is an argument everywhere: context variables are lost in callbacks the reactor fires.
"""

from __future__ import annotations

import datetime
import itertools
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TextIO, cast

import orjson
from attrs import define, field
from twisted.logger import (
    ILogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    PredicateResult,
    eventAsText,
    formatEvent,
)
from zope.interface import directlyProvides

LogEvent = dict[str, Any]

# Long enough for a busy process to gather lines, short enough for who watches the log.
BATCH_SECONDS = 0.1

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}\Z")

# Project keys, and the value of anything named like a secret in a URL or a libpq DSN. Programs that pass links on
# escape their "?" now and then, which makes the token a part of the path. What only begins like a JWT is passed over
# in one go, as ``innocent``: tried again at each "eyJ" in it, a path full of those would take seconds.
_SECRETS = re.compile(
    r"psk_(?:anon|service)_[A-Za-z0-9_-]{8,}"
    r"|(?:(?<=[?&]token=)|(?<=%3[Ff]token=)|(?<=%3[Ff]token%3[Dd]))[^&\s\"']+"
    r"|(?:(?<=\s/storage/download/)|(?<=^/storage/download/))[^\s\"']+"
    r"|(?<=password=)(?:'(?:[^'\\]|\\.)*'|[^&\s\"']+)"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*"
    r"|(?P<innocent>eyJ(?:(?!psk_(?:anon|service)_)[A-Za-z0-9_-])*+)"
)

# Fields of a log event that are the machinery's, not the message's.
_PLUMBING = frozenset({"isError", "why", "message", "format", "time", "system", "failure", "access_line"})


def request_id(sent: bytes | None, new: Callable[[], str]) -> str:
    """The caller's own id where it is 1-128 characters of ``[A-Za-z0-9._-]``, else a new one."""
    if sent is not None and _REQUEST_ID.match(sent):
        return sent.decode("ascii")
    return new()


class RequestIds:
    """Calling it gives an id that no other request has: 64 random bits for the process and a count."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._process = random(8).hex()
        self._count = itertools.count(1)

    def __call__(self) -> str:
        return f"{self._process}{next(self._count):016x}"


# One of these is in whatever ``_SECRETS`` finds: most lines have none, and to look for them is cheap.
_SIGNS = ("psk_", "token=", "token%3", "/storage/download/", "password=", "://", "eyJ")


def redact(text: str) -> str:
    for sign in _SIGNS:
        if sign in text:
            return _SECRETS.sub(_hidden, text)
    return text


def _hidden(found: re.Match[str]) -> str:
    return found["innocent"] or "***"


def _timestamp(event: LogEvent) -> str:
    seconds = event.get("log_time", 0.0)
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03}Z"


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


@define
class Batched:
    """A stream whose lines are written together, ``BATCH_SECONDS`` after the first of them at the latest.

    A write for each access line would cost more than some of the requests, and where a parent gathers the lines of
    its workers, it would cost that once more. ``later`` is the reactor's ``callLater``.
    """

    out: TextIO
    later: Callable[[float, Callable[[], None]], object]
    _lines: list[str] = field(factory=list)

    def write(self, text: str) -> int:
        if not self._lines:
            self.later(BATCH_SECONDS, self.flush)
        self._lines.append(text)
        return len(text)

    def flush(self) -> None:
        if self._lines:
            text, self._lines = "".join(self._lines), []
            self.out.write(text)
            self.out.flush()


def text_observer(out: TextIO) -> ILogObserver:
    """One line an event: time, level, where, message."""

    def observe(event: LogEvent) -> None:
        level = event.get("log_level", LogLevel.info).name
        # Formatting by twisted.logger costs more than most requests; access lines come finished.
        text = event.get("access_line") or eventAsText(event, includeTimestamp=False, includeSystem=False)
        lines = redact(text).replace("\n", "\n\t")
        out.write(f"{_timestamp(event)} {level:<8} [{event.get('log_namespace', '-')}] {lines}\n")
        _flush(out, event)

    return _providing(observe)


def json_observer(out: TextIO) -> ILogObserver:
    """One JSON object a line: the message and the event's own fields."""

    def observe(event: LogEvent) -> None:
        record: dict[str, object] = {
            "time": _timestamp(event),
            "level": event.get("log_level", LogLevel.info).name,
            "logger": event.get("log_namespace", "-"),
            "message": redact(event.get("access_line") or formatEvent(event)),
        }
        for key, value in event.items():
            if key.startswith("log_") or key in _PLUMBING:
                continue
            plain = isinstance(value, int | float | bool) or value is None
            record[key] = value if plain else redact(str(value))
        if "log_failure" in event:
            record["traceback"] = redact(event["log_failure"].getTraceback())
        out.write(orjson.dumps(record).decode() + "\n")
        _flush(out, event)

    return _providing(observe)


def _flush(out: TextIO, event: LogEvent) -> None:
    """Access lines may wait for each other; whatever else is said is said at once, and in order."""
    if "access_line" not in event:
        out.flush()


def _providing(observe: Callable[[LogEvent], None]) -> ILogObserver:
    directlyProvides(observe, ILogObserver)
    return cast(ILogObserver, observe)


class Levels(LogLevelFilterPredicate):
    """A predicate whose default level can be changed while it is in use (SIGHUP)."""

    def __init__(self, name: str) -> None:
        super().__init__(defaultLogLevel=LogLevel.levelWithName(name))
        self._passing: dict[tuple[str, object], bool] = {}
        # A line for each connection to the store says nothing that its requests do not.
        self.setLogLevelForNamespace("twisted.web.client", LogLevel.warn)

    def set_default(self, name: str) -> None:
        self.setLogLevelForNamespace("", LogLevel.levelWithName(name))
        self._passing.clear()

    def passes(self, event: LogEvent) -> bool:
        """Whether the event is to be written. Namespaces are modules, so there are few."""
        key = (event.get("log_namespace", ""), event.get("log_level"))
        found = self._passing.get(key)
        if found is None:
            found = self._passing[key] = self(event) == PredicateResult.maybe
        return found


def observer(out: TextIO, log_format: str, levels: Levels) -> ILogObserver:
    """Writes the events that ``levels`` lets pass."""
    inner = json_observer(out) if log_format == "json" else text_observer(out)

    def observe(event: LogEvent) -> None:
        if levels.passes(event):
            inner(event)

    return _providing(observe)


def access_event(
    log: Logger, request_id: str, method: str, path: str, status: int, sent: int, seconds: float, client: str
) -> None:
    """One line a request; ``path`` comes without its query, which may hold a token."""
    ms = round(seconds * 1000, 1)
    # What ``log.info`` would make, without its search for lazy fields and levels: this is in the way of each request.
    event = {
        "log_logger": log,
        "log_namespace": log.namespace,
        "log_source": None,
        "log_level": LogLevel.info,
        "log_format": "{access_line}",
        "log_time": time.time(),
        "access_line": f"{method} {path} {status} {sent}B {ms}ms id={request_id}",
        "request_id": request_id,
        "method": method,
        "path": path,
        "status": status,
        "bytes": sent,
        "ms": ms,
        "client": client,
    }
    log.observer(event)
