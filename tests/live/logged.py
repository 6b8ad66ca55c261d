"""Collects what is logged as an error while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer, provider


@implementer(ILogObserver)
class LoggedErrors:
    """An observer that keeps error and critical events until they are flushed."""

    def __init__(self) -> None:
        self._events: list[LogEvent] = []

    def __call__(self, event: LogEvent) -> None:
        if event.get("log_level", LogLevel.info) >= LogLevel.error:
            self._events.append(event)

    def flush(self, *wanted: type[BaseException] | str) -> list[LogEvent]:
        """Remove and return the events with a failure of one of these types, or with one of these texts; without
        arguments all."""
        flushed = [event for event in self._events if not wanted or _matches(event, wanted)]
        self._events = [event for event in self._events if event not in flushed]
        return flushed

    def raise_if_any(self) -> None:
        if self._events:
            # Not pytest.fail, which trial ignores in a cleanup because it raises no Exception.
            raise AssertionError(
                "\n".join(["errors were logged during the test:", *map(_described, self._events)])
            )


def errors_logged(test: SynchronousTestCase) -> LoggedErrors:
    """For trial's tests, since trial only counts logged failures: at the end, errors that are left fail ``test``."""
    seen = LoggedErrors()
    globalLogPublisher.addObserver(seen)
    test.addCleanup(seen.raise_if_any)
    test.addCleanup(globalLogPublisher.removeObserver, seen)
    return seen


@contextmanager
def warnings_logged() -> Iterator[list[str]]:
    """Collects what is logged as a warning in the context. Errors fail the test anyway."""
    seen: list[str] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        if event.get("log_level") == LogLevel.warn:
            seen.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        yield seen
    finally:
        globalLogPublisher.removeObserver(observe)


def _matches(event: LogEvent, wanted: tuple[type[BaseException] | str, ...]) -> bool:
    failure = event.get("log_failure")
    text = formatEvent(event)
    return any(
        one in text if isinstance(one, str) else failure is not None and bool(failure.check(one))
        for one in wanted
    )


def _described(event: LogEvent) -> str:
    failure = event.get("log_failure")
    return formatEvent(event) + (f"\n{failure.getTraceback()}" if failure is not None else "")
