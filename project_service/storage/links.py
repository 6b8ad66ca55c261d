"""Download links: a random token that opens one object until it expires or is used up.

A browser that prefetches does not use one up, and a download that broke off can be continued for a while.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from html import escape
from uuid import UUID

from attrs import frozen

from project_service.errors import ApiError
from project_service.http.head import HeaderView
from project_service.http.request import prefers_html
from project_service.http.response import NO_STORE
from project_service.storage import errors
from project_service.storage.conditions import continues
from project_service.storage.durations import CONTINUE_WITHIN
from project_service.storage.repository import LinkRows
from project_service.storage.values import Link, ObjectRow

MAX_EXPIRES_IN_SECONDS = 604800
MAX_USES = 1_000_000

# Without it a browser would send the next site the URL of a page opened by a link, and with it the token.
NO_REFERRER = ("Referrer-Policy", "no-referrer")
LINK_HEADERS = (NO_STORE, NO_REFERRER)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Download link</title>
<style>body {{ font: 1.1em sans-serif; max-width: 30em; margin: 4em auto }}</style></head>
<body><h1>This link does not work</h1><p>{message}</p><p>{advice}</p></body></html>
"""
_INCOMPLETE = "Its address was changed, or cut short on the way."
_PAGE_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("Vary", "Accept"),
)


@frozen(eq=False)
class Links:
    """``new_token`` returns 256 random bits as base64url; only their SHA-256 is stored."""

    rows: LinkRows
    now: Callable[[], datetime]
    new_token: Callable[[], str]

    async def make(
        self, bucket: str, key: str, seconds: int, uses: int, owner: UUID | None = None
    ) -> tuple[str, datetime]:
        """A new token and when it expires. ``uses`` 0: any number until then. With ``owner`` it opens their objects
        only."""
        token = self.new_token()
        expires_at = self.now() + timedelta(seconds=seconds)
        await self.rows.add(_digest(token), Link(bucket, key, expires_at, uses or None, owner=owner))
        return token, expires_at

    async def use(self, token: str, headers: HeaderView) -> LinkUse:
        """What a request with these headers does with a link; raises ``token_not_found``, ``token_expired``,
        ``prefetch_refused`` or ``token_used``."""
        link = await self.rows.find(_digest(token))
        if link is None:
            raise errors.token_not_found()
        if link.expires_at <= self.now():
            raise errors.token_expired()
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

    def counts(self, headers: HeaderView, row: ObjectRow) -> bool:
        """Whether it counts, given the object; raises ``token_used`` where it does and no use is left."""
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


def _is_prefetch(headers: HeaderView) -> bool:
    """Whether a browser fetches in advance, for a person who may never follow the link (``Sec-Purpose`` may have
    parameters, as in ``prefetch;prerender``)."""
    purposes = [headers.text(name) or "" for name in (b"sec-purpose", b"purpose")]
    return any(re.split("[;,]", one)[0].strip().lower() == "prefetch" for one in purposes)


class LinkPage(ApiError):
    """An error as a small page, for a person who opened the link in a browser."""

    content_type = "text/html; charset=utf-8"

    def body(self) -> bytes:
        advice = "Ask whoever gave it to you for a new one."
        return _PAGE.format(message=escape(self.message), advice=advice).encode()


def as_shown(refusal: ApiError, headers: HeaderView) -> ApiError:
    """``refusal`` in the form that the client prefers, if it means that the link does not work."""
    if refusal.status not in (400, 404, 410, 422) or not prefers_html(headers):
        return refusal
    # What is wrong with a parameter means nothing to a person.
    message = refusal.message if refusal.status in (404, 410) else _INCOMPLETE
    return LinkPage(refusal.status, refusal.code, message, headers=(*refusal.headers, *_PAGE_HEADERS))


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
