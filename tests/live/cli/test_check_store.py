"""``project-service check`` with a store that cannot be used, and with a clock that is wrong."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from project_service.cli import check
from project_service.settings.model import Secret, Store
from project_service.storage.assemble import connect_store
from tests.live.cli.command_here import beside_the_reactor, commands_of, on_reactor, reactor
from tests.live.storage.cli import config_file
from tests.temporary import free_port


@beside_the_reactor
def test_why_a_store_cannot_be_used_is_said(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to HEAD, which says nothing, is not enough for that."""
    assert store_settings.endpoint_url is not None

    def said(**changes: Any) -> list[str]:
        config = config_file(database, evolve(store_settings, **changes), tmp_path)
        lines = commands_of(monkeypatch, "--config", config)("check").out.splitlines()
        return [line for line in lines if " store: " in line]

    refused = "FAIL  store: the store refuses: {} (HTTP 403)".format
    away = "FAIL  store: the store cannot be reached: {}".format
    assert said(secret_access_key=Secret("wrong")) == [refused("SignatureDoesNotMatch")]
    assert said(access_key_id="nobody") == [refused("InvalidAccessKeyId")]
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert said(endpoint_url=nowhere) == [away("no server listens there")]
    plain = store_settings.endpoint_url.replace("http:", "https:")
    assert said(endpoint_url=plain) == [away("no TLS is spoken there")]


@beside_the_reactor
def test_the_object_it_writes_as_a_test_is_removed(
    database: str, store_settings: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []

    async def left() -> None:
        store = connect_store(reactor, store_settings)
        found.extend((await store.list()).objects)
        await store.close()

    checked = commands_of(monkeypatch, "--config", config_file(database, store_settings, tmp_path))("check")
    assert f"ok    store: bucket {store_settings.bucket} can be written and read\n" in checked.out
    on_reactor(left())
    assert found == []


@pytest.mark.parametrize(
    ("off", "reuse", "says"),
    [
        *((-40, 0, "behind"), (40, 0, "ahead of"), (-20, 0, None), (20, 0, None)),
        *((-8, 10, "behind"), (8, 10, "ahead of"), (-3, 10, None), (3, 10, None)),
        *((40, 600, "ahead of"), (20, 600, None)),
    ],
)
@beside_the_reactor
def test_a_clock_that_differs_from_the_databases_is_reported(
    off: int,
    reuse: int,
    says: str | None,
    database: str,
    store_settings: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may differ by as much as a token may come from the future, or by half the time in which a refresh token
    may be repeated."""
    monkeypatch.setenv("PROJECT_SERVICE__AUTH__REFRESH_REUSE_SECONDS", str(reuse))
    monkeypatch.setattr(check, "time", SimpleNamespace(time=lambda: time.time() + off))
    config = config_file(database, store_settings, tmp_path)
    checked = commands_of(monkeypatch, "--config", config)("check", "--json")
    (clock,) = (one for one in checked.json["parts"] if one["part"] == "clock")
    assert clock["ok"] is (says is None)
    assert (says or "as") in clock["message"]
