"""Signing up, in and out."""

from __future__ import annotations

from attrs import frozen

from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.accounts import Accounts
from project_service.auth.challenges import Challenges
from project_service.auth.context import Context
from project_service.auth.identities import Identities
from project_service.auth.limits import Throttle
from project_service.auth.routes import CHANGES, PASSWORDS, of_session, signed_in
from project_service.auth.sessions import SCOPES, SessionService
from project_service.auth.values import Account, Email, IssuedSession, Profile, User, moment
from project_service.errors import authentication_required, validation_failed
from project_service.http.caller import Claims, bearer_token
from project_service.http.describe import Answer, Parameter
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply
from project_service.supabase import errors as theirs
from project_service.supabase.auth.common import (
    GUESSED,
    HOOKED,
    MAILED,
    OF_PROVIDERS,
    Links,
    answer,
    declare,
    origin_with,
    read,
    reply,
    validation_failed_missing,
)
from project_service.supabase.users import SESSION, USER, Grant, SignUp, session_view, user_view

_GRANTS = ("password", "refresh_token", "pkce", "id_token")
_OTHER_GRANTS = {"web3": theirs.web3_provider_disabled}


@frozen
class Sessions:
    """Signing up, in and out."""

    accounts: Accounts
    challenges: Challenges
    throttle: Throttle
    sessions: SessionService
    identities: Identities
    context: Context
    links: Links

    @declare(
        "POST",
        "/signup",
        "SignUp",
        "Make a user and a first session",
        answer(
            "The session; with auth.confirm_email the user alone, for a taken address a made-up one",
            {"anyOf": [SESSION, USER]},
        ),
        body=SignUp,
        admission=CHANGES,
        errors=(
            errors.email_taken(),
            errors.weak_password("why"),
            errors.signup_disabled(),
            *MAILED,
            *HOOKED,
            theirs.phone_provider_disabled(),
            errors.anonymous_users_disabled(),
        ),
    )
    async def sign_up(self, request: Request) -> Reply:
        body = await read(request, SignUp)
        origin = origin_with(request, body.gotrue_meta_security)
        if not body.email:
            if body.phone:
                raise theirs.phone_provider_disabled()
            return await self._begun(await self.accounts.sign_up_anonymously(body.data, origin))
        if not body.password:
            raise validation_failed({"password": "is required: Signup requires a valid password"})
        asked = self.links.asked(request, body)
        made = await self.accounts.sign_up_unseen(body.email, body.password, body.data, origin, asked)
        if isinstance(made, IssuedSession):
            return await self._begun(made)
        if made is None:
            return reply(user_view(self._made_up(body)))
        return reply(user_view(await self.accounts.profile(made.id)))

    async def _begun(self, session: IssuedSession) -> Reply:
        profile = await self.accounts.profile(session.user.id)
        return reply(session_view(session, profile, self.context.clock()))

    def _made_up(self, body: SignUp) -> Profile:
        """In place of the user who has the address."""
        now = moment(self.context.clock())
        user = User(self.context.new_id(), Email.parse(body.email).address, now, body.data, updated_at=now)
        return Profile(Account(user), sent={"confirmation": now})

    @declare(
        "POST",
        "/token",
        "Token",
        "Begin a session by password, authorization code or ID token, or go on with one by its refresh token",
        answer("The session", SESSION),
        body=Grant,
        admission=PASSWORDS,
        parameters=(Parameter("grant_type", "How.", {"enum": [*_GRANTS]}, required=True),),
        errors=(
            *HOOKED,
            *GUESSED,
            errors.email_not_confirmed(),
            errors.invalid_refresh_token(),
            errors.refresh_token_reused(),
            theirs.phone_provider_disabled(),
            errors.flow_state_not_found(),
            errors.bad_code_verifier(),
            *OF_PROVIDERS,
            errors.invalid_id_token("why"),
            errors.insufficient_aal(),
            theirs.manual_linking_disabled(),
            theirs.web3_provider_disabled(),
            theirs.invalid_credentials_unsupported_grant(),
        ),
    )
    async def token(self, request: Request) -> Reply:
        grant = request.query_value("grant_type")
        if grant not in _GRANTS:
            raise _OTHER_GRANTS.get(grant or "", theirs.invalid_credentials_unsupported_grant)()
        body, origin = await read(request, Grant), origin_of(request)
        if grant == "refresh_token":
            if not body.refresh_token:
                raise validation_failed_missing("refresh_token")
            return await self._begun(await self.sessions.refresh(body.refresh_token, origin))
        if grant == "pkce":
            await self.throttle.count_verification(origin)
            return await self._begun(
                await self.challenges.exchange(body.auth_code, body.code_verifier, origin)
            )
        if grant == "id_token":
            return await self._begun(await self._by_id_token(request, body))
        if not body.email:
            raise theirs.phone_provider_disabled() if body.phone else validation_failed_missing("email")
        return await self._begun(await self.accounts.log_in(body.email, body.password, origin))

    async def _by_id_token(self, request: Request, body: Grant) -> IssuedSession:
        self.identities.providers.require(body.provider)
        if not body.id_token:
            raise validation_failed_missing("id_token")
        if body.link_identity and not self.context.settings.manual_linking:
            raise theirs.manual_linking_disabled()
        return await self.identities.by_id_token(
            body.provider,
            body.id_token,
            body.nonce or None,
            body.access_token or None,
            self._linking(request) if body.link_identity else None,
            origin_with(request, body.gotrue_meta_security),
            self.links.asked(request),
        )

    def _linking(self, request: Request) -> Claims:
        """Who adds an identity. Others may send anything in Authorization here, so the edge does not read it; that
        the session has not ended is found out when the identity is added."""
        token = bearer_token(request.headers)
        if token is None:
            raise authentication_required()
        return of_session(self.context.verifier.verify(token))

    @declare(
        "POST",
        "/logout",
        "LogOut",
        "End all of the user's sessions, this one, or all others",
        Answer(204, "Done."),
        bearer="required",
        parameters=(
            Parameter(
                "scope", "Which sessions end; global, all of them, by default.", {"enum": list(SCOPES)}
            ),
        ),
    )
    async def log_out(self, request: Request) -> Reply:
        scope = request.query_value("scope") or "global"
        await self.sessions.log_out(signed_in(request), scope, origin_of(request))
        return Reply(204, (NO_STORE,))
