"""Builds the client of the store that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from project_service.settings.model import Store
from project_service.storage.s3.client import S3Store
from project_service.storage.s3.endpoint import store_endpoint
from project_service.storage.s3.pool import ConnectionPool
from project_service.storage.s3.retrying import RetryingClient
from project_service.storage.s3.sender import Sender
from project_service.storage.s3.sign import Address, Signer
from project_service.storage.s3.treq_client import TreqClient


def connect(
    reactor: Any,
    settings: Store,
    *,
    now: Callable[[], datetime],
    in_thread: Callable[..., Any],
    ca_pem: bytes | None = None,
) -> S3Store:
    """The store client. Opens nothing yet; ``ca_pem`` replaces the system's certificate authorities."""
    address = Address(settings.endpoint_url or "", settings.bucket, settings.addressing_style)
    endpoint = store_endpoint(reactor, address, settings.connect_timeout_seconds, ca_pem)
    pool = ConnectionPool(reactor, endpoint, settings.max_connections)
    sender = Sender(TreqClient(pool, reactor), address, Signer.of(settings), now)
    requests = RetryingClient(
        sender, reactor, settings.idle_timeout_seconds, settings.connect_timeout_seconds
    )
    return S3Store(requests, in_thread, pool.close)
