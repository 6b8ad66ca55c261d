"""The root of a database's table API: its OpenAPI description, or the result of a function of the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256

import orjson
from attrs import evolve, field, frozen
from werkzeug.http import parse_etags

from project_service.deferreds import InThread
from project_service.http.outbound import Reply, Sink, StreamReply
from project_service.tables import errors
from project_service.tables.bounded_cache import BoundedCache
from project_service.tables.config import TablesConfig
from project_service.tables.execution.execute import Row
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
# How many descriptions are kept: for a few roles, schemas and addresses. One of a thousand tables has two megabytes.
_KEPT = 8


@frozen
class Description:
    body: bytes = field(repr=False)
    etag: str

    @classmethod
    def of(cls, body: bytes) -> Description:
        return cls(body, sha256(body).hexdigest()[:32])


@frozen
class Root:
    """``in_thread`` runs what makes the description in a thread: for a thousand tables it takes most of a second.

    Descriptions are kept. Which one is sent follows from what the caller may use at that moment, which PostgreSQL is
    asked each time: a GRANT to a role changes no table.
    """

    config: TablesConfig
    in_thread: InThread
    _kept: BoundedCache[Description] = field(factory=lambda: BoundedCache[Description](_KEPT), init=False)

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
        """The description, or 304 if the caller has it. Raises PGRST107 and PGRST126, and what ``run`` raises.

        ``run`` runs a query as the caller. There always is one, so that the database, or the pre-request function,
        can refuse the caller.
        """
        if self.config.openapi == "disabled":
            raise errors.root_disabled()
        profile = (("Content-Profile", as_utf8(head.schema)),) if head.profiled else ()
        content_type = _content_type(head)
        follows = self.config.openapi == "follow-privileges"
        rights = (await run(rights_sql(head.schema) if follows else _NOTHING))[0]
        description = await self._described(
            cache, head.schema, self._url(incoming), rights if follows else None
        )
        # The same bytes are another representation where they have another media type.
        etag = f"{description.etag}-{'json' if content_type.startswith(media.JSON) else 'openapi'}"
        headers = (*profile, ("ETag", f'"{etag}"'), VARY)
        if _has(incoming, etag):
            return StreamReply(304, headers, None, nothing)
        headers = (("Content-Type", content_type), *headers)
        if head.method == "HEAD":
            return StreamReply(200, headers, None, nothing)
        return Reply(200, headers, description.body)

    async def _described(self, cache: SchemaCache, schema: str, url: str, rights: Row | None) -> Description:
        """``rights`` are the row of ``rights_sql``; None means all."""
        texts = [as_bytes(names) for names in rights] if rights is not None else []
        key = (cache.version, schema, url, sha256(b"\0".join(texts)).digest() if texts else None)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        usable, callable_ = (frozenset(orjson.loads(text)) for text in texts) if texts else (None, None)
        secured = self.config.openapi_security_active

        def made() -> Description:
            return Description.of(orjson.dumps(document(cache, schema, url, usable, callable_, secured)))

        description = await self.in_thread(made)
        return self._kept.made(key, lambda: description)

    def _url(self, incoming: Incoming) -> str:
        """The URL at which clients reach the root."""
        said = self.config.openapi_server_proxy_uri
        return public_url(said) if said is not None else incoming.base_url + incoming.path.rstrip("/")


def _content_type(head: Head) -> str:
    for wanted in head.accept:
        if wanted.refused:
            continue
        if wanted.name in (media.ANY, media.OPENAPI):
            return media.MediaType(media.OPENAPI).content_type
        if wanted.name == media.JSON:
            return wanted.content_type
    raise errors.unacceptable_media([wanted.shown for wanted in head.accept])


def _has(incoming: Incoming, etag: str) -> bool:
    """Whether the caller already has the representation with this tag (RFC 9110 section 13.1.2)."""
    stated = ", ".join(value for name, value in incoming.headers.pairs if name == "if-none-match")
    return bool(stated) and parse_etags(stated).contains_weak(etag)


async def nothing(sink: Sink) -> None:
    """Writes no body, for a HEAD, whose length is not worked out either."""
