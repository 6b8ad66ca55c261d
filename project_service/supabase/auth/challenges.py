"""Codes and links by e-mail: they are asked for, and answered. Everybody gets the same answer, whether or not there
is such a user."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from attrs import frozen

from project_service import redirects
from project_service.audit import origin_of
from project_service.auth import errors
from project_service.auth.accounts import Accounts
from project_service.auth.challenges import Challenges
from project_service.auth.context import Context
from project_service.auth.limits import Throttle
from project_service.auth.routes import CHANGES
from project_service.auth.values import Email, IssuedSession, Purpose
from project_service.errors import ApiError, rate_limited, validation_failed
from project_service.http.describe import JSON, STRING, Answer, Parameter, RequestBody, obj
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.supabase import errors as theirs
from project_service.supabase.auth import page
from project_service.supabase.auth.common import (
    HOOKED,
    MAILED,
    NOTHING,
    Links,
    body_of,
    declare,
    fragment_of,
    origin_with,
    read,
    reply,
    to,
    validation_failed_missing,
)
from project_service.supabase.errors import translated
from project_service.supabase.users import SESSION, Otp, Recover, Resend, Verify, session_view

# What each type may be an answer to, and in which order that is tried.
_PURPOSES: dict[str, tuple[Purpose, ...]] = {
    "signup": ("confirmation",),
    "email": ("confirmation", "magic_link"),
    "magiclink": ("magic_link", "confirmation"),
    "recovery": ("recovery",),
    "invite": ("invitation",),
    "email_change": ("email_change", "email_change_current"),
}
_RESENT: dict[str, Purpose] = {"signup": "confirmation", "email_change": "email_change"}
_HALF = "Confirmation link accepted. Please proceed to confirm link sent to the other email"
_FORM = "application/x-www-form-urlencoded"
_MAX_FORM_BYTES = 8 * 1024
# ITU-T E.164: at most 15 digits, the first ones those of a country.
_PHONE = re.compile(r"\+?[1-9][0-9]{0,14}")


@frozen
class Mails:
    accounts: Accounts
    throttle: Throttle
    challenges: Challenges
    links: Links

    @declare(
        "POST",
        "/otp",
        "Otp",
        "E-mail a code and a link that sign in, to a new user too unless create_user is false",
        NOTHING,
        body=Otp,
        admission=CHANGES,
        errors=(*MAILED, *HOOKED, theirs.phone_provider_disabled()),
    )
    async def otp(self, request: Request) -> Reply:
        return await self._mail_code(request)

    @declare(
        "POST",
        "/magiclink",
        "MagicLink",
        "As /otp, under the name that it had before",
        NOTHING,
        body=Otp,
        admission=CHANGES,
        errors=(*MAILED, *HOOKED, theirs.phone_provider_disabled()),
    )
    async def magic_link(self, request: Request) -> Reply:
        return await self._mail_code(request)

    async def _mail_code(self, request: Request) -> Reply:
        body = await read(request, Otp)
        if not body.email:
            raise theirs.phone_provider_disabled() if body.phone else validation_failed_missing("email")
        await self.accounts.mail_code(
            body.email,
            origin_with(request, body.gotrue_meta_security),
            self.links.asked(request, body),
            create_user=body.create_user,
            metadata=body.data,
        )
        return reply({})

    @declare(
        "POST",
        "/recover",
        "Recover",
        "E-mail a code and a link that sign in, to set a new password then",
        NOTHING,
        body=Recover,
        errors=MAILED,
    )
    async def recover(self, request: Request) -> Reply:
        body = await read(request, Recover)
        if not body.email:
            raise validation_failed_missing("email")
        await self._mail(request, body.email, "recovery", body)
        return reply({})

    @declare(
        "POST",
        "/resend",
        "Resend",
        "E-mail another code and link for the confirmation of an address",
        NOTHING,
        body=Resend,
        errors=(*MAILED, theirs.phone_provider_disabled()),
    )
    async def resend(self, request: Request) -> Reply:
        body = await read(request, Resend)
        if body.phone or body.type in ("sms", "phone_change"):
            raise theirs.phone_provider_disabled()
        if body.type not in _RESENT:
            raise validation_failed({"type": "must be signup or email_change"})
        if not body.email:
            raise validation_failed_missing("email")
        await self._mail(request, body.email, _RESENT[body.type], body)
        return reply({})

    async def _mail(self, request: Request, email: str, purpose: Purpose, body: Recover | Resend) -> None:
        self.challenges.require_mailer()
        address, origin = Email.parse(email), origin_of(request)
        await self.throttle.count_mail(address, origin)
        asked = self.links.asked(request, body)
        if purpose == "email_change":
            await self.challenges.mail_change_again(address, origin, asked)
        else:
            await self.challenges.mail(address, purpose, origin, asked)


@frozen
class Verification:
    accounts: Accounts
    challenges: Challenges
    throttle: Throttle
    context: Context
    links: Links

    @declare(
        "POST",
        "/verify",
        "Verify",
        "Sign in, or confirm an address, by an e-mailed code or token",
        Answer(
            200,
            "The session; without one if the other address has to confirm a change too. For a form a page: that it "
            "is done, or the question again, if another site has posted it.",
            {
                JSON: {"anyOf": [SESSION, obj(("msg", "code"), msg=STRING, code={"const": "200"})]},
                "text/html": STRING,
            },
            {"Cache-Control": "no-store"},
        ),
        Answer(
            303, "For the form of the page: where the link leads.", headers={"Location": "The application."}
        ),
        page.GONE,
        body=RequestBody({**body_of(Verify).content, _FORM: {"type": "object"}}),
        admission=CHANGES,
        errors=(errors.invalid_one_time_token(), errors.email_taken(), rate_limited(1), *HOOKED),
    )
    async def verify(self, request: Request) -> Reply:
        if is_form(request):
            fields = await read_form(request)
            kind, token = fields.get("type", ""), fields.get("token", "")
            # A page of somebody else's would sign its visitors in as whomever it likes, without their doing.
            if request.headers.text(b"sec-fetch-site") in ("cross-site", "same-site"):
                return await self._ask(request, kind, token)
            return await self._follow(request, kind, token)
        body, origin = await read(request, Verify), origin_of(request)
        if body.phone or body.type in ("sms", "phone_change"):
            if body.phone and not _PHONE.fullmatch(body.phone):
                raise theirs.validation_failed_phone()
            raise errors.invalid_one_time_token()  # nobody was sent one
        purposes = _purposes(body.type)
        if body.token_hash:
            answer = self.challenges.by_token(body.token_hash, *purposes)
        elif body.email and body.token:
            answer = self.challenges.by_code(Email.parse(body.email), body.token, *purposes)
        else:
            raise validation_failed_missing("token_hash")
        await self.throttle.count_verification(origin)
        begun = await self.challenges.redeem(answer, origin)
        if isinstance(begun, IssuedSession):
            profile = await self.accounts.profile(begun.user.id)
            return reply(session_view(begun, profile, self.context.clock()))
        return reply({"msg": _HALF, "code": "200"})

    @declare(
        "GET",
        "/verify",
        "OpenLink",
        "What the link of an e-mail opens: a page with one button",
        Answer(200, "The page", {"text/html": STRING}, {"Cache-Control": "no-store"}),
        Answer(
            303,
            "Where the link leads, if it is not valid, or auth.verify_by_get is set.",
            headers={"Location": "The application."},
        ),
        page.GONE,
        parameters=(
            Parameter("token", "The token of the e-mail."),
            Parameter("type", f"What it is for: {', '.join(_PURPOSES)}."),
            Parameter("redirect_to", "Where to go if the token is not valid."),
        ),
    )
    async def open_link(self, request: Request) -> Reply:
        kind, token = request.query_value("type") or "", request.query_value("token") or ""
        if self.context.settings.verify_by_get and request.method == "GET":
            return await self._follow(request, kind, token)
        return await self._ask(request, kind, token)

    async def _ask(self, request: Request, kind: str, token: str) -> Reply:
        try:
            pending = await self.challenges.pending(self.challenges.by_token(token, *_purposes(kind)))
        except ApiError as refusal:
            return self._failed(request, refusal)
        target = redirects.Address.parse(pending.get("redirect_to", ""))
        return page.question(kind, token, target)

    async def _follow(self, request: Request, kind: str, token: str) -> Reply:
        """Use the token of a link up, and lead on with what came of it."""
        origin = origin_of(request)
        try:
            answer = self.challenges.by_token(token, *_purposes(kind))
            await self.throttle.count_verification(origin)
            redeemed, begun = await self.challenges.redeem_link(answer, origin)
        except ApiError as refusal:
            return self._failed(request, refusal)
        target = redirects.Address.parse(redeemed.data.get("redirect_to", ""))
        if target is None:
            return page.done(_HALF if redeemed.half else "Done")
        if isinstance(begun, IssuedSession):
            fragment = fragment_of(begun, self.context.clock())
            return to(target.with_fragment({**fragment, "type": kind}))
        if begun is not None:
            return to(target.with_query({"code": begun.text}))
        return to(target.with_fragment({"message": _HALF, "type": kind}))

    def _failed(self, request: Request, refusal: ApiError) -> Reply:
        error = translated(refusal)
        if error.status == 429 or error.status >= 500:
            raise refusal  # which says nothing about the link: it can be followed again
        target = self.links.target(request.query_value("redirect_to") or "")
        if target is None:
            return page.gone("The link is not valid, or no longer valid")
        message = "Email link is invalid or has expired" if error.code == "otp_expired" else error.message
        return to(
            target.with_fragment(
                {"error": "access_denied", "error_code": error.code, "error_description": message}
            )
        )


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a posted form; of several with one name the last one."""
    return dict(parse_qsl((await request.read(_MAX_FORM_BYTES)).decode("utf-8", "replace")))


def _purposes(kind: str) -> tuple[Purpose, ...]:
    purposes = _PURPOSES.get(kind)
    if purposes is None:
        raise validation_failed({"type": f"must be one of {', '.join(_PURPOSES)}"})
    return purposes


def is_form(request: Request) -> bool:
    return (request.headers.text(b"content-type") or "").partition(";")[0].strip().lower() == _FORM
