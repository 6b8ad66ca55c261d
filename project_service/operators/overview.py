"""``GET /admin/overview``: how the service is, and how the last hour was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import define, field, frozen
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from project_service import __version__
from project_service.database.pool import Pool
from project_service.errors import validation_failed
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    MOMENT,
    STRING,
    Answer,
    Named,
    Operation,
    Parameter,
    Schema,
    array,
    exactly,
)
from project_service.http.health import Health
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import all_of, shield, start, with_timeout
from project_service.operators.history import SECONDS, TURN_SAMPLES, History, Process, Total, quantile
from project_service.storage.values import Bucket
from project_service.whole_numbers import from_digits

TAG = "operators"
# How long sizes that were asked for are shown again, and how long an answer waits for new ones.
SIZES_SECONDS = 30.0
SIZES_WAIT_SECONDS = 2.0
# So many buckets are named; all are counted.
MAX_BUCKETS = 100

_SIZE = "select pg_database_size(current_database())"

_SECONDS_OR_NULL: Schema = {
    "type": ["number", "null"],
    "minimum": 0,
    "description": "In seconds; null without requests.",
}
_FIGURES: Mapping[str, Schema | Named] = {
    "requests": COUNT,
    "refused": COUNT,
    "failed": COUNT,
    "p50": _SECONDS_OR_NULL,
    "p99": _SECONDS_OR_NULL,
}
SAMPLE = Named(
    "OverviewSample",
    exactly(time=MOMENT, **_FIGURES, clients=COUNT, busy=COUNT, waiting=COUNT, memory_bytes=COUNT),
)
OVERVIEW = Named(
    "Overview",
    exactly(
        version=STRING,
        time=MOMENT,
        parts=array(exactly(name=STRING, works=BOOLEAN)),
        processes=array(
            exactly(pid=COUNT, started_at=MOMENT, memory_bytes=COUNT, clients=COUNT, requests=COUNT)
        ),
        clients=exactly(open=COUNT, max=COUNT),
        pools=array(exactly(name=STRING, max=COUNT, open=COUNT, busy=COUNT, waiting=COUNT)),
        interval_seconds={"const": SECONDS},
        samples=array(SAMPLE),
        last_hour=exactly(**_FIGURES, codes=array(exactly(status=COUNT, code=STRING, count=COUNT))),
        sizes={
            "oneOf": [
                exactly(
                    measured_at=MOMENT,
                    databases=array(exactly(name=STRING, bytes=COUNT)),
                    buckets=array(exactly(name=STRING, object_count=COUNT, total_bytes=COUNT)),
                    bucket_count=COUNT,
                    object_count=COUNT,
                    total_bytes=COUNT,
                ),
                {"type": "null"},
            ]
        },
    ),
)


@define(eq=False)
class Sizes:
    """How large the databases and buckets are. ``databases`` are pools by the name that is shown. They are asked once
    in ``SIZES_SECONDS``, however many ask, and also if that fails."""

    log = Logger()

    databases: Mapping[str, Pool]
    buckets: Callable[[], Awaitable[Sequence[Bucket]]]
    clock: IReactorTime
    now: Callable[[], float]
    known: dict[str, Any] | None = field(default=None, init=False)
    _asked: float = field(default=float("-inf"), init=False)

    async def current(self) -> dict[str, Any] | None:
        """What is known: None before the first success, and what was known before if there is no answer in time."""
        if self.clock.seconds() - self._asked >= SIZES_SECONDS:
            self._asked = self.clock.seconds()
            try:
                await with_timeout(self.clock, SIZES_WAIT_SECONDS, shield(self._ask()), TimeoutError)
            except Exception as fault:
                self.log.debug("sizes are not known: {why}", why=type(fault).__name__)
        return self.known

    async def _ask(self) -> None:
        found: dict[str, int] = {}

        async def measure(name: str, pool: Pool) -> None:
            ((found[name],),) = await pool.query(_SIZE)

        await all_of(measure(name, pool) for name, pool in self.databases.items())
        buckets = sorted(await self.buckets(), key=lambda bucket: (-bucket.total_bytes, bucket.name))
        self.known = {
            "measured_at": _moment(self.now()),
            "databases": [{"name": name, "bytes": size} for name, size in found.items()],
            "buckets": [
                {"name": one.name, "object_count": one.object_count, "total_bytes": one.total_bytes}
                for one in buckets[:MAX_BUCKETS]
            ],
            "bucket_count": len(buckets),
            "object_count": sum(one.object_count for one in buckets),
            "total_bytes": sum(one.total_bytes for one in buckets),
        }


@frozen(eq=False)
class Overview:
    health: Health
    history: History
    sizes: Sizes
    clock: IReactorTime
    now: Callable[[], float]

    @endpoint(
        "GET",
        "/admin/overview",
        Operation(
            "overview",
            TAG,
            "How the service is, and how the last hour was",
            (Answer(200, "All processes of this service on this machine together", {JSON: OVERVIEW}),),
            (Parameter("after", "Only samples after this time, in seconds since 1970.", COUNT),),
            details="Each sample says what happened in the ten seconds before its time, and what was open at their "
            "end. `refused` are answers with a status of 400 to 499, `failed` those of 500 and above. `busy` "
            "counts connections to databases. Sizes are measured once in half a minute, and null while the "
            "database has not answered.",
        ),
    )
    async def show(self, request: Request) -> Reply:
        after = _after(request)
        sizes = start(self.sizes.current())
        away = await self.health.away()
        hour = await self.history.hour(self._turn)
        samples = []
        total = Total()
        for n, (time, one) in enumerate(hour.totals.items()):
            if n % TURN_SAMPLES == 0:
                await self._turn()
            total.add(one)
            if time > after:
                samples.append(_sample(time, one))
        codes = sorted(total.codes.items(), key=lambda one: (-one[1], one[0]))
        return json_reply(
            {
                "version": __version__,
                "time": _moment(self.now()),
                "parts": [{"name": name, "works": name not in away} for name in self.health.checks],
                "processes": [_process(one) for one in hour.processes],
                "clients": {
                    "open": sum(one.clients for one in hour.processes),
                    "max": sum(one.max_clients for one in hour.processes),
                },
                "pools": _pools(hour.processes),
                "interval_seconds": SECONDS,
                "samples": samples,
                "last_hour": {
                    **_figures(total),
                    "codes": [_code(name, count) for name, count in codes],
                },
                "sizes": await sizes,
            },
            headers=(NO_STORE,),
        )

    async def _turn(self) -> None:
        await deferLater(self.clock, 0)


def _after(request: Request) -> int:
    text = request.query_value("after")
    if text is None:
        return 0
    number = from_digits(text)
    if number is None or number < 0:
        raise validation_failed({"after": "must be a whole number of seconds since 1970"})
    return number


def _process(one: Process) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "started_at": _moment(one.started),
        "memory_bytes": one.memory,
        "clients": one.clients,
        "requests": one.requests,
    }


def _pools(processes: Sequence[Process]) -> list[dict[str, Any]]:
    sums: dict[str, list[int]] = {}
    for one in processes:
        for name, numbers in one.pools.items():
            sums[name] = [sum(pair) for pair in zip(sums.get(name, (0, 0, 0, 0)), numbers, strict=True)]
    return [
        {"name": name, "max": most, "open": opened, "busy": busy, "waiting": waiting}
        for name, (most, opened, busy, waiting) in sums.items()
    ]


def _code(name: str, count: int) -> dict[str, Any]:
    status, _, code = name.partition(" ")
    return {"status": int(status), "code": code, "count": count}


def _figures(one: Total) -> dict[str, Any]:
    return {
        "requests": one.requests,
        "refused": one.refused,
        "failed": one.failed,
        "p50": quantile(one.buckets, 0.5),
        "p99": quantile(one.buckets, 0.99),
    }


def _sample(time: int, one: Total) -> dict[str, Any]:
    return {
        "time": _moment(time),
        **_figures(one),
        "clients": one.clients,
        "busy": one.busy,
        "waiting": one.waiting,
        "memory_bytes": one.memory,
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
