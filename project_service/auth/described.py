"""What ``/openapi.json`` says about the routes below ``/auth`` and ``/admin/users``."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from project_service.auth import errors
from project_service.auth.admin import HIGHEST_IMPORTED_COST, LARGEST_PAGE, PAGE
from project_service.auth.metadata import MAX_BYTES as METADATA_BYTES
from project_service.auth.model import EMAIL_MAX_BYTES
from project_service.auth.passwords import MAX_BYTES as PASSWORD_BYTES
from project_service.auth.sessions import SCOPES
from project_service.errors import ApiError, rate_limited
from project_service.http.openapi.described import (
    BOOLEAN,
    COUNT,
    JSON,
    LOCATION,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Described,
    Named,
    Parameter,
    Schema,
    array,
    exactly,
    in_path,
    obj,
    takes,
)

TAG, ADMIN_TAG = "authentication", "users"

EMAIL: Schema = {"type": "string", "format": "idn-email", "maxLength": EMAIL_MAX_BYTES}
PASSWORD: Schema = {
    "type": "string",
    "maxLength": PASSWORD_BYTES,
    "description": f"At least auth.password_min_bytes (8) characters and at most {PASSWORD_BYTES} bytes of UTF-8.",
}
METADATA: Schema = {
    "type": ["object", "null"],
    "description": f"At most {METADATA_BYTES} bytes as JSON, no NUL, no number beyond 64 bits; null is {{}}.",
}
_USER: Mapping[str, Schema] = {
    "id": UUID,
    "email": EMAIL,
    "created_at": MOMENT,
    "metadata": {"type": "object"},
}
USER = Named("User", exactly(**_USER))
ADMIN_USER = Named(
    "AdminUser",
    exactly(
        **_USER,
        disabled=BOOLEAN,
        email_confirmed=BOOLEAN,
        last_login_at={"type": ["string", "null"], "format": "date-time"},
    ),
)
SESSION = Named(
    "Session",
    exactly(
        user=USER,
        access_token={"type": "string", "description": "A JWT, sent as a bearer token."},
        refresh_token={"type": "string", "description": "Works once, for the next Session."},
        expires_at={"type": "integer", "description": "Unix seconds."},
        token_type={"const": "Bearer"},
    ),
)
LISTED_SESSION = Named(
    "ListedSession",
    exactly(
        id=UUID,
        created_at=MOMENT,
        refreshed_at=MOMENT,
        expires_at=MOMENT,
        user_agent=STRING,
        address=STRING,
        current=BOOLEAN,
    ),
)
_KEY_TEXTS = dict.fromkeys(("kid", "use", "alg", "crv", "x", "y", "n", "e"), STRING)
JWKS = Named("JwkSet", obj(("keys",), keys=array(obj(("kty",), False, kty=STRING, **_KEY_TEXTS))))

# Errors of the routes where a password can be guessed.
_GUESSED: tuple[ApiError, ...] = (errors.invalid_credentials(), rate_limited(1))
# Errors of the routes that send a letter.
_MAILED: tuple[ApiError, ...] = (rate_limited(1), errors.email_not_configured())
_WEAK = errors.weak_password("why")
_UNKNOWN_USER = errors.user_not_found()


def _enveloped(data: Schema | Named) -> Schema:
    return exactly(data=data, error={"type": "null"})


def _answer(summary: str, data: Schema | Named) -> Answer:
    return Answer(200, summary, {JSON: _enveloped(data)}, {"Cache-Control": "no-store"})


def _created(summary: str, data: Schema | Named) -> Answer:
    return evolve(_answer(summary, data), status=201, headers={"Cache-Control": "no-store", **LOCATION})


NOTHING = Answer(200, "Done.", {JSON: _enveloped({"type": "null"})})


SIGN_UP = Described(
    "signUp",
    TAG,
    "Make a user and his first session",
    (
        _created("The new user's session", SESSION),
        _answer(
            "With auth.confirm_email: the user must first post the token that was mailed to /auth/verify",
            exactly(user=USER, session={"type": "null"}),
        ),
    ),
    body=takes({"metadata": METADATA}, email=EMAIL, password=PASSWORD),
    errors=(errors.email_taken(), _WEAK, errors.signup_disabled(), *_MAILED),
)
LOG_IN = Described(
    "logIn",
    TAG,
    "Begin a session",
    (_answer("The session", SESSION),),
    body=takes(email=EMAIL, password=STRING),
    errors=(*_GUESSED, errors.user_disabled(), errors.email_not_confirmed()),
)
REFRESH = Described(
    "refreshSession",
    TAG,
    "Exchange a refresh token for the next tokens of its session",
    (_answer("The session with its next tokens", SESSION),),
    body=takes(refresh_token=STRING),
    errors=(errors.invalid_refresh_token(), errors.refresh_token_reused()),
)
RECOVER = Described(
    "recoverPassword",
    TAG,
    "Mail a token for a new password",
    (NOTHING,),
    body=takes(email=EMAIL),
    errors=_MAILED,
    details="The answer is the same, and takes the same time, whether or not there is such a user.",
)
RESEND = evolve(
    RECOVER, name="resendConfirmation", summary="Mail another token for the confirmation of an address"
)
RESET = Described(
    "resetPassword",
    TAG,
    "Set a new password with a mailed token; every session ends",
    (NOTHING,),
    body=takes(token=STRING, password=PASSWORD),
    errors=(errors.invalid_one_time_token(), _WEAK),
)
VERIFY = Described(
    "verifyEmail",
    TAG,
    "Confirm an address with a mailed token",
    (_answer("The session of its owner", SESSION),),
    body=takes(token=STRING),
    errors=(errors.invalid_one_time_token(),),
)
LOG_OUT = Described(
    "logOut",
    TAG,
    "End this session, all of the user's, or all others",
    (NOTHING,),
    (Parameter("scope", "Which sessions end; local, this one, by default.", {"enum": list(SCOPES)}),),
)
READ_USER = Described("readUser", TAG, "Who is signed in", (_answer("The user", exactly(user=USER)),))
CHANGE_USER = Described(
    "changeUser",
    TAG,
    "Change the password (the other sessions end), the metadata, or both",
    (_answer("The user as he is now", exactly(user=USER)),),
    body=takes({"password": PASSWORD, "current_password": STRING, "metadata": METADATA}),
    errors=(*_GUESSED, _WEAK),
    details="A new password needs current_password.",
)
DELETE_USER = Described(
    "deleteUser",
    TAG,
    "Delete the signed-in user with all his sessions",
    (NOTHING,),
    body=takes(current_password=STRING),
    errors=(*_GUESSED, errors.user_in_use()),
)
LIST_SESSIONS = Described(
    "listSessions",
    TAG,
    "The user's sessions, the newest first",
    (_answer("The sessions", exactly(sessions=array(LISTED_SESSION))),),
)
END_SESSION = Described(
    "endSession",
    TAG,
    "End one of the user's sessions",
    (NOTHING,),
    (in_path("session_id", "The id of a listed session."),),
    errors=(errors.session_not_found(),),
)
READ_KEYS = Described(
    "readKeys",
    TAG,
    "The public keys that access tokens are signed with (RFC 7517)",
    (Answer(200, "A JWK Set", {JSON: JWKS}, {"Cache-Control": "public, max-age=300"}),),
    needs=(),
)

_ONE = in_path("user_id", "The user's id or email address.")
_ONE_USER = _answer("The user", exactly(user=ADMIN_USER))
LIST_USERS = Described(
    "listUsers",
    ADMIN_TAG,
    "Users in the order they were made",
    (
        _answer(
            "A page",
            exactly(
                users=array(ADMIN_USER),
                next_cursor={"type": ["string", "null"], "description": "null on the last page."},
            ),
        ),
    ),
    (
        Parameter("cursor", "next_cursor of the page before."),
        Parameter(
            "limit",
            f"Users on a page, {PAGE} by default.",
            {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE},
        ),
    ),
)
CREATE_USER = Described(
    "createUser",
    ADMIN_TAG,
    "Make a user with a password, an imported bcrypt hash, or neither (then he recovers one)",
    (_created("The new user", exactly(user=ADMIN_USER)),),
    body=takes(
        {
            "id": {**UUID, "description": "Of an imported user, who keeps it. A new one by default."},
            "password": PASSWORD,
            "password_hash": {
                "type": "string",
                "description": f"bcrypt ($2a$, $2b$, $2y$) of a cost up to {HIGHEST_IMPORTED_COST}.",
            },
            "metadata": METADATA,
            "email_confirmed": {**BOOLEAN, "default": True},
        },
        email=EMAIL,
    ),
    errors=(errors.email_taken(), errors.id_taken(), _WEAK),
)
SHOW_USER = Described("showUser", ADMIN_TAG, "One user", (_ONE_USER,), (_ONE,), errors=(_UNKNOWN_USER,))
UPDATE_USER = Described(
    "updateUser",
    ADMIN_TAG,
    "Disable a user or set his password (either ends every session), or set his metadata",
    (_ONE_USER,),
    (_ONE,),
    takes({"disabled": BOOLEAN, "password": PASSWORD, "metadata": METADATA}),
    errors=(_UNKNOWN_USER, _WEAK),
)
REMOVE_USER = Described(
    "removeUser",
    ADMIN_TAG,
    "Delete a user",
    (NOTHING,),
    (_ONE,),
    errors=(_UNKNOWN_USER, errors.user_in_use()),
)
END_USER_SESSIONS = Described(
    "endUserSessions",
    ADMIN_TAG,
    "End every session of a user",
    (_answer("How many there were", exactly(ended=COUNT)),),
    (_ONE,),
    errors=(_UNKNOWN_USER,),
)
