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
from typing import Any, cast

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

from project_service.log.output import LogOutput

LogEvent = dict[str, Any]

# Long enough for a busy process to gather lines, short enough for who watches the log.
BATCH_SECONDS = 0.1

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}\Z")

# What must not reach the log, alternative by alternative: project keys; the value of ``token=`` in a link, also where
# a program that passed the link on has escaped its "?" or "="; a token in a download path; passwords and user names
# in a libpq DSN or a URL; bcrypt hashes, which PostgreSQL shows of a user whom a constraint refuses; JWTs. The last
# alternative, ``innocent``, takes text that only begins like a JWT in one piece and leaves it alone. Without it the
# search would start again at each "eyJ", and a path full of those would take seconds.
_SECRETS = re.compile(
    r"psk_(?:anon|service)_[A-Za-z0-9_-]{8,}"
    r"|(?:(?<=[?&]token=)|(?<=%3[Ff]token=)|(?<=%3[Ff]token%3[Dd]))[^&\s\"']+"
    r"|(?:(?<=\s/storage/download/)|(?<=^/storage/download/))[^\s\"']+"
    r"|(?<=password=)(?:'(?:[^'\\]|\\.)*'|[^&\s\"']+)"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}"
    r"|eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*"
    r"|(?P<innocent>eyJ(?:(?!psk_(?:anon|service)_)[A-Za-z0-9_-])*+)"
)

# Characters that a terminal or a viewer takes for a command or for the end of a line. Tabs are neither, and each line
# feed gets one behind it.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

# Fields that twisted.logger or ``access_event`` put into an event for their own use; they are not shown.
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


# Whatever ``_SECRETS`` finds contains one of these. Most lines contain none, which is much cheaper to find out.
_SIGNS = ("psk_", "token=", "token%3", "/storage/download/", "password=", "://", "$2", "eyJ")


def redact(text: str) -> str:
    """``text`` with every secret that ``_SECRETS`` describes replaced by ``***``."""
    for sign in _SIGNS:
        if sign in text:
            return _SECRETS.sub(_hidden, text)
    return text


def _hidden(found: re.Match[str]) -> str:
    return found["innocent"] or "***"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _timestamp(event: LogEvent) -> str:
    seconds = event.get("log_time", 0.0)
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03}Z"


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


@define
class Batched:
    """An output that gathers lines and writes them together, at most ``BATCH_SECONDS`` after the first.

    Writing each access line on its own would cost more than some requests do, and the parent that collects its
    workers' lines would pay for it again. ``later`` is the reactor's ``callLater``.
    """

    out: LogOutput
    later: Callable[[float, Callable[[], None]], object]
    _lines: list[str] = field(factory=list, init=False)

    def write(self, text: str) -> None:
        if not self._lines:
            self.later(BATCH_SECONDS, self.flush)
        self._lines.append(text)

    def flush(self) -> None:
        if self._lines:
            text, self._lines = "".join(self._lines), []
            self.out.write(text)
            self.out.flush()


def text_observer(out: LogOutput) -> ILogObserver:
    """One line an event: time, level, where, message."""

    def observe(event: LogEvent) -> None:
        level = event.get("log_level", LogLevel.info).name
        # Access lines come finished (``access_event``): formatting them here would cost more than most requests.
        text = event.get("access_line") or _CONTROLS.sub(
            _escaped, eventAsText(event, includeTimestamp=False, includeSystem=False)
        )
        lines = redact(text).replace("\n", "\n\t")
        out.write(f"{_timestamp(event)} {level:<8} [{event.get('log_namespace', '-')}] {lines}\n")
        _flush(out, event)

    return _providing(observe)


def json_observer(out: LogOutput) -> ILogObserver:
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


def _flush(out: LogOutput, event: LogEvent) -> None:
    """Write out what is gathered, unless ``event`` is an access line: only those may wait for each other."""
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
        # Twisted's client logs each connection it opens to the store; the requests say as much.
        self.setLogLevelForNamespace("twisted.web.client", LogLevel.warn)

    def set_default(self, name: str) -> None:
        self.setLogLevelForNamespace("", LogLevel.levelWithName(name))
        self._passing.clear()

    def passes(self, event: LogEvent) -> bool:
        """Whether the event is to be written. The answers are kept; namespaces are modules, so there are few."""
        key = (event.get("log_namespace", ""), event.get("log_level"))
        found = self._passing.get(key)
        if found is None:
            found = self._passing[key] = self(event) == PredicateResult.maybe
        return found


def observer(out: LogOutput, log_format: str, levels: Levels) -> ILogObserver:
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
    # The event that ``log.info`` would make, without the time it spends on features we do not use: every request
    # passes here.
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
