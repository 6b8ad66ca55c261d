"""Replaces twistd's log observer by ours. ``--logfile`` and SIGUSR1 work as they do with twistd's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from fcntl import F_GETFL, F_SETFL, fcntl
from io import TextIOWrapper
from types import FrameType
from typing import Any, TextIO

from attrs import define, field
from twisted.logger import ILogObserver, Logger
from twisted.python.logfile import LogFile

from project_service.log.journal import Levels, observer
from project_service.log.output import LogOutput, Output


@define
class _Log:
    """The log of this process. It is global because twistd only takes the name of a function that makes the
    observer."""

    twistd: Any = None
    log_format: str = "text"
    levels: Levels = field(factory=lambda: Levels("info"))
    out: LogOutput | None = None
    on_output: str | None = "text"


_log = _Log()
_logger = Logger()


def install(twistd: Any, log_format: str, log_level: str) -> None:
    """Have twistd use our observer. ``twistd`` are its options; ``--logger`` and ``--syslog`` are respected."""
    # Otherwise twistd would write a pickle of the application at its end.
    twistd["no_save"] = True
    _log.on_output = log_format if _in_foreground(twistd) else None
    if twistd.get("logger") or twistd.get("syslog"):
        return
    _log.twistd, _log.log_format, _log.levels = twistd, log_format, Levels(log_level)
    twistd["logger"] = f"{__name__}.make_observer"


def make_observer() -> ILogObserver:
    """Called by twistd when it starts logging."""
    _log.out = _output(_log.twistd)
    return observer(_log.out, _log.log_format, _log.levels)


def set_level(name: str) -> None:
    _log.levels.set_default(name)


def on_output() -> str | None:
    """The format of the log if it goes to standard output; None if it goes elsewhere."""
    return _log.on_output


def write_lines(lines: Sequence[str]) -> None:
    """Write a worker's lines, which are formatted already, into our log. With an observer of the operator's own they
    become events instead."""
    if _log.out is not None:
        _log.out.write("".join(f"{line}\n" for line in lines))
        _log.out.flush()
    else:
        for line in lines:
            _logger.info("{line}", line=line)


def _output(twistd: Any) -> LogOutput:
    if _log.on_output is not None:
        assert sys.__stdout__ is not None
        return _Unfailing(_foreground(any_text(sys.__stdout__)))
    out = _Unfailing(
        _appending(LogFile.fromFullPath(twistd.get("logfile") or "twistd.log", rotateLength=None))
    )
    if not signal.getsignal(signal.SIGUSR1):
        _reopen_on_signal(out)
    return out


def _in_foreground(twistd: Any) -> bool:
    elsewhere = twistd.get("logger") or twistd.get("syslog") or twistd.get("logfile") not in (None, "", "-")
    return bool(twistd.get("nodaemon")) and not elsewhere


def _foreground(out: TextIO) -> LogOutput:
    try:
        return Output(out, _tell_lost)
    except OSError:  # it has no descriptor
        return out


def _tell_lost(lines: int) -> None:
    _logger.warn("{lines} lines of the log were lost, since nobody read them", lines=lines)


def any_text(out: TextIO, encoding: str | None = None) -> TextIO:
    """``out``, changed so that it accepts all characters: those that the encoding does not have are escaped. With
    ``encoding`` None it is that of the environment."""
    if isinstance(out, TextIOWrapper):
        out.reconfigure(encoding=encoding, errors="backslashreplace")
    return out


def _appending(log_file: Any) -> Any:
    """``log_file``, changed so that each line goes to the end of what is there by then. Somebody may empty it while
    it is open, as logrotate does with ``copytruncate``: the next line would come after a gap of zero bytes."""
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
    is lost, but the service works on, and can be stopped."""

    def __init__(self, log_file: Any) -> None:
        self._log_file = log_file

    def write(self, text: str) -> None:
        try:
            self._log_file.write(text)
        except (OSError, ValueError):  # what is no UTF-8, a file's name perhaps
            return

    def flush(self) -> None:
        try:
            self._log_file.flush()
        except OSError:
            return

    def reopen(self) -> None:
        """Open the file again, after it was moved away. If that fails, because its folder is gone for instance, the
        old one stays in use until the next time."""
        old = self._log_file
        try:
            opened = LogFile(old.name, old.directory, rotateLength=None, defaultMode=old.defaultMode)
            self._log_file = _appending(opened)
        except OSError as fault:
            _logger.error("the log file was not opened anew: {why}", why=fault.strerror)
        else:
            old.close()
