"""Puts our observer where twistd would put its own, with twistd's ``--logfile`` and SIGUSR1 kept."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, TextIO, cast

from twisted.logger import ILogObserver
from twisted.python.logfile import LogFile

from project_service.journal import Levels, observer

# Where SIGHUP finds the level in force.
_LEVELS_KEY = "project-service-levels"


def install(twistd: Any, log_format: str, log_level: str) -> None:
    """``twistd`` are its options. A ``--logger`` or ``--syslog`` of the operator's own is left alone."""
    # Without it twistd would leave a pickle of the application behind.
    twistd["no_save"] = True
    levels = Levels(log_level)
    twistd[_LEVELS_KEY] = levels
    if twistd.get("logger") or twistd.get("syslog"):
        return

    def make() -> ILogObserver:
        return observer(_output(twistd), log_format, levels)

    twistd["logger"] = make


def levels_of(twistd: Any) -> Levels | None:
    found = twistd.get(_LEVELS_KEY)
    return found if isinstance(found, Levels) else None


def _output(twistd: Any) -> TextIO:
    name = twistd.get("logfile")
    if twistd.get("nodaemon") and name in (None, "", "-"):
        assert sys.__stdout__ is not None
        return sys.__stdout__
    log_file = LogFile.fromFullPath(name or "twistd.log", rotateLength=None)
    if not signal.getsignal(signal.SIGUSR1):
        _reopen_on_signal(log_file)
    return cast(TextIO, _Unfailing(log_file))


def _reopen_on_signal(log_file: Any) -> None:
    def reopen(signum: int, frame: FrameType | None) -> None:
        from twisted.internet import reactor

        reactor.callFromThread(log_file.reopen)  # type: ignore[attr-defined]  # the module is the reactor

    signal.signal(signal.SIGUSR1, reopen)


class _Unfailing:
    """A log file whose disk may be full."""

    def __init__(self, log_file: Any) -> None:
        self._log_file = log_file

    def write(self, text: str) -> int:
        try:
            self._log_file.write(text)
        except OSError:
            # A full disk must not stop the service; the line is lost and the next one is tried.
            return 0
        return len(text)

    def flush(self) -> None:
        try:
            self._log_file.flush()
        except OSError:
            return
