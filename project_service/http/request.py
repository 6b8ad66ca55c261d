"""One request as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from attrs import define, field
from twisted.internet.defer import Deferred
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from project_service import errors
from project_service.http import json_body
from project_service.http.admission import Slot
from project_service.http.body import HIGH_WATER, Body
from project_service.http.caller import Access, Caller, Callers
from project_service.http.head import HeaderView, address_block
from project_service.http.json_body import M

# What a waiting request takes in memory beside the bytes that were sent, and each of its headers.
REQUEST_BYTES = 4 * 1024
HEADER_BYTES = 200


@define
class Request:
    """``raw_path`` and ``raw_query`` are as sent, still percent-encoded; ``path_args`` are decoded once.

    ``client_address`` and ``scheme`` come from a forwarding header only as far as ``trusted_proxies`` says.
    ``base_url`` is ``public_url`` where configured, else scheme and host. The handler releases its ``slot`` while it
    waits for something that does not need it: for other clients to read, or for a connection that requests share.
    ``started`` is when the request began, by the reactor's clock. ``any_origin``: pages of every origin may read
    responses. ``callers`` and ``access`` are set if some of the body came after the head. ``outline`` is set by the
    handler: what the log may say of a request whose work is slow. ``span`` is the one of ``tracing``, if any, and
    ``trace_id`` that of its trace for the log; "" if the request is not traced.
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
    started: float = 0.0
    any_origin: bool = False
    caller: Caller = Caller()
    path_args: Mapping[str, str] = field(factory=dict)
    callers: Callers | None = None
    access: Access = Access()
    outline: Callable[[Request], str] | None = None
    span: object = None
    trace_id: str = ""
    _parameters: dict[str, list[str]] | None = field(default=None, init=False)

    def outlined(self) -> str:
        """As ``log.AtWork``."""
        return "" if self.outline is None else self.outline(self)

    def query_value(self, name: str) -> str | None:
        """As ``one_value`` of the query."""
        if not self.raw_query:
            return None
        if self._parameters is None:
            self._parameters = parse_parameters(self.raw_query)
        return one_value(self._parameters, name)

    @property
    def query_key(self) -> str | None:
        """The project key of the parameter ``apikey``. Raises ``invalid_query`` if it is there twice."""
        return self.query_value("apikey") if b"apikey=" in self.raw_query else None

    def refuse_coded_body(self) -> None:
        """Raises ``unsupported_media_type`` for a body with a ``Content-Encoding``: nothing here decodes one."""
        if b"content-encoding" in self.headers and self.body.length != 0:
            codings = b",".join(self.headers.all(b"content-encoding")).lower().split(b",")
            if any(coding.strip() not in (b"", b"identity") for coding in codings):
                raise errors.unsupported_media_type_encoded()

    def end_with_client(self) -> None:
        """Have the handler cancelled also if its client closes the connection in the ordinary way, which by itself
        says only that it sends nothing more: it may still read. To be called before the body is read."""
        self.body.source.watch_client()

    async def read(self, limit: int) -> bytes:
        """The whole body, as ``Body.read``, when it is this request's turn.

        A client may take hours for its body, during which the request has no slot. If its key was revoked, its token
        expired or its session ended in that time, it is refused as if the request began now.
        """
        body = await self.body.read(limit)
        if self.callers is not None:
            await self.admit_again()
        return body

    async def admit_again(self) -> None:
        """To be called when a body has been read: the request waits for its turn, and its caller is identified, as
        far as that was some time ago. Raises as at the beginning of a request."""
        if self.callers is not None:
            if not self.slot.take_if_free():
                await self.wait_for_slot()
            self.caller = await self.callers.identify(self.access, self.headers)

    def wait_for_slot(self) -> Deferred[None]:
        """As ``Slot.wait``, in the line of the request's client."""
        return self.slot.wait(address_block(self.client_address), self._size())

    def _size(self) -> int:
        """About how many bytes of memory the request takes while it waits, with what may come of its body."""
        body = HIGH_WATER if self.body.length is None else min(self.body.length, HIGH_WATER)
        head = sum([len(name) + len(value) + HEADER_BYTES for name, value in self.headers])
        target = len(self.raw_path) + len(self.raw_query)
        return REQUEST_BYTES + target + head + max(body, self.body.received)

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

    def location(self, path: str) -> tuple[str, str]:
        """The header of a 201 that says where the new resource is. ``path`` is not percent-encoded yet.

        It has no scheme and host, so it is right behind a proxy that the service does not know of.
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


def parse_parameters(raw: bytes) -> dict[str, list[str]]:
    """All values of each name, as ``parse_query`` reads them."""
    parameters: dict[str, list[str]] = {}
    for name, value in parse_query(raw):
        parameters.setdefault(name, []).append(value)
    return parameters


def one_value(parameters: dict[str, list[str]], name: str) -> str | None:
    """The one value of ``name``, or None; sent twice it is ``invalid_query``."""
    values = parameters.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise errors.invalid_query(f"The parameter {name} is there more than once.")
    return values[0]


def prefers_html(headers: HeaderView) -> bool:
    """Whether the client asks for HTML, as browsers do, rather than for JSON. ``*/*``, which programs send, does not
    ask for it."""
    accepted = parse_accept_header(b",".join(headers.all(b"accept")).decode("latin-1"), MIMEAccept)
    named = any(kind.partition(";")[0].strip().lower() == "text/html" for kind, _ in accepted)
    return named and 0 < accepted.quality("text/html") >= accepted.quality("application/json")


def _form_decoded(raw: str) -> str:
    try:
        return unquote_to_bytes(raw.replace("+", " ")).decode("utf-8")
    except UnicodeDecodeError:
        raise errors.invalid_query("The query string is not UTF-8.") from None
