"""``/auth/v1``: accounts and sessions where supabase-js and its like look for them, and in their form.

What is right and wrong is decided by ``auth``; here are paths, members, and what is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from attrs import AttrsInstance, evolve, fields_dict, frozen

from project_service import __version__, whole_numbers
from project_service.auth import errors
from project_service.auth.accounts import Accounts
from project_service.auth.admin import (
    MAX_PAGE_SIZE,
    PAGE_SIZE,
    Administration,
    parse_user_id,
)
from project_service.auth.assemble import ADMISSION, Auth
from project_service.auth.context import Context
from project_service.auth.routes import CHANGES, JWKS, PASSWORDS, origin_of, signed_in
from project_service.auth.sessions import SCOPES, SessionService
from project_service.auth.tokens import AUDIENCE, ROLE, Verifier
from project_service.auth.values import (
    Email,
    IssuedSession,
    User,
    folded,
    moment,
)
from project_service.errors import ApiError, method_not_allowed, not_found, rate_limited, validation_failed
from project_service.http import cors, json_body
from project_service.http.caller import BearerDemand, KeyDemand
from project_service.http.describe import (
    JSON,
    Answer,
    Named,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    in_path,
    obj,
)
from project_service.http.head import METHODS, HeaderView
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import Endpoint, Handler, Policy, Router, endpoint
from project_service.supabase import errors as theirs
from project_service.supabase.databases import OF_DATABASE, of_known
from project_service.supabase.errors import FOR_MAILS, FOR_OPERATORS, VERSION_HEADER, form
from project_service.supabase.users import (
    SESSION,
    USER,
    Changes,
    Deletion,
    Grant,
    NewUser,
    Recover,
    Resend,
    SignUp,
    UserAttributes,
    Verify,
    account_view,
    session_view,
    user_view,
)

TAG = "supabase"
BASE = "/auth/v1"
# What pages may read of responses, besides what they may read of all.
EXPOSED = f"{VERSION_HEADER}, X-Total-Count, Link"
# How long a user is disabled who is "banned": for good. Shorter times are not kept.
_FOR_GOOD_HOURS = 100 * 365 * 24
_BAN_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
_HOURS = {"ns": 0.0, "us": 0.0, "µs": 0.0, "ms": 0.0, "s": 1 / 3600, "m": 1 / 60, "h": 1.0}
# Ways to sign in that ``GET /settings`` says nothing else of than that they are off.
_OTHER_WAYS = (
    "anonymous_users",
    "phone",
    "apple",
    "azure",
    "discord",
    "facebook",
    "github",
    "gitlab",
    "google",
)
# The largest number of a page that is asked for.
_MAX_NUMBER = 10**9
M = TypeVar("M", bound=AttrsInstance)


def _reply(value: Any) -> Reply:
    return json_reply(value, headers=(NO_STORE,))


async def _read(request: Request, model: type[M]) -> M:
    """The body as a ``model``, without members that it does not have."""
    known = fields_dict(model)
    given = await request.json_object()
    return json_body.read(
        model, {name: value for name, value in given.items() if name in known and value is not None}
    )


def _open(model: type[AttrsInstance]) -> RequestBody:
    """What ``/openapi.json`` says of a body that ``_read`` takes."""
    members = fields_dict(model).items()
    nullable = {name: {"anyOf": [one.metadata["kind"].schema, {"type": "null"}]} for name, one in members}
    return RequestBody({JSON: {"type": "object", "properties": nullable, "additionalProperties": True}})


# What is refused on this interface alone.


def _validation_failed_missing(name: str) -> ApiError:
    return validation_failed({name: "is required"})


_OTHER_GRANTS = {
    "pkce": theirs.flow_state_not_found,
    "id_token": theirs.provider_disabled,
    "web3": theirs.web3_provider_disabled,
}


@frozen
class _Missing:
    """Paths of theirs that have no endpoint here, and what they answer. Some do so only to who is ``signed_in``."""

    pattern: re.Pattern[str]
    refusal: Callable[[], ApiError]
    signed_in: bool = False


_MISSING = tuple(
    _Missing(re.compile(rf"(?:{pattern})\Z"), refusal, *signed_in)
    for pattern, refusal, *signed_in in (
        ("otp|magiclink", theirs.otp_disabled),
        ("authorize|callback", theirs.provider_disabled),
        ("sso(/.*)?", theirs.saml_provider_disabled),
        ("user/identities/.+", theirs.manual_linking_disabled, True),
        ("factors", theirs.mfa_totp_enroll_not_enabled, True),
        ("factors/.+", theirs.mfa_factor_not_found, True),
        ("admin/users/[^/]+/factors/.+", theirs.mfa_factor_not_found),
        ("passkeys(/.*)?|admin/users/[^/]+/passkeys(/.*)?", theirs.passkey_disabled),
        ("reauthenticate", theirs.feature_disabled, True),
        ("(invite|oauth|user/oauth|admin)(/.*)?", theirs.feature_disabled),
    )
)
_GUESSED = (errors.invalid_credentials(), rate_limited(1))
_MAILED = (rate_limited(1), errors.email_not_configured())


def _declare(
    method: str,
    path: str,
    name: str,
    summary: str,
    *answers: Answer,
    body: type[AttrsInstance] | None = None,
    admission: str | None = None,
    key: KeyDemand = "optional",
    bearer: BearerDemand = "own",
    **more: Any,
) -> Callable[[Any], Any]:
    """An endpoint at ``path`` below each base."""
    described = Operation(name, TAG, summary, answers, body=_open(body) if body else None, **more)
    return endpoint(method, path, described, key=key, bearer=bearer, admission=admission)


def _answer(summary: str, schema: Schema | Named, **headers: str) -> Answer:
    return Answer(200, summary, {JSON: schema}, {"Cache-Control": "no-store", **headers})


_NOTHING = _answer("Done.", {"type": "object"})
_ONE_USER = _answer("The user", USER)


@frozen
class _Sessions:
    """Signing up, in and out, and the signed-in user."""

    accounts: Accounts
    sessions: SessionService
    context: Context

    @_declare(
        "POST",
        "/signup",
        "SignUp",
        "Make a user and a first session",
        _answer(
            "The session; with auth.confirm_email the user alone, for a taken address a made-up one",
            {"anyOf": [SESSION, USER]},
        ),
        body=SignUp,
        admission=CHANGES,
        errors=(
            errors.email_taken(),
            errors.weak_password("why"),
            errors.signup_disabled(),
            *_MAILED,
            theirs.phone_provider_disabled(),
            theirs.anonymous_provider_disabled(),
        ),
    )
    async def sign_up(self, request: Request) -> Reply:
        body = await _read(request, SignUp)
        if not body.email:
            raise theirs.phone_provider_disabled() if body.phone else theirs.anonymous_provider_disabled()
        if not body.password:
            raise validation_failed({"password": "is required: Signup requires a valid password"})
        made = await self.accounts.sign_up_unseen(body.email, body.password, body.data, origin_of(request))
        if isinstance(made, IssuedSession):
            return _reply(session_view(made, self.context.clock()))
        if made is None:
            return _reply(user_view(self._made_up(body), made_up=True))
        return _reply(user_view(made))

    def _made_up(self, body: SignUp) -> User:
        """In place of the user who has the address."""
        now = moment(self.context.clock())
        return User(self.context.new_id(), Email.parse(body.email).address, now, body.data, updated_at=now)

    @_declare(
        "POST",
        "/token",
        "Token",
        "Begin a session by password, or go on with one by its refresh token",
        _answer("The session", SESSION),
        body=Grant,
        admission=PASSWORDS,
        parameters=(Parameter("grant_type", "How.", {"enum": ["password", "refresh_token"]}, required=True),),
        errors=(
            *_GUESSED,
            errors.user_disabled(),
            errors.email_not_confirmed(),
            errors.invalid_refresh_token(),
            errors.refresh_token_reused(),
            theirs.phone_provider_disabled(),
            theirs.flow_state_not_found(),
            theirs.provider_disabled(),
            theirs.web3_provider_disabled(),
            theirs.invalid_credentials_unsupported_grant(),
        ),
    )
    async def token(self, request: Request) -> Reply:
        grant = request.query_value("grant_type")
        if grant not in ("password", "refresh_token"):
            raise _OTHER_GRANTS.get(grant or "", theirs.invalid_credentials_unsupported_grant)()
        body = await _read(request, Grant)
        if grant == "refresh_token":
            if not body.refresh_token:
                raise _validation_failed_missing("refresh_token")
            session = await self.sessions.refresh(body.refresh_token, origin_of(request))
        else:
            if not body.email:
                raise theirs.phone_provider_disabled() if body.phone else _validation_failed_missing("email")
            session = await self.accounts.log_in(body.email, body.password, origin_of(request))
        return _reply(session_view(session, self.context.clock()))

    @_declare(
        "POST",
        "/verify",
        "Verify",
        "Confirm an address with an e-mailed token",
        _answer("The session of its owner", SESSION),
        body=Verify,
        errors=(errors.invalid_one_time_token(), theirs.otp_disabled_for_recovery()),
    )
    async def verify(self, request: Request) -> Reply:
        body = await _read(request, Verify)
        if body.type == "recovery" and body.token_hash:
            raise theirs.otp_disabled_for_recovery()
        if body.type not in ("signup", "email"):
            raise errors.invalid_one_time_token()
        session = await self.accounts.confirm_email(body.token_hash, origin_of(request))
        return _reply(session_view(session, self.context.clock()))

    @_declare("GET", "/user", "ReadUser", "Who is signed in", _ONE_USER, bearer="required")
    async def read_user(self, request: Request) -> Reply:
        return _reply(user_view(await self.accounts.read(signed_in(request))))

    @_declare(
        "PUT",
        "/user",
        "UpdateUser",
        "Change the password (the other sessions end), the metadata, or both",
        _ONE_USER,
        body=Changes,
        admission=CHANGES,
        bearer="required",
        errors=(
            *_GUESSED,
            errors.weak_password("why"),
            errors.same_password(),
            errors.reauthentication_needed(),
            theirs.feature_disabled_in_part("x"),
            theirs.phone_provider_disabled(),
            theirs.reauthentication_not_valid(),
        ),
        details="A new password needs a session that signed in within a day, or current_password, unless "
        "auth.secure_password_change is false.",
    )
    async def update_user(self, request: Request) -> Reply:
        caller = signed_in(request)
        body = await _read(request, Changes)
        if body.email and folded(body.email.strip()) != folded((await self.accounts.read(caller)).email):
            raise theirs.feature_disabled_in_part("Changing the address")
        if body.phone:
            raise theirs.phone_provider_disabled()
        if body.nonce:
            raise theirs.reauthentication_not_valid()
        user = await self.accounts.revise(
            caller,
            origin_of(request),
            metadata=body.data,
            password=body.password or None,
            current_password=body.current_password,
        )
        return _reply(user_view(user))

    @_declare(
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


@frozen
class _Mails:
    """Everybody gets the same answer, whether or not there is such a user."""

    accounts: Accounts

    @_declare(
        "POST",
        "/recover",
        "Recover",
        "E-mail a token for a new password",
        _NOTHING,
        body=Recover,
        errors=_MAILED,
    )
    async def recover(self, request: Request) -> Reply:
        body = await _read(request, Recover)
        if not body.email:
            raise _validation_failed_missing("email")
        await self.accounts.request_mail(body.email, "recovery", origin_of(request))
        return _reply({})

    @_declare(
        "POST",
        "/resend",
        "Resend",
        "E-mail another token for the confirmation of an address",
        _NOTHING,
        body=Resend,
        errors=(*_MAILED, theirs.phone_provider_disabled()),
    )
    async def resend(self, request: Request) -> Reply:
        body = await _read(request, Resend)
        if body.phone or body.type in ("sms", "phone_change"):
            raise theirs.phone_provider_disabled()
        if body.type != "signup":
            raise validation_failed({"type": "must be signup"})
        if not body.email:
            raise _validation_failed_missing("email")
        await self.accounts.request_mail(body.email, "confirmation", origin_of(request))
        return _reply({})


@frozen
class _About:
    """What the service says of itself."""

    verifier: Verifier
    context: Context

    @_declare(
        "GET",
        "/settings",
        "Settings",
        "Which ways to sign in there are",
        _answer("Settings", {"type": "object"}),
    )
    async def settings(self, request: Request) -> Reply:
        settings = self.context.settings
        return _reply(
            {
                "external": {**dict.fromkeys(_OTHER_WAYS, False), "email": True},
                "disable_signup": not settings.allow_signup,
                "mailer_autoconfirm": not settings.confirm_email,
                "phone_autoconfirm": False,
                "sms_provider": "",
                "saml_enabled": False,
            }
        )

    @_declare(
        "GET",
        "/health",
        "Health",
        "That the service answers",
        _answer("The service", {"type": "object"}),
        needs=(),
    )
    async def health(self, request: Request) -> Reply:
        return _reply(
            {"name": "project-service", "version": __version__, "description": "Accounts and sessions"}
        )

    @_declare(
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


_ONE = (in_path("user_id", "The user's id."),)
_UNKNOWN = errors.user_not_found()
_CHANGED = (
    errors.weak_password("why"),
    theirs.feature_disabled_in_part("x"),
    theirs.phone_provider_disabled(),
)


@frozen
class _Operators:
    """For the service key only."""

    administration: Administration

    @_declare(
        "GET",
        "/admin/users",
        "ListUsers",
        "Users, the newest first",
        _answer(
            "A page",
            obj(("users", "aud"), users=array(USER), aud={"const": AUDIENCE}),
            **{
                "X-Total-Count": "How many users there are.",
                "Link": "The next page and the last (RFC 8288).",
            },
        ),
        key="service",
        parameters=(
            Parameter("page", "From 1."),
            Parameter("per_page", f"Users on a page, {PAGE_SIZE} by default and at most {MAX_PAGE_SIZE}."),
        ),
    )
    async def list_users(self, request: Request) -> Reply:
        page, size = _from_one(request, "page", default=1), _from_one(request, "per_page", default=PAGE_SIZE)
        size = min(size, MAX_PAGE_SIZE)
        accounts, total = await self.administration.numbered_page(page, size)
        last = max(1, -(-total // size))
        # Clients look for the number behind the first "=".
        path = request.raw_path.decode("latin-1")
        links = {"next": page + 1, "last": last} if page < last else {"last": last}
        link = ", ".join(f'<{path}?page={n}&per_page={size}>; rel="{rel}"' for rel, n in links.items())
        return json_reply(
            {"users": [account_view(one) for one in accounts], "aud": AUDIENCE},
            headers=(NO_STORE, ("X-Total-Count", str(total)), ("Link", link)),
        )

    @_declare(
        "POST",
        "/admin/users",
        "CreateUser",
        "Make a user with a password, an imported bcrypt hash, or neither",
        _ONE_USER,
        body=NewUser,
        admission=CHANGES,
        key="service",
        errors=(errors.email_taken(), errors.id_taken(), *_CHANGED),
    )
    async def create_user(self, request: Request) -> Reply:
        body = await _read(request, NewUser)
        if not body.email:
            raise theirs.phone_provider_disabled() if body.phone else _validation_failed_missing("email")
        banned = _checked(body)
        origin = origin_of(request)
        account = await self.administration.create(
            body.email,
            origin,
            user_id=body.id,
            password=body.password or None,
            password_hash=body.password_hash,
            metadata=body.user_metadata,
            app_metadata=body.app_metadata,
            confirmed=body.email_confirm,
        )
        if banned:
            account = await self.administration.change(account.user.id, origin, disabled=True)
        return _reply(account_view(account))

    @_declare(
        "GET",
        "/admin/users/<user_id>",
        "ShowUser",
        "One user",
        _ONE_USER,
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def show_user(self, request: Request) -> Reply:
        return _reply(account_view(await self.administration.find(_user_id(request))))

    @_declare(
        "PUT",
        "/admin/users/<user_id>",
        "ChangeUser",
        "Change a user's metadata of either kind, password, confirmation, or whether they are banned",
        _ONE_USER,
        body=UserAttributes,
        admission=CHANGES,
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN, *_CHANGED),
    )
    async def change_user(self, request: Request) -> Reply:
        user_id, origin = _user_id(request), origin_of(request)
        body = await _read(request, UserAttributes)
        account = await self.administration.find(user_id)
        if body.email and folded(body.email.strip()) != folded(account.user.email):
            raise theirs.feature_disabled_in_part("Changing the address")
        banned = _checked(body)
        account = await self.administration.revise(
            user_id,
            origin,
            metadata=body.user_metadata,
            app_metadata=body.app_metadata,
            confirm=body.email_confirm,
            password=body.password or None,
            disabled=banned,
        )
        return _reply(account_view(account))

    @_declare(
        "DELETE",
        "/admin/users/<user_id>",
        "DeleteUser",
        "Delete a user",
        _NOTHING,
        admission=CHANGES,
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN, errors.user_in_use(), theirs.feature_disabled_in_part("x")),
    )
    async def delete_user(self, request: Request) -> Reply:
        if request.body.length != 0 and request.declares_json():
            body = await _read(request, Deletion)
            if body.should_soft_delete:
                raise theirs.feature_disabled_in_part("Deleting a user without deleting the row")
        await self.administration.delete(_user_id(request), origin_of(request))
        return _reply({})

    @_declare(
        "GET",
        "/admin/users/<user_id>/factors",
        "ListFactors",
        "A user's other factors: none",
        _answer("The factors", array({"type": "object"})),
        key="service",
        parameters=_ONE,
        errors=(_UNKNOWN,),
    )
    async def list_factors(self, request: Request) -> Reply:
        await self.administration.find(_user_id(request))
        return _reply([])


def _user_id(request: Request) -> str:
    """Raises ``user_not_found`` for what is no id, such as the address that an id may stand for elsewhere."""
    return parse_user_id(request.path_args["user_id"])


def _from_one(request: Request, name: str, *, default: int) -> int:
    """A number from 1 of the query, which clients may also leave empty."""
    given = request.query_value(name)
    if not given:
        return default
    number = whole_numbers.from_digits(given)
    if number is None or not 1 <= number <= _MAX_NUMBER:
        raise validation_failed({name: f"must be a number from 1 to {_MAX_NUMBER}"})
    return number


def _checked(body: UserAttributes) -> bool | None:
    """Whether the user is to be banned, if ``body`` says so; refuses what cannot be set."""
    if body.phone:
        raise theirs.phone_provider_disabled()
    if body.role not in ("", ROLE):
        raise theirs.feature_disabled_in_part(f"A role other than {ROLE}")
    if not body.ban_duration:
        return None
    if body.ban_duration == "none":
        return False
    parts = _BAN_PART.findall(body.ban_duration)
    if "".join(number + unit for number, unit in parts) != body.ban_duration:
        raise validation_failed({"ban_duration": "must be none or a time such as 876000h"})
    if sum(float(number) * _HOURS[unit] for number, unit in parts) < _FOR_GOOD_HOURS:
        raise theirs.feature_disabled_in_part("Banning for less than a hundred years (876000h)")
    return True


@frozen
class ClientAuth:
    """The routes. ``databases`` are those, by stage and name, below whose URLs they are too."""

    auth: Auth
    databases: Collection[tuple[str, str]]

    def mount(self, router: Router) -> None:
        auth, context = self.auth, self.auth.context

        async def elsewhere(request: Request) -> Reply:
            return _elsewhere(router.allowed(request.raw_path), request)

        for exceptions, endpoints in (
            ({}, _Sessions(auth.accounts, auth.sessions, context)),
            (FOR_MAILS, _Mails(auth.accounts)),
            ({}, _About(auth.verifier, context)),
            (FOR_OPERATORS, _Operators(auth.administration)),
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
        """Whoever verifies tokens may read the keys without one."""
        optional = declared.key == "optional" and not declared.url.startswith("/.well-known/")
        return "required" if optional and self.auth.context.settings.require_project_key else declared.key


def _elsewhere(methods: tuple[str, ...], request: Request) -> Reply:
    """What is answered on paths without an endpoint, and to methods other than the ``methods`` of a path."""
    if request.method == "OPTIONS":
        return Reply(204, (("Allow", ", ".join(methods)),))
    if methods != ("OPTIONS",):
        raise method_not_allowed(methods)
    for one in _MISSING:
        if one.pattern.match(request.path_args["rest"]):
            if one.signed_in:
                signed_in(request)
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
