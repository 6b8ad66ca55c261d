"""Further factors: codes by time (TOTP, RFC 6238) of an application on the user's phone, and recovery codes in their
place. A session that has been shown by one is at ``aal2``, which its access tokens say.

Whoever has a factor that counts changes the password, the address, factors and identities at ``aal2`` only
(``require_factor``): a stolen password, or a session that somebody left open, must not be enough.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyotp
import segno
from attrs import evolve, field, frozen

from project_service.auth import errors
from project_service.auth.context import Context
from project_service.auth.limits import Throttle
from project_service.auth.values import Factor, FactorProof, FactorType, IssuedSession, Origin
from project_service.errors import ApiError, validation_failed
from project_service.http.caller import Claims
from project_service.lifecycle import shielded

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository

# Factors of a user, verified or not, and how long one may stay without being verified.
MAX_FACTORS = 10
ENROLMENT_LIFETIME = timedelta(minutes=5)
CHALLENGE_LIFETIME = timedelta(minutes=5)
NAME_MAX_CHARACTERS = 120
# More would not fit into a QR code together with a long address.
ISSUER_MAX_CHARACTERS = 64
SECRET_BYTES = 20
STEP_SECONDS = 30
CODE_DIGITS = 6
RECOVERY_CODES = 10
# 80 bits, which nobody finds by trying, so their digests need no key that would have to be kept as long as they are.
RECOVERY_BYTES = 10


@frozen
class Enrolled:
    """A new factor with what its user enters or scans, once. ``qr_code`` is an SVG of ``uri``."""

    factor: Factor
    secret: str = field(repr=False)
    uri: str = field(repr=False)
    qr_code: str = field(repr=False)


@frozen
class Challenged:
    """``expires_at`` is the Unix time."""

    id: str
    type: FactorType
    expires_at: int


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
        if len(name) > NAME_MAX_CHARACTERS:
            raise validation_failed({"friendly_name": f"must be at most {NAME_MAX_CHARACTERS} characters"})
        await require_factor(self.repository, caller)
        now, secret = self.context.now(), self.context.randomness(SECRET_BYTES)
        factor = Factor(self.context.new_id(), caller.sub, name, "totp", False, now, now)
        event = self.context.user_event("enroll_factor", caller, origin)
        await self.repository.enrol_factor(factor, secret, now - ENROLMENT_LIFETIME, MAX_FACTORS, event)
        text = base64.b32encode(secret).decode("ascii")
        uri = pyotp.TOTP(text).provisioning_uri(name=caller.email or caller.sub, issuer_name=issuer)
        return Enrolled(factor, text, uri, _qr_code(uri))

    def _issuer(self) -> str:
        host = urlsplit(self.context.settings.site_url or "").hostname
        return (host or self.context.verifier.issuer.name)[:ISSUER_MAX_CHARACTERS]

    async def challenge(self, caller: Claims, factor_id: str) -> Challenged:
        """A challenge that this session answers within ``CHALLENGE_LIFETIME``. Raises ``factor_not_found``."""
        challenge_id, now = self.context.new_id(), self.context.now()
        expires_at = now + CHALLENGE_LIFETIME
        kind = await self.repository.challenge_factor(
            caller.sub, caller.sid, parse_factor_id(factor_id), _digest(challenge_id), now, expires_at
        )
        if kind is None:
            raise errors.factor_not_found()
        return Challenged(challenge_id, kind, int(expires_at.timestamp()))

    # Shielded, so that a wrong code counts, and a session that was raised is known, even if the client hangs up.
    @shielded
    async def verify(
        self, caller: Claims, factor_id: str, challenge_id: str, code: str, origin: Origin
    ) -> IssuedSession:
        """The session, at ``aal2`` from now on, for the answer to a challenge: a code that has not been used, or a
        recovery code if the factor is verified. The user's sessions at ``aal1`` end.

        Raises ``factor_not_found``, ``factor_challenge_expired``, ``factor_verification_failed``, ``rate_limited``,
        ``insufficient_aal`` (a new factor of a user who has another) and ``session_revoked``.
        """
        factor_id = parse_factor_id(factor_id)
        known = await self.repository.totp_secret(caller.sub, factor_id)
        if known is None:
            raise errors.factor_not_found()
        is_verified, secret = known
        if not is_verified:
            await require_factor(self.repository, caller)
        reservation = await self.throttle.reserve_factor(factor_id)
        event = self.context.user_event("verify_factor", caller, origin)
        proof = FactorProof(caller.sub, caller.sid, factor_id, _digest(challenge_id), "totp")
        code = "".join(code.split())
        try:
            if _is_code(code):
                proof = evolve(proof, step=self._step_of(secret, code))
            else:
                proof = evolve(proof, recovery=_recovery_digest(caller.sub, code))
            session, refresh = self.context.new_session(origin)
            raised = await self.repository.prove_factor(proof, session, event)
        except ApiError as refusal:
            is_wrong = refusal.code == "factor_verification_failed"
            wrong = evolve(event, result=refusal.code) if is_wrong else None
            await self.throttle.finish(reservation, "failed" if is_wrong else "released", wrong)
            raise
        except BaseException:
            await self.throttle.finish(reservation, "released")
            raise
        await self.throttle.finish(reservation, "cleared")
        for session_id, until in raised.ended:
            self.on_ended(session_id, until)
        return self.context.issued(raised.user, caller.sid, raised.began, refresh, session.created_at)

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

        Raises ``insufficient_aal``, also if the user has no factor yet.
        """
        if caller.raw.get("aal") != "aal2":
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
