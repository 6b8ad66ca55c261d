"""What the service says of itself."""

from __future__ import annotations

from attrs import frozen

from project_service import __version__
from project_service.auth.context import Context
from project_service.auth.profiles import PRESETS
from project_service.auth.routes import JWKS
from project_service.auth.tokens import Verifier
from project_service.http.describe import JSON, Answer
from project_service.http.request import Request
from project_service.http.response import Reply, json_reply
from project_service.supabase.auth.common import answer, declare, reply

# Ways to sign in that ``GET /settings`` names even if they are off.
_OTHER_WAYS = ("phone", "keycloak", *PRESETS)


@frozen
class About:
    """What the service says of itself."""

    verifier: Verifier
    context: Context

    @declare(
        "GET",
        "/settings",
        "Settings",
        "Which ways to sign in there are",
        answer("Settings", {"type": "object"}),
    )
    async def settings(self, request: Request) -> Reply:
        settings = self.context.settings
        return reply(
            {
                "external": {
                    **dict.fromkeys(_OTHER_WAYS, False),
                    **dict.fromkeys(settings.providers, True),
                    "email": True,
                    "anonymous_users": settings.anonymous_users,
                },
                "disable_signup": not settings.allow_signup,
                "mailer_autoconfirm": not settings.confirm_email,
                "phone_autoconfirm": False,
                "sms_provider": "",
                "saml_enabled": False,
            }
        )

    @declare(
        "GET",
        "/health",
        "Health",
        "That the service answers",
        answer("The service", {"type": "object"}),
        needs=(),
    )
    async def health(self, request: Request) -> Reply:
        return reply(
            {"name": "project-service", "version": __version__, "description": "Accounts and sessions"}
        )

    @declare(
        "GET",
        "/.well-known/jwks.json",
        "Keys",
        "The public keys that access tokens are signed with (RFC 7517)",
        Answer(200, "A JWK Set", {JSON: JWKS}, {"Cache-Control": "public, max-age=300"}),
        needs=(),
    )
    async def read_keys(self, request: Request) -> Reply:
        keys = self.verifier.issuer.keys.published()
        return json_reply(keys, headers=(("Cache-Control", "public, max-age=300"),))
