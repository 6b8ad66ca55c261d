"""The root of a database's table API: its OpenAPI description, or the result of a function of the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from attrs import evolve, frozen

from project_service.deferreds import InThread
from project_service.http.outbound import Reply, Sink, StreamReply
from project_service.tables import errors
from project_service.tables.config import TablesConfig
from project_service.tables.execution.work import Row
from project_service.tables.headers import VARY, as_utf8
from project_service.tables.incoming import Incoming
from project_service.tables.model import SchemaCache
from project_service.tables.openapi.document import document, public_url
from project_service.tables.openapi.rights import rights_sql
from project_service.tables.parse import media
from project_service.tables.parse.request import Head
from project_service.tables.respond.outcome import as_bytes
from project_service.tables.sql.fragment import Sql

RunReadOnly = Callable[[Sql], Awaitable[list[Row]]]
_NOTHING = Sql("SELECT 1")


@frozen
class Root:
    """``in_thread`` runs what makes the description in a thread: for a thousand tables it takes most of a second."""

    config: TablesConfig
    in_thread: InThread

    def delegated(self, head: Head) -> Head | None:
        """The head for a call of the function that answers here instead, if ``root_spec`` names one. A name without a
        schema means the request's schema."""
        if self.config.root_spec is None:
            return None
        schema, _, name = self.config.root_spec.rpartition(".")
        return evolve(head, kind="routine", schema=schema or head.schema, name=name)

    async def answer(
        self, cache: SchemaCache, incoming: Incoming, head: Head, run: RunReadOnly
    ) -> Reply | StreamReply:
        """The description. Raises PGRST107 and PGRST126, and what ``run`` raises.

        ``run`` runs a query as the caller. There always is one, so that the database, or the pre-request function,
        can refuse the caller.
        """
        if self.config.openapi == "disabled":
            raise errors.root_disabled()
        profile = (("Content-Profile", as_utf8(head.schema)),) if head.profiled else ()
        headers = (("Content-Type", _content_type(head)), *profile, VARY)
        follows = self.config.openapi == "follow-privileges" and head.method != "HEAD"
        rows = await run(rights_sql(head.schema) if follows else _NOTHING)
        if head.method == "HEAD":
            return StreamReply(200, headers, None, nothing)
        usable, callable_ = None, None
        if follows:
            usable, callable_ = (frozenset(orjson.loads(as_bytes(names))) for names in rows[0])
        url = self._url(incoming)
        secured = self.config.openapi_security_active

        def described() -> bytes:
            return orjson.dumps(document(cache, head.schema, url, usable, callable_, secured))

        return Reply(200, headers, await self.in_thread(described))

    def _url(self, incoming: Incoming) -> str:
        """The URL at which clients reach the root."""
        said = self.config.openapi_server_proxy_uri
        return public_url(said) if said is not None else incoming.base_url + incoming.path.rstrip("/")


def _content_type(head: Head) -> str:
    for wanted in head.accept:
        if wanted.name in (media.ANY, media.OPENAPI):
            return media.MediaType(media.OPENAPI).content_type
        if wanted.name == media.JSON:
            return wanted.content_type
    raise errors.unacceptable_media([wanted.shown for wanted in head.accept])


async def nothing(sink: Sink) -> None:
    """Writes no body, for a HEAD, whose length is not worked out either."""
