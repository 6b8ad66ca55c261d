"""What is done by mail: setting a new password and confirming an address.

No GET uses up a token, because mail programs and virus scanners follow links.
"""

from __future__ import annotations

from datetime import timedelta

from attrs import frozen

from project_service.auth import errors, mail, passwords, secrets
from project_service.auth.context import Context
from project_service.auth.hashing import Hashes
from project_service.auth.model import Email, IssuedSession, Origin, email_of
from project_service.auth.ports import Event, OneTimeTokens, Purpose
from project_service.auth.throttle import Throttle
from project_service.errors import require_text, require_texts

LIFETIME = timedelta(hours=1)
# An address gets at most one letter in this time. Whoever asks more often gets the same response.
PAUSE = timedelta(minutes=1)


@frozen
class Letters:
    """Mails one-time tokens. ``post`` is None if no mail server is configured."""

    tokens: OneTimeTokens
    post: mail.Post | None
    throttle: Throttle
    context: Context

    def require(self) -> mail.Post:
        """The post. Raises ``email_not_configured`` if there is none."""
        if self.post is None:
            raise errors.email_not_configured()
        return self.post

    async def requested(self, email: object, purpose: Purpose, origin: Origin) -> None:
        """As ``send``, for anybody who asks, and therefore limited by client address. Raises ``rate_limited`` and
        ``validation_failed`` too."""
        self.require()
        address = Email.parse(email)
        attempt = await self.throttle.reserve_by_address("mail", origin, self.context.per_address())
        await attempt.settle("failed")
        await self.send(address, purpose, origin)

    async def send(self, email: Email, purpose: Purpose, origin: Origin) -> None:
        """Mail a token to ``email`` if there is a user of that address who may have one. The caller cannot tell: the
        letter is sent after the response, so that this takes the same time either way. Raises
        ``email_not_configured``.
        """
        post = self.require()
        token, now = secrets.fresh(self.context.randomness), self.context.now()
        user = await self.tokens.issue(
            email=email,
            purpose=purpose,
            digest=token.digest,
            pause=PAUSE,
            expires_at=now + LIFETIME,
            event=Event(now, f"mail_{purpose}", email=email.address, origin=origin),
        )
        if user is None:
            return
        settings = self.context.settings
        url = settings.recover_url if purpose == "recovery" else settings.verify_url
        hours = int(LIFETIME.total_seconds()) // 3600
        post.post(lambda: mail.compose(purpose, user.email, token.text, url, hours))


@frozen
class Recovery:
    letters: Letters
    tokens: OneTimeTokens
    hashes: Hashes
    context: Context

    async def recover(self, email: object, origin: Origin) -> None:
        """Mail a token for a new password. Raises what ``Letters.requested`` raises."""
        await self.letters.requested(email, "recovery", origin)

    async def resend(self, email: object, origin: Origin) -> None:
        """Mail another token for the confirmation of an address. Raises what ``Letters.requested`` raises."""
        await self.letters.requested(email, "confirmation", origin)

    async def reset(self, token: object, password: object, origin: Origin) -> None:
        """Set a new password and end all sessions.

        Raises ``invalid_one_time_token``, and ``weak_password``, after which the token can still be used.
        """
        require_texts({"token": token, "password": password})
        digest = _digest(token)
        owner = await self.tokens.owner(digest, "recovery", self.context.now())
        if owner is None:
            raise errors.invalid_one_time_token()
        minimum = self.context.settings.password_min_bytes
        raw = passwords.acceptable(password, email_of(owner), minimum)
        hashed = await self.hashes.hash(raw)
        event = Event(self.context.now(), "reset_password", origin=origin)
        if await self.tokens.reset_password(digest, hashed, event) is None:
            raise errors.invalid_one_time_token()

    async def verify(self, token: object, origin: Origin) -> IssuedSession:
        """Confirm an address and log its owner in. Raises ``invalid_one_time_token``."""
        session, refresh = self.context.new_session(origin)
        event = Event(session.created_at, "confirm_email", origin=origin)
        user = await self.tokens.confirm(_digest(token), session, event)
        if user is None:
            raise errors.invalid_one_time_token()
        return self.context.issued(user, session.id, refresh, session.created_at)


def _digest(token: object) -> bytes:
    # A token that is copied from a letter may have white space around it.
    digest = secrets.digest(require_text("token", token).strip())
    if digest is None:
        raise errors.invalid_one_time_token()
    return digest
