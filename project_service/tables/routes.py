"""The table API's routes: ``/{stage}/db/{database}/rest`` and everything below."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from attrs import evolve, frozen

from project_service.errors import has_header
from project_service.http.caller import presented_key
from project_service.http.cors import TABLE_EXPOSED
from project_service.http.headers import HeaderView
from project_service.http.inbound import Inbound, parse_query
from project_service.http.outbound import NO_STORE, Reply, StreamReply
from project_service.http.router import Router
from project_service.tables import described, errors
from project_service.tables.errors import TableError
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
        is_service = inbound.caller.key == "service"
        incoming = Incoming(
            inbound.method,
            *_resource(inbound.raw_path),
            # PostgREST ignores a name without ``=``.
            tuple(parse_query(inbound.raw_query, bare_names=False)),
            inbound.headers.derived(_sent),
            await inbound.read(inbound.max_json_bytes) if inbound.method in WRITING else b"",
            inbound.raw_path.decode("latin-1"),
            inbound.base_url,
            is_service,
            inbound.place,
        )
        try:
            reply = await service.answer(incoming)
        except TableError as fault:
            service.finish_error(fault, incoming)
            raise
        if is_service and not has_header(reply.headers, "Cache-Control"):
            # Without Authorization no rule keeps a cache from storing this and showing it to others (RFC 9111
            # section 3.5 is about that header alone). SQL may decide otherwise.
            reply = evolve(reply, headers=(*reply.headers, NO_STORE))
        if b"origin" not in inbound.headers.first:
            return reply
        return evolve(reply, headers=(*reply.headers, TABLE_EXPOSED))


@lru_cache(maxsize=1024)
def _resource(raw_path: bytes) -> tuple[tuple[str, ...], str]:
    """The path's segments below the base path, decoded, and the path of these as PostgREST would see it. An encoded
    slash is part of a name and separates nothing.

    Raises PGRST125 where they are not UTF-8.
    """
    below = raw_path.split(b"/", _BASE.count("/") + 1)[_BASE.count("/") + 1 :]
    raw = below[0].strip(b"/") if below else b""
    try:
        segments = [unquote_to_bytes(segment).decode() for segment in raw.split(b"/")] if raw else []
    except UnicodeDecodeError:
        raise errors.invalid_path() from None
    return tuple(segments), "/" + "/".join(segments)


def _sent(headers: HeaderView) -> Sent:
    pairs = [(name.decode("latin-1"), read_utf8(value)) for name, value in headers]
    return Sent.of(pairs, presented_key(headers))
