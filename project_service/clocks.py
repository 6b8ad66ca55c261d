"""Two clocks: one that never steps, for timeouts, pauses and ages; the calendar's, for what others read."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any


def count_steadily(reactor: Any) -> None:
    """Make ``reactor`` count its seconds by the monotonic clock.

    Twisted's reactors count by ``time.time``: when that is set back an hour, no timeout ends and no loop runs for an
    hour, and when it is set forward all end at once. To be called before anything is scheduled. ``reactor.seconds()``
    tells no date any more; who needs one asks ``time.time``.
    """
    reactor.seconds = time.monotonic


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds and ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
