"""The end users' endpoints, below ``/auth``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from project_service.auth import errors
from project_service.auth.accounts import MAX_BYTES as METADATA_BYTES
from project_service.auth.accounts import Accounts, Profile, Recovery
from project_service.auth.admin import HIGHEST_IMPORTED_COST, LARGEST_PAGE, PAGE, Administration
from project_service.auth.context import Context
from project_service.auth.passwords import MAX_BYTES as PASSWORD_BYTES
from project_service.auth.sessions import SCOPES, SessionService
from project_service.auth.values import EMAIL_MAX_BYTES, IssuedSession, Origin
from project_service.errors import ApiError, authentication_required, rate_limited
from project_service.http.caller import Claims, KeyDemand
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    JSON,
    LOCATION,
    MOMENT,
    STRING,
    UUID,
    Answer,
    Named,
    Operation,
    Parameter,
    Schema,
    array,
    exactly,
    in_path,
    obj,
    takes,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, envelope, json_reply
from project_service.http.routing import Router

# What ``/openapi.json`` says about the routes below ``/auth`` and ``/admin/users``.


TAG, ADMIN_TAG = "authentication", "users"
# The admission class of requests that hash a password.
PASSWORDS = "passwords"

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


SIGN_UP = Operation(
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
LOG_IN = Operation(
    "logIn",
    TAG,
    "Begin a session",
    (_answer("The session", SESSION),),
    body=takes(email=EMAIL, password=STRING),
    errors=(*_GUESSED, errors.user_disabled(), errors.email_not_confirmed()),
)
REFRESH = Operation(
    "refreshSession",
    TAG,
    "Exchange a refresh token for the next tokens of its session",
    (_answer("The session with its next tokens", SESSION),),
    body=takes(refresh_token=STRING),
    errors=(errors.invalid_refresh_token(), errors.refresh_token_reused()),
)
RECOVER = Operation(
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
RESET = Operation(
    "resetPassword",
    TAG,
    "Set a new password with a mailed token; every session ends",
    (NOTHING,),
    body=takes(token=STRING, password=PASSWORD),
    errors=(errors.invalid_one_time_token(), _WEAK),
)
VERIFY = Operation(
    "verifyEmail",
    TAG,
    "Confirm an address with a mailed token",
    (_answer("The session of its owner", SESSION),),
    body=takes(token=STRING),
    errors=(errors.invalid_one_time_token(),),
)
LOG_OUT = Operation(
    "logOut",
    TAG,
    "End this session, all of the user's, or all others",
    (NOTHING,),
    (Parameter("scope", "Which sessions end; local, this one, by default.", {"enum": list(SCOPES)}),),
)
READ_USER = Operation("readUser", TAG, "Who is signed in", (_answer("The user", exactly(user=USER)),))
CHANGE_USER = Operation(
    "changeUser",
    TAG,
    "Change the password (the other sessions end), the metadata, or both",
    (_answer("The user as he is now", exactly(user=USER)),),
    body=takes({"password": PASSWORD, "current_password": STRING, "metadata": METADATA}),
    errors=(*_GUESSED, _WEAK),
    details="A new password needs current_password.",
)
DELETE_USER = Operation(
    "deleteUser",
    TAG,
    "Delete the signed-in user with all his sessions",
    (NOTHING,),
    body=takes(current_password=STRING),
    errors=(*_GUESSED, errors.user_in_use()),
)
LIST_SESSIONS = Operation(
    "listSessions",
    TAG,
    "The user's sessions, the newest first",
    (_answer("The sessions", exactly(sessions=array(LISTED_SESSION))),),
)
END_SESSION = Operation(
    "endSession",
    TAG,
    "End one of the user's sessions",
    (NOTHING,),
    (in_path("session_id", "The id of a listed session."),),
    errors=(errors.session_not_found(),),
)
READ_KEYS = Operation(
    "readKeys",
    TAG,
    "The public keys that access tokens are signed with (RFC 7517)",
    (Answer(200, "A JWK Set", {JSON: JWKS}, {"Cache-Control": "public, max-age=300"}),),
    needs=(),
)

_ONE = in_path("user_id", "The user's id or email address.")
_ONE_USER = _answer("The user", exactly(user=ADMIN_USER))
LIST_USERS = Operation(
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
CREATE_USER = Operation(
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
SHOW_USER = Operation("showUser", ADMIN_TAG, "One user", (_ONE_USER,), (_ONE,), errors=(_UNKNOWN_USER,))
UPDATE_USER = Operation(
    "updateUser",
    ADMIN_TAG,
    "Disable a user or set his password (either ends every session), or set his metadata",
    (_ONE_USER,),
    (_ONE,),
    takes({"disabled": BOOLEAN, "password": PASSWORD, "metadata": METADATA}),
    errors=(_UNKNOWN_USER, _WEAK),
)
REMOVE_USER = Operation(
    "removeUser",
    ADMIN_TAG,
    "Delete a user",
    (NOTHING,),
    (_ONE,),
    errors=(_UNKNOWN_USER, errors.user_in_use()),
)
END_USER_SESSIONS = Operation(
    "endUserSessions",
    ADMIN_TAG,
    "End every session of a user",
    (_answer("How many there were", exactly(ended=COUNT)),),
    (_ONE,),
    errors=(_UNKNOWN_USER,),
)


# How much of a User-Agent the audit and the list of sessions keep.
USER_AGENT_CHARACTERS = 256


def origin_of(request: Request) -> Origin:
    agent = (request.headers.text(b"user-agent") or "")[:USER_AGENT_CHARACTERS].replace("\0", "")
    return Origin(request.client_address, agent, request.request_id)


def signed_in(request: Request) -> Claims:
    """The claims of the caller's access token. Raises ``authentication_required`` if he has only a project key."""
    if request.caller.user is None:
        raise authentication_required()
    return request.caller.user


def token_reply(data: Mapping[str, Any], status: int = 200, *more: tuple[str, str]) -> Reply:
    return envelope(data, status, (NO_STORE, *more))


@frozen
class AuthRoutes:
    accounts: Accounts
    sessions: SessionService
    profile: Profile
    recovery: Recovery
    context: Context

    def mount(self, router: Router) -> None:
        key: KeyDemand = "required" if self.context.settings.require_project_key else "optional"
        # These need no bearer token, and must not fail if a client sends an expired one by default.
        for url, said, handler in (
            ("/auth/signup", SIGN_UP, self.sign_up),
            ("/auth/login", LOG_IN, self.log_in),
            ("/auth/refresh", REFRESH, self.refresh),
            ("/auth/recover", RECOVER, self.recover),
            ("/auth/reset", RESET, self.reset),
            ("/auth/verify", VERIFY, self.verify),
            ("/auth/resend", RESEND, self.resend),
        ):
            router.route(url, said, methods=("POST",), key=key, bearer="own", admission=_admission_of(said))(
                handler
            )
        for url, method, said, signed_handler in (
            ("/auth/logout", "POST", LOG_OUT, self.log_out),
            ("/auth/user", "GET", READ_USER, self.user),
            ("/auth/user", "PATCH", CHANGE_USER, self.change_user),
            ("/auth/user", "DELETE", DELETE_USER, self.delete_user),
            ("/auth/sessions", "GET", LIST_SESSIONS, self.list_sessions),
            ("/auth/sessions/<session_id>", "DELETE", END_SESSION, self.end_session),
        ):
            router.route(
                url, said, methods=(method,), key=key, bearer="required", admission=_admission_of(said)
            )(signed_handler)
        jwks = "/.well-known/jwks.json"
        router.route(jwks, READ_KEYS, methods=("GET",), key="optional", bearer="own", admission="")(self.jwks)

    async def sign_up(self, request: Request) -> Reply:
        body = await request.members("email", "password", "metadata")
        made = await self.accounts.sign_up(
            body.get("email"), body.get("password"), body.get("metadata"), origin_of(request)
        )
        if isinstance(made, IssuedSession):
            return token_reply(made.view(), 201, request.location("/auth/user"))
        return token_reply({"user": made.view(), "session": None})

    async def log_in(self, request: Request) -> Reply:
        body = await request.members("email", "password")
        session = await self.accounts.log_in(body.get("email"), body.get("password"), origin_of(request))
        return token_reply(session.view())

    async def refresh(self, request: Request) -> Reply:
        body = await request.members("refresh_token")
        session = await self.sessions.refresh(body.get("refresh_token"), origin_of(request))
        return token_reply(session.view())

    async def recover(self, request: Request) -> Reply:
        body = await request.members("email")
        await self.recovery.recover(body.get("email"), origin_of(request))
        return envelope(None)

    async def resend(self, request: Request) -> Reply:
        body = await request.members("email")
        await self.recovery.resend(body.get("email"), origin_of(request))
        return envelope(None)

    async def reset(self, request: Request) -> Reply:
        body = await request.members("token", "password")
        await self.recovery.reset(body.get("token"), body.get("password"), origin_of(request))
        return envelope(None)

    async def verify(self, request: Request) -> Reply:
        body = await request.members("token")
        session = await self.recovery.verify(body.get("token"), origin_of(request))
        return token_reply(session.view())

    async def log_out(self, request: Request) -> Reply:
        if request.body.length != 0 and request.declares_json():
            # It takes no body, so that a scope in one would be dropped in silence.
            await request.members()
        await self.sessions.log_out(signed_in(request), request.query_value("scope"), origin_of(request))
        return envelope(None)

    async def user(self, request: Request) -> Reply:
        user = await self.profile.read(signed_in(request))
        return token_reply({"user": user.view()})

    async def change_user(self, request: Request) -> Reply:
        caller = signed_in(request)
        user = await self.profile.change(caller, await request.json_object(), origin_of(request))
        return token_reply({"user": user.view()})

    async def delete_user(self, request: Request) -> Reply:
        caller = signed_in(request)
        body = await request.members("current_password")
        await self.profile.delete(caller, body.get("current_password"), origin_of(request))
        return envelope(None)

    async def list_sessions(self, request: Request) -> Reply:
        caller = signed_in(request)
        alive = await self.sessions.alive(caller)
        return token_reply({"sessions": [session.view(caller.sid) for session in alive]})

    async def end_session(self, request: Request) -> Reply:
        await self.sessions.end_one(signed_in(request), request.path_args["session_id"], origin_of(request))
        return envelope(None)

    async def jwks(self, request: Request) -> Reply:
        """The JWK Set (RFC 7517). Caches may keep it for a short time only, because a new key signs as soon as it is
        loaded."""
        keys = self.context.verifier.issuer.keys.published()
        return json_reply(keys, headers=(("Cache-Control", "public, max-age=300"),))


# The operator's endpoints, below ``/admin/users``, for the service key only.


_HASHING = (SIGN_UP, LOG_IN, RESET, CHANGE_USER, DELETE_USER, CREATE_USER, UPDATE_USER)


def _admission_of(described: Operation) -> str | None:
    return PASSWORDS if described in _HASHING else None


@frozen
class AdminRoutes:
    administration: Administration

    def mount(self, router: Router) -> None:
        one = "/admin/users/<user_id>"
        for url, method, said, handler in (
            ("/admin/users", "GET", LIST_USERS, self.page),
            ("/admin/users", "POST", CREATE_USER, self.create),
            (one, "GET", SHOW_USER, self.read),
            (one, "PATCH", UPDATE_USER, self.change),
            (one, "DELETE", REMOVE_USER, self.delete),
            (f"{one}/sessions", "DELETE", END_USER_SESSIONS, self.end_sessions),
        ):
            router.route(
                url, said, methods=(method,), key="service", bearer="own", admission=_admission_of(said)
            )(handler)

    async def page(self, request: Request) -> Reply:
        page = await self.administration.page(request.query_value("cursor"), request.query_value("limit"))
        users = [account.view() for account in page.accounts]
        return token_reply({"users": users, "next_cursor": page.next_cursor})

    async def create(self, request: Request) -> Reply:
        account = await self.administration.create(await request.json_object(), origin_of(request))
        location = request.location(f"/admin/users/{account.user.id}")
        return token_reply({"user": account.view()}, 201, location)

    async def read(self, request: Request) -> Reply:
        account = await self.administration.find(request.path_args["user_id"])
        return token_reply({"user": account.view()})

    async def change(self, request: Request) -> Reply:
        wanted = await request.json_object()
        account = await self.administration.change(request.path_args["user_id"], wanted, origin_of(request))
        return token_reply({"user": account.view()})

    async def delete(self, request: Request) -> Reply:
        await self.administration.delete(request.path_args["user_id"], origin_of(request))
        return envelope(None)

    async def end_sessions(self, request: Request) -> Reply:
        ended = await self.administration.end_sessions(request.path_args["user_id"], origin_of(request))
        return token_reply({"ended": ended})
