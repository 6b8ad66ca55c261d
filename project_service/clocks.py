"""The two clocks: a monotonic one for timeouts, pauses and ages, and the calendar's for whatever others get to
read."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any


def count_steadily(reactor: Any) -> None:
    """Make ``reactor`` count its seconds by the monotonic clock.

    Twisted's reactors use ``time.time``. When that clock is set back by an hour, no timeout ends and no loop runs for
    an hour; when it is set forward, all of them end at once. Call this before anything is scheduled. Afterwards
    ``reactor.seconds()`` is no date any more; code that needs the date calls ``time.time``.
    """
    reactor.seconds = time.monotonic


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
