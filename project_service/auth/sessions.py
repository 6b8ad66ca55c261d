"""Sessions after they have started: refreshing, listing and ending them."""

from __future__ import annotations

from attrs import frozen

from project_service.auth import errors, secrets
from project_service.auth.context import Context
from project_service.auth.model import IssuedSession, Origin, SessionInfo
from project_service.auth.ports import Event, Sessions
from project_service.auth.revocations import RevokedSessions
from project_service.errors import require_text, validation_failed
from project_service.http.caller import Claims

SCOPES = ("local", "global", "others")


@frozen
class SessionService:
    sessions: Sessions
    revoked: RevokedSessions
    context: Context

    async def refresh(self, token: object, origin: Origin) -> IssuedSession:
        """Exchange a refresh token for new tokens of its session.

        For a token that was replaced less than ``refresh_reuse_seconds`` ago, or whose successor has never been used
        (the answer was lost), that is the refresh token which is active now. Raises ``invalid_refresh_token``,
        ``refresh_token_reused`` (the session has been ended) and ``validation_failed``.
        """
        presented = require_text("refresh_token", token)
        digest = secrets.digest(presented)
        if digest is None:
            raise errors.invalid_refresh_token()
        now, salt = self.context.now(), self.context.randomness(secrets.BYTES)
        successor = secrets.successor(presented, salt)
        rotation = await self.sessions.rotate(
            digest=digest,
            successor=successor.digest,
            salt=salt,
            now=now,
            reuse_window=self.context.reuse_window(),
            expires_at=self.context.expires(now),
            access_expires_at=self.context.access_expires(now),
            origin=origin,
        )
        if rotation is None:
            raise errors.invalid_refresh_token()
        if rotation.outcome == "stolen":
            # No access token of it is valid for longer than this; the notification has the exact time.
            self.revoked.add(rotation.session_id, self.context.access_expires(now).timestamp())
            raise errors.refresh_token_reused()
        if rotation.outcome == "repeated":
            successor = secrets.latest(presented, rotation.salts)
        return self.context.issued(rotation.user, rotation.session_id, successor, now)

    async def log_out(self, caller: Claims, scope: str | None, origin: Origin) -> None:
        """End the caller's session (``local``), all of his sessions (``global``), or all except this one
        (``others``). Raises ``validation_failed`` for another scope."""
        if scope not in (None, *SCOPES):
            raise validation_failed({"scope": f"must be one of {', '.join(SCOPES)}"})
        event = self.context.done_by(f"logout_{scope or 'local'}", caller, origin)
        await self._end(
            caller.sub,
            event,
            only=caller.sid if scope in (None, "local") else None,
            but=caller.sid if scope == "others" else None,
        )

    async def alive(self, caller: Claims) -> list[SessionInfo]:
        """The caller's newest sessions, up to ``ports.MOST_LISTED``."""
        return await self.sessions.alive(caller.sub, self.context.now())

    async def end_one(self, caller: Claims, session_id: str, origin: Origin) -> None:
        """End one session. Raises ``session_not_found`` if it is not among the caller's sessions that are listed."""
        known = {session.id for session in await self.alive(caller)}
        # Some platforms write UUIDs in upper case.
        wanted = session_id.lower()
        if wanted not in known:
            raise errors.session_not_found()
        await self._end(caller.sub, self.context.done_by("end_session", caller, origin), only=wanted)

    async def _end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> None:
        for session_id, until in await self.sessions.end(user_id, event, only=only, but=but):
            self.revoked.add(session_id, until)
