"""Storage beside its limit: the same bytes fetched from the store by a bare client. ``make bench`` runs it.

Starts a service of its own (``twistd project-service`` on a temporary data directory), measures from outside, prints
a table. Ratios are of this run on this machine; nothing is asserted.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg2
import requests

from benchmarks import storage_load
from project_service.settings import Secret, Store
from project_service.storage.s3.sign import Address, Signer

MIB = 1024 * 1024
ROOT = Path(__file__).parents[1]
READY = re.compile(r"project-service is ready on (http://\S+)")


class Service:
    """A running service and how to reach what is behind it."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        argv = [str(Path(sys.executable).with_name("twistd")), "--nodaemon", "--pidfile=", "project-service"]
        listen = ["--listen", "tcp:0:interface=127.0.0.1", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*argv, *listen, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.url = self._ready()
        threading.Thread(target=self._drain, daemon=True).start()
        keys = json.loads((data_dir / "credentials.json").read_text())
        self.dsn: str = keys["dsn"]
        self.headers = {"X-Service-Key": keys["service_key"]}
        self.host, port = self.url.removeprefix("http://").split(":")
        self.port = int(port)

    def _ready(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match = READY.search(line)
            if match:
                return match[1]
        raise RuntimeError("the service did not start")

    def _drain(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            pass

    def object_url(self, key: str) -> str:
        return f"{self.url}/storage/buckets/private/objects/{key}"

    def resident(self) -> float:
        """MiB in real memory; Linux, proc(5)."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class BareStore:
    """Signed requests straight to the store, with as little between as Python allows."""

    def __init__(self, store: Store) -> None:
        assert store.endpoint_url is not None
        assert store.secret_access_key is not None
        self._address = Address(store.endpoint_url, store.bucket)
        self._signer = Signer(store.access_key_id or "", store.secret_access_key.reveal(), store.region)
        self._session = requests.Session()

    def request(self, method: str, key: str, body: bytes = b"") -> requests.Response:
        from datetime import UTC, datetime
        from hashlib import sha256

        url = self._address.url(key)
        headers = self._signer.headers(method, url, {}, sha256(body).hexdigest(), datetime.now(UTC))
        return self._session.request(method, url, headers=headers, data=body or None, stream=True)


def drained(response: requests.Response) -> int:
    """The length of a body that is read and thrown away."""
    response.raise_for_status()
    size = 0
    while data := response.raw.read(MIB):
        size += len(data)
    return size


def best(work: Callable[[], Any], times: int = 3) -> float:
    """The shortest of several runs, in seconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def throughput(service: Service, bare: BareStore) -> None:
    payload = os.urandom(64 * MIB)
    session = requests.Session()
    up = best(
        lambda: session.put(
            service.object_url("large"), headers=service.headers, data=payload
        ).raise_for_status()
    )
    up_bare = best(lambda: bare.request("PUT", "bench/large", payload).raise_for_status())
    path = "private/" + version_of(service, "large")

    def down_service() -> None:
        assert drained(session.get(service.object_url("large"), headers=service.headers, stream=True)) == len(
            payload
        )

    def down_bare() -> None:
        assert drained(bare.request("GET", path)) == len(payload)

    down, down_store = best(down_service, 5), best(down_bare, 5)
    show("upload of 64 MiB", f"{64 / up:.0f} MiB/s", f"store {64 / up_bare:.0f} MiB/s", up_bare / up, 0.7)
    show(
        "download of 64 MiB",
        f"{64 / down:.0f} MiB/s",
        f"store {64 / down_store:.0f} MiB/s",
        down_store / down,
        0.8,
    )


def small_requests(service: Service, seconds: float) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in service.headers.items())
    number = itertools.count()
    body = b"x" * 4096

    def put() -> bytes:
        path = f"/storage/buckets/private/objects/small/{next(number)}"
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 4096\r\n\r\n"
        return head.encode() + body

    def get() -> bytes:
        path = f"/storage/buckets/private/objects/small/{next(number) % 500}"
        return f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()

    puts, put_statuses = storage_load.run(service.host, service.port, put, 16, seconds)
    number = itertools.count()
    gets, get_statuses = storage_load.run(service.host, service.port, get, 16, seconds)
    show("PUT of 4 KiB, 16 clients", f"{puts:.0f}/s", str(put_statuses), puts, 400)
    show("GET of 4 KiB, 16 clients", f"{gets:.0f}/s", str(get_statuses), gets, 1500)


def memory(service: Service, size: int) -> None:
    before = service.resident()
    peak = watched(service, lambda pool: list(pool.map(lambda n: upload(service, n, size), range(16))))
    limit = 16 * 2 * 8 + 32
    show(
        f"memory, 16 uploads of {size // MIB} MiB",
        f"+{peak - before:.0f} MiB",
        f"from {before:.0f} MiB",
        peak - before,
        limit,
    )
    before = service.resident()
    peak = watched(service, lambda pool: list(pool.map(lambda n: download(service, n, size), range(16))))
    show(
        f"memory, 16 downloads of {size // MIB} MiB",
        f"+{peak - before:.0f} MiB",
        f"from {before:.0f} MiB",
        peak - before,
        32,
    )


def watched(service: Service, work: Callable[[ThreadPoolExecutor], Any]) -> float:
    """The greatest resident memory of the service while ``work`` runs, in MiB."""
    peak = [service.resident()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], service.resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(16) as pool:
        work(pool)
    done.set()
    watcher.join()
    return peak[0]


def upload(service: Service, number: int, size: int) -> None:
    block = os.urandom(MIB)
    stream = (block for _ in range(size // MIB))
    requests.put(service.object_url(f"m{number}"), headers=service.headers, data=stream).raise_for_status()


def download(service: Service, number: int, size: int) -> None:
    response = requests.get(service.object_url(f"m{number}"), headers=service.headers, stream=True)
    assert drained(response) == size


def slow_readers(service: Service, readers: int) -> None:
    """Everyone asks for 64 MiB and reads 64 KiB a second."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in service.headers.items())
    before = service.resident()
    sockets = []
    for _ in range(readers):
        one = socket.create_connection((service.host, service.port))
        one.sendall(f"GET /storage/buckets/private/objects/large HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        sockets.append(one)
    peak = before
    for _ in range(10):
        for one in sockets:
            one.recv(65536)
        peak = max(peak, service.resident())
        time.sleep(0.5)
    for one in sockets:
        one.close()
    show(
        f"memory, {readers} slow readers of 64 MiB",
        f"+{peak - before:.0f} MiB",
        f"from {before:.0f} MiB",
        peak - before,
        readers * 0.5,
    )


def listing(service: Service) -> None:
    """1,000,000 rows: 1,000 folders of 1,000, and one folder of them all. Database time of a page of 100."""
    connection = psycopg2.connect(service.dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    for bucket, key in (
        ("folders", "'d' || lpad((n / 1000)::text, 4, '0') || '/' || n"),
        ("flat", "'one/' || lpad(n::text, 7, '0')"),
    ):
        cursor.execute("select storage.create_bucket(%s, 'private', null, null, null, false)", (bucket,))
        cursor.execute(
            f"insert into storage.objects (bucket, key, version, size, content_type, etag) select %s, {key},"
            " gen_random_uuid(), 1, 'a/b', 'e' from generate_series(0, 999999) n",
            (bucket,),
        )
    cursor.execute("analyze storage.objects")
    from project_service.storage.sql import pages

    for bucket, prefix, after, recursive in (
        ("folders", "", None, False), ("folders", "", "d0500/", False), ("folders", "", "d0898/", False),
        ("folders", "d0500/", None, False), ("folders", "", "d0999/999800", True), ("flat", "", None, False),
        ("flat", "one/", None, False), ("flat", "one/", "one/0500000", False), ("flat", "one/", "one/0999000", False),
    ):  # fmt: skip
        sql, params = pages.query(bucket, prefix, after, 100, recursive)
        times = []
        for _ in range(5):
            cursor.execute("explain (analyze, timing off, format json) " + sql, params)
            plan = cursor.fetchone()[0][0]
            times.append(plan["Planning Time"] + plan["Execution Time"])
        kind = "recursive " if recursive else ""
        what = f"{kind}page of 100: {bucket} {prefix or '(all)'} after {after or 'the start'}"
        show(what, f"{min(times):.1f} ms", f"worst of 5: {max(times):.1f} ms", max(times), 10)
    connection.close()


def version_of(service: Service, key: str) -> str:
    connection = psycopg2.connect(service.dsn)
    cursor = connection.cursor()
    cursor.execute("select version from storage.objects where bucket = 'private' and key = %s", (key,))
    version: str = cursor.fetchone()[0]
    connection.close()
    return version


def show(what: str, measured: str, beside: str, value: float, goal: float) -> None:
    print(f"{what:<62} {measured:>12}   {beside:<34} {value:8.2f}  (goal {goal:g})", flush=True)


def store_of(service: Service) -> Store:
    from project_service.embedded.assemble import running_beside

    running = running_beside(service.data_dir)
    assert running is not None
    store: Any = running.store
    secret = store.secret_access_key
    return Store(
        endpoint_url=store.endpoint_url,
        region=store.region,
        bucket=store.bucket,
        access_key_id=store.access_key_id,
        secret_access_key=secret if isinstance(secret, Secret) else Secret(secret),
    )


def main() -> None:
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "var", *[word for word in sys.argv[1:] if word != "--quick"])
        try:
            throughput(service, BareStore(store_of(service)))
            small_requests(service, 2 if quick else 6)
            slow_readers(service, 200)
            memory(service, (32 if quick else 256) * MIB)
            if not quick:
                listing(service)
        finally:
            service.stop()


if __name__ == "__main__":
    main()
