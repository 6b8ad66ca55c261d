"""The table API's routes: ``/{stage}/db/{database}/rest`` and everything below."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from attrs import evolve, frozen

from project_service.http.caller import presented_key
from project_service.http.cors import TABLE_EXPOSED
from project_service.http.headers import HeaderView
from project_service.http.inbound import Inbound
from project_service.http.outbound import NO_STORE, Reply, StreamReply
from project_service.http.router import Router
from project_service.tables import described, errors
from project_service.tables.headers import read_utf8
from project_service.tables.incoming import Incoming, Sent
from project_service.tables.parse.request import READING, WRITING
from project_service.tables.service import TableService

_BASE = "/<stage>/db/<database>/rest"


@frozen
class TableRoutes:
    """``services`` by stage and database."""

    services: Mapping[tuple[str, str], TableService]

    def mount(self, router: Router) -> None:
        at_root = (*READING, "OPTIONS")
        for url, said, methods in (
            (_BASE, described.AT_ROOT, at_root),
            (f"{_BASE}/<path:below>", described.BELOW, (*at_root, *WRITING)),
        ):
            # Other methods come to the handler too, so that they are refused as PostgREST does it.
            router.route(url, *said, methods=methods, any_method=True, bearer="own", errors="tables")(
                self.answer
            )

    async def answer(self, inbound: Inbound) -> Reply | StreamReply:
        service = self.services.get((inbound.path_args["stage"], inbound.path_args["database"]))
        if service is None:
            raise errors.invalid_path()
        reply = await service.answer(await _incoming(inbound))
        if inbound.caller.is_service and not any(
            name.lower() == "cache-control" for name, _ in reply.headers
        ):
            # Without Authorization no rule keeps a cache from storing this and showing it to others (RFC 9111
            # section 3.5 is about that header alone). SQL may decide otherwise.
            reply = evolve(reply, headers=(*reply.headers, NO_STORE))
        if b"origin" not in inbound.headers:
            return reply
        return evolve(reply, headers=(*reply.headers, TABLE_EXPOSED))


async def _incoming(inbound: Inbound) -> Incoming:
    below = inbound.path_args.get("below", "")
    try:
        below.encode("utf-8")
    except UnicodeEncodeError:
        raise errors.invalid_path() from None
    body = b""
    if inbound.method in WRITING:
        body = await inbound.read(inbound.max_json_bytes)
    return Incoming(
        inbound.method,
        _segments(below.strip("/"), inbound.raw_path),
        # PostgREST ignores a name without ``=``.
        tuple(inbound.query(bare_names=False)),
        inbound.headers.derived(_sent),
        body,
        inbound.raw_path.decode("latin-1"),
        inbound.base_url,
        inbound.headers.derived(presented_key),
        inbound.caller.is_service,
        inbound.client_awaited,
    )


def _segments(below: str, raw_path: bytes) -> tuple[str, ...]:
    """The path's segments, decoded. An encoded slash is part of a name and separates nothing."""
    if b"%2f" not in raw_path.lower():
        return tuple(below.split("/")) if below else ()
    raw = raw_path.split(b"/", _BASE.count("/") + 1)[-1].strip(b"/")
    return tuple(unquote_to_bytes(segment).decode() for segment in raw.split(b"/"))


def _sent(headers: HeaderView) -> Sent:
    return Sent.of((name.decode("latin-1"), read_utf8(value)) for name, value in headers)
