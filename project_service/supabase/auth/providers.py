"""Signing in by a provider, and the identities of whoever is signed in.

``/authorize`` sends a browser away with a state and a cookie, and ``/callback`` needs both. The cookie is
``SameSite=Lax``, so it comes along when a provider sends the browser back by a link, but not with a form that a
provider posts (Apple): that is answered with the same fields in an address of ours, to which the browser brings it.
A cookie with ``SameSite=None`` would come along with everything that other sites ask for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode

from attrs import evolve, frozen
from twisted.logger import Logger

from project_service import redirects
from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.context import Context
from project_service.auth.identities import (
    STATE_LIFETIME,
    Browser,
    Identities,
    Wanted,
    is_proof,
    proof_of,
)
from project_service.auth.providers import CALLBACK
from project_service.auth.routes import CHANGES, signed_in
from project_service.auth.values import IssuedSession
from project_service.errors import ApiError, validation_failed
from project_service.http.describe import STRING, Answer, Parameter, RequestBody, in_path, obj
from project_service.http.request import Request, parse_query
from project_service.http.response import Reply
from project_service.supabase import errors as theirs
from project_service.supabase.auth import page
from project_service.supabase.auth.challenges import read_form
from project_service.supabase.auth.common import (
    BASE,
    NOTHING,
    OF_PROVIDERS,
    Links,
    answer,
    declare,
    fragment_of,
    reply,
    to,
    validation_failed_missing,
)
from project_service.supabase.errors import FOR_USERS, translated
from project_service.supabase.users import Pkce

_log = Logger()

_COOKIE = "project-service-sign-in"
_CODE_CHALLENGE_MAX_CHARACTERS = 128
# What ``/authorize`` takes itself. Everything else goes on to the provider.
_OURS = frozenset(
    {
        *("provider", "redirect_to", "scopes", "code_challenge", "code_challenge_method", "apikey"),
        *("skip_http_redirect", "invite_token", "link", "proof"),
    }
)
# What a form of a provider's is carried on with.
_CARRIED = ("code", "state", "user", "error")
# How a provider says that somebody does not get in (RFC 6749 section 4.1.2.1, OpenID Connect Core section 3.1.2.6).
_PROVIDERS_ERROR = re.compile(r"[a-z_]{1,40}\Z")
_ASKED = (
    Parameter("provider", "Its name in auth.providers.", required=True),
    Parameter("redirect_to", "Where to go in the end: auth.site_url, or one of auth.redirect_urls."),
    Parameter("scopes", "What to ask for in addition, separated by spaces."),
    Parameter("code_challenge", "Of the client (RFC 7636), which gets a code then instead of a session."),
    Parameter("code_challenge_method", "How it was made.", {"enum": ["s256", "plain"]}),
)


@frozen
class ByProviders:
    identities: Identities
    context: Context
    links: Links

    @declare(
        "GET",
        "/authorize",
        "Authorize",
        "Send a browser to a provider",
        Answer(302, "To the provider.", headers={"Location": "The provider.", "Set-Cookie": "The browser."}),
        Answer(200, "With link: a page that asks first.", {"text/html": STRING}),
        parameters=(
            *(evolve(one, required=False) for one in _ASKED),
            Parameter("link", "In place of all others: what /user/identities/authorize answered."),
            Parameter("proof", "What the page of the link has."),
        ),
        admission=CHANGES,
        errors=(*OF_PROVIDERS, errors.bad_state()),
        details="Other parameters, such as prompt, go on to the provider.",
    )
    async def authorize(self, request: Request) -> Reply:
        browser = self.identities.browser(self._cookie(request))
        if (link := request.query_value("link")) is not None:
            return await self._link(request, link, browser)
        wanted = self._wanted(request)
        try:
            url = await self.identities.begin(wanted, browser, origin_of(request))
        except ApiError as refusal:
            if refusal.status < 500:
                raise
            return self._failed(wanted, refusal)
        return to(url, self._set_cookie(request, browser), status=302)

    async def _link(self, request: Request, link: str, browser: Browser) -> Reply:
        """Adding an identity begins with a page that says to which account. Whoever was led there by somebody else
        would add their own identity to that one's account."""
        wanted, user = await self.identities.offered(link)
        cookie = self._set_cookie(request, browser)
        if is_proof(request.query_value("proof") or "", browser, link):
            url = await self.identities.accept(link, browser, origin_of(request))
            return to(url, cookie, status=302)
        whose = user.email or "of a guest"
        parameters = urlencode({"link": link, "proof": proof_of(browser, link)})
        question = f"Sign in by {wanted.provider} to the account {whose}?"
        return page.offer(question, "Go on", f"?{parameters}", cookie)

    def _wanted(self, request: Request) -> Wanted:
        """What a client asks for. Raises ``validation_failed`` and ``provider_unavailable``."""
        if b"%00" in request.raw_query:
            raise validation_failed({"query": "has a NUL"})  # which the database cannot keep
        name = request.query_value("provider")
        if not name:
            raise validation_failed_missing("provider")
        self.identities.providers.require(name)
        challenge = request.query_value("code_challenge") or ""
        if len(challenge) > _CODE_CHALLENGE_MAX_CHARACTERS:
            raise validation_failed({"code_challenge": "is too long"})
        pkce = Pkce(challenge, request.query_value("code_challenge_method") or "")
        data = self.links.asked(request, pkce).data
        if "redirect_to" not in data:
            raise validation_failed({"redirect_to": "is not allowed, and there is no auth.site_url"})
        base = self.links.base(request)
        if base is None:
            _log.warn("nobody can be sent to a provider: server.public_url is missing")
            raise errors.provider_unavailable()
        given = parse_query(request.raw_query)
        return Wanted(
            name,
            f"{base}{CALLBACK}",
            data["redirect_to"],
            data.get("code_challenge", ""),
            tuple(filter(None, re.split(r"[\s,]+", request.query_value("scopes") or ""))),
            {key: value for key, value in given if key not in _OURS},
        )

    @declare(
        "GET",
        "/callback",
        "Callback",
        "What a provider sends a browser back to",
        Answer(
            303,
            "To the application, with a session or what went wrong behind the #; for a client with a code challenge "
            "with a code for /token, or what went wrong, in the query.",
            headers={"Location": "The application."},
        ),
        page.GONE,
        parameters=tuple(
            Parameter(name, words)
            for name, words in (
                ("code", "The provider's code."),
                ("state", "What /authorize sent."),
                ("error", "What went wrong there."),
                ("user", "Apple's."),
            )
        ),
        admission=CHANGES,
        errors=(errors.provider_disabled(),),
    )
    async def callback(self, request: Request) -> Reply:
        if not self.identities.providers.names():
            raise errors.provider_disabled()
        state, cookie = request.query_value("state") or "", self._cookie(request)
        try:
            wanted = await self.identities.returned(state, cookie)
        except ApiError as refusal:
            return self._failed(None, refusal)
        code, error = request.query_value("code"), request.query_value("error")
        if error is not None or not code:
            known = error is not None and _PROVIDERS_ERROR.match(error)
            return self._refused(wanted, error if known and error else "server_error")
        try:
            begun = await self.identities.finish(
                wanted,
                state,
                cookie,
                code,
                request.query_value("user"),
                origin_of(request),
                self.links.asked(request, redirect_to=wanted.redirect_to),
            )
        except ApiError as refusal:
            return self._failed(wanted, refusal)
        target = redirects.Address.parse(wanted.redirect_to)
        assert target is not None  # it was when this began
        if isinstance(begun, IssuedSession):
            return to(target.with_fragment(fragment_of(begun, self.context.clock())))
        return to(target.with_query({"code": begun.text}))

    @declare(
        "POST",
        "/callback",
        "CallbackForm",
        "The same for providers that post a form, as Apple does",
        Answer(303, "To the same by GET, to which the browser brings its cookie.", headers={"Location": "."}),
        body=RequestBody({"application/x-www-form-urlencoded": obj(("state",), False, state=STRING)}),
        errors=(validation_failed_missing("state"),),
    )
    async def callback_form(self, request: Request) -> Reply:
        fields = await read_form(request)
        if "state" not in fields:
            raise validation_failed_missing("state")
        carried = {name: fields[name] for name in _CARRIED if name in fields}
        # The address of this request, whatever a proxy has made of it.
        return to(f"?{urlencode(carried)}")

    @declare(
        "GET",
        "/user/identities/authorize",
        "AuthorizeLink",
        "Begin to add an account with a provider to the signed-in user",
        answer("Where to go on", obj(("url",), url=STRING)),
        Answer(302, "The same, without skip_http_redirect.", headers={"Location": "Where to go on."}),
        parameters=(*_ASKED, Parameter("skip_http_redirect", "true: answer 200.")),
        admission=CHANGES,
        bearer="required",
        errors=(*OF_PROVIDERS, errors.insufficient_aal(), theirs.manual_linking_disabled()),
    )
    async def authorize_link(self, request: Request) -> Reply:
        caller = signed_in(request)
        self._require_linking()
        wanted = self._wanted(request)
        token = await self.identities.offer(wanted, caller, origin_of(request))
        url = f"{wanted.callback.removesuffix(CALLBACK)}{BASE}/authorize?{urlencode({'link': token})}"
        return (
            reply({"url": url})
            if request.query_value("skip_http_redirect") == "true"
            else to(url, status=302)
        )

    @declare(
        "DELETE",
        "/user/identities/<identity_id>",
        "DeleteIdentity",
        "Remove an account with a provider from the signed-in user, unless it is the last way in",
        NOTHING,
        parameters=(in_path("identity_id", "Its identity_id among the user's identities."),),
        admission=CHANGES,
        bearer="required",
        errors=(
            errors.identity_not_found(),
            errors.last_identity(),
            errors.address_identity(),
            errors.insufficient_aal(),
            theirs.manual_linking_disabled(),
        ),
    )
    async def delete_identity(self, request: Request) -> Reply:
        caller = signed_in(request)
        self._require_linking()
        await self.identities.remove(caller, request.path_args["identity_id"], origin_of(request))
        return reply({})

    def _require_linking(self) -> None:
        if not self.context.settings.manual_linking:
            raise theirs.manual_linking_disabled()

    # The browser.

    def _is_secure(self, request: Request) -> bool:
        return (self.links.base(request) or "").startswith("https:")

    def _cookie_name(self, request: Request) -> str:
        """With the prefix no other host, and nothing without TLS, can set it (RFC 6265bis section 4.1.3.2)."""
        return f"__Host-{_COOKIE}" if self._is_secure(request) else _COOKIE

    def _cookie(self, request: Request) -> str:
        name = self._cookie_name(request)
        for header in request.headers.all(b"cookie"):
            for piece in header.decode("latin-1").split(";"):
                key, _, value = piece.strip().partition("=")
                if key == name:
                    return value
        return ""

    def _set_cookie(self, request: Request, browser: Browser) -> tuple[str, str]:
        secure = "; Secure" if self._is_secure(request) else ""
        seconds = int(STATE_LIFETIME.total_seconds())
        return (
            "Set-Cookie",
            f"{self._cookie_name(request)}={browser.secret.text}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax"
            + secure,
        )

    # What went wrong.

    def _failed(self, wanted: Wanted | None, refusal: ApiError) -> Reply:
        error = translated(refusal, FOR_USERS)
        kind = "server_error" if error.status >= 500 else "access_denied"
        return self._told(
            wanted, {"error": kind, "error_code": error.code, "error_description": error.message}
        )

    def _refused(self, wanted: Wanted, error: str) -> Reply:
        words = "The provider did not let the user in."
        return self._told(wanted, {"error": error, "error_code": error, "error_description": words})

    def _told(self, wanted: Wanted | None, parameters: Mapping[str, str]) -> Reply:
        target = self.links.target("") if wanted is None else redirects.Address.parse(wanted.redirect_to)
        if target is None:
            return page.gone("Signing in was not begun here, or too long ago")
        if wanted is not None and wanted.code_challenge:
            return to(target.with_query(parameters))
        return to(target.with_fragment(parameters))
