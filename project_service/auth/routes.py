"""The end users' endpoints, below ``/auth``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from project_service.auth import described
from project_service.auth.accounts import Accounts
from project_service.auth.context import Context
from project_service.auth.model import IssuedSession, Origin
from project_service.auth.profile import Profile
from project_service.auth.recovery import Recovery
from project_service.auth.sessions import SessionService
from project_service.errors import authentication_required
from project_service.http.caller import Claims, KeyDemand
from project_service.http.inbound import Inbound
from project_service.http.outbound import NO_STORE, Reply, envelope, json_reply
from project_service.http.router import Router

# How much of a User-Agent the audit and the list of sessions keep.
USER_AGENT_CHARACTERS = 256


def origin_of(inbound: Inbound) -> Origin:
    agent = (inbound.headers.text(b"user-agent") or "")[:USER_AGENT_CHARACTERS].replace("\0", "")
    return Origin(inbound.client_address, agent, inbound.request_id)


def signed_in(inbound: Inbound) -> Claims:
    """The claims of the caller's access token. Raises ``authentication_required`` if he has only a project key."""
    if inbound.caller.user is None:
        raise authentication_required()
    return inbound.caller.user


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
            ("/auth/signup", described.SIGN_UP, self.sign_up),
            ("/auth/login", described.LOG_IN, self.log_in),
            ("/auth/refresh", described.REFRESH, self.refresh),
            ("/auth/recover", described.RECOVER, self.recover),
            ("/auth/reset", described.RESET, self.reset),
            ("/auth/verify", described.VERIFY, self.verify),
            ("/auth/resend", described.RESEND, self.resend),
        ):
            router.route(url, said, methods=("POST",), key=key, bearer="own")(handler)
        for url, method, said, signed_handler in (
            ("/auth/logout", "POST", described.LOG_OUT, self.log_out),
            ("/auth/user", "GET", described.READ_USER, self.user),
            ("/auth/user", "PATCH", described.CHANGE_USER, self.change_user),
            ("/auth/user", "DELETE", described.DELETE_USER, self.delete_user),
            ("/auth/sessions", "GET", described.LIST_SESSIONS, self.list_sessions),
            ("/auth/sessions/<session_id>", "DELETE", described.END_SESSION, self.end_session),
        ):
            router.route(url, said, methods=(method,), key=key, bearer="required")(signed_handler)
        jwks = "/.well-known/jwks.json"
        router.route(jwks, described.READ_KEYS, methods=("GET",), key="optional", bearer="own")(self.jwks)

    async def sign_up(self, inbound: Inbound) -> Reply:
        body = await inbound.members("email", "password", "metadata")
        made = await self.accounts.sign_up(
            body.get("email"), body.get("password"), body.get("metadata"), origin_of(inbound)
        )
        if isinstance(made, IssuedSession):
            return token_reply(made.view(), 201, inbound.location("/auth/user"))
        return token_reply({"user": made.view(), "session": None})

    async def log_in(self, inbound: Inbound) -> Reply:
        body = await inbound.members("email", "password")
        session = await self.accounts.log_in(body.get("email"), body.get("password"), origin_of(inbound))
        return token_reply(session.view())

    async def refresh(self, inbound: Inbound) -> Reply:
        body = await inbound.members("refresh_token")
        session = await self.sessions.refresh(body.get("refresh_token"), origin_of(inbound))
        return token_reply(session.view())

    async def recover(self, inbound: Inbound) -> Reply:
        body = await inbound.members("email")
        await self.recovery.recover(body.get("email"), origin_of(inbound))
        return envelope(None)

    async def resend(self, inbound: Inbound) -> Reply:
        body = await inbound.members("email")
        await self.recovery.resend(body.get("email"), origin_of(inbound))
        return envelope(None)

    async def reset(self, inbound: Inbound) -> Reply:
        body = await inbound.members("token", "password")
        await self.recovery.reset(body.get("token"), body.get("password"), origin_of(inbound))
        return envelope(None)

    async def verify(self, inbound: Inbound) -> Reply:
        body = await inbound.members("token")
        session = await self.recovery.verify(body.get("token"), origin_of(inbound))
        return token_reply(session.view())

    async def log_out(self, inbound: Inbound) -> Reply:
        if inbound.body.length != 0 and inbound.declares_json():
            # It takes no body, so that a scope in one would be dropped in silence.
            await inbound.members()
        await self.sessions.log_out(signed_in(inbound), inbound.query_value("scope"), origin_of(inbound))
        return envelope(None)

    async def user(self, inbound: Inbound) -> Reply:
        user = await self.profile.read(signed_in(inbound))
        return token_reply({"user": user.view()})

    async def change_user(self, inbound: Inbound) -> Reply:
        caller = signed_in(inbound)
        user = await self.profile.change(caller, await inbound.json_object(), origin_of(inbound))
        return token_reply({"user": user.view()})

    async def delete_user(self, inbound: Inbound) -> Reply:
        caller = signed_in(inbound)
        body = await inbound.members("current_password")
        await self.profile.delete(caller, body.get("current_password"), origin_of(inbound))
        return envelope(None)

    async def list_sessions(self, inbound: Inbound) -> Reply:
        caller = signed_in(inbound)
        alive = await self.sessions.alive(caller)
        return token_reply({"sessions": [session.view(caller.sid) for session in alive]})

    async def end_session(self, inbound: Inbound) -> Reply:
        await self.sessions.end_one(signed_in(inbound), inbound.path_args["session_id"], origin_of(inbound))
        return envelope(None)

    async def jwks(self, inbound: Inbound) -> Reply:
        """The JWK Set (RFC 7517). Caches may keep it for a short time only, because a new key signs as soon as it is
        loaded."""
        keys = self.context.verifier.issuer.keys.published()
        return json_reply(keys, headers=(("Cache-Control", "public, max-age=300"),))
