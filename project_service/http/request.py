"""One request as its handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from attrs import define, field, frozen
from twisted.internet.interfaces import IAddress

from project_service import errors, log
from project_service.errors import Headers
from project_service.http import cors, head, json_body
from project_service.http.admission import Slot
from project_service.http.body import Body
from project_service.http.caller import Caller
from project_service.http.exchange import Exchange
from project_service.http.head import HeaderView
from project_service.http.json_body import M


@define
class Request:
    """``raw_path`` and ``raw_query`` are as sent, still percent-encoded; ``path_args`` are decoded once.

    ``client_address`` and ``scheme`` come from a forwarding header only as far as ``trusted_proxies`` says.
    ``base_url`` is ``public_url`` where configured, else scheme and host. ``identify`` works out the caller once
    more, and raises where key or token are no longer good; it is None where the whole body had come with the head.
    ``turn`` waits for a slot, which the request has released while it waited for its body; it is None likewise.
    The handler releases its ``slot`` while it waits for something that does not need it: for other clients to read,
    or for a connection that requests share. ``any_origin``: pages of every origin may read responses.
    """

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: HeaderView
    body: Body
    request_id: str
    client_address: str
    scheme: str
    host: str
    base_url: str
    max_json_bytes: int
    slot: Slot
    any_origin: bool = False
    caller: Caller = field(factory=Caller)
    path_args: Mapping[str, str] = field(factory=dict)
    identify: Callable[[], Awaitable[Caller]] | None = None
    turn: Callable[[], Awaitable[None]] | None = None

    def query(self, bare_names: bool = True) -> list[tuple[str, str]]:
        """As ``parse_query``."""
        return parse_query(self.raw_query, bare_names)

    def query_value(self, name: str) -> str | None:
        """The one value of ``name``, or None; sent twice it is ``invalid_query``."""
        if not self.raw_query:
            return None
        values = [value for key, value in self.query() if key == name]
        if len(values) > 1:
            raise errors.invalid_query(f"The parameter {name} is there more than once.")
        return values[0] if values else None

    def refuse_coded_body(self) -> None:
        """Raises ``unsupported_media_type`` for a body with a ``Content-Encoding``: nothing here decodes one."""
        if b"content-encoding" in self.headers and self.body.length != 0:
            codings = b",".join(self.headers.all(b"content-encoding")).lower().split(b",")
            if any(coding.strip() not in (b"", b"identity") for coding in codings):
                raise errors.content_encoded()

    async def read(self, limit: int) -> bytes:
        """The whole body, as ``Body.read``, when it is this request's turn.

        A client may take hours for its body. If its key was revoked, its token expired or its session ended in the
        meantime, it is refused as if the request began now.
        """
        body = await self.body.read(limit)
        if self.turn is not None:
            await self.turn()
        if self.identify is not None:
            self.caller = await self.identify()
        return body

    async def json(self) -> Any:
        """The body as JSON: RFC 8259, at most ``max_json_bytes``, no duplicate keys.

        Raises ``unsupported_media_type``, ``payload_too_large`` or ``invalid_json``.
        """
        if not self.declares_json():
            raise errors.unsupported_media_type("application/json")
        return json_body.strict_loads(await self.read(self.max_json_bytes))

    def declares_json(self) -> bool:
        declared = (self.headers.text(b"content-type") or "").partition(";")[0].strip().lower()
        return declared == "application/json" or declared.endswith("+json")

    async def json_object(self) -> dict[str, Any]:
        """As ``json``, and ``invalid_json`` where the value is not an object."""
        value = await self.json()
        if not isinstance(value, dict):
            raise errors.invalid_json("The body must be a JSON object.")
        return value

    async def read_json(self, model: type[M], unknown: str = "is not known here") -> M:
        """As ``json_object``, and as ``json_body.read`` with the ``model`` of the body."""
        return json_body.read(model, await self.json_object(), unknown)

    async def members(self, *known: str) -> dict[str, Any]:
        """As ``json_object``, and ``validation_failed`` naming all members that are not ``known``."""
        given = await self.json_object()
        errors.refuse_unknown(given, known)
        return given

    def location(self, path: str) -> tuple[str, str]:
        """The header of a 201 that says where the new resource is. ``path`` is not percent-encoded yet.

        It has no scheme and host, so it is right behind a proxy of which the service has not been told.
        """
        return "Location", urlsplit(self.base_url).path.rstrip("/") + quote(path)


def parse_query(raw: bytes, bare_names: bool = True) -> list[tuple[str, str]]:
    """Names and values in the order sent. Only ``&`` separates, and ``+`` is a space.

    A name without ``=`` has the value "", or is left out where ``bare_names`` is False. Raises ``invalid_query``
    where the decoded bytes are not UTF-8.
    """
    pairs = []
    encoded = b"%" in raw or b"+" in raw
    for piece in raw.decode("latin-1").split("&"):
        if piece:
            name, equals, value = piece.partition("=")
            if encoded:
                name, value = _form_decoded(name), _form_decoded(value)
            if equals or bare_names:
                pairs.append((name, value))
    return pairs


def _form_decoded(raw: str) -> str:
    try:
        return unquote_to_bytes(raw.replace("+", " ")).decode("utf-8")
    except UnicodeDecodeError:
        raise errors.invalid_query("The query string is not UTF-8.") from None


# Turns an ``Exchange``, which is what came over the connection, into the ``Request`` that a handler gets.


@frozen
class EdgeSettings:
    """The settings that the edge needs for each request. ``trace_headers`` are names of headers by lane."""

    public_url: str | None
    cors_origins: tuple[str, ...]
    trusted: tuple[head.Network, ...]
    max_json_bytes: int
    trace_headers: Mapping[str, str] = field(factory=dict)


@frozen
class Arrival:
    """What follows from the header lines of a connection's requests and from ``settings``; kept with the lines.

    ``request_id`` is the client's own, None where it sent none that may be used. ``cors`` are the CORS headers of
    responses, None where they depend on the response.
    """

    settings: EdgeSettings
    where: head.Forwarded
    base_url: str
    any_origin: bool
    request_id: str | None
    cors: Headers | None


def arrival_of(settings: EdgeSettings, exchange: Exchange, peer: IAddress, secure: bool) -> Arrival:
    """What follows from the header lines, to be kept with them; ``peer`` is the other end of the connection: the
    client, or a proxy."""
    headers = exchange.headers
    where = head.locate(getattr(peer, "host", None), secure, headers, settings.trusted)
    any_origin = "*" in settings.cors_origins
    found = headers.arrival = Arrival(
        settings,
        where,
        settings.public_url or f"{where.scheme}://{where.host}",
        any_origin,
        log.sent_request_id(headers.get(b"x-request-id")),
        None
        if any_origin and b"origin" not in headers
        else cors.origin_headers(settings.cors_origins, headers, ()),
    )
    return found


def inbound_of(
    exchange: Exchange, path: bytes, query: bytes, arrival: Arrival, request_id: str, slot: Slot
) -> Request:
    """The request as its handler sees it."""
    where = arrival.where
    return Request(
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
        slot,
        arrival.any_origin,
    )


def client_of(settings: EdgeSettings, exchange: Exchange, peer: IAddress) -> str:
    """The client as limits count it. It is asked for before there is an ``Request``."""
    where = head.locate(getattr(peer, "host", None), False, exchange.headers, settings.trusted)
    return head.address_block(where.address)
