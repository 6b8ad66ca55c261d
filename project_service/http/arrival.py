"""Turns an ``Exchange``, which is what came over the connection, into the ``Inbound`` that a handler gets."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen
from twisted.internet.interfaces import IAddress

from project_service.errors import Headers
from project_service.http import cors, forwarding
from project_service.http.exchange import Exchange
from project_service.http.inbound import HasPlace, Inbound
from project_service.log import journal


@frozen
class EdgeSettings:
    """The settings that the edge needs for each request. ``trace_headers`` are names of headers by lane."""

    public_url: str | None
    cors_origins: tuple[str, ...]
    trusted: tuple[forwarding.Network, ...]
    max_json_bytes: int
    trace_headers: Mapping[str, str] = field(factory=dict)


@frozen
class Arrival:
    """What follows from the header lines of a connection's requests and from ``settings``; kept with the lines.

    ``request_id`` is the client's own, None where it sent none that may be used. ``cors`` are the CORS headers of
    responses, None where they depend on the response.
    """

    settings: EdgeSettings
    where: forwarding.Forwarded
    base_url: str
    any_origin: bool
    request_id: str | None
    cors: Headers | None


def arrival_of(settings: EdgeSettings, exchange: Exchange, peer: IAddress, secure: bool) -> Arrival:
    """What follows from the header lines, to be kept with them; ``peer`` is the other end of the connection: the
    client, or a proxy."""
    headers = exchange.headers
    where = forwarding.locate(getattr(peer, "host", None), secure, headers, settings.trusted)
    any_origin = "*" in settings.cors_origins
    found = headers.arrival = Arrival(
        settings,
        where,
        settings.public_url or f"{where.scheme}://{where.host}",
        any_origin,
        journal.sent_request_id(headers.get(b"x-request-id")),
        None
        if any_origin and b"origin" not in headers
        else cors.origin_headers(settings.cors_origins, headers, ()),
    )
    return found


def inbound_of(
    exchange: Exchange, path: bytes, query: bytes, arrival: Arrival, request_id: str, place: HasPlace
) -> Inbound:
    """The request as its handler sees it."""
    where = arrival.where
    return Inbound(
        exchange.method,
        path,
        query,
        exchange.headers,
        exchange.body,
        request_id,
        where.address,
        where.scheme,
        where.host,
        arrival.base_url,
        arrival.settings.max_json_bytes,
        place,
        arrival.any_origin,
    )


def client_of(settings: EdgeSettings, exchange: Exchange, peer: IAddress) -> str:
    """The client as limits count it. It is asked for before there is an ``Inbound``."""
    where = forwarding.locate(getattr(peer, "host", None), False, exchange.headers, settings.trusted)
    return forwarding.place(where.address)
