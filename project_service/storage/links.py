"""Links: a random token that opens one object, or takes one upload, until it expires or is used up.

A browser that prefetches does not use one up, and a download that broke off can be continued for a while. A link for
an upload is used up by the upload that makes an object, in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from html import escape
from uuid import UUID

from attrs import frozen

from project_service.errors import ApiError
from project_service.http.head import HeaderView
from project_service.http.request import prefers_html
from project_service.http.response import NO_STORE
from project_service.storage import errors, keys
from project_service.storage.durations import CONTINUE_WITHIN
from project_service.storage.parsing.conditions import continues
from project_service.storage.rows.links import LinkRows
from project_service.storage.values import (
    NEW_ONLY,
    Conditions,
    Identity,
    Link,
    ObjectRow,
    UploadTerms,
    Writer,
)

MAX_EXPIRES_IN_SECONDS = 604800
MAX_USES = 1_000_000

# Without it a browser would send the next site the URL of a page opened by a link, and with it the token.
NO_REFERRER = ("Referrer-Policy", "no-referrer")
LINK_HEADERS = (NO_STORE, NO_REFERRER)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ font: 1.1em sans-serif; max-width: 30em; margin: 4em auto }}</style></head>
<body><h1>{title}</h1><p>{message}</p><p>{advice}</p></body></html>
"""
_INCOMPLETE = "Its address was changed, or cut short on the way."
_NO_LINK = ("This link does not work", "Ask whoever gave it to you for a new one.")
_NO_UPLOAD = ("The file was not uploaded", "Go back and try another file.")
_OF_LINKS = ("token_not_found", "token_used", "token_expired")
_PAGE_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("Vary", "Accept"),
)


@frozen(eq=False)
class Links:
    """``new_token`` returns 256 random bits as base64url; only a SHA-256 of it is stored."""

    rows: LinkRows
    now: Callable[[], datetime]
    new_token: Callable[[], str]
    new_id: Callable[[], UUID]

    async def make(
        self,
        bucket: str,
        wanted: Sequence[str],
        seconds: int,
        uses: int = 1,
        *,
        created_by: UUID | None = None,
        owner: UUID | None = None,
        identity: Identity | None = None,
        upload: UploadTerms | None = None,
    ) -> dict[str, Link]:
        """A link for each key of ``wanted``, by its token. ``uses`` 0: any number until it expires. ``Link`` explains
        the others."""
        now = self.now()
        expires_at = now + timedelta(seconds=seconds)
        made = {
            self.new_token(): Link(
                bucket,
                key,
                expires_at,
                uses or None,
                self.new_id(),
                now,
                created_by,
                None,
                owner,
                upload,
                identity,
            )
            for key in wanted
        }
        await self.rows.add({_digest(token, link.method): link for token, link in made.items()})
        return made

    async def page(
        self, bucket: str, creator: UUID | None, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[Link]:
        """As ``LinkRows.page``, now."""
        return await self.rows.page(bucket, self.now(), creator, after, limit)

    async def revoke(self, bucket: str, link_id: str, creator: UUID | None) -> None:
        """Revoke a link; with ``creator`` only one that this user made. Raises ``link_not_found``."""
        try:
            known = UUID(link_id)
        except ValueError:
            raise errors.link_not_found() from None
        if not await self.rows.revoke(bucket, known, creator):
            raise errors.link_not_found()

    async def _current(self, digest: bytes) -> Link:
        link = await self.rows.find(digest)
        if link is None:
            raise errors.token_not_found()
        if link.expires_at <= self.now():
            raise errors.token_expired()
        return link

    async def for_upload(self, token: str) -> UploadPass:
        """What an upload by a link may do; raises ``token_not_found``, ``token_expired`` or ``token_used``."""
        digest = _digest(token, "PUT")
        link = await self._current(digest)
        if link.uses_left == 0:
            raise errors.token_used()
        assert link.upload is not None
        return UploadPass(digest, link, link.upload)

    async def use(self, token: str, headers: HeaderView) -> LinkUse:
        """What a request with these headers does with a link; raises ``token_not_found``, ``token_expired``,
        ``prefetch_refused`` or ``token_used``."""
        link = await self._current(_digest(token))
        if link.uses_left is not None and _is_prefetch(headers):
            raise errors.prefetch_refused()
        use = LinkUse(self, token, link)
        if link.uses_left == 0 and not (use.may_continue and b"if-range" in headers):
            raise errors.token_used()
        return use


@frozen(eq=False)
class LinkUse:
    """One request by a link. It counts as a use unless it continues a download that broke off."""

    links: Links
    token: str
    link: Link

    @property
    def may_continue(self) -> bool:
        """Whether the last use was so short a time ago that its download may be continued."""
        used_at = self.link.used_at
        return used_at is not None and self.links.now() < used_at + CONTINUE_WITHIN

    @property
    def limited(self) -> bool:
        return self.link.uses_left is not None

    @property
    def seconds_left(self) -> int:
        """For how long the link works."""
        return max(0, int((self.link.expires_at - self.links.now()).total_seconds()))

    def counts(self, headers: HeaderView, row: ObjectRow) -> bool:
        """Whether the request takes a use of the link, given the object; raises ``token_used`` where it does and no
        use is left."""
        if self.may_continue and continues(headers, row):
            return False
        if self.link.uses_left == 0:
            raise errors.token_used()
        return True

    async def take(self) -> None:
        """Consume one use, atomically; raises ``token_expired``, or ``token_used`` if another request was faster."""
        now = self.links.now()
        if not await self.links.rows.use(_digest(self.token), now):
            raise errors.token_expired() if self.link.expires_at <= now else errors.token_used()


@frozen
class UploadPass:
    """What an upload by a link may do: ``terms``, within the rules of its bucket. ``digest`` names the link to the
    commit, which uses it up."""

    digest: bytes
    link: Link
    terms: UploadTerms

    @property
    def writer(self) -> Writer:
        """On whose behalf it is: with the rights of the user who made the link, or of the service key."""
        return Writer(self.link.owner, self.terms.as_service, self.link.identity)

    @property
    def fixed_key(self) -> str | None:
        """The object's key, unless the uploader chooses it."""
        return None if self.terms.by_prefix else self.link.key

    def key_of(self, chosen: str) -> str:
        """The object's key, given what the uploader chose. Raises ``invalid_key``, also for another key than that of
        the link."""
        if not self.terms.by_prefix:
            if chosen != self.link.key:
                raise errors.invalid_key("the link is for another one")
            return chosen
        if not chosen:
            raise errors.invalid_key("it is empty")
        # No segment may be "..", so no key leaves the folder of its prefix.
        return keys.parse_new_key(self.link.key + chosen)

    def narrowed(self, conditions: Conditions) -> Conditions:
        """The conditions of a request, and that of a link which never replaces an object."""
        return conditions if self.terms.overwrite else NEW_ONLY

    def check_type(self, content_type: str) -> None:
        """Raises ``unsupported_media_type``."""
        if not keys.is_allowed_type(content_type, self.terms.content_types):
            raise errors.unsupported_media_type_of_object(keys.essence(content_type), "link")


def _is_prefetch(headers: HeaderView) -> bool:
    """Whether a browser fetches in advance, for a person who may never follow the link (``Sec-Purpose`` may have
    parameters, as in ``prefetch;prerender``)."""
    purposes = [headers.text(name) or "" for name in (b"sec-purpose", b"purpose")]
    return any(re.split("[;,]", one)[0].strip().lower() == "prefetch" for one in purposes)


class LinkPage(ApiError):
    """An error as a small page, for a person who opened the link in a browser."""

    content_type = "text/html; charset=utf-8"
    title, advice = _NO_LINK

    def body(self) -> bytes:
        return _PAGE.format(title=self.title, message=escape(self.message), advice=self.advice).encode()


class UploadPage(LinkPage):
    """The same where the link works, and the upload was refused."""

    title, advice = _NO_UPLOAD


def as_shown(refusal: ApiError, headers: HeaderView) -> ApiError:
    """``refusal`` in the form that the client prefers, if it means that the link does not work."""
    if refusal.status not in (400, 404, 410, 422) or not prefers_html(headers):
        return refusal
    # What is wrong with a parameter means nothing to a person; what is wrong with a picture does.
    understood = refusal.status in (404, 410) or refusal.code.startswith("image_")
    message = refusal.message if understood else _INCOMPLETE
    return LinkPage(refusal.status, refusal.code, message, headers=(*refusal.headers, *_PAGE_HEADERS))


def upload_as_shown(refusal: ApiError, headers: HeaderView) -> ApiError:
    """As ``as_shown``, for an upload by a link that was refused for a reason about which the uploader can do
    something."""
    if refusal.status >= 500 or refusal.status == 401 or not prefers_html(headers):
        return refusal
    page = LinkPage if refusal.code in _OF_LINKS else UploadPage
    reasons = [why for why in (refusal.details or {}).values() if why not in refusal.message]
    message = f"{refusal.message} ({', '.join(reasons)})" if reasons else refusal.message
    return page(refusal.status, refusal.code, message, headers=(*refusal.headers, *_PAGE_HEADERS))


def _digest(token: str, method: str = "GET") -> bytes:
    """What is stored of a token. Tokens for uploads have another digest, so that no download finds their links, not
    even one by a process of an older version during an upgrade."""
    return sha256((token if method == "GET" else f"{method} {token}").encode()).digest()
