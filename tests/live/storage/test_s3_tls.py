"""The store over HTTPS."""

from __future__ import annotations

from hashlib import md5
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_twisted
from twisted.internet import ssl

from project_service.settings.model import Secret, Store
from project_service.storage.s3.client import S3Store, connect_store
from project_service.storage.s3.errors import UNTRUSTED, StoreUnreachable
from tests.certificates import issue
from tests.live.services import store_client
from tests.live.storage.scripted_store import Script, against, stored


def authority() -> tuple[bytes, Any]:
    """A certificate authority as PEM, and a TLS context with its certificate for 127.0.0.1."""
    root = issue("a test authority")
    mine = issue("localhost", root, authority=False)
    return root.pem, ssl.PrivateCertificate.loadPEM(mine.key_pem + mine.pem).options()


@pytest_twisted.ensureDeferred
async def test_https_with_a_custom_certificate_authority() -> None:
    ca_pem, context = authority()
    other_pem, _ = authority()

    async def works(store: S3Store) -> None:
        assert await store.put("k", b"x" * 300_000, "a/b", {}) == md5(b"x" * 300_000).hexdigest()

    async def refuses(store: S3Store) -> None:
        with pytest.raises(StoreUnreachable, match=UNTRUSTED):
            await store.put("k", b"x", "a/b", {})

    await against(Script(stored), works, context, ca_pem)
    for untrusted in (other_pem, None):
        script = Script(*[stored] * 4)
        await against(script, refuses, context, untrusted)
        assert script.requests == []


@pytest_twisted.ensureDeferred
async def test_the_certificate_authority_of_the_settings_is_read_from_its_file(tmp_path: Path) -> None:
    from twisted.internet import reactor

    ca_pem, context = authority()
    (tmp_path / "ca.pem").write_bytes(ca_pem)
    listen = cast(Any, reactor).listenSSL(0, Script(stored), context, interface="127.0.0.1")
    settings = Store(
        endpoint_url=f"https://127.0.0.1:{listen.getHost().port}",
        access_key_id="a",
        secret_access_key=Secret("b"),
        ca_file=str(tmp_path / "ca.pem"),
        connect_timeout_seconds=1.0,
    )
    store = connect_store(reactor, settings)
    assert await store.put("k", b"x", "a/b", {}) == md5(b"x").hexdigest()
    await store.close()
    await listen.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_another_name_is_refused() -> None:
    """127.0.0.2 reaches the same server on Linux, but its certificate is not for it."""
    from twisted.internet import reactor

    ca_pem, context = authority()
    script = Script(*[stored] * 4)
    listen = cast(Any, reactor).listenSSL(0, script, context, interface="127.0.0.2")
    settings = Store(
        endpoint_url=f"https://127.0.0.2:{listen.getHost().port}",
        access_key_id="a",
        secret_access_key=Secret("b"),
        connect_timeout_seconds=1.0,
    )
    store = store_client(settings, ca_pem)
    with pytest.raises(StoreUnreachable, match="VerificationError"):
        await store.stat("k")
    assert script.requests == []
    await store.close()
    await listen.stopListening()
