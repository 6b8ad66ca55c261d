"""``/live``, ``/ready`` (also ``/health``) and ``/metrics``: no key needed, nothing secret shown."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from attrs import define, evolve, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.errors import ApiError
from project_service.http.describe import JSON, STRING, Answer, Operation, exactly
from project_service.http.metrics import Metrics
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import Policy, Router, endpoint
from project_service.lifecycle import all_of, background, start, with_timeout

Check = Callable[[], Coroutine[Any, Any, None]]

# A check that has not returned by then has failed.
CHECK_SECONDS = 5.0
READY_SECONDS = 1.0  # for how long a good answer of ``/ready`` is reused
# Adding up the numbers of all workers takes tens of milliseconds, and anybody may ask for them all the time. So a
# response is reused for this many times as long as it took to make. If the machine stood still meanwhile, that would
# be minutes, hence a limit in seconds.
METRICS_REUSE = 20
METRICS_SECONDS = 5.0

TAG = "service"


class NotReady(RuntimeError):
    """Raised by a check whose words may be shown in the log. Of any other failure only the kind is, since its words
    may hold a secret."""


def not_ready(away: Mapping[str, str]) -> ApiError:
    return ApiError(503, "not_ready", "A part of the service is away.", away, (NO_STORE,), counted=True)


def _status(word: str) -> Answer:
    return Answer(200, f"It is {word}.", {JSON: exactly(status={"const": word})})


_READY = Operation(
    "ready", TAG, "Whether every part works", (_status("ready"),), errors=(not_ready({}),), needs=()
)


@define(eq=False)
class Health:
    """Answers these paths. ``checks`` are made for ``/ready``, by name; a check raises if its part does not work.
    There is only one round of checks at a time."""

    checks: Mapping[str, Check]
    metrics: Metrics
    clock: IReactorTime
    log: Logger = field(default=Logger(), init=False)
    _ready_at: float = field(default=float("-inf"), init=False)
    _exposed: bytes = field(default=b"", init=False)
    _exposed_at: float = field(default=float("inf"), init=False)
    _exposed_until: float = field(default=float("-inf"), init=False)
    _checking: bool = field(default=False, init=False)
    _waiting: list[Deferred[dict[str, str]]] = field(factory=list, init=False)
    # What the log says of the parts that are away.
    _logged: dict[str, str] = field(factory=dict, init=False)

    def mount(self, router: Router) -> None:
        # Pages have no use for what operators ask, hence no CORS headers.
        router.of_part(Policy(cors=False)).mount(self)

    @endpoint(
        "GET",
        "/live",
        Operation("live", TAG, "Whether the process answers", (_status("live"),), needs=()),
        key="optional",
        bearer="own",
    )
    async def live(self, request: Request) -> Reply:
        """200 as long as the process answers."""
        return json_reply({"status": "live"}, headers=(NO_STORE,))

    @endpoint("GET", "/ready", _READY, key="optional", bearer="own")
    async def ready(self, request: Request) -> Reply:
        """200 when every part works, else 503 whose details name those that do not."""
        if names := await self.away():
            raise not_ready(names)
        return json_reply({"status": "ready"}, headers=(NO_STORE,))

    @endpoint("GET", "/health", evolve(_READY, name="health"), key="optional", bearer="own")
    async def health(self, request: Request) -> Reply:
        """As ``/ready``, at the path where many monitors ask first."""
        return await self.ready(request)

    @endpoint(
        "GET",
        "/metrics",
        Operation(
            "metrics",
            TAG,
            "Counters for Prometheus",
            (Answer(200, "Its text format", {"text/plain": STRING}),),
            needs=(),
        ),
        key="optional",
        bearer="own",
    )
    async def exposition(self, request: Request) -> Reply:
        if not self._exposed_at <= self.clock.seconds() < self._exposed_until:
            self._exposed_at = self.clock.seconds()
            self._exposed = self.metrics.exposition()
            ended = self.clock.seconds()
            self._exposed_until = ended + min(METRICS_REUSE * (ended - self._exposed_at), METRICS_SECONDS)
        return Reply(200, (("Content-Type", self.metrics.content_type), NO_STORE), self._exposed)

    async def away(self) -> Mapping[str, str]:
        """What is away, by the names of ``checks``, and what to say of it.

        A good result is reused for a second, and those who ask during a round share its result, so that asking often
        costs the parts nothing.
        """
        if self.clock.seconds() - self._ready_at <= READY_SECONDS:
            return {}
        away: Deferred[dict[str, str]] = Deferred()
        self._waiting.append(away)
        if not self._checking:
            self._checking = True
            background(self._check_all(), "asking every part")
        return await away

    async def _check_all(self) -> None:
        """Make every check once, for all requests that wait. It runs in the background, since the request that began
        it may leave before the others."""
        away = await self._away()
        self._checking = False
        if not away:
            self._ready_at = self.clock.seconds()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(away)

    async def _away(self) -> dict[str, str]:
        """What is away, by name. It is logged when that changes: monitors ask every few seconds."""
        failures = await failing(self.checks, self.clock)
        away = {name: _why(failure) for name, failure in failures.items()}
        for name, why in away.items():
            if self._logged.get(name) != why:
                self.log.warn("not ready: {part} ({why})", part=name, why=why)
        for name in self._logged:
            if name not in away:
                self.log.info("ready again: {part}", part=name)
        self._logged = away
        return dict.fromkeys(away, "does not answer as it should")


async def failing(
    checks: Mapping[str, Check], clock: IReactorTime, seconds: float = CHECK_SECONDS
) -> dict[str, Exception]:
    """The failures of ``checks``, by name; one that takes longer than ``seconds`` fails. All are made at the same
    time, so that several which do not return take no longer than one."""
    failures: dict[str, Exception] = {}

    def silent() -> NotReady:
        return NotReady(f"it has not answered in {seconds:g} s")

    async def make(name: str, check: Check) -> None:
        try:
            await with_timeout(clock, seconds, start(check()), silent)
        except Exception as failure:
            failures[name] = failure

    await all_of(make(name, check) for name, check in checks.items())
    return {name: failures[name] for name in checks if name in failures}


def _why(failure: Exception) -> str:
    if isinstance(failure, NotReady):
        return str(failure)
    return failure.code if isinstance(failure, ApiError) else type(failure).__name__
