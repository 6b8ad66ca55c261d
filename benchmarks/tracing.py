"""What tracing costs: a row and an insert with a ``sample_ratio`` of 1 and 0.1, beside a service that traces nothing.

``python -m benchmarks.tracing [--rounds 5] [--seconds 3] [--workers 1]``. The collector is a process that takes all.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

from benchmarks import tables
from benchmarks.load import Costed
from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import Running, service

RATIOS = (1.0, 0.1)


class _Taken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # the name that the library has
        """Nothing is printed."""


def _collect(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taken)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """The address of a collector."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_collect, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1/traces"
    finally:
        process.kill()


def _settings(endpoint: str, ratio: float) -> Mapping[str, str]:
    return {
        "PROJECT_SERVICE__TRACING__ENDPOINT": endpoint,
        "PROJECT_SERVICE__TRACING__SAMPLE_RATIO": str(ratio),
    }


def measure(off: Running, traced: Mapping[float, Running], rounds: int, seconds: float) -> Iterator[Row]:
    for case in (tables.ROW, tables.INSERT):
        services = [off, *traced.values()]
        costed = [Costed(case.request(one), (one.cpu_seconds,)) for one in services]
        rates = interleaved(rounds, *(lambda one=one: one.rate(seconds) for one in costed))
        for ratio, rate, cost in zip(traced, rates[1:], costed[1:], strict=True):
            used, usual = cost.microseconds[0], costed[0].microseconds[0]
            beside = f"off {rates[0]:.0f}/s, {used - usual:+.0f} us of {usual:.0f}"
            yield Row(f"{case.name}, {ratio:g} of all traced", f"{rate:.0f}/s", beside, rate / rates[0], 0.5)


def measured(rounds: int, seconds: float, workers: int = 1) -> list[Row]:
    with ExitStack() as stack:
        endpoint = stack.enter_context(collector())
        off = stack.enter_context(service(workers))
        traced = {
            ratio: stack.enter_context(service(workers, _settings(endpoint, ratio))) for ratio in RATIOS
        }
        for one in (off, *traced.values()):
            one.sql(tables.SCHEMA)
        return show(measure(off, traced, rounds, seconds))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    print(HEADING)
    measured(given.rounds, given.seconds, given.workers)


if __name__ == "__main__":
    main()
