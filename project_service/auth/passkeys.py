"""Passkeys (WebAuthn): keys in devices of the user's, which sign in without a password. The device says whose the key
is, and has its user prove who they are (a fingerprint, a PIN). The session begins at ``aal1``, as by a password."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from project_service import base64url
from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.context import Context
from project_service.auth.factors import check_name, require_factor
from project_service.auth.limits import Throttle
from project_service.auth.relying_party import (
    CHALLENGE_BYTES,
    CHALLENGE_LIFETIME,
    RelyingParty,
    credential_id_of,
    user_of,
)
from project_service.auth.values import IssuedSession, Passkey, Purpose
from project_service.errors import session_revoked, validation_failed
from project_service.http.caller import Claims
from project_service.lifecycle import shielded

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository

MAX_PASSKEYS = 10


@frozen
class Offered:
    """A challenge, with ``options`` for ``navigator.credentials``. ``expires_at`` is the Unix time."""

    id: str
    options: Mapping[str, Any]
    expires_at: int


@frozen
class Passkeys:
    """Its methods raise ``passkey_disabled`` unless ``auth.passkeys`` is set."""

    repository: Repository
    throttle: Throttle
    context: Context

    async def offer_registration(self, caller: Claims) -> Offered:
        """Raises ``insufficient_aal`` and ``too_many_passkeys``."""
        party = RelyingParty.of(self.context.settings)
        await require_factor(self.repository, caller)
        account = await self.repository.find_user(caller.sub)
        if account is None:
            raise session_revoked()
        known = await self.repository.passkeys(caller.sub)
        if len(known) >= MAX_PASSKEYS:
            raise errors.too_many_passkeys()
        challenge = self.context.randomness(CHALLENGE_BYTES)
        name = account.user.email or caller.sub
        options = party.creation_options(
            challenge, caller.sub, name, [one.credential for one in known], signs_in=True
        )
        return await self._offer("passkey_new", challenge, options, {"user": caller.sub})

    @shielded
    async def register(
        self, caller: Claims, challenge_id: str, given: Mapping[str, Any], origin: Origin
    ) -> Passkey:
        """Raises ``insufficient_aal``, ``passkey_challenge_expired``, ``passkey_verification_failed``,
        ``passkey_taken`` and ``too_many_passkeys``."""
        party = RelyingParty.of(self.context.settings)
        await require_factor(self.repository, caller)
        data = await self._answered("passkey_new", challenge_id)
        if data["user"] != caller.sub:
            raise errors.passkey_challenge_expired()
        credential = party.created(given, base64url.decode(data["challenge"]), signs_in=True)
        now = self.context.now()
        passkey = Passkey(self.context.new_id(), caller.sub, "Passkey", credential, now)
        event = self.context.user_event("add_passkey", caller, origin)
        await self.repository.add_passkey(passkey, MAX_PASSKEYS, event)
        return passkey

    async def offer_sign_in(self, origin: Origin) -> Offered:
        """For anybody. Raises ``rate_limited``."""
        party = RelyingParty.of(self.context.settings)
        await self.throttle.count_verification(origin)
        challenge = self.context.randomness(CHALLENGE_BYTES)
        return await self._offer(
            "passkey", challenge, party.request_options(challenge, (), signs_in=True), {}
        )

    @shielded
    async def sign_in(self, challenge_id: str, given: Mapping[str, Any], origin: Origin) -> IssuedSession:
        """Raises ``passkey_challenge_expired``, ``passkey_verification_failed``, ``rate_limited``; and, to who has
        the passkey, ``user_disabled`` and ``email_not_confirmed``."""
        party = RelyingParty.of(self.context.settings)
        await self.throttle.count_verification(origin)
        data = await self._answered("passkey", challenge_id)
        passkey = await self.repository.find_passkey(credential_id_of(given))
        if passkey is None or passkey.user_id != user_of(given):
            raise errors.passkey_verification_failed()
        challenge = base64url.decode(data["challenge"])
        passkey = evolve(
            passkey, credential=party.signed(given, challenge, passkey.credential, signs_in=True)
        )
        account = await self.repository.find_user(passkey.user_id)
        if account is None or account.disabled_at is not None:
            raise errors.user_disabled()
        if self.context.settings.confirm_email and account.user.awaits_confirmation:
            raise errors.email_not_confirmed()
        session, refresh = self.context.new_session(origin, "webauthn")
        event = Event(session.created_at, "login_by_passkey", origin=origin)
        user = await self.repository.begin_by_passkey(passkey, session, event)
        if user is None:
            raise errors.user_disabled()
        return await self.context.issued_to(user, session, refresh)

    async def own(self, user_id: str) -> list[Passkey]:
        RelyingParty.of(self.context.settings)
        return await self.repository.passkeys(user_id)

    async def rename(self, caller: Claims, passkey_id: str, name: str, origin: Origin) -> Passkey:
        """Raises ``validation_failed`` and ``passkey_not_found``."""
        RelyingParty.of(self.context.settings)
        if not name:
            raise validation_failed({"friendly_name": "is required"})
        check_name(name)
        event = self.context.user_event("rename_passkey", caller, origin)
        passkey = await self.repository.rename_passkey(caller.sub, parse_passkey_id(passkey_id), name, event)
        if passkey is None:
            raise errors.passkey_not_found()
        return passkey

    async def delete(self, caller: Claims, passkey_id: str, origin: Origin) -> None:
        """Raises ``insufficient_aal`` and ``passkey_not_found``."""
        RelyingParty.of(self.context.settings)
        await require_factor(self.repository, caller)
        event = self.context.user_event("delete_passkey", caller, origin)
        if not await self.repository.delete_passkey(caller.sub, parse_passkey_id(passkey_id), event):
            raise errors.passkey_not_found()

    async def _offer(
        self, purpose: Purpose, challenge: bytes, options: Mapping[str, Any], data: Mapping[str, Any]
    ) -> Offered:
        challenge_id, now = self.context.new_id(), self.context.now()
        expires_at = now + CHALLENGE_LIFETIME
        kept = {**data, "challenge": base64url.encode(challenge)}
        await self.repository.keep_challenge(purpose, _digest(challenge_id), now, expires_at, kept)
        return Offered(challenge_id, options, int(expires_at.timestamp()))

    async def _answered(self, purpose: Purpose, challenge_id: str) -> Mapping[str, Any]:
        """What the challenge was for, which is used up, whatever comes of the answer."""
        data = await self.repository.take_challenge(purpose, _digest(challenge_id), self.context.now())
        if data is None:
            raise errors.passkey_challenge_expired()
        return data


def parse_passkey_id(text: str) -> str:
    """Raises ``passkey_not_found``."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise errors.passkey_not_found() from None


def _digest(challenge_id: str) -> bytes:
    return hashlib.sha256(challenge_id.lower().encode("utf-8", "replace")).digest()
