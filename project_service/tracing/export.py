"""The way of spans to the collector: the SDK's batch processor and exporter, in a thread of the processor's own.

Nobody waits for the collector. While it is away, or slower than spans are made, spans are lost and counted: at most
``QUEUE`` of them wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from project_service.lifecycle import with_timeout
from project_service.settings.model import Tracing

# A span takes about a kilobyte of memory.
QUEUE = 4096
BATCH = 512
DELAY_SECONDS = 1.0
# For a request to the collector, with its repetitions.
EXPORT_SECONDS = 5.0
# How long a stop waits for what is still to be exported, if the collector takes it.
FLUSH_SECONDS = 5.0
# Of the SDK, which logs by Python's own logging.
_SDK = logging.getLogger("opentelemetry")


class FirstMessage(logging.Handler):
    """Keeps what the exporter logs first of an export, which is why spans are not taken; what it says of its further
    tries is that there are no more. Of what else the SDK logs nothing is shown: that a header is invalid, for
    instance, which it quotes."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.text and record.name.startswith(f"{_SDK.name}.exporter."):
            self.text = record.getMessage()


def _exporter(settings: Tracing) -> OTLPSpanExporter:
    lines = [] if settings.headers_file is None else settings.headers_file.reveal().split("\n")
    pairs = [line.partition(":")[::2] for line in lines]
    return OTLPSpanExporter(
        settings.endpoint,
        settings.ca_file,
        headers={name: value.strip() for name, value in pairs},
        timeout=EXPORT_SECONDS,
    )


def why_not_taken(settings: Tracing) -> str:
    """Why the collector does not take traces, "" if it does. It is sent a message without spans, and may take
    ``EXPORT_SECONDS`` to answer, so this is to be called in a thread."""
    exporter, why = _exporter(settings), FirstMessage()
    _SDK.propagate = False
    _SDK.addHandler(why)
    try:
        taken = exporter.export([]) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()
        _SDK.removeHandler(why)
    return "" if taken else why.text or "it does not answer"


class Export(SpanExporter):
    """Spans on their way to ``exporter``. ``put`` is called in the reactor's thread, ``export`` in the processor's.

    ``counted`` is called with an outcome (``Metrics.spans``) and a number of spans, in either thread.
    """

    log = Logger()

    def __init__(self, reactor: Any, exporter: SpanExporter, endpoint: str) -> None:
        self.counted: Callable[[str, int], None] = lambda outcome, count: None
        self._reactor = reactor
        self._exporter = exporter
        self._endpoint = endpoint
        # Each is changed in one thread only.
        self._put = self._taken = 0
        self._failing = False
        self._why = FirstMessage()
        _SDK.propagate = False
        _SDK.addHandler(self._why)
        self._processor = BatchSpanProcessor(
            self,
            max_queue_size=QUEUE,
            schedule_delay_millis=DELAY_SECONDS * 1000,
            max_export_batch_size=BATCH,
        )

    @classmethod
    def of(cls, reactor: Any, settings: Tracing) -> Export:
        assert settings.endpoint is not None
        return cls(reactor, _exporter(settings), settings.endpoint)

    def put(self, span: ReadableSpan) -> None:
        """Have ``span`` exported soon, unless too many wait already."""
        if self._put - self._taken >= QUEUE:
            self.counted("queue_full", 1)
            return
        self._put += 1
        self._processor.on_end(span)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._taken += len(spans)
        self._why.text = ""
        result = self._exporter.export(spans)
        taken = result is SpanExportResult.SUCCESS
        self.counted("exported" if taken else "not_taken", len(spans))
        if taken == self._failing:
            self._failing = not taken
            self._reactor.callFromThread(self._log, taken, self._why.text)
        return result

    def _log(self, taken: bool, why: str) -> None:
        if taken:
            self.log.info("{endpoint} takes traces again", endpoint=self._endpoint)
        else:
            self.log.warn("{endpoint} does not take traces: {why}", endpoint=self._endpoint, why=why)

    async def stop(self, seconds: float) -> None:
        """Export what waits, within ``seconds`` and ``FLUSH_SECONDS``. A collector that has failed gets no time."""
        done: Deferred[None] = Deferred()

        def flush() -> None:
            self._processor.shutdown()
            self._reactor.callFromThread(_fire, done)

        if self._failing:
            self._exporter.shutdown()
        # A daemon: the process may end while the collector is silent.
        Thread(target=flush, name="tracing", daemon=True).start()
        try:
            await with_timeout(self._reactor, min(seconds, FLUSH_SECONDS), done, TimeoutError)
        except TimeoutError:
            self._exporter.shutdown()
        if left := self._put - self._taken:
            self.counted("stopped", left)
            self.log.warn("{count} spans of traces were lost at the end", count=left)
        _SDK.removeHandler(self._why)


def _fire(done: Deferred[None]) -> None:
    if not done.called:
        done.callback(None)
