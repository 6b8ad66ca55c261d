"""What stands in for the parts' own classes while requests are traced, at the one place that all of a kind pass:
requests, waits for connections, statements, requests to the store, password hashes and e-mails.

A span has names of ours and of the operator, numbers and codes, and nothing that came with a request but its method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import count
from time import time_ns
from typing import Any, Generic, TypeVar

from attrs import define, frozen
from opentelemetry.trace import SpanKind
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from project_service.auth.mail import Outbox
from project_service.auth.passwords import Candidates, Hashes
from project_service.database.connection import Connection, Params
from project_service.database.pipeline import Pipeline, Run, Step
from project_service.database.pool import Pool
from project_service.http.admission import Slot
from project_service.http.exchange import Exchange
from project_service.http.head import METHODS
from project_service.http.request import Request
from project_service.http.routing import Match
from project_service.storage.s3.connection import MemoryBody, StoreResponse
from project_service.storage.s3.requests import RetryingClient, Sender
from project_service.tracing.context import Sampler, headers_of, parent_of
from project_service.tracing.spans import Attributes, Recorder, Span, current, kind_of
from project_service.tracing.statements import shape_of

T = TypeVar("T")
# How the semantic conventions call a method that they do not name.
_OTHER = "_OTHER"
_METHODS = frozenset(METHODS)
ADMISSION, CONNECTION = "wait for admission", "wait for a connection"


@frozen
class TracedRequests:
    """Implements ``edge.Traces``."""

    recorder: Recorder
    sampler: Sampler
    clock: IReactorTime

    def traced(
        self,
        answering: Coroutine[Deferred[Any], Any, None],
        exchange: Exchange,
        request: Request,
        match: Match | None,
        waited: bool,
    ) -> Coroutine[Deferred[Any], Any, None]:
        parent = request.headers.derived(parent_of)
        sampled = self.sampler.samples(parent)
        if parent is None and not sampled:
            return answering
        began = time_ns() - int((self.clock.seconds() - request.started) * 1e9)
        span = Span.of_request(parent, sampled, began)
        request.span = span
        if not sampled:
            return answering  # the store gets the caller's wish
        request.trace_id = span.trace_id
        if waited:
            self._waited(span, match)
        request.slot = _TracedSlot(request.slot, self.recorder, match)
        return self._recorded(answering, span, exchange, request, match)

    async def _recorded(
        self,
        answering: Coroutine[Deferred[Any], Any, None],
        span: Span,
        exchange: Exchange,
        request: Request,
        match: Match | None,
    ) -> None:
        try:
            await answering
        finally:
            method = request.method if request.method in _METHODS else _OTHER
            named = "HTTP" if method == _OTHER else method
            route = None if match is None else match.route.url
            about: Attributes = {"http.request.method": method, "url.scheme": request.scheme}
            if route is not None:
                about["http.route"] = route
            status = exchange.status
            if status:
                about["http.response.status_code"] = status
            if not status or status >= 500:
                about["error.type"] = str(status) if status else "client_gone"
            self.recorder.record(
                span, named if route is None else f"{named} {route}", about, SpanKind.SERVER, status >= 500
            )

    def _waited(self, span: Span, match: Match | None) -> None:
        """It waited from its beginning until now."""
        wait = span.child()
        wait.began = span.began
        self.recorder.record(wait, ADMISSION, _of_admission(match))


def _of_admission(match: Match | None) -> Attributes:
    return {} if match is None else {"project_service.admission_class": match.admission}


class _TracedSlot(Slot):
    """The slot of a request that may have to wait for it again when its body has come."""

    def __init__(self, slot: Slot, recorder: Recorder, match: Match | None) -> None:
        self._recorder = recorder
        self._match = match
        self._slot = slot

    def take_if_free(self) -> bool:
        return self._slot.take_if_free()

    def wait(self, client: str, size: int) -> Deferred[None]:
        waiting = self._slot.wait(client, size)
        _record_wait(self._recorder, ADMISSION, _of_admission(self._match), waiting)
        return waiting

    def release(self) -> None:
        self._slot.release()

    def retake(self) -> None:
        self._slot.retake()

    def close(self) -> None:
        self._slot.close()


def _record_wait(recorder: Recorder, name: str, about: Attributes, waiting: Deferred[Any]) -> None:
    """Record how long ``waiting`` takes from now on, as part of the present request."""
    parent = current()
    if parent is not None and parent.sampled:
        waiting.addBoth(_ended, recorder, parent.child(), name, about, SpanKind.INTERNAL)


def _ended(result: Any, recorder: Recorder, span: Span, name: str, about: Attributes, kind: SpanKind) -> Any:
    failed = isinstance(result, Failure)
    recorder.record(span, name, {**about, **_failure(result.value)} if failed else about, kind, failed)
    return result


def _failure(fault: Any) -> Attributes:
    kind = kind_of(fault)
    state = getattr(fault, "pgcode", None)
    return {"error.type": kind, **({"db.response.status_code": state} if state else {})}


# Databases


def watch_waits(pool: Pool, recorder: Recorder, database: str) -> None:
    """Record how long requests wait for a connection of ``pool``."""
    about: Attributes = {"db.namespace": database}
    pool.on_wait = partial(_record_wait, recorder, CONNECTION, about)


def connections(recorder: Recorder, database: str, server: str) -> type[Connection]:
    """A class of connections to ``database`` whose statements are recorded."""
    common: Attributes = {"db.system.name": "postgresql", "db.namespace": database}
    if server != "primary":
        common["project_service.db.server"] = server

    def begun(text: str, role: str) -> tuple[Span, str, Attributes] | None:
        parent = current()
        if parent is None or not parent.sampled:
            return None
        shape = shape_of(text)
        about = dict(common)
        if shape.digest:
            about["project_service.db.shape"] = shape.digest
        if shape.operation:
            about["db.operation.name"] = shape.operation
        if shape.target:
            about["db.collection.name"] = shape.target
        if role:
            about["project_service.db.role"] = role
        name = f"{shape.operation} {shape.target}".strip() or "statement"
        return parent.child(), name, about

    class TracedPipeline(Pipeline):
        def submit(self, version: int, steps: Sequence[Step], timed: bool = False) -> Run:
            span = begun(steps[-1].text, steps[-1].role) if steps else None
            run = super().submit(version, steps, timed)
            if span is not None:
                one, name, about = span
                run.done.addBoth(_ended, recorder, one, name, about, SpanKind.CLIENT)
            return run

    class TracedConnection(Connection):
        pipeline_class = TracedPipeline

        async def execute(self, sql: str | bytes, params: Params = None, opens: bool = True) -> Any:
            span = begun("" if isinstance(sql, bytes) else sql, self.role)
            if span is None:
                return await super().execute(sql, params, opens)
            one, name, about = span
            try:
                cursor = await super().execute(sql, params, opens)
            except BaseException as fault:
                recorder.record(one, name, {**about, **_failure(fault)}, SpanKind.CLIENT, failed=True)
                raise
            recorder.record(one, name, about, SpanKind.CLIENT)
            return cursor

    return TracedConnection


# The store

# Counts the tries of a request to the store, in the coroutine that makes them.
_tries: ContextVar[Iterator[int]] = ContextVar("tries")


@define(eq=False)
class TracedClient(RetryingClient):
    """Says to its ``TracedSender`` which try a request is."""

    async def send(self, method: str, key: str, **more: Any) -> StoreResponse:
        before = _tries.set(count())
        try:
            return await super().send(method, key, **more)
        finally:
            _tries.reset(before)


@define(eq=False)
class TracedSender(Sender):
    """A span for each try, from its beginning until the head of its response is there. The store gets its headers,
    which ``signing`` leaves out of the signature: a proxy on the way may be a span of its own."""

    recorder: Recorder

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        digest: str,
        body: MemoryBody | None,
    ) -> Deferred[StoreResponse]:
        parent = current()
        if parent is None:
            return super().send(method, key, query, headers, digest, body)
        span, number = parent.child(), next(_tries.get(count()))
        headers = {**headers, **headers_of(span.context)}
        sent = super().send(method, key, query, headers, digest, body)
        return sent.addBoth(self._answered, span, method, number)

    def _answered(
        self, result: StoreResponse | Failure, span: Span, method: str, number: int
    ) -> StoreResponse | Failure:
        about: Attributes = {"http.request.method": method, "project_service.store": "s3"}
        if number:
            about["http.request.resend_count"] = number
        if isinstance(result, Failure):
            about["error.type"] = kind_of(result.value)
        else:
            about["http.response.status_code"] = result.code
            if result.code >= 400:
                about["error.type"] = str(result.code)
        self.recorder.record(span, method, about, SpanKind.CLIENT, "error.type" in about)
        return result


# Passwords and e-mails


@frozen
class TracedHashes:
    """Implements ``Hashes`` by ``inner``. The time of a span has in it how long the hash waited for a thread."""

    recorder: Recorder
    inner: Hashes

    async def hash(self, password: bytes) -> bytes:
        with self.recorder.part("hash a password"):
            return await self.inner.hash(password)

    async def matches(self, passwords: Candidates, stored: bytes | None) -> bool:
        with self.recorder.part("check a password"):
            return await self.inner.matches(passwords, stored)

    def outdated(self, stored: bytes) -> bool:
        return self.inner.outdated(stored)


@define(kw_only=True)
class TracedOutbox(Outbox[T], Generic[T]):
    """A span for each try to send an e-mail, in the trace of the request that asked for it, which has ended then."""

    recorder: Recorder

    def send_later(self, write: Callable[[], T]) -> None:
        span = current()
        super().send_later(write if span is None or not span.sampled else _Written(write, span))

    async def deliver(self, write: Callable[[], T]) -> None:
        if not isinstance(write, _Written):
            await super().deliver(write)
            return
        sending: Awaitable[None] = super().deliver(write.write)
        span, about, failed = write.span.child(), dict[str, str | int](), True
        try:
            await sending
            failed = False
        except Exception as fault:
            about = _failure(fault)
            raise
        finally:
            self.recorder.record(span, "send an e-mail", about, SpanKind.CLIENT, failed)


@frozen
class _Written(Generic[T]):
    """What writes an e-mail, and the span of the request that asked for it."""

    write: Callable[[], T]
    span: Span

    def __call__(self) -> T:
        return self.write()
