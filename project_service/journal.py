"""Structured events by twisted.logger, and what keeps secrets out of them.

The request id is an argument everywhere: context variables are lost in callbacks the reactor fires (trap 16).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any, TextIO, cast

import orjson
from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    eventAsText,
    formatEvent,
)
from zope.interface import directlyProvides

LogEvent = dict[str, Any]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}\Z")

# Project keys, and the value of anything named like a secret in a URL or a libpq DSN.
_SECRETS = re.compile(
    r"psk_(?:anon|service)_[A-Za-z0-9_-]{8,}"
    r"|(?<=[?&]token=)[^&\s\"']+"
    r"|(?<=password=)[^&\s\"']+"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
)

# Fields of a log event that are the machinery's, not the message's.
_PLUMBING = frozenset({"isError", "why", "message", "format", "time", "system", "failure", "access_line"})


def request_id(sent: bytes | None, new: Callable[[], str]) -> str:
    """The caller's own id where it is 1-128 characters of ``[A-Za-z0-9._-]``, else a new one."""
    if sent is not None and _REQUEST_ID.match(sent):
        return sent.decode("ascii")
    return new()


def redact(text: str) -> str:
    return _SECRETS.sub("***", text)


def _timestamp(event: LogEvent) -> str:
    when = datetime.datetime.fromtimestamp(event.get("log_time", 0.0), datetime.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text_observer(out: TextIO) -> ILogObserver:
    """One line an event: time, level, where, message."""

    def observe(event: LogEvent) -> None:
        level = event.get("log_level", LogLevel.info).name
        # Formatting by twisted.logger costs more than most requests; access lines come finished.
        text = event.get("access_line") or eventAsText(event, includeTimestamp=False, includeSystem=False)
        lines = redact(text).replace("\n", "\n\t")
        out.write(f"{_timestamp(event)} {level:<8} [{event.get('log_namespace', '-')}] {lines}\n")
        out.flush()

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
        out.flush()

    return _providing(observe)


def _providing(observe: Callable[[LogEvent], None]) -> ILogObserver:
    directlyProvides(observe, ILogObserver)
    return cast(ILogObserver, observe)


class Levels(LogLevelFilterPredicate):
    """A predicate whose default level can be changed while it is in use (SIGHUP)."""

    def __init__(self, name: str) -> None:
        super().__init__(defaultLogLevel=LogLevel.levelWithName(name))
        # A line for each connection to the store says nothing that its requests do not.
        self.setLogLevelForNamespace("twisted.web.client", LogLevel.warn)

    def set_default(self, name: str) -> None:
        self.setLogLevelForNamespace("", LogLevel.levelWithName(name))


def observer(out: TextIO, log_format: str, levels: Levels) -> ILogObserver:
    inner = json_observer(out) if log_format == "json" else text_observer(out)
    observing: ILogObserver = FilteringLogObserver(inner, [levels])
    return observing


def access_event(log: Logger, fields: dict[str, object]) -> None:
    """One line a request; ``path`` comes without its query, which may hold a token."""
    line = f"{fields['method']} {fields['path']} {fields['status']} {fields['bytes']}B {fields['ms']}ms"
    log.info("{access_line}", access_line=f"{line} id={fields['request_id']}", **fields)
