"""Captures what is logged during a test."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from twisted.logger import ILogObserver, LogEvent, capturedLogs, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase


def logged_until_the_end(test: SynchronousTestCase) -> list[LogEvent]:
    """A list to which all events are added that are logged before ``test`` ends."""
    events: list[LogEvent] = []
    observer = cast(ILogObserver, events.append)
    globalLogPublisher.addObserver(observer)
    test.addCleanup(globalLogPublisher.removeObserver, observer)
    return events


@contextmanager
def captured_logs() -> Iterator[Sequence[LogEvent]]:
    """``capturedLogs`` with garbage collection switched off. Otherwise coroutines that other tests have left behind
    may be collected meanwhile, and log that their client is gone."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        with capturedLogs() as events:
            yield events
    finally:
        if was_on:
            gc.enable()
