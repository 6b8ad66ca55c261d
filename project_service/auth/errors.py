"""The errors that only authentication raises. Their codes are listed in docs/auth.rst."""

from __future__ import annotations

from typing import Literal

from project_service.errors import ApiError, challenge

Weakness = Literal["length", "characters", "pwned"]


def _challenged(code: str, message: str) -> ApiError:
    """A 401, which needs a challenge (RFC 9110 section 11.6.1). It names no error, because no bearer token was
    sent."""
    return ApiError(401, code, message, headers=challenge())


def invalid_credentials() -> ApiError:
    """401. The same for an unknown address and for a wrong password, so that accounts cannot be guessed."""
    return _challenged("invalid_credentials", "The e-mail address or the password is wrong.")


def invalid_refresh_token() -> ApiError:
    """The token is unknown, expired or revoked; the response does not say which."""
    return _challenged("invalid_refresh_token", "The refresh token is not valid; log in again.")


def refresh_token_reused() -> ApiError:
    return _challenged(
        "refresh_token_reused",
        "The refresh token was used before, so its session has been ended; log in again.",
    )


def user_disabled() -> ApiError:
    return ApiError(403, "user_disabled", "This user is disabled.")


def email_not_confirmed() -> ApiError:
    return ApiError(403, "email_not_confirmed", "The e-mail address has not been confirmed yet.")


def signup_disabled() -> ApiError:
    return ApiError(403, "signup_disabled", "Signing up is switched off here.")


def email_taken() -> ApiError:
    return ApiError(409, "email_taken", "There is already a user with this e-mail address.")


def id_taken() -> ApiError:
    return ApiError(409, "id_taken", "There is already a user with this id.")


class WeakPassword(ApiError):
    """``weakness`` says why for programs: its length, its characters, or that it is widely known."""

    def __init__(self, why: str, weakness: Weakness) -> None:
        message = f"This password is not allowed: it {why}."
        super().__init__(422, "weak_password", message, {"password": why})
        self.why_not = why
        self.weakness = weakness


def weak_password(why: str, weakness: Weakness = "characters") -> ApiError:
    return WeakPassword(why, weakness)


def same_password() -> ApiError:
    return ApiError(422, "same_password", "The new password is the one that the user has already.")


def reauthentication_needed() -> ApiError:
    """The session began too long ago to set a password without the current one."""
    return ApiError(
        400,
        "reauthentication_needed",
        "Signing in was too long ago: send the current password too, or sign in again first.",
    )


def reauthentication_not_valid() -> ApiError:
    return ApiError(
        422, "reauthentication_not_valid", "The code is wrong, or no longer valid; ask for a new one."
    )


def anonymous_users_disabled() -> ApiError:
    return ApiError(
        422, "anonymous_users_disabled", "Anonymous users are switched off here (auth.anonymous_users)."
    )


def invalid_one_time_token() -> ApiError:
    """The token is unknown, used, expired or for another purpose; the response does not say which."""
    return ApiError(
        422, "invalid_one_time_token", "The token is not valid, or no longer valid; ask for a new one."
    )


def bad_code_verifier() -> ApiError:
    """The code verifier does not belong to the challenge with which the client began (RFC 7636 section 4.6)."""
    return ApiError(400, "bad_code_verifier", "The code verifier does not match the code challenge.")


def flow_state_not_found() -> ApiError:
    """There is no such authorization code, or it was used or has expired."""
    return ApiError(404, "flow_state_not_found", "The authorization code is not valid, or no longer valid.")


def email_not_configured() -> ApiError:
    return ApiError(501, "email_not_configured", "This service is not set up to send e-mails.", counted=True)


def user_not_found() -> ApiError:
    return ApiError(404, "user_not_found", "There is no such user.")


def user_in_use() -> ApiError:
    """A foreign key of one of the project's own tables refers to the user."""
    return ApiError(
        409, "user_in_use", "Rows of other tables refer to this user, so the user cannot be deleted."
    )


def session_not_found() -> ApiError:
    return ApiError(404, "session_not_found", "There is no such session.")


def provider_disabled() -> ApiError:
    return ApiError(400, "provider_disabled", "This provider is not configured here.")


def provider_unavailable() -> ApiError:
    """The provider cannot be reached, or its answers cannot be used; the log says why."""
    return ApiError(503, "provider_unavailable", "The provider cannot be used at the moment.", counted=True)


def provider_refused() -> ApiError:
    """The provider does not take the code, which is used, expired, or of another client."""
    return ApiError(400, "provider_refused", "The provider does not confirm who signed in; try again.")


def invalid_id_token(why: str) -> ApiError:
    return ApiError(400, "invalid_id_token", f"Bad ID token: {why}.")


def bad_state() -> ApiError:
    """What came back from a provider was not begun in this browser, or is finished, or took too long."""
    return ApiError(400, "bad_state", "This sign-in was not begun here, or too long ago; begin again.")


def provider_address_unconfirmed() -> ApiError:
    return ApiError(
        403,
        "provider_address_unconfirmed",
        "The provider has not checked the e-mail address; follow the link that was sent to it.",
    )


def address_taken() -> ApiError:
    """Whoever comes by a provider has an address of another user's, and nothing shows that it is theirs."""
    return ApiError(409, "address_taken", "Another user has this e-mail address; sign in as that one first.")


def identity_taken() -> ApiError:
    return ApiError(409, "identity_taken", "This account of the provider belongs to a user already.")


def identity_not_found() -> ApiError:
    return ApiError(404, "identity_not_found", "The user has no such identity.")


def last_identity() -> ApiError:
    return ApiError(422, "last_identity", "This is the user's last way in, so it cannot be removed.")


def address_identity() -> ApiError:
    return ApiError(
        422, "address_identity", "The address is a way in as long as the user has it; change it instead."
    )


def hook_refused(status: int, message: str) -> ApiError:
    """A hook of the project refuses, with a status (4xx) and a message of its own."""
    return ApiError(status, "hook_refused", message)


def hook_failed() -> ApiError:
    """A hook of the project fails, takes too long, or answers what cannot be used; the log says why."""
    return ApiError(500, "hook_failed", "A hook of this project failed.", counted=True)


def factor_not_found() -> ApiError:
    return ApiError(404, "factor_not_found", "There is no such factor.")


def factor_name_taken() -> ApiError:
    return ApiError(422, "factor_name_taken", "The user has a factor of this name already.")


def too_many_factors() -> ApiError:
    return ApiError(
        422, "too_many_factors", "The user has as many factors as there may be; remove one first."
    )


def factor_challenge_expired() -> ApiError:
    """The challenge is unknown, used, expired, or of another factor or session; the response does not say which."""
    return ApiError(
        422, "factor_challenge_expired", "The challenge is not valid, or no longer valid; ask for a new one."
    )


def factor_verification_failed() -> ApiError:
    """The code is wrong, or was used before."""
    return ApiError(422, "factor_verification_failed", "The code is wrong, or has been used already.")


def insufficient_aal() -> ApiError:
    """The user has a further factor, which the session has not been shown by."""
    return ApiError(
        403, "insufficient_aal", "This needs the second factor first: verify one, then try again (aal2)."
    )


def session_required() -> ApiError:
    """The token was made with the service key to see what its user sees (``impersonation``)."""
    return ApiError(
        403,
        "session_required",
        "This access token was made by an operator to look at data. It has no session, which this needs.",
    )


def passkey_disabled() -> ApiError:
    return ApiError(404, "passkey_disabled", "Passkeys are switched off here (auth.passkeys).")


def passkey_not_found() -> ApiError:
    return ApiError(404, "passkey_not_found", "There is no such passkey.")


def passkey_taken() -> ApiError:
    return ApiError(422, "passkey_taken", "This passkey is known here already.")


def too_many_passkeys() -> ApiError:
    return ApiError(
        422, "too_many_passkeys", "The user has as many passkeys as there may be; remove one first."
    )


def passkey_challenge_expired() -> ApiError:
    """The challenge is unknown, used, expired, or another user's; the response does not say which."""
    return ApiError(
        400, "passkey_challenge_expired", "The challenge is not valid, or no longer valid; ask for a new one."
    )


def passkey_verification_failed() -> ApiError:
    """The passkey is unknown, of another user or origin, or has not signed this challenge; or its counter has not
    gone up, so there may be a copy of it. The response does not say which."""
    return ApiError(400, "passkey_verification_failed", "The passkey could not be verified.")
