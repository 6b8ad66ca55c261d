"""The SeaweedFS cluster of docs/operating/stores.rst under load: a volume server is lost and comes back, then a whole
machine is lost. The copies are made and spread again by the commands of the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import requests

from tests.chaos.reading import Reading
from tests.live.daemon import answers, eventually
from tests.live.loaded_service import judge, load_on, make_ledger, started
from tests.live.mixed_load import PACE_SECONDS, PARTS, Load
from tests.live.storage.store_cluster import StoreCluster, store_cluster


def lose_a_volume_server(directory: Path) -> None:
    """Raises ``AssertionError`` where a read fails, writes do not go on, or anything acknowledged is gone."""
    with store_cluster(directory) as cluster, started(directory, more=cluster.section):
        eventually(lambda: _stores(directory), "an object that is stored")
        make_ledger(directory)
        with load_on(directory) as load, Reading(load, PACE_SECONDS) as reading:
            eventually(lambda: load.has_gone_on(dict.fromkeys(PARTS, 0), 60), "objects on every server")
            _during(load, reading, cluster)


def _during(load: Load, reading: Reading, cluster: StoreCluster) -> None:
    since = monotonic()
    first = cluster.addresses[0]

    def known() -> bool:
        return first in cluster.volumes()

    _through(load, reading, "a volume server killed", lambda: cluster.lose(0, ["volume"]))
    eventually(lambda: not known(), "masters that know of the loss")
    _through(load, reading, "its copies made anew", lambda: print(cluster.shell("fix.weed")))
    _through(load, reading, "the volume server started", lambda: cluster.bring_back(0, ["volume"]))
    eventually(known, "masters that know of it again")
    before = cluster.volumes()
    _through(load, reading, "its volumes spread", lambda: print(cluster.shell("balance.weed")))
    eventually(lambda: cluster.copies() == {2}, "two copies of every volume")
    print(f"volumes before {_sizes(before)}, and then {_sizes(cluster.volumes())}")
    _through(load, reading, "a whole machine killed", lambda: cluster.lose(1))
    eventually(lambda: answers(f"{load.base_url}/ready"), "readiness")
    load.stop()
    judge(load, "a volume server of three killed, and later a whole machine", since)


def _through(load: Load, reading: Reading, name: str, fault: Callable[[], object]) -> None:
    """Reads and writes go on during and after ``fault``, and no read fails."""
    since = monotonic()
    fault()
    before, read = load.acknowledged(), reading.counted["download"]
    eventually(lambda: load.has_gone_on(before, 60), "acknowledgements of all three parts")
    eventually(lambda: reading.counted["download"] > read + 100, "downloads of objects on every server")
    print(
        f"{name}: {monotonic() - since:.1f} s; reads {dict(reading.counted)}, refused {reading.refused},"
        f" broken off {reading.broken}",
        flush=True,
    )
    assert reading.wrong == [], reading.wrong[:10]
    assert (reading.refused, reading.broken) == (0, 0)


def _sizes(volumes: dict[str, list[int]]) -> list[int]:
    return [len(listed) for _, listed in sorted(volumes.items())]


def _stores(directory: Path) -> bool:
    """Whether the store takes objects: its first volumes are made when the first one is written."""
    load = load_on(directory)
    url = f"{load.base_url}/storage/buckets/private/objects/first"
    return requests.put(url, data=b"first", headers=load.headers, timeout=30).status_code in {200, 201}
