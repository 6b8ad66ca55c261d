"""Captures what a test logs, and nothing that others log meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from twisted.logger import LogEvent, capturedLogs


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
