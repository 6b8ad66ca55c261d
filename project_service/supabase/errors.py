"""Errors as ``/auth/v1`` writes them: statuses and codes are those that clients of the Supabase family know.

``THEIRS`` is the one table, from our codes to theirs. The form of a body depends on the date in the request's header
``X-Supabase-Api-Version``, without which clients expect the older one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from attrs import frozen

from project_service.auth.errors import WeakPassword
from project_service.errors import ApiError, Headers
from project_service.http.describe import STRING, Named, array, obj
from project_service.http.head import HeaderView
from project_service.http.response import ErrorForm, Reply, error_reply

VERSION_HEADER, CODE_HEADER = "X-Supabase-Api-Version", "X-Sb-Error-Code"
# From this date on clients read the code from the member "code".
VERSION = "2024-01-01"
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")


@frozen
class Theirs:
    """``status`` and ``message`` are ours where they are None."""

    status: int | None
    code: str
    message: str | None = None


THEIRS: Mapping[str, Theirs] = {
    # Requests that cannot be read.
    "bad_request": Theirs(None, "bad_request"),
    "invalid_json": Theirs(400, "bad_json"),
    "invalid_query": Theirs(400, "validation_failed"),
    "validation_failed": Theirs(400, "validation_failed"),
    "not_found": Theirs(None, "not_found"),
    "method_not_allowed": Theirs(None, "method_not_allowed"),
    "payload_too_large": Theirs(None, "payload_too_large"),
    "uri_too_long": Theirs(None, "uri_too_long"),
    "unsupported_media_type": Theirs(None, "unsupported_media_type"),
    "headers_too_large": Theirs(None, "headers_too_large"),
    "request_timeout": Theirs(None, "request_timeout"),
    # Who calls.
    "project_key_required": Theirs(401, "no_authorization"),
    "project_key_invalid": Theirs(401, "no_authorization"),
    "service_key_required": Theirs(403, "not_admin", "User not allowed"),
    "authentication_required": Theirs(401, "no_authorization", "This endpoint requires a valid Bearer token"),
    "invalid_token": Theirs(403, "bad_jwt"),
    "session_revoked": Theirs(
        403, "session_not_found", "Session from session_id claim in JWT does not exist"
    ),
    "session_not_found": Theirs(403, "session_not_found"),
    "session_required": Theirs(403, "session_not_found"),
    # Signing up and in.
    "invalid_credentials": Theirs(400, "invalid_credentials", "Invalid login credentials"),
    "email_not_confirmed": Theirs(400, "email_not_confirmed", "Email not confirmed"),
    "user_disabled": Theirs(400, "user_banned", "User is banned"),
    "signup_disabled": Theirs(422, "signup_disabled", "Signups not allowed for this instance"),
    "email_taken": Theirs(422, "user_already_exists", "User already registered"),
    "id_taken": Theirs(422, "user_already_exists"),
    "weak_password": Theirs(422, "weak_password"),
    "same_password": Theirs(422, "same_password", "New password should be different from the old password."),
    "reauthentication_needed": Theirs(400, "reauthentication_needed"),
    "invalid_refresh_token": Theirs(
        400, "refresh_token_not_found", "Invalid Refresh Token: Refresh Token Not Found"
    ),
    "refresh_token_reused": Theirs(400, "refresh_token_already_used", "Invalid Refresh Token: Already Used"),
    "reauthentication_not_valid": Theirs(
        422, "reauthentication_not_valid", "Nonce has expired or is invalid"
    ),
    "anonymous_users_disabled": Theirs(422, "anonymous_provider_disabled", "Anonymous sign-ins are disabled"),
    "flow_state_not_found": Theirs(
        404, "flow_state_not_found", "invalid flow state, no valid flow state found"
    ),
    "bad_code_verifier": Theirs(
        400, "bad_code_verifier", "code challenge does not match previously saved code verifier"
    ),
    "invalid_one_time_token": Theirs(403, "otp_expired", "Token has expired or is invalid"),
    # Not 501, which clients take for a fault of the network.
    "email_not_configured": Theirs(400, "email_provider_disabled"),
    # Providers and hooks.
    "provider_disabled": Theirs(400, "provider_disabled", "Unsupported provider: provider is not enabled"),
    "provider_refused": Theirs(400, "bad_oauth_callback"),
    "provider_unavailable": Theirs(None, "unexpected_failure"),
    "invalid_id_token": Theirs(400, "invalid_id_token"),
    "bad_state": Theirs(400, "bad_oauth_state"),
    "provider_address_unconfirmed": Theirs(403, "provider_email_needs_verification"),
    "address_taken": Theirs(422, "email_exists"),
    "identity_taken": Theirs(422, "identity_already_exists"),
    "identity_not_found": Theirs(404, "identity_not_found"),
    "last_identity": Theirs(422, "single_identity_not_deletable"),
    "address_identity": Theirs(422, "email_conflict_identity_not_deletable"),
    "hook_refused": Theirs(None, "hook_refused"),
    "hook_failed": Theirs(None, "hook_failed"),
    # Further factors.
    "factor_not_found": Theirs(404, "mfa_factor_not_found", "Factor not found"),
    "factor_name_taken": Theirs(422, "mfa_factor_name_conflict"),
    "too_many_factors": Theirs(422, "too_many_enrolled_mfa_factors"),
    "factor_challenge_expired": Theirs(422, "mfa_challenge_expired"),
    "factor_verification_failed": Theirs(422, "mfa_verification_failed", "Invalid TOTP code entered"),
    "insufficient_aal": Theirs(403, "insufficient_aal"),
    # Passkeys.
    "passkey_disabled": Theirs(404, "passkey_disabled", "Passkeys are disabled"),
    "passkey_not_found": Theirs(404, "validation_failed", "Passkey not found"),
    "passkey_taken": Theirs(422, "webauthn_credential_exists"),
    "too_many_passkeys": Theirs(422, "too_many_passkeys"),
    "passkey_challenge_expired": Theirs(400, "webauthn_challenge_not_found"),
    "passkey_verification_failed": Theirs(400, "webauthn_verification_failed"),
    "user_not_found": Theirs(404, "user_not_found", "User not found"),
    "user_in_use": Theirs(409, "conflict"),
    # What is not the client's fault, or only in part.
    "rate_limited": Theirs(429, "over_request_rate_limit", "Request rate limit reached"),
    "refused_by_project": Theirs(None, "refused_by_project"),
    "overloaded": Theirs(None, "overloaded"),
    "database_unavailable": Theirs(None, "unexpected_failure"),
    "shutting_down": Theirs(None, "unexpected_failure"),
    "internal_error": Theirs(None, "unexpected_failure"),
}
# Where a code means something else to those who call.
FOR_MAILS = {"rate_limited": Theirs(429, "over_email_send_rate_limit", "Email rate limit exceeded")}
FOR_USERS = {
    "email_taken": Theirs(422, "email_exists", "A user with this email address has already been registered")
}


# What validation says of an address, in words that applications look for.
_OF_ADDRESSES = {
    "is not an e-mail address": "Unable to validate email address: invalid format",
    "is missing: the user has no address to which a code could be sent": (
        "Reauthentication requires the user to have an email or a phone number"
    ),
}


class AuthError(ApiError):
    """An error in words that these clients know. ``reasons`` says why a password is weak."""

    reasons: Sequence[str] | None = None


# What is refused on this interface alone.


def _refused(status: int, code: str, message: str) -> ApiError:
    return AuthError(status, code, message)


def phone_provider_disabled() -> ApiError:
    return _refused(400, "phone_provider_disabled", "Unsupported phone provider")


def validation_failed_phone() -> ApiError:
    return _refused(400, "validation_failed", "Invalid phone number format (E.164 required)")


def provider_disabled() -> ApiError:
    return _refused(400, "provider_disabled", "Unsupported provider: provider is not enabled")


def web3_provider_disabled() -> ApiError:
    return _refused(422, "web3_provider_disabled", "Web3 provider is disabled")


def saml_provider_disabled() -> ApiError:
    return _refused(404, "saml_provider_disabled", "SAML 2.0 is disabled")


def manual_linking_disabled() -> ApiError:
    return _refused(404, "manual_linking_disabled", "Manual linking is disabled")


def feature_disabled() -> ApiError:
    """A whole path is not offered."""
    return _refused(404, "feature_disabled", "This is not offered here.")


def feature_disabled_in_part(what: str) -> ApiError:
    """Something that an endpoint does elsewhere is not offered."""
    return _refused(422, "feature_disabled", f"{what} is not offered here.")


def invalid_credentials_unsupported_grant() -> ApiError:
    return _refused(400, "invalid_credentials", "unsupported_grant_type")


def mfa_phone_enroll_not_enabled() -> ApiError:
    return _refused(422, "mfa_phone_enroll_not_enabled", "MFA enroll is disabled for Phone")


def mfa_webauthn_enroll_not_enabled() -> ApiError:
    return _refused(422, "mfa_webauthn_enroll_not_enabled", "MFA enroll is disabled for WebAuthn")


def translated(error: ApiError, exceptions: Mapping[str, Theirs] = {}) -> AuthError:
    """``error`` as this interface has it; ``exceptions`` go before ``THEIRS``."""
    if isinstance(error, AuthError):
        return error
    theirs = exceptions.get(error.code) or THEIRS.get(error.code) or Theirs(None, error.code)
    status = theirs.status or error.status
    # A challenge goes with a 401 alone, and what a 401 here needs is added.
    headers: Headers = tuple(pair for pair in error.headers if status == 401 or pair[0] != "WWW-Authenticate")
    own = AuthError(status, theirs.code, theirs.message or _message(error), headers=headers)
    if isinstance(error, WeakPassword):
        own.reasons = [error.weakness]
    return own


def _message(error: ApiError) -> str:
    """Our message, in their words where applications look for them."""
    if isinstance(error, WeakPassword):
        return f"Password {error.why_not.replace('must have at least', 'should be at least')}."
    if error.code == "invalid_token":
        return f"invalid JWT: {error.message}"
    if error.code == "validation_failed" and error.details:
        return _OF_ADDRESSES.get(error.details.get("email", ""), error.message)
    return error.message


def _reply(error: ApiError, body: dict[str, Any], *more: tuple[str, str]) -> Reply:
    if isinstance(error, AuthError) and error.reasons is not None:
        body["weak_password"] = {"reasons": [*error.reasons]}
    plain = error_reply(error)
    return Reply(plain.status, (*plain.headers, (CODE_HEADER, error.code), *more), orjson.dumps(body))


def _older(error: ApiError) -> Reply:
    return _reply(error, {"code": error.status, "error_code": error.code, "msg": error.message})


def _asked(error: ApiError, headers: HeaderView) -> Reply:
    version = headers.text(b"x-supabase-api-version") or ""
    if _DATE.match(version) is None or version < VERSION:
        return _older(error)
    return _reply(error, {"code": error.code, "message": error.message}, (VERSION_HEADER, VERSION))


_ERROR = Named(
    "ClientAuthError",
    {
        "anyOf": [
            obj(
                ("code", "message"),
                False,
                code={"type": "string", "description": f"With {VERSION_HEADER}: {VERSION}."},
                message=STRING,
                weak_password=obj(("reasons",), reasons=array(STRING)),
            ),
            obj(
                ("code", "error_code", "msg"),
                False,
                code={"type": "integer", "description": "The status, without that header."},
                error_code=STRING,
                msg=STRING,
                weak_password=obj(("reasons",), reasons=array(STRING)),
            ),
        ]
    },
)


def _schema(codes: Sequence[str]) -> Any:
    known = {"enum": [*codes]}
    either = [
        {"properties": {"code": known}},
        {"properties": {"error_code": known}, "required": ["error_code"]},
    ]
    return {"allOf": [_ERROR, {"anyOf": either}]}


def form(exceptions: Mapping[str, Theirs] = {}) -> ErrorForm:
    """How errors are written, with the ``exceptions`` to the table."""

    def sent(error: ApiError) -> AuthError:
        return translated(error, exceptions)

    return ErrorForm(
        lambda error: _older(sent(error)),
        _schema,
        sent,
        lambda error, headers: _asked(sent(error), headers),
    )
