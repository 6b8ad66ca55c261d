"""What ``/metrics`` shows of databases: connections, slow statements, and reads on standbys. Each is asked for its
numbers when they are written, so that counting costs requests nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge


class Counted(Protocol):
    """What is slow, and how much there was of it (``database.slow``)."""

    @property
    def count(self) -> int: ...


class Connections(Protocol):
    """Those to a database (``database.pool``): how many there may be, how many there are and are in use, and how many
    callers wait for one."""

    @property
    def size(self) -> int: ...

    @property
    def slow(self) -> Counted: ...

    @property
    def open(self) -> int: ...

    @property
    def busy(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class Standbys(Protocol):
    """Those that reads of a database may go to (``database.readers``): how many reads were sent to a "reader" or the
    "primary", and why, and by the name of each how many seconds old what it shows may be."""

    @property
    def served(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def staleness(self) -> Mapping[str, float]: ...


class DatabaseMetrics:
    """These of all databases of this process, by the names that operators see."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, help_text: str) -> Gauge:
            name = f"project_service_database_{name}"
            return Gauge(name, help_text, ("pool",), registry=registry, multiprocess_mode="livesum")

        self._open = gauge("connections", "Connections to databases.")
        self._max_open = gauge("connections_max", "Connections to databases that there may be.")
        self._busy = gauge("connections_used", "Connections to databases in use.")
        self._waiting = gauge("callers_waiting", "Callers that wait for a connection to a database.")
        self._slow = Counter(
            "project_service_slow_statements_total",
            "Statements that took slow_query_seconds or longer.",
            ("pool",),
            registry=registry,
        )
        self._reads = Counter(
            "project_service_reads_total",
            "Reads that standbys might answer, by the server that they were sent to, and why to the primary.",
            ("pool", "server", "reason"),
            registry=registry,
        )
        self._staleness = Gauge(
            "project_service_reader_staleness_seconds",
            "How old what a standby shows may be; +Inf where that is not known, 0 where it is the primary now. "
            "Of several processes the worst.",
            ("pool", "reader"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._pools: Mapping[str, Connections] = {}
        self._readers: Mapping[str, Standbys] = {}
        # How much of what others count has been written.
        self._slow_before: dict[str, int] = {}
        self._reads_before: dict[tuple[str, str, str], int] = {}

    def watch_pools(self, pools: Mapping[str, Connections]) -> None:
        """Ask ``pools`` whenever numbers are written."""
        self._pools = pools
        for name, pool in pools.items():
            self._max_open.labels(name).set(pool.size)
            self._slow.labels(name)

    def watch_readers(self, readers: Mapping[str, Standbys]) -> None:
        """The same of the standbys, by the names of their primaries' pools."""
        self._readers = readers

    def write(self) -> None:
        for name, pool in self._pools.items():
            self._open.labels(name).set(pool.open)
            self._busy.labels(name).set(pool.busy)
            self._waiting.labels(name).set(pool.waiting)
            if pool.slow.count > (before := self._slow_before.get(name, 0)):
                self._slow.labels(name).inc(pool.slow.count - before)
                self._slow_before[name] = pool.slow.count
        for name, standbys in self._readers.items():
            for reader, seconds in standbys.staleness.items():
                self._staleness.labels(name, reader).set(seconds)
            for (server, reason), count in standbys.served.items():
                before = self._reads_before.get((name, server, reason), 0)
                self._reads.labels(name, server, reason).inc(count - before)
                self._reads_before[name, server, reason] = count
