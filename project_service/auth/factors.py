"""Further factors: codes by time (TOTP, RFC 6238) of an application on the user's phone, recovery codes in their
place, and keys of a device (WebAuthn). A session that has been shown by one is at ``aal2``, which its access tokens
say.

Whoever has a factor that counts changes the password, the address, factors and identities at ``aal2`` only
(``require_factor``): a stolen password, or a session that somebody left open, must not be enough.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyotp
import segno
from attrs import evolve, field, frozen

from project_service import base64url
from project_service.audit import Origin
from project_service.auth import errors
from project_service.auth.context import Context
from project_service.auth.limits import Throttle
from project_service.auth.relying_party import (
    CHALLENGE_BYTES,
    CHALLENGE_LIFETIME,
    RelyingParty,
)
from project_service.auth.values import Factor, FactorProof, FactorType, IssuedSession, OwnFactor, email_of
from project_service.errors import ApiError, validation_failed
from project_service.http.caller import Claims
from project_service.lifecycle import shielded

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository

# Factors of a user, verified or not, and how long one may stay without being verified.
MAX_FACTORS = 10
ENROLMENT_LIFETIME = timedelta(minutes=5)
NAME_MAX_CHARACTERS = 120
# More would not fit into a QR code together with a long address.
ISSUER_MAX_CHARACTERS = 64
SECRET_BYTES = 20
STEP_SECONDS = 30
CODE_DIGITS = 6
RECOVERY_CODES = 10
# 80 bits, which nobody finds by trying, so their digests need no key that would have to be kept as long as they are.
RECOVERY_BYTES = 10
# What counts as a wrong answer.
_WRONG = ("factor_verification_failed", "passkey_verification_failed")


@frozen
class Enrolled:
    """A new factor with what its user enters or scans, once. ``qr_code`` is an SVG of ``uri``."""

    factor: Factor
    secret: str = field(repr=False)
    uri: str = field(repr=False)
    qr_code: str = field(repr=False)


@frozen
class Challenged:
    """``expires_at`` is the Unix time. ``options`` are what the page gives to ``navigator.credentials``, for a key
    that is to be made ("create") or to sign ("request")."""

    id: str
    type: FactorType
    expires_at: int
    ceremony: str = ""
    options: Mapping[str, Any] = {}


async def require_factor(repository: Repository, caller: Claims) -> None:
    """Raises ``insufficient_aal`` if the user has a factor that counts, and the session was not shown by one."""
    if await repository.needs_factor(caller.sub, caller.sid):
        raise errors.insufficient_aal()


@frozen
class Factors:
    """``on_ended`` is called with the id of each session that ends, and the Unix time until which access tokens of it
    may be valid."""

    repository: Repository
    throttle: Throttle
    on_ended: Callable[[str, float], None]
    context: Context

    async def enrol_totp(self, caller: Claims, name: str, issuer: str, origin: Origin) -> Enrolled:
        """A new factor, which counts once a code of it is verified. ``issuer`` is what applications show beside the
        code; by default the host of ``auth.site_url``.

        Raises ``insufficient_aal``, ``factor_name_taken``, ``too_many_factors`` and ``validation_failed``.
        """
        issuer = issuer or self._issuer()
        if len(issuer) > ISSUER_MAX_CHARACTERS:
            raise validation_failed({"issuer": f"must be at most {ISSUER_MAX_CHARACTERS} characters"})
        secret = self.context.randomness(SECRET_BYTES)
        factor = await self._enrol(caller, name, "totp", secret, origin)
        text = base64.b32encode(secret).decode("ascii")
        uri = pyotp.TOTP(text).provisioning_uri(name=caller.email or caller.sub, issuer_name=issuer)
        return Enrolled(factor, text, uri, _qr_code(uri))

    async def enrol_key(self, caller: Claims, name: str, origin: Origin) -> Factor:
        """A new factor, whose key is made by the answer to its first challenge. Raises as ``enrol_totp``, and
        ``passkey_disabled``."""
        RelyingParty.of(self.context.settings)
        return await self._enrol(caller, name, "webauthn", None, origin)

    async def _enrol(
        self, caller: Claims, name: str, kind: FactorType, secret: bytes | None, origin: Origin
    ) -> Factor:
        check_name(name)
        await require_factor(self.repository, caller)
        now = self.context.now()
        factor = Factor(self.context.new_id(), caller.sub, name, kind, False, now, now)
        event = self.context.user_event("enroll_factor", caller, origin)
        await self.repository.enrol_factor(factor, secret, now - ENROLMENT_LIFETIME, MAX_FACTORS, event)
        return factor

    def _issuer(self) -> str:
        host = urlsplit(self.context.settings.site_url or "").hostname
        return (host or self.context.verifier.issuer.name)[:ISSUER_MAX_CHARACTERS]

    async def challenge(self, caller: Claims, factor_id: str) -> Challenged:
        """A challenge that this session answers within ``CHALLENGE_LIFETIME``. Raises ``factor_not_found``, and
        ``passkey_disabled`` for a key."""
        factor_id = parse_factor_id(factor_id)
        known = await self._own(caller, factor_id)
        ceremony, data = "", {}
        options: Mapping[str, Any] = {}
        if known.type == "webauthn":
            ceremony = "create" if known.credential is None else "request"
            signed = self.context.randomness(CHALLENGE_BYTES)
            options = await self._options(caller, known, signed)
            data = {"ceremony": ceremony, "challenge": base64url.encode(signed)}
        challenge_id, now = self.context.new_id(), self.context.now()
        expires_at = now + CHALLENGE_LIFETIME
        kind = await self.repository.challenge_factor(
            caller.sub, caller.sid, factor_id, _digest(challenge_id), now, expires_at, data
        )
        if kind is None:
            raise errors.factor_not_found()
        return Challenged(challenge_id, kind, int(expires_at.timestamp()), ceremony, options)

    async def _options(self, caller: Claims, known: OwnFactor, challenge: bytes) -> Mapping[str, Any]:
        party = RelyingParty.of(self.context.settings)
        if known.credential is not None:
            return party.request_options(challenge, [known.credential])
        account = await self.repository.find_user(caller.sub)
        if account is None:
            raise errors.factor_not_found()
        name = email_of(account.user).address or caller.sub
        return party.creation_options(challenge, caller.sub, name, (), signs_in=False)

    async def _own(self, caller: Claims, factor_id: str) -> OwnFactor:
        known = await self.repository.find_factor(caller.sub, factor_id)
        if known is None:
            raise errors.factor_not_found()
        return known

    # Shielded, so that a wrong code counts, and a session that was raised is known, even if the client hangs up.
    @shielded
    async def verify(
        self,
        caller: Claims,
        factor_id: str,
        challenge_id: str,
        given: str | Mapping[str, Any],
        origin: Origin,
    ) -> IssuedSession:
        """The session, at ``aal2`` from now on, for the answer to a challenge: a code that has not been used, or a
        recovery code if the factor is verified; or what ``navigator.credentials`` of a page gave. The user's sessions
        at ``aal1`` end.

        Raises ``factor_not_found``, ``factor_challenge_expired``, ``factor_verification_failed``,
        ``passkey_verification_failed``, ``passkey_taken``, ``rate_limited``, ``insufficient_aal`` (a new factor of a
        user who has another) and ``session_revoked``.
        """
        factor_id = parse_factor_id(factor_id)
        known = await self._own(caller, factor_id)
        if not known.is_verified:
            await require_factor(self.repository, caller)
        reservation = await self.throttle.reserve_factor(factor_id)
        event = self.context.user_event("verify_factor", caller, origin)
        proof = FactorProof(caller.sub, caller.sid, factor_id, _digest(challenge_id), known.type)
        try:
            if isinstance(given, str):
                proof = self._by_code(proof, known, given)
            else:
                proof = await self._by_key(proof, known, given)
            session, refresh = self.context.new_session(origin)
            raised = await self.repository.prove_factor(proof, session, event)
        except ApiError as refusal:
            is_wrong = refusal.code in _WRONG
            wrong = evolve(event, result=refusal.code) if is_wrong else None
            await self.throttle.finish(reservation, "failed" if is_wrong else "released", wrong)
            raise
        except BaseException:
            await self.throttle.finish(reservation, "released")
            raise
        await self.throttle.finish(reservation, "cleared")
        for session_id, until in raised.ended:
            self.on_ended(session_id, until)
        return await self.context.issued(
            raised.user,
            caller.sid,
            raised.began,
            refresh,
            session.created_at,
            origin,
            how=raised.began.factor,
        )

    def _by_code(self, proof: FactorProof, known: OwnFactor, given: str) -> FactorProof:
        code = "".join(given.split())
        if known.secret is None:
            raise errors.factor_verification_failed()
        if _is_code(code):
            return evolve(proof, step=self._step_of(known.secret, code))
        return evolve(proof, recovery=_recovery_digest(proof.user_id, code))

    async def _by_key(self, proof: FactorProof, known: OwnFactor, given: Mapping[str, Any]) -> FactorProof:
        party = RelyingParty.of(self.context.settings)
        pending = await self.repository.pending(("factor",), self.context.now(), digest=proof.challenge)
        data = {} if pending is None else pending[1]
        ceremony = "create" if known.credential is None else "request"
        of_this = (data.get("factor"), data.get("session"), data.get("ceremony"))
        if of_this != (proof.factor_id, proof.session_id, ceremony):
            raise errors.factor_challenge_expired()
        challenge = base64url.decode(data["challenge"])
        if known.credential is None:
            return evolve(proof, credential=party.created(given, challenge, signs_in=False))
        return evolve(proof, credential=party.signed(given, challenge, known.credential, signs_in=False))

    def _step_of(self, secret: bytes, code: str) -> int:
        """The time step that ``code`` is of: this one, or one beside it, since clocks differ. Raises
        ``factor_verification_failed``."""
        totp = pyotp.TOTP(base64.b32encode(secret).decode("ascii"))
        now = int(self.context.clock()) // STEP_SECONDS
        for step in (now, now - 1, now + 1):
            if hmac.compare_digest(totp.generate_otp(step), code):
                return step
        raise errors.factor_verification_failed()

    @shielded
    async def unenrol(self, caller: Claims, factor_id: str, origin: Origin) -> None:
        """Raises ``factor_not_found`` and ``insufficient_aal``."""
        factor_id = parse_factor_id(factor_id)
        await require_factor(self.repository, caller)
        event = self.context.user_event("unenroll_factor", caller, origin)
        if not await self.repository.delete_factors(caller.sub, event, factor_id):
            raise errors.factor_not_found()

    @shielded
    async def new_recovery_codes(self, caller: Claims, origin: Origin) -> list[str]:
        """Codes each of which stands in for one of a TOTP factor, once. Those that there were are void.

        Raises ``insufficient_aal``, also if the user has no factor.
        """
        profile = await self.repository.profile(caller.sub)
        # A token says aal2 until it expires, even if the factor is gone; the codes would be good for the next one.
        has_factor = profile is not None and any(one.is_verified for one in profile.factors)
        if not has_factor or caller.raw.get("aal") != "aal2":
            raise errors.insufficient_aal()
        await require_factor(self.repository, caller)
        codes = [_recovery_code(self.context.randomness(RECOVERY_BYTES)) for _ in range(RECOVERY_CODES)]
        digests = [_recovery_digest(caller.sub, code) for code in codes]
        event = self.context.user_event("new_recovery_codes", caller, origin)
        await self.repository.replace_recovery_codes(caller.sub, digests, event)
        return codes


def parse_factor_id(text: str) -> str:
    """Raises ``factor_not_found``."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise errors.factor_not_found() from None


def check_name(name: str) -> None:
    """Raises ``validation_failed``."""
    if len(name) > NAME_MAX_CHARACTERS or "\0" in name:
        reason = f"must be at most {NAME_MAX_CHARACTERS} characters, without NUL"
        raise validation_failed({"friendly_name": reason})


def _is_code(code: str) -> bool:
    return len(code) == CODE_DIGITS and code.isascii() and code.isdigit()


def _digest(challenge_id: str) -> bytes:
    return hashlib.sha256(challenge_id.lower().encode("utf-8", "replace")).digest()


def _recovery_code(randomness: bytes) -> str:
    text = base64.b32encode(randomness).decode("ascii").lower()
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


def _recovery_digest(user_id: str, code: str) -> bytes:
    """Of a code as it was shown or as somebody has typed it."""
    plain = code.replace("-", "").lower()
    return hashlib.sha256(f"{user_id} {plain}".encode("utf-8", "replace")).digest()


def _qr_code(uri: str) -> str:
    out = io.BytesIO()
    segno.make_qr(uri).save(out, kind="svg", xmldecl=False, nl=False, scale=4, dark="black", light="white")
    # Clients put it into a data URL as it is, where a "#" would begin the fragment.
    return out.getvalue().decode().replace('"#000"', '"black"').replace('"#fff"', '"white"')
