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
Later = Callable[[float, Callable[[], None]], object]
# Of one request: time, request id, method, path, status, bytes sent, seconds and client.
AccessEntry = tuple[float, str, str, str, int, int, float, str]

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

# Fields that twisted.logger puts into an event for its own use; they are not shown.
_PLUMBING = frozenset({"isError", "why", "message", "format", "time", "system", "failure"})


def sent_request_id(sent: bytes | None) -> str | None:
    """The client's own id where it is 1-128 characters of ``[A-Za-z0-9._-]``, else None."""
    return sent.decode("ascii") if sent is not None and _REQUEST_ID.match(sent) else None


class RequestIds:
    """Calling it gives an id that no other request has: 64 random bits for the process and a count."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._process = random(8).hex()
        self._count = itertools.count(1)

    def __call__(self) -> str:
        return f"{self._process}{next(self._count):016x}"


# Whatever ``_SECRETS`` finds contains one of these. Most lines contain none, which is much cheaper to find out.
_may_hold_secret = re.compile(r"psk_|token=|token%3|/storage/download/|password=|://|\$2|eyJ").search


def redact(text: str) -> str:
    """``text`` with every secret that ``_SECRETS`` describes replaced by ``***``."""
    return _SECRETS.sub(_hidden, text) if _may_hold_secret(text) else text


def _hidden(found: re.Match[str]) -> str:
    return found["innocent"] or "***"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _timestamp(seconds: float) -> str:
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03}Z"


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def text_observer(out: LogOutput) -> ILogObserver:
    """One line an event, or a request of an access event: time, level, where, message."""

    def observe(event: LogEvent) -> None:
        about = f"{event.get('log_level', LogLevel.info).name:<8} [{event.get('log_namespace', '-')}]"
        if isinstance(requests := event.get("access"), Requests):
            out.write("".join([f"{_timestamp(one[0])} {about} {_line_of(one)}\n" for one in requests]))
        else:
            text = _CONTROLS.sub(_escaped, eventAsText(event, includeTimestamp=False, includeSystem=False))
            lines_of_text = redact(text).replace("\n", "\n\t")
            out.write(f"{_timestamp(event.get('log_time', 0.0))} {about} {lines_of_text}\n")
        out.flush()

    return _providing(observe)


def json_observer(out: LogOutput) -> ILogObserver:
    """One JSON object a line: the message and the event's own fields, or those of a request."""

    def observe(event: LogEvent) -> None:
        about = {
            "level": event.get("log_level", LogLevel.info).name,
            "logger": event.get("log_namespace", "-"),
        }
        if isinstance(requests := event.get("access"), Requests):
            out.write("".join([_json_of(one, about) for one in requests]))
        else:
            record = {
                "time": _timestamp(event.get("log_time", 0.0)),
                **about,
                "message": redact(formatEvent(event)),
            }
            for key, value in event.items():
                if not key.startswith("log_") and key not in _PLUMBING:
                    record[key] = _plain(value)
            if "log_failure" in event:
                record["traceback"] = redact(event["log_failure"].getTraceback())
            out.write(orjson.dumps(record).decode() + "\n")
        out.flush()

    return _providing(observe)


def _json_of(one: AccessEntry, about: dict[str, str]) -> str:
    time, request_id, method, path, status, sent, seconds, client = one
    record = {
        "time": _timestamp(time),
        **about,
        "message": _line_of(one),
        "request_id": redact(request_id),
        "method": method,
        "path": redact(path),
        "status": status,
        "bytes": sent,
        "ms": round(seconds * 1000, 1),
        "client": client,
    }
    return orjson.dumps(record).decode() + "\n"


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool) or value is None else redact(str(value))


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


class Requests(list[AccessEntry]):
    """What an access event holds. As text, for observers that do not know it, one line for each."""

    def __str__(self) -> str:
        return "\n".join(map(_line_of, self))


def _line_of(one: AccessEntry) -> str:
    _, request_id, method, path, status, sent, seconds, _ = one
    return redact(f"{method} {path} {status} {sent}B {round(seconds * 1000, 1)}ms id={request_id}")


class AccessLog:
    """Gathers what there is to say of each request, and logs it as one event at most ``BATCH_SECONDS`` after the
    first: an event for each would cost more than finding a row. ``later`` is the reactor's ``callLater``; without it
    each request is logged at once."""

    def __init__(self, log: Logger, later: Later | None) -> None:
        self._log = log
        self._later = later
        self._requests = Requests()

    def append(
        self, request_id: str, method: str, path: str, status: int, sent: int, seconds: float, client: str
    ) -> None:
        """``path`` comes without its query, which may hold a token."""
        first = not self._requests
        self._requests.append((time.time(), request_id, method, path, status, sent, seconds, client))
        if first and self._later is not None:
            self._later(BATCH_SECONDS, self.flush)
        elif first:
            self.flush()

    def flush(self) -> None:
        if self._requests:
            requests, self._requests = self._requests, Requests()
            self._log.info("{access}", access=requests)
