"""What is logged meanwhile, and by nobody else."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from twisted.logger import LogEvent, capturedLogs


@contextmanager
def captured_logs() -> Iterator[Sequence[LogEvent]]:
    """``capturedLogs`` with the collector at rest: coroutines that other tests have left behind say that their client
    is gone when they are collected, and that may be at any moment."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        with capturedLogs() as events:
            yield events
    finally:
        if was_on:
            gc.enable()
