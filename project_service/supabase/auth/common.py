"""What the endpoints of ``/auth/v1`` have in common: how bodies are read, and how endpoints are described."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from attrs import AttrsInstance, evolve, fields_dict, frozen

from project_service import redirects
from project_service.audit import Origin, origin_of
from project_service.auth import errors
from project_service.auth.challenges import TYPES, Asked
from project_service.auth.context import Context
from project_service.auth.values import IssuedSession, Purpose
from project_service.errors import ApiError, rate_limited, validation_failed
from project_service.http import json_body
from project_service.http.caller import BearerDemand, KeyDemand
from project_service.http.describe import JSON, Answer, Named, Operation, RequestBody, Schema
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.supabase.users import CODE_CHALLENGE_CHARACTERS, USER, Pkce

TAG = "supabase"
BASE = "/auth/v1"
M = TypeVar("M", bound=AttrsInstance)

GUESSED = (errors.invalid_credentials(), rate_limited(1))
# Wherever a user or a token is made, a hook of the project may refuse or fail.
HOOKED = (errors.hook_refused(403, "why"), errors.hook_failed())
MAILED = (rate_limited(1), errors.email_not_configured())
OF_PROVIDERS = (
    rate_limited(1),
    errors.provider_disabled(),
    errors.provider_unavailable(),
    errors.signup_disabled(),
    errors.address_taken(),
    errors.user_disabled(),
    errors.provider_address_unconfirmed(),
    errors.email_not_configured(),
    errors.identity_taken(),
)


def reply(value: Any) -> Reply:
    return json_reply(value, headers=(NO_STORE,))


async def read(request: Request, model: type[M]) -> M:
    """The body as a ``model``, without members that it does not have."""
    return of_members(model, await request.json_object())


def of_members(model: type[M], given: dict[str, Any]) -> M:
    known = fields_dict(model)
    return json_body.read(
        model, {name: value for name, value in given.items() if name in known and value is not None}
    )


def body_of(model: type[AttrsInstance]) -> RequestBody:
    """What ``/openapi.json`` says of a body that ``read`` takes."""
    members = fields_dict(model).items()
    nullable = {name: {"anyOf": [one.metadata["kind"].schema, {"type": "null"}]} for name, one in members}
    return RequestBody({JSON: {"type": "object", "properties": nullable, "additionalProperties": True}})


def validation_failed_missing(name: str) -> ApiError:
    return validation_failed({name: "is required"})


def declare(
    method: str,
    path: str,
    name: str,
    summary: str,
    *answers: Answer,
    body: type[AttrsInstance] | RequestBody | None = None,
    admission: str | None = None,
    key: KeyDemand = "optional",
    bearer: BearerDemand = "own",
    **more: Any,
) -> Callable[[Any], Any]:
    """An endpoint at ``path`` below each base."""
    sent = body_of(body) if isinstance(body, type) else body
    described = Operation(name, TAG, summary, answers, body=sent, **more)
    if bearer == "required":
        described = evolve(described, errors=(*described.errors, errors.session_required()))
    return endpoint(method, path, described, key=key, bearer=bearer, admission=admission)


def answer(summary: str, schema: Schema | Named, **headers: str) -> Answer:
    return Answer(200, summary, {JSON: schema}, {"Cache-Control": "no-store", **headers})


NOTHING = answer("Done.", {"type": "object"})
ONE_USER = answer("The user", USER)


def fragment_of(session: IssuedSession, now: float) -> dict[str, str]:
    """A session as a page gets it behind the # of its address."""
    return {
        "access_token": session.access_token,
        "expires_at": str(session.expires_at),
        "expires_in": str(max(1, session.expires_at - int(now))),
        **session.provider_tokens,
        "refresh_token": session.refresh_token,
        "token_type": "bearer",
    }


def to(address: str, *headers: tuple[str, str], status: int = 303) -> Reply:
    """Leads on to ``address``, which nobody else is told."""
    more = (("Location", address), NO_STORE, ("Referrer-Policy", "no-referrer"), *headers)
    return Reply(status, more)


def origin_with(request: Request, captcha_token: str) -> Origin:
    return evolve(origin_of(request), captcha_token=captcha_token)


@frozen
class Links:
    """The links of mails. ``public_url`` is that of the service, if it is configured."""

    context: Context
    public_url: str | None

    def asked(self, request: Request, pkce: Pkce | None = None, redirect_to: str = "") -> Asked:
        """How a challenge was asked for: where its link leads in the end, and the client's code challenge."""
        given = request.query_value("redirect_to") or redirect_to
        target = self.target(given)
        data = {} if target is None else {"redirect_to": target.text}
        if pkce is not None and pkce.code_challenge:
            method = (pkce.code_challenge_method or "plain").lower()
            if len(pkce.code_challenge) > CODE_CHALLENGE_CHARACTERS:
                raise validation_failed(
                    {"code_challenge": f"must be at most {CODE_CHALLENGE_CHARACTERS} characters"}
                )
            if method not in ("s256", "plain"):
                raise validation_failed({"code_challenge_method": "must be s256 or plain"})
            data["code_challenge"] = f"{method} {pkce.code_challenge}"
        base = self.base(request)
        api_url = "" if base is None else f"{base}{BASE}"

        def link(token: str, purpose: Purpose) -> str | None:
            return self._link(base, token, purpose, data.get("redirect_to"))

        return Asked(link, data, api_url)

    def target(self, redirect_to: str) -> redirects.Address | None:
        """``redirect_to`` if it is allowed, else the site; None without ``auth.site_url``."""
        settings = self.context.settings
        site = () if settings.site_url is None else (settings.site_url,)
        allowed = redirects.allowed(redirect_to, (*site, *settings.redirect_urls)) if redirect_to else None
        return allowed or (None if settings.site_url is None else redirects.Address.parse(settings.site_url))

    def base(self, request: Request) -> str | None:
        """Where the service is. Mails must not link to what a stranger's header ``Host`` says, but to this machine
        they may."""
        if self.public_url is not None:
            return self.public_url
        return request.base_url if _is_loopback(urlsplit(request.base_url).hostname or "") else None

    def _link(self, base: str | None, token: str, purpose: Purpose, redirect_to: str | None) -> str | None:
        if base is None or purpose not in TYPES:
            return None
        parameters = {"token": token, "type": TYPES[purpose]}
        if redirect_to is not None:
            parameters["redirect_to"] = redirect_to
        return f"{base}{BASE}/verify?{urlencode(parameters)}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
