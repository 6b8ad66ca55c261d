"""Download links: a random token that opens one object until it expires or is used up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256

from attrs import frozen

from project_service.http.outbound import NO_STORE
from project_service.storage import errors
from project_service.storage.model import Link
from project_service.storage.ports import LinkRows

MAX_EXPIRES_IN_SECONDS = 604800
MAX_USES = 1_000_000

# Without it a browser would tell the next site the address of a page opened by a link, and with it the token.
NO_REFERRER = ("Referrer-Policy", "no-referrer")
LINK_HEADERS = (NO_STORE, NO_REFERRER)


@frozen(eq=False)
class Links:
    """``new_token`` returns 256 random bits as base64url; only their SHA-256 is kept."""

    rows: LinkRows
    now: Callable[[], datetime]
    new_token: Callable[[], str]

    async def make(self, bucket: str, key: str, seconds: int, uses: int) -> tuple[str, datetime]:
        """A new token and when it expires. ``uses`` 0: any number until then."""
        token = self.new_token()
        expires_at = self.now() + timedelta(seconds=seconds)
        await self.rows.add(_digest(token), Link(bucket, key, expires_at, uses or None))
        return token, expires_at

    async def find(self, token: str) -> Link:
        """A link that still opens its object; raises ``token_not_found``, ``token_expired`` or ``token_used``."""
        link = await self.rows.find(_digest(token))
        if link is None:
            raise errors.token_not_found()
        if link.expires_at <= self.now():
            raise errors.token_expired()
        if link.uses_left == 0:
            raise errors.token_used()
        return link

    async def use(self, token: str) -> None:
        """Consume one use, atomically. Raises as ``find`` does where another request was faster."""
        if not await self.rows.use(_digest(token), self.now()):
            await self.find(token)
            raise errors.token_used()


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
