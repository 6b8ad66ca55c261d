"""``/live``, ``/ready`` and ``/metrics``: no key needed, nothing secret shown."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from project_service.errors import ApiError
from project_service.http.describe import JSON, STRING, Answer, Operation, exactly
from project_service.http.metrics import Metrics
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import Policy, Router
from project_service.lifecycle import all_of, background, start, with_timeout

Check = Callable[[], Coroutine[Any, Any, None]]

# A part that has not answered by then is not ready.
CHECK_SECONDS = 5.0
STANDS_SECONDS = 1.0
# Adding up the numbers of all workers takes tens of milliseconds, and anybody may ask for them all the time. So an
# answer is reused for this many times as long as it took to make.
METRICS_STAND = 20

TAG = "service"


class NotReady(RuntimeError):
    """Raised by a check whose words may be shown in the log. Of any other fault only the kind is, since its words may
    hold a secret."""


def not_ready(away: Mapping[str, str]) -> ApiError:
    return ApiError(503, "not_ready", "A part of the service is away.", away, (NO_STORE,), counted=True)


def _says(word: str) -> Answer:
    return Answer(200, f"It is {word}.", {JSON: exactly(status={"const": word})})


LIVE = Operation("live", TAG, "Whether the process answers", (_says("live"),), needs=())
READY = Operation(
    "ready", TAG, "Whether every part works", (_says("ready"),), errors=(not_ready({}),), needs=()
)
METRICS = Operation(
    "metrics",
    TAG,
    "Counters for Prometheus",
    (Answer(200, "Its text format", {"text/plain": STRING}),),
    needs=(),
)


@define(eq=False)
class Health:
    """Answers the three paths. ``checks`` are made for ``/ready``, by name; a check raises where its part does not
    work.

    There is only one round of checks at a time.
    """

    checks: Mapping[str, Check]
    metrics: Metrics
    clock: IReactorTime
    log: Logger = field(default=Logger(), init=False)
    _good_at: float = field(default=float("-inf"), init=False)
    _shown: bytes = field(default=b"", init=False)
    _shown_at: float = field(default=float("inf"), init=False)
    _shown_until: float = field(default=float("-inf"), init=False)
    _under_way: bool = field(default=False, init=False)
    _waiting: list[Deferred[dict[str, str]]] = field(factory=list, init=False)

    def mount(self, router: Router) -> None:
        # Pages have no use for what operators ask, hence no CORS headers.
        operators = router.of_part(Policy(cors=False))
        for url, said, handler in (
            ("/live", LIVE, self.live),
            ("/ready", READY, self.ready),
            ("/metrics", METRICS, self.exposition),
        ):
            operators.route(url, said, methods=("GET",), key="optional", bearer="own")(handler)

    async def live(self, request: Request) -> Reply:
        """200 as long as the process answers."""
        return json_reply({"status": "live"}, headers=(NO_STORE,))

    async def ready(self, request: Request) -> Reply:
        """200 when every part works, else 503 whose details name those that do not.

        A good answer is reused for a second, and requests that come during a round share its answer, so that asking
        often costs the parts nothing.
        """
        if self.clock.seconds() - self._good_at > STANDS_SECONDS:
            away = await self._round()
            if away:
                raise not_ready(away)
        return json_reply({"status": "ready"}, headers=(NO_STORE,))

    def _round(self) -> Deferred[dict[str, str]]:
        """Fires with what is away, by name. Cancelling it leaves the round to the others that wait for it."""
        waiting: Deferred[dict[str, str]] = Deferred()
        self._waiting.append(waiting)
        if not self._under_way:
            self._under_way = True
            background(self._ask_all(), "asking every part")
        return waiting

    async def _ask_all(self) -> None:
        away = await self._away()
        self._under_way = False
        if not away:
            self._good_at = self.clock.seconds()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(away)

    async def _away(self) -> dict[str, str]:
        """All parts are asked at the same time, so that several which do not answer take no longer than one."""
        faults: dict[str, Exception] = {}

        async def ask(name: str, check: Check) -> None:
            try:
                await with_timeout(self.clock, CHECK_SECONDS, start(check()), TimeoutError)
            except Exception as fault:
                faults[name] = fault

        await all_of(ask(name, check) for name, check in self.checks.items())
        away = [name for name in self.checks if name in faults]
        for name in away:
            self.log.warn("{part} is not ready: {why}", part=name, why=_why(faults[name]))
        return dict.fromkeys(away, "does not answer as it should")

    async def exposition(self, request: Request) -> Reply:
        if not self._shown_at <= self.clock.seconds() < self._shown_until:
            self._shown_at = self.clock.seconds()
            self._shown = self.metrics.exposition()
            ended = self.clock.seconds()
            self._shown_until = ended + METRICS_STAND * (ended - self._shown_at)
        return Reply(200, (("Content-Type", self.metrics.content_type), NO_STORE), self._shown)


def _why(fault: Exception) -> str:
    if isinstance(fault, NotReady):
        return str(fault)
    return fault.code if isinstance(fault, ApiError) else type(fault).__name__
