"""Where the endpoints of ``/auth/v1`` are, and what is answered beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from attrs import evolve, frozen

from project_service.auth.assemble import ADMISSION, Auth
from project_service.errors import ApiError, method_not_allowed, not_found
from project_service.http import cors
from project_service.http.caller import KeyDemand
from project_service.http.describe import Answer, Operation, in_path
from project_service.http.head import METHODS, HeaderView
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Endpoint, Handler, Policy, Router
from project_service.supabase import errors as theirs
from project_service.supabase.auth.about import About
from project_service.supabase.auth.challenges import Mails, Verification
from project_service.supabase.auth.common import BASE, TAG, Links
from project_service.supabase.auth.factors import OwnFactors
from project_service.supabase.auth.operators import Operators
from project_service.supabase.auth.passkeys import OwnPasskeys
from project_service.supabase.auth.providers import ByProviders
from project_service.supabase.auth.sessions import Sessions
from project_service.supabase.auth.user import OwnUser
from project_service.supabase.databases import OF_DATABASE, of_known
from project_service.supabase.errors import FOR_MAILS, FOR_USERS, VERSION_HEADER, form

# What pages may read of responses, besides what they may read of all.
EXPOSED = f"{VERSION_HEADER}, X-Total-Count, Link"
# What needs no key, whatever the settings say.
_OPEN = ("/.well-known/jwks.json", "/verify", "/authorize", "/callback")


@frozen
class _Missing:
    """Paths of theirs that have no endpoint here, and what they answer."""

    pattern: re.Pattern[str]
    refusal: Callable[[], ApiError]


_MISSING = tuple(
    _Missing(re.compile(rf"(?:{pattern})\Z"), refusal)
    for pattern, refusal in (
        ("sso(/.*)?", theirs.saml_provider_disabled),
        ("(oauth|user/oauth|admin)(/.*)?", theirs.feature_disabled),
    )
)


@frozen
class ClientAuth:
    """The routes. ``databases`` are those, by stage and name, below whose URLs they are too."""

    auth: Auth
    databases: Collection[tuple[str, str]]
    public_url: str | None

    def mount(self, router: Router) -> None:
        auth, context = self.auth, self.auth.context
        links = Links(context, self.public_url)
        sessions = Sessions(
            auth.accounts, auth.challenges, auth.throttle, auth.sessions, auth.identities, context, links
        )

        async def elsewhere(request: Request) -> Reply:
            return _elsewhere(router.allowed(request.raw_path), request)

        for exceptions, endpoints in (
            ({}, sessions),
            (FOR_USERS, ByProviders(auth.identities, context, links)),
            (FOR_MAILS, Mails(auth.accounts, auth.throttle, auth.challenges, links)),
            ({}, Verification(auth.accounts, auth.challenges, auth.throttle, context, links)),
            (FOR_USERS, OwnUser(auth.accounts, links)),
            ({}, OwnFactors(auth.accounts, auth.factors, context)),
            ({}, OwnPasskeys(auth.accounts, auth.passkeys, auth.administration, context)),
            ({}, About(auth.verifier, context)),
            (FOR_USERS, Operators(auth.administration, auth.invitations, links)),
        ):
            part = router.of_part(evolve(_POLICY, error_form=form(exceptions)))
            for name, value in vars(type(endpoints)).items():
                declared: Endpoint | None = getattr(value, "endpoint", None)
                if declared is not None:
                    self._declare(part, declared, getattr(endpoints, name))
        others = Endpoint("OPTIONS", "/<path:rest>", _OTHERS, "optional", "optional", None, False)
        self._declare(router.of_part(_POLICY), others, elsewhere, any_method=True)

    def _declare(
        self, part: Router, declared: Endpoint, handler: Handler, *, any_method: bool = False
    ) -> None:
        """Declare an endpoint below both bases."""

        described = evolve(declared.described, name=f"client{declared.described.name}")
        for router, base, handles in (
            (part, BASE, handler),
            (part.undocumented(), OF_DATABASE + BASE, of_known(self.databases, handler)),
        ):
            router.route(
                base + declared.url,
                described,
                methods=(declared.method,),
                key=self._key(declared),
                bearer=declared.bearer,
                admission=declared.admission,
                any_method=any_method,
            )(handles)

    def _key(self, declared: Endpoint) -> KeyDemand:
        """Whoever verifies tokens may read the keys without one, and browsers that follow links have none."""
        optional = declared.key == "optional" and declared.url not in _OPEN
        return "required" if optional and self.auth.context.settings.require_project_key else declared.key


def _elsewhere(methods: tuple[str, ...], request: Request) -> Reply:
    """What is answered on paths without an endpoint, and to methods other than the ``methods`` of a path."""
    if request.method == "OPTIONS":
        return Reply(204, (("Allow", ", ".join(methods)),))
    if methods != ("OPTIONS",):
        raise method_not_allowed(methods)
    for one in _MISSING:
        if one.pattern.match(request.path_args["rest"]):
            raise one.refusal()
    raise not_found()


def _preflight(methods: tuple[str, ...], headers: HeaderView) -> Reply:
    """A page may send anything where there is nothing: otherwise it could not read what is refused, and why."""
    return cors.preflight(METHODS if methods == ("OPTIONS",) else methods, headers)


_POLICY = Policy(
    admission=ADMISSION, error_form=form(), exposed=EXPOSED, key_anywhere=True, preflight=_preflight
)
_OTHERS = Operation(
    "OtherPaths",
    TAG,
    "Which methods a path has",
    (Answer(204, "The methods.", headers={"Allow": "The methods."}),),
    parameters=(in_path("rest", "A path that is described nowhere here."),),
    details="Under any other method: 404, or the code by which these clients know that something is not offered.",
    needs=(),
)
