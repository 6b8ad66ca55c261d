"""Challenges: what is sent to an address and answered once, by the token of its link or by a code of six digits.

Whoever answers one has shown to be its user, so most begin a session. Nothing here says whether there is such a user.
No GET uses up a challenge, because mail programs and virus scanners follow links.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import orjson
from attrs import evolve, field, frozen

from project_service import base64url
from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.context import Context
from project_service.auth.mail import Outbox
from project_service.auth.mail_templates import Mail, ToClient
from project_service.auth.tokens import Key, OpaqueToken
from project_service.auth.values import (
    OF_CHANGE,
    Account,
    Answer,
    AuthCode,
    Email,
    IssuedSession,
    MailName,
    NewChallenge,
    NewSession,
    Profile,
    Purpose,
    Redeemed,
    User,
    folded,
)
from project_service.lifecycle import shielded

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository

# What links and hooks call the purposes.
TYPES: Mapping[Purpose, str] = {
    "confirmation": "signup",
    "magic_link": "magiclink",
    "recovery": "recovery",
    "invitation": "invite",
    "email_change": "email_change",
    "email_change_current": "email_change",
}
# For how long the client that asked for a challenge may exchange an authorization code for a session.
AUTH_CODE_LIFETIME = timedelta(minutes=5)
CODE_DIGITS = 6
# The id of no user.
_NOBODY = "00000000-0000-0000-0000-000000000000"


@frozen
class Sent:
    """What a challenge can be answered with, as its user gets it."""

    token: OpaqueToken
    code: str
    purpose: Purpose


@frozen
class Asked:
    """How a challenge was asked for. ``link`` makes the link of its mail from the token and the purpose; without it
    the mail links to a page of the project's (``auth.recover_url``, ``auth.verify_url``) and has no code. ``data`` is
    what the answer goes on with: ``redirect_to``, and the client's ``code_challenge`` (RFC 7636). ``api_url`` is
    where hooks may link to."""

    link: Callable[[str, Purpose], str | None] | None = None
    data: Mapping[str, Any] = {}
    api_url: str = ""

    def taking_over(self) -> Asked:
        """As ``self``, for whoever answers without having signed up: whoever had done so before, and never confirmed
        the address, may be somebody else (``Repository.redeem``)."""
        return evolve(self, data={**self.data, "takes_over": True})


@frozen
class ToHook:
    """What a project sends itself: the arguments of ``Hooks.send_email``."""

    user: Mapping[str, Any] = field(repr=False)
    email_data: Mapping[str, str] = field(repr=False)


# From ``/auth``.
PLAIN = Asked()


@frozen
class Challenges:
    """``mailer`` is None if no mail server is configured. What it would send goes to ``to_hook`` if there is a hook
    that sends e-mails: after the response too, so that nobody learns by its time or failure who is a user."""

    repository: Repository
    mailer: Outbox[Mail] | None
    to_hook: Outbox[ToHook]
    context: Context

    async def mail(
        self,
        email: Email,
        purpose: Purpose,
        origin: Origin,
        asked: Asked = PLAIN,
        *,
        if_confirmed: Purpose | None = None,
        user_id: str | None = None,
    ) -> bool:
        """Mail a challenge to ``email`` after the response: to the user of that address, or of ``user_id``. Whoever
        has confirmed the address gets ``if_confirmed`` instead, if it is given. A user gets one of a purpose in
        ``auth.email_seconds`` at most.

        False if nothing is mailed; whoever does not know the user must not learn that. Raises
        ``email_not_configured``.
        """
        self.require_mailer()
        issued = await self._issue(email, purpose, if_confirmed, origin, asked, user_id, self._pause())
        if issued is None:
            return False
        user, sent = issued
        if self.context.hooks.has("send_email"):
            self._send_by_hook(user, sent, asked)
        elif self.mailer is not None:
            self._send(self.mailer, email, user, sent, origin, asked)
        return True

    async def issue(
        self, email: Email, purpose: Purpose, origin: Origin, asked: Asked, *, user_id: str
    ) -> Sent | None:
        """A challenge that nobody is mailed; None if the user is disabled or gone."""
        issued = await self._issue(email, purpose, None, origin, asked, user_id, timedelta(0))
        return None if issued is None else issued[1]

    async def _issue(
        self,
        email: Email,
        purpose: Purpose,
        if_confirmed: Purpose | None,
        origin: Origin,
        asked: Asked,
        user_id: str | None,
        pause: timedelta,
    ) -> tuple[User, Sent] | None:
        now, token = self.context.now(), OpaqueToken.new(self.context.randomness)
        code = self._new_code()
        # An address that is confirmed already is not confirmed again.
        otherwise = None if purpose == "confirmation" else purpose
        challenge = NewChallenge(
            purpose=purpose,
            if_confirmed=if_confirmed or otherwise,
            digest=token.digest,
            created_at=now,
            expires_at=now + self.lifetime(),
            email=email,
            user_id=user_id,
            code_hash=None if asked.link is None else _hashed(self._keys()[0], email, code),
            data=asked.data,
        )
        event = Event(now, f"mail_{purpose}", email=email.address, origin=origin)
        issued = await self.repository.issue(challenge, pause, event)
        return None if issued is None else (issued[0], Sent(token, code, issued[1]))

    def _send_by_hook(self, user: User, sent: Sent, asked: Asked) -> None:
        """Clients of the Supabase family know no mail to the owner of a taken address, so their hooks do not either.
        The two of a change of address are told apart by the names of hash and code, as those servers do."""
        if sent.purpose == "already_registered":
            return
        new_email, settings = asked.data.get("email", ""), self.context.settings
        code = sent.code if asked.link is not None else ""
        data = {
            "token": code,
            "token_hash": sent.token.text,
            "redirect_to": asked.data.get("redirect_to") or "",
            "email_action_type": TYPES.get(sent.purpose, sent.purpose),
            "site_url": asked.api_url or settings.site_url or "",
            "token_new": "",
            "token_hash_new": "",
            "old_email": "",
        }
        if sent.purpose == "email_change":
            data |= {"token_new": code, "old_email": user.email}
        elif sent.purpose == "email_change_current":
            data |= {"token_hash": "", "token_hash_new": sent.token.text, "old_email": user.email}
        view = self.context.view(Profile(Account(user), new_email=new_email))
        self.to_hook.send_later(lambda: ToHook(view, data))

    def _send(
        self, mailer: Outbox[Mail], email: Email, user: User, sent: Sent, origin: Origin, asked: Asked
    ) -> None:
        templates, lifetime = self.context.templates, self.lifetime()
        # As the user writes it, not as somebody has typed it.
        recipient = user.email if folded(user.email) == email.key else email.address
        name: MailName = "email_change" if sent.purpose in OF_CHANGE else cast(MailName, sent.purpose)
        to_client = None
        if asked.link is not None:
            data = asked.data
            link = asked.link(sent.token.text, sent.purpose)
            to_client = ToClient(link, sent.code, data.get("email", ""), data.get("redirect_to") or "")

        def write() -> Mail:
            language = templates.language_for(name, user.metadata.get("locale"), origin.languages)
            return templates.compose(name, language, recipient, sent.token.text, lifetime, to_client)

        mailer.send_later(write)

    @property
    def outboxes(self) -> list[Outbox[Any]]:
        """All by which mails leave."""
        return [self.to_hook] if self.mailer is None else [self.mailer, self.to_hook]

    def require_mailer(self) -> None:
        """Raises ``email_not_configured``."""
        if self.mailer is None and not self.context.hooks.has("send_email"):
            raise errors.email_not_configured()

    def lifetime(self) -> timedelta:
        return timedelta(seconds=self.context.settings.code_seconds)

    def _pause(self) -> timedelta:
        return timedelta(seconds=self.context.settings.email_seconds)

    def by_token(self, token: str, *purposes: Purpose) -> Answer:
        """An answer with the token of a link. Raises ``invalid_one_time_token``."""
        return Answer(purposes, digest_of(token))

    def by_code(self, email: Email, code: str, *purposes: Purpose, user_id: str | None = None) -> Answer:
        """An answer with the code that was sent to ``email``."""
        digits = code.strip()
        if len(digits) != CODE_DIGITS or not (digits.isascii() and digits.isdigit()):
            raise errors.invalid_one_time_token()
        hashes = tuple(_hashed(key, email, digits) for key in self._keys())
        return Answer(purposes, None, email.key, hashes, user_id)

    # Shielded, so that what was used up begins what it is for even if the client hangs up.
    @shielded
    async def redeem(self, answer: Answer, origin: Origin) -> IssuedSession | Redeemed:
        """Use up a challenge: the session that begins; or, if the other address of a change has to confirm it too,
        only what was answered.

        Raises ``invalid_one_time_token`` and ``email_taken``.
        """
        session, refresh = self.context.new_session(origin)
        redeemed = await self._redeem(answer, origin, session)
        if redeemed.session is None:
            return redeemed
        return await self.context.issued_to(redeemed.user, redeemed.session, refresh)

    @shielded
    async def redeem_link(
        self, answer: Answer, origin: Origin
    ) -> tuple[Redeemed, IssuedSession | OpaqueToken | None]:
        """As ``redeem``, for the link of a mail, which may be opened elsewhere than it was asked for: a client that
        sent a code challenge gets an authorization code instead of a session, for which it has to exchange it.
        Without an application to lead to (``redirect_to``) nothing begins."""
        session, refresh = self.context.new_session(origin)
        code = OpaqueToken.new(self.context.randomness)
        kept = AuthCode(code.digest, session.created_at + AUTH_CODE_LIFETIME)
        leads_on = "redirect_to" in await self.pending(answer)
        redeemed = await (
            self._redeem(answer, origin, session, kept) if leads_on else self._redeem(answer, origin, None)
        )
        if redeemed.session is not None:
            return redeemed, await self.context.issued_to(redeemed.user, redeemed.session, refresh)
        return redeemed, code if leads_on and not redeemed.half else None

    async def pending(self, answer: Answer) -> Mapping[str, Any]:
        """What goes on with an answer, which uses nothing up. Raises ``invalid_one_time_token``."""
        pending = await self.repository.pending(answer.purposes, self.context.now(), digest=answer.digest)
        if pending is None:
            raise errors.invalid_one_time_token()
        return pending[1]

    async def mail_change_again(self, email: Email, origin: Origin, asked: Asked) -> None:
        """Mail another challenge to the new address of a change that waits for its confirmation, if there is one."""
        pending = await self.repository.pending(("email_change",), self.context.now(), email_key=email.key)
        # Without one it is recorded for nobody, so that it takes the same time.
        user_id, data = (_NOBODY, {}) if pending is None else pending
        asked = evolve(asked, data={**data, **asked.data})
        await self.mail(email, "email_change", origin, asked, user_id=user_id)

    async def confirm(self, answer: Answer, origin: Origin) -> None:
        """Use up a challenge that begins nothing. Raises ``invalid_one_time_token``."""
        await self._redeem(answer, origin, None)

    async def _redeem(
        self, answer: Answer, origin: Origin, session: NewSession | None, auth_code: AuthCode | None = None
    ) -> Redeemed:
        event = Event(self.context.now(), "answer", origin=origin)
        redeemed = await self.repository.redeem(answer, session, auth_code, event)
        if redeemed is None:
            raise errors.invalid_one_time_token()
        return redeemed

    @shielded
    async def exchange(self, auth_code: str, verifier: str, origin: Origin) -> IssuedSession:
        """The session for an authorization code, for the client that has the code verifier (RFC 7636 section 4.5).

        Raises ``flow_state_not_found`` and ``bad_code_verifier``.
        """
        code = OpaqueToken.parse(auth_code)
        if code is None:
            raise errors.flow_state_not_found()
        session, refresh = self.context.new_session(origin)
        hashed = base64url.encode(hashlib.sha256(verifier.encode("utf-8", "replace")).digest())
        known = f"s256 {hashed}", f"plain {verifier}"
        event = Event(session.created_at, "exchange_code", origin=origin)
        redeemed = await self.repository.exchange(code.digest, known, session, event)
        if redeemed is None or redeemed.session is None:
            raise errors.flow_state_not_found()
        session_begun = await self.context.issued_to(redeemed.user, redeemed.session, refresh)
        if "sealed" not in redeemed.data:
            return session_begun
        tokens = orjson.loads(code.unseal(redeemed.data["sealed"].encode("ascii")))
        return evolve(session_begun, provider_tokens=tokens)

    def _new_code(self) -> str:
        # Of 64 random bits, so that none of the million is likelier than another by more than what nobody can tell.
        return f"{int.from_bytes(self.context.randomness(8)) % 10**CODE_DIGITS:0{CODE_DIGITS}}"

    def _keys(self) -> list[Key]:
        """Those that can hash, the one that signs first."""
        return [key for key in self.context.verifier.issuer.keys.keys if key.private is not None]


def digest_of(token: str) -> bytes:
    """The digest of a token that was mailed. Raises ``invalid_one_time_token``."""
    # A token that is copied from an e-mail may have white space around it.
    parsed = OpaqueToken.parse(token.strip())
    if parsed is None:
        raise errors.invalid_one_time_token()
    return parsed.digest


def _hashed(key: Key, email: Email, code: str) -> bytes:
    """There are only a million codes, so the hash needs a key that is not in the database."""
    text = f"{email.key}\0{code}".encode()
    return hmac.digest(key.secret_for(b"codes in e-mails"), text, "sha256")
