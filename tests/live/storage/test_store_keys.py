"""Temporary credentials of the store: they are sent and signed, an expiry is reported, and they can be replaced
without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_twisted
import requests
from attrs import evolve

from project_service.settings.model import Secret, Store
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.errors import StoreError
from tests.live.daemon import Daemon, answers, eventually
from tests.live.storage.scripted_store import Script, against, fine, stored

EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired: hidden</Message></Error>"


@pytest_twisted.ensureDeferred
async def test_each_request_has_the_current_token() -> None:
    script = Script(stored, fine("400 Bad Request", EXPIRED), stored)
    pair = Store(access_key_id="AKIDNEW", secret_access_key=Secret("more-secret"))

    async def work(store: S3Store) -> None:
        await store.put("a", b"1", "text/plain", {})
        store.sign_as(evolve(pair, session_token=Secret("hidden-1")))
        with pytest.raises(StoreError, match=r"ExpiredToken \(HTTP 400\)"):
            await store.put("a", b"2", "text/plain", {})
        store.sign_as(evolve(pair, session_token=Secret("hidden-2")))
        await store.put("a", b"3", "text/plain", {})

    await against(script, work)
    sent = [headers for _, headers, _ in script.requests]
    assert [one.get("x-amz-security-token") for one in sent] == [None, "hidden-1", "hidden-2"]
    assert ["AKIDNEW" in one["authorization"] for one in sent] == [False, True, True]
    assert [";x-amz-security-token," in one["authorization"] for one in sent] == [False, True, True]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_process_uses_a_new_key_pair_from_the_file(
    workers: str, store_settings: Store, tmp_path: Path
) -> None:
    config, file = tmp_path / "c.toml", tmp_path / "credentials"
    config.write_text(
        f"[store]\nendpoint_url = '{store_settings.endpoint_url}'\nbucket = '{store_settings.bucket}'\n"
        f"credentials_file = '{file}'\n"
    )
    assert store_settings.access_key_id is not None and store_settings.secret_access_key is not None
    right = store_settings.secret_access_key.reveal()

    def write(secret: str) -> None:
        file.write_text(
            f"[default]\naws_access_key_id = {store_settings.access_key_id}\n"
            f"aws_secret_access_key = {secret}\n"
        )

    write("not-that-one")
    with Daemon(tmp_path / "var", "--config", str(config), "--workers", workers) as daemon:
        url = daemon.wait_until_ready()

        assert "store" in requests.get(f"{url}/ready", timeout=10).json()["error"]["details"]
        write(right)
        daemon.hang_up("the configuration was reloaded")
        eventually(lambda: answers(f"{url}/ready"), "a store that lets us in")
        # If the file becomes unusable, all processes keep the pair that they have.
        file.write_text("[default]\n")
        daemon.hang_up("the configuration was not reloaded")
        assert answers(f"{url}/ready")
        assert daemon.stop() == 0
        assert "The store refuses: SignatureDoesNotMatch (HTTP 403)" in daemon.text
        assert "not-that-one" not in daemon.text
        assert right not in daemon.text
