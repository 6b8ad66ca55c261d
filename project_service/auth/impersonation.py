"""Access tokens by which an operator sees what a user sees, or somebody who is not signed in."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.admin import Administration
from project_service.auth.context import Context
from project_service.auth.tokens import AUDIENCE
from project_service.auth.values import User
from project_service.http.caller import BY_SERVICE, NOBODY
from project_service.lifecycle import shielded

SECONDS = 300
# The method that the hook for claims is told.
_METHOD = "impersonation"


@frozen
class Impersonation:
    """A token, until when it is valid in Unix seconds, and whose it is: None for nobody in particular."""

    access_token: str = field(repr=False)
    expires_at: int
    user: User | None

    def view(self) -> dict[str, Any]:
        return {
            "access_token": self.access_token,
            "expires_at": self.expires_at,
            "token_type": "Bearer",
            "user": None if self.user is None else self.user.view(),
        }


@frozen
class Impersonations:
    """Makes tokens for the service key. Such a token has the claims of the user's own, as the project's hook changes
    them, and ``act`` besides (``http.caller.BY_SERVICE``). It is valid for at most ``SECONDS``, begins no session and
    is not renewed. For tables and storage it is the user's, also for what the user may change there, and it needs no
    project key beside it; whatever is about the account itself refuses it with ``session_required``.

    There is no session that could be ended, so one that was made stays valid until it expires, even if the user's
    sessions end, or the user is disabled or deleted meanwhile. A user who is disabled gets none.
    """

    administration: Administration
    context: Context

    # Shielded, so that each that was made is in the audit and no other.
    @shielded
    async def of_user(self, id_or_email: str, origin: Origin) -> Impersonation:
        """Raises ``user_not_found``, ``user_disabled``, ``hook_refused`` and ``hook_failed``."""
        account = await self.administration.find(id_or_email)
        if account.disabled_at is not None:
            raise errors.user_disabled()
        user, now = account.user, self.context.now()
        claims = self.context.verifier.issuer.claims(
            user, self.context.new_id(), now.timestamp(), self.context.new_id()
        )
        # Nobody has signed in: so nothing that asks when the user last did is allowed by it.
        own = claims | {"amr": [], "act": BY_SERVICE, "exp": self._until(now.timestamp())}
        changed = await self.context.hooks.custom_access_token(own, _METHOD, origin.address)
        event = Event(now, "impersonate", actor="service", user_id=user.id, email=user.email, origin=origin)
        await self.administration.repository.record(event)
        minted = self.context.verifier.issuer.signed(changed)
        return Impersonation(minted.text, minted.expires_at, user)

    @shielded
    async def of_nobody(self, origin: Origin) -> Impersonation:
        """A token that stands for the anon key without any token."""
        now, issuer = self.context.now(), self.context.verifier.issuer
        claims = {
            "iss": issuer.name,
            "sub": NOBODY,
            "aud": AUDIENCE,
            "role": "anon",
            "email": "",
            "sid": self.context.new_id(),
            "iat": int(now.timestamp()),
            "exp": self._until(now.timestamp()),
            "jti": self.context.new_id(),
            "act": BY_SERVICE,
        }
        event = Event(now, "impersonate", actor="service", origin=origin, subject="anon")
        await self.administration.repository.record(event)
        minted = issuer.signed(claims)
        return Impersonation(minted.text, minted.expires_at, None)

    def _until(self, now: float) -> int:
        return int(now) + min(SECONDS, self.context.verifier.issuer.seconds)
