"""The log: structured events by twisted.logger, without secrets, and an output that cannot hold up the service.

``observer`` writes events as lines of text or JSON, ``redact`` removes secrets from them, and ``AccessLog`` batches a
line for each request. ``install`` puts this in place of twistd's log observer. The request id is an argument
everywhere, because context variables are lost in callbacks that the reactor fires; only what is reported far below a
request's handler, and by a coroutine, asks ``request_at_work``. So is ``trace_id``, the id of a trace of the request.
"""

from __future__ import annotations

import datetime
import itertools
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from fcntl import F_GETFL, F_SETFL, fcntl
from functools import lru_cache
from io import TextIOWrapper
from types import FrameType
from typing import Any, Protocol, TextIO, cast

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
    globalLogPublisher,
)
from twisted.python.logfile import LogFile
from zope.interface import directlyProvides

from project_service.kept_log import KeptLog, LogOutput

# How long to wait for a reader that takes nothing before lines are dropped, and for how long after that lines are
# dropped without any waiting.
WRITE_TIMEOUT_SECONDS = 1.0
NO_WAIT_SECONDS = 60.0
# poll() reports a pipe as writable when it takes at least this much (pipe(7), PIPE_BUF).
PIECE_BYTES = 4096


class Output:
    """Writes to the descriptor of ``out``, bypassing its buffer, without ever waiting long for its reader.

    The reader may be a pager that is not scrolled, a terminal that was stopped, or a log collector that hangs. Lines
    are dropped then, because a blocking write would stop the reactor. ``lost`` is called with their number as soon as
    others have been written again. The constructor raises ``OSError`` for an ``out`` without a descriptor, and
    ``write`` if nothing can be written.
    """

    def __init__(
        self, out: TextIO, lost: Callable[[int], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._descriptor = out.fileno()
        self._encoding = out.encoding or "utf-8"
        self._report_lost = lost
        self._seconds = seconds
        self._waits_from = seconds()
        self._lost = 0
        self._torn = False
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    def write(self, text: str) -> None:
        whole = ("\n" if self._torn else "") + text
        left = memoryview(whole.encode(self._encoding, "backslashreplace"))
        until = self._seconds()
        if until >= self._waits_from:
            until += WRITE_TIMEOUT_SECONDS
        while left:
            if not self._poll.poll(max(0.0, until - self._seconds()) * 1000):
                self._waits_from = self._seconds() + NO_WAIT_SECONDS
                self._lost += text.count("\n")
                return
            written = os.write(self._descriptor, left[:PIECE_BYTES])
            self._torn = left[written - 1] != ord("\n")
            left = left[written:]
        lost, self._lost = self._lost, 0
        if lost:
            self._report_lost(lost)

    def flush(self) -> None:
        """Does nothing: ``write`` has no buffer."""


LogEvent = dict[str, Any]
Later = Callable[[float, Callable[[], None]], object]
# Of one request: time, request id, method, path, status, bytes sent, seconds, client, and the id of its trace or "".
AccessEntry = tuple[float, str, str, str, int, int, float, str, str]


class AtWork(Protocol):
    """A request, as lines about its work show it (``http.request.Request``)."""

    @property
    def request_id(self) -> str: ...

    @property
    def trace_id(self) -> str: ...

    @property
    def span(self) -> object:
        """The span that it is under way in (``tracing``)."""

    def outlined(self) -> str:
        """What is asked, without any value; "" where nothing is said about it."""


# The request that a coroutine works for, and all that this starts. The edge sets it.
request_at_work: ContextVar[AtWork | None] = ContextVar("request_at_work", default=None)

# Long enough for a busy process to gather lines, short enough for somebody who watches the log.
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

# Characters that a terminal or a viewer takes for a command or for the end of a line. Tabs are neither, and a tab is
# put behind each line feed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

# Fields that twisted.logger puts into an event for its own use; they are not shown.
_PLUMBING = frozenset({"isError", "why", "message", "format", "time", "system", "failure"})


def sent_request_id(sent: bytes | None) -> str | None:
    """The client's own id if it is 1-128 characters of ``[A-Za-z0-9._-]``, else None."""
    return sent.decode("ascii") if sent is not None and _REQUEST_ID.match(sent) else None


class RequestIds:
    """Returns ids that no other request has: 64 random bits for the process and a count."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._process = random(8).hex()
        self._count = itertools.count(1)

    def __call__(self) -> str:
        return f"{self._process}{next(self._count):016x}"


# Whatever ``_SECRETS`` matches contains one of these. Most lines contain none, and this search is much cheaper.
_may_hold_secret = re.compile(r"psk_|token=|token%3|/storage/download/|password=|://|\$2|eyJ").search


def redact(text: str) -> str:
    """``text`` with every secret that ``_SECRETS`` describes replaced by ``***``."""
    return _SECRETS.sub(lambda match: match["innocent"] or "***", text) if _may_hold_secret(text) else text


def _timestamp(seconds: float) -> str:
    return f"{_second(int(seconds))}.{int(seconds % 1 * 1000):03}Z"


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.datetime.fromtimestamp(second, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def text_observer(out: LogOutput) -> ILogObserver:
    """One line for each event, and for each request of an access event: time, level, logger, message."""

    def observe(event: LogEvent) -> None:
        about = f"{event.get('log_level', LogLevel.info).name:<8} [{event.get('log_namespace', '-')}]"
        if isinstance(requests := event.get("access"), Requests):
            lines = [f"{_timestamp(one[0])} {about} {_message_of(one)}\n" for one in requests]
            text = "".join(lines)
            out.write("".join(map(redact, lines)) if _may_hold_secret(text) else text)
        else:
            text = eventAsText(event, includeTimestamp=False, includeSystem=False)
            text = _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
            if event.get("trace_id"):
                first, line_break, more = text.partition("\n")
                text = f"{first} trace={event['trace_id']}{line_break}{more}"
            lines_of_text = redact(text).replace("\n", "\n\t")
            out.write(f"{_timestamp(event.get('log_time', 0.0))} {about} {lines_of_text}\n")
        out.flush()

    return _providing(observe)


def json_observer(out: LogOutput) -> ILogObserver:
    """One JSON object for each event, and for each request of an access event, with its own fields."""

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
                if not key.startswith("log_") and key not in _PLUMBING and (key != "trace_id" or value):
                    record[key] = _plain(value)
            if "log_failure" in event:
                record["traceback"] = redact(event["log_failure"].getTraceback())
            out.write(orjson.dumps(record).decode() + "\n")
        out.flush()

    return _providing(observe)


def _json_of(one: AccessEntry, about: dict[str, str]) -> str:
    time, request_id, method, path, status, sent, seconds, client, trace_id = one
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
    if trace_id:
        record["trace_id"] = trace_id
    return orjson.dumps(record).decode() + "\n"


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool) or value is None else redact(str(value))


def _providing(observe: Callable[[LogEvent], None]) -> ILogObserver:
    directlyProvides(observe, ILogObserver)
    return cast(ILogObserver, observe)


# Twisted's own notices of ports, connections and the process: the service says itself what operators need of them.
_QUIET = (
    "twisted.web.client",
    "twisted.scripts",
    "twisted.internet.base",
    "twisted.internet.protocol",
    "log_legacy",
)


class Levels(LogLevelFilterPredicate):
    """A predicate whose default level can be changed while it is in use (SIGHUP)."""

    def __init__(self, name: str) -> None:
        super().__init__(defaultLogLevel=LogLevel.levelWithName(name))
        self._passing: dict[tuple[str, object], bool] = {}
        for namespace in _QUIET:
            self.setLogLevelForNamespace(namespace, LogLevel.warn)

    def set_default(self, name: str) -> None:
        self.setLogLevelForNamespace("", LogLevel.levelWithName(name))
        self._passing.clear()

    def passes(self, event: LogEvent) -> bool:
        """Whether the event is to be written. The results are cached; namespaces are modules, so there are few."""
        key = (event.get("log_namespace", ""), event.get("log_level"))
        passes = self._passing.get(key)
        if passes is None:
            passes = self._passing[key] = self(event) == PredicateResult.maybe
        return passes


def observer(out: LogOutput, log_format: str, levels: Levels) -> ILogObserver:
    """Writes the events that ``levels`` lets pass."""
    inner = json_observer(out) if log_format == "json" else text_observer(out)

    def observe(event: LogEvent) -> None:
        if levels.passes(event):
            inner(event)

    return _providing(observe)


class Requests(list[AccessEntry]):
    """The requests of one access event. ``str()`` gives a line for each, for observers that do not know the type."""

    def __str__(self) -> str:
        return "\n".join(map(_line_of, self))


def _line_of(one: AccessEntry) -> str:
    return redact(_message_of(one))


def _message_of(one: AccessEntry) -> str:
    """The line, which may hold secrets yet."""
    _, request_id, method, path, status, sent, seconds, _, trace_id = one
    trace = f" trace={trace_id}" if trace_id else ""
    return f"{method} {path} {status} {sent}B {round(seconds * 1000, 1)}ms id={request_id}{trace}"


class AccessLog:
    """Gathers an entry for each request, and logs them as one event at most ``BATCH_SECONDS`` after the first: an
    event for each would cost more than finding a row. ``later`` is the reactor's ``callLater``; without it each
    request is logged at once."""

    def __init__(self, log: Logger, later: Later | None) -> None:
        self._log = log
        self._later = later
        self._requests = Requests()

    def append(
        self,
        request_id: str,
        method: str,
        path: str,
        status: int,
        sent: int,
        seconds: float,
        client: str,
        trace_id: str = "",
    ) -> None:
        """``path`` comes without its query, which may hold a token."""
        first = not self._requests
        self._requests.append(
            (time.time(), request_id, method, path, status, sent, seconds, client, trace_id)
        )
        if first and self._later is not None:
            self._later(BATCH_SECONDS, self.flush)
        elif first:
            self.flush()

    def flush(self) -> None:
        if self._requests:
            requests, self._requests = self._requests, Requests()
            self._log.info("{access}", access=requests)


# In place of twistd's log observer. ``--logfile`` and SIGUSR1 work as they do with twistd's.


@define
class _Log:
    """The log of this process. It is global because twistd takes only the name of a function that makes the
    observer."""

    twistd: Any = None
    log_format: str = "text"
    levels: Levels = field(factory=lambda: Levels("info"))
    out: LogOutput | None = None
    on_output: str | None = "text"
    kept: KeptLog = field(factory=KeptLog)
    keeps: bool = False


_log = _Log()
_logger = Logger()


def install(twistd: Any, log_format: str, log_level: str, keeps: bool = False) -> None:
    """Have twistd use our observer. ``twistd`` are its options; ``--logger`` and ``--syslog`` are respected.
    ``keeps``: the last lines stay in memory too."""
    # Otherwise twistd would write a pickle of the application at its end.
    twistd["no_save"] = True
    theirs = twistd.get("logger") or twistd.get("syslog")
    to_file = twistd.get("logfile") not in (None, "", "-")
    _log.on_output = log_format if twistd.get("nodaemon") and not theirs and not to_file else None
    _log.keeps = keeps
    if theirs:
        if keeps:
            globalLogPublisher.addObserver(_without_lines(observer(_log.kept, "text", Levels(log_level))))
        return
    _log.twistd, _log.log_format, _log.levels = twistd, log_format, Levels(log_level)
    twistd["logger"] = f"{__name__}.make_observer"


def make_observer() -> ILogObserver:
    """Called by twistd when it starts logging."""
    _log.out = _output(_log.twistd)
    if _log.keeps:
        _log.kept.output = _log.out
        _log.out = _log.kept
    return observer(_log.out, _log.log_format, _log.levels)


def _without_lines(inner: ILogObserver) -> ILogObserver:
    """``inner`` without the events that ``write_lines`` makes."""

    def observe(event: LogEvent) -> None:
        if "line" not in event or event.get("log_namespace") != __name__:
            inner(event)

    return _providing(observe)


def kept() -> KeptLog:
    """The last lines; none unless ``install`` was told to keep them."""
    return _log.kept


def set_level(name: str) -> None:
    _log.levels.set_default(name)


def on_output() -> str | None:
    """The format of the log if it goes to standard output; None if it goes elsewhere."""
    return _log.on_output


def write_lines(lines: Sequence[str]) -> None:
    """Write a worker's lines, which are formatted already, to our log. With an operator's own observer they become
    events instead."""
    if _log.out is not None:
        _log.out.write("".join(f"{line}\n" for line in lines))
        _log.out.flush()
    else:
        if _log.keeps:
            _log.kept.write("".join(f"{line}\n" for line in lines))
        for line in lines:
            _logger.info("{line}", line=line)


def _output(twistd: Any) -> LogOutput:
    if _log.on_output is not None:
        assert sys.__stdout__ is not None
        stream = accept_all_characters(sys.__stdout__)
        try:
            return _Unfailing(Output(stream, _report_lost))
        except OSError:  # it has no descriptor
            return _Unfailing(stream)
    out = _Unfailing(
        _appending(LogFile.fromFullPath(twistd.get("logfile") or "twistd.log", rotateLength=None))
    )
    if not signal.getsignal(signal.SIGUSR1):
        _reopen_on_signal(out)
    return out


def _report_lost(lines: int) -> None:
    _logger.warn("{lines} lines of the log were lost, since nobody read them", lines=lines)


def accept_all_characters(out: TextIO, encoding: str | None = None) -> TextIO:
    """``out`` itself, which from now on escapes the characters that its encoding does not have. ``encoding`` is by
    default that of the environment."""
    if isinstance(out, TextIOWrapper):
        out.reconfigure(encoding=encoding, errors="backslashreplace")
    return out


def _appending(log_file: Any) -> Any:
    """``log_file`` itself, which from now on writes each line at the present end of the file. Somebody may empty the
    file while it is open, as logrotate does with ``copytruncate``, and the next line would come after a gap of zero
    bytes."""
    descriptor = log_file._file.fileno()
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | os.O_APPEND)
    return log_file


def _reopen_on_signal(out: _Unfailing) -> None:
    def reopen(signum: int, frame: FrameType | None) -> None:
        from twisted.internet import reactor

        reactor.callFromThread(out.reopen)  # type: ignore[attr-defined]  # the module is the reactor

    signal.signal(signal.SIGUSR1, reopen)


class _Unfailing:
    """A log file on a disk that may be full, or an output that nobody reads any more. A line that cannot be written
    is lost, but the service goes on and can be stopped."""

    def __init__(self, log_file: Any) -> None:
        self._log_file = log_file

    def write(self, text: str) -> None:
        try:
            self._log_file.write(text)
        except (OSError, ValueError):  # ValueError: not UTF-8, a file's name perhaps
            return

    def flush(self) -> None:
        try:
            self._log_file.flush()
        except OSError:
            return

    def reopen(self) -> None:
        """Open the file again, after it was moved away. If that fails, for instance because its folder is gone, the
        old one stays in use until the next time."""
        old = self._log_file
        try:
            fresh = LogFile(old.name, old.directory, rotateLength=None, defaultMode=old.defaultMode)
            self._log_file = _appending(fresh)
        except OSError as fault:
            _logger.error("the log file was not opened anew: {why}", why=fault.strerror)
        else:
            old.close()
