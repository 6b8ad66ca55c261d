"""The signed-in user's further factors."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.accounts import Accounts
from project_service.auth.context import Context
from project_service.auth.factors import Factors
from project_service.auth.routes import CHANGES, signed_in
from project_service.errors import rate_limited, validation_failed
from project_service.http.describe import STRING, UUID, array, in_path, obj
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.supabase import errors as theirs
from project_service.supabase.auth.common import (
    HOOKED,
    answer,
    declare,
    read,
    reply,
    validation_failed_missing,
)
from project_service.supabase.users import SESSION, FactorAnswer, NewFactor, session_view

_ONE: dict[str, Any] = {"bearer": "required", "parameters": (in_path("factor_id", "The factor's id."),)}
_NOT_FOUND, _LESSER = errors.factor_not_found(), errors.insufficient_aal()
_TYPE = {"enum": ["totp", "webauthn"]}


@frozen
class OwnFactors:
    accounts: Accounts
    factors: Factors
    context: Context

    @declare(
        "POST",
        "/factors",
        "Enroll",
        "Begin to use a second factor, which counts once a code of it is verified",
        answer(
            "The secret of its codes, once, as a text, an address and a picture; for a key nothing yet",
            obj(
                ("id", "type", "friendly_name"),
                id=UUID,
                type=_TYPE,
                friendly_name=STRING,
                totp=obj(("qr_code", "secret", "uri"), qr_code=STRING, secret=STRING, uri=STRING),
            ),
        ),
        body=NewFactor,
        admission=CHANGES,
        bearer="required",
        errors=(
            _LESSER,
            errors.factor_name_taken(),
            errors.too_many_factors(),
            theirs.mfa_phone_enroll_not_enabled(),
            theirs.mfa_webauthn_enroll_not_enabled(),
        ),
    )
    async def enroll(self, request: Request) -> Reply:
        body = await read(request, NewFactor)
        if body.factor_type == "phone":
            raise theirs.mfa_phone_enroll_not_enabled()
        if body.factor_type == "webauthn":
            if not self.context.settings.passkeys:
                raise theirs.mfa_webauthn_enroll_not_enabled()
            key = await self.factors.enrol_key(signed_in(request), body.friendly_name, origin_of(request))
            return reply({"id": key.id, "type": "webauthn", "friendly_name": key.name})
        if body.factor_type != "totp":
            raise validation_failed({"factor_type": "needs to be totp, phone, or webauthn"})
        made = await self.factors.enrol_totp(
            signed_in(request), body.friendly_name, body.issuer, origin_of(request)
        )
        return reply(
            {
                "id": made.factor.id,
                "type": "totp",
                "friendly_name": made.factor.name,
                "totp": {"qr_code": made.qr_code, "secret": made.secret, "uri": made.uri},
            }
        )

    @declare(
        "POST",
        "/factors/<factor_id>/challenge",
        "ChallengeFactor",
        "Begin to verify a factor",
        answer(
            "The challenge, for five minutes and this session",
            obj(
                ("id", "type", "expires_at"),
                id=UUID,
                type=_TYPE,
                expires_at={"type": "integer", "description": "Unix seconds."},
                webauthn=obj(
                    ("type", "credential_options"),
                    type={"enum": ["create", "request"]},
                    credential_options={
                        "type": "object",
                        "description": "For navigator.credentials, as JSON.",
                    },
                ),
            ),
        ),
        errors=(_NOT_FOUND, errors.passkey_disabled()),
        **_ONE,
    )
    async def challenge(self, request: Request) -> Reply:
        made = await self.factors.challenge(signed_in(request), request.path_args["factor_id"])
        told: dict[str, Any] = {"id": made.id, "type": made.type, "expires_at": made.expires_at}
        if made.ceremony:
            options = {"publicKey": made.options}
            told["webauthn"] = {"type": made.ceremony, "credential_options": options}
        return reply(told)

    @declare(
        "POST",
        "/factors/<factor_id>/verify",
        "VerifyFactor",
        "Show a factor by a code, by a recovery code, or by a key",
        answer("The session, at aal2 from now on; those at aal1 end", SESSION),
        body=FactorAnswer,
        admission=CHANGES,
        errors=(
            _NOT_FOUND,
            _LESSER,
            errors.factor_challenge_expired(),
            errors.factor_verification_failed(),
            errors.passkey_verification_failed(),
            errors.passkey_taken(),
            errors.passkey_disabled(),
            rate_limited(1),
            *HOOKED,
        ),
        **_ONE,
    )
    async def verify(self, request: Request) -> Reply:
        caller, body = signed_in(request), await read(request, FactorAnswer)
        given = body.webauthn.get("credential_response")
        if not body.challenge_id:
            raise validation_failed_missing("challenge_id")
        if not body.code and not isinstance(given, dict):
            raise validation_failed_missing("code")
        session = await self.factors.verify(
            caller,
            request.path_args["factor_id"],
            body.challenge_id,
            given if isinstance(given, dict) else body.code,
            origin_of(request),
        )
        profile = await self.accounts.profile(session.user.id)
        return reply(session_view(session, profile, self.context.clock()))

    @declare(
        "DELETE",
        "/factors/<factor_id>",
        "Unenroll",
        "Delete a factor",
        answer("Its id", obj(("id",), id=UUID)),
        admission=CHANGES,
        errors=(_NOT_FOUND, _LESSER),
        **_ONE,
    )
    async def unenroll(self, request: Request) -> Reply:
        factor_id = request.path_args["factor_id"]
        await self.factors.unenrol(signed_in(request), factor_id, origin_of(request))
        return reply({"id": factor_id.lower()})

    @declare(
        "POST",
        "/factors/recovery-codes",
        "NewRecoveryCodes",
        "Ten codes, each of which is taken once in place of a code of any TOTP factor",
        answer(
            "The codes, which nobody can read again; earlier ones are void",
            obj(("codes",), codes=array(STRING)),
        ),
        admission=CHANGES,
        bearer="required",
        errors=(_LESSER,),
    )
    async def new_recovery_codes(self, request: Request) -> Reply:
        codes = await self.factors.new_recovery_codes(signed_in(request), origin_of(request))
        return reply({"codes": codes})
