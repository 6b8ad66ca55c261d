"""Turns an ``Exchange``, which is what came over the connection, into the ``Inbound`` that a handler gets."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen
from twisted.internet.interfaces import IAddress

from project_service.http import forwarding
from project_service.http.exchange import Exchange
from project_service.http.inbound import Inbound


@frozen
class EdgeSettings:
    """The settings that the edge needs for each request. ``trace_headers`` are names of headers by lane."""

    public_url: str | None
    cors_origins: tuple[str, ...]
    trusted: tuple[forwarding.Network, ...]
    max_json_bytes: int
    trace_headers: Mapping[str, str] = field(factory=dict)


def inbound_of(
    settings: EdgeSettings, exchange: Exchange, peer: IAddress, secure: bool, request_id: str
) -> Inbound:
    """The request as its handler sees it. ``peer`` is the other end of the connection: the client, or a proxy."""
    raw_path, _, raw_query = exchange.target.partition(b"?")
    where = forwarding.locate(getattr(peer, "host", None), secure, exchange.headers, settings.trusted)
    return Inbound(
        method=exchange.method,
        raw_path=raw_path,
        raw_query=raw_query,
        headers=exchange.headers,
        body=exchange.body,
        request_id=request_id,
        client_address=where.address,
        scheme=where.scheme,
        host=where.host,
        base_url=settings.public_url or f"{where.scheme}://{where.host}",
        max_json_bytes=settings.max_json_bytes,
        client_awaited=exchange.client_awaited,
        any_origin="*" in settings.cors_origins,
    )


def client_of(settings: EdgeSettings, exchange: Exchange, peer: IAddress) -> str:
    """The client as limits count it. It is asked for before there is an ``Inbound``."""
    where = forwarding.locate(getattr(peer, "host", None), False, exchange.headers, settings.trusted)
    return forwarding.place(where.address)
