"""Sessions after they have started: refreshing, listing and ending them.

The ended ones whose access tokens may still be valid are in memory (``RevokedSessions``), so that a request costs one
lookup and no query.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from attrs import frozen

from project_service.audit import Event, Origin
from project_service.auth import errors
from project_service.auth.context import Context
from project_service.auth.tokens import OPAQUE_BYTES, OpaqueToken
from project_service.auth.values import IssuedSession, SessionInfo
from project_service.errors import validation_failed
from project_service.http.caller import Claims

if TYPE_CHECKING:
    from project_service.auth.postgres import Repository
    from project_service.database.listener import Listener

CHANNEL = "auth_revocations"
# ``read_new`` goes back this much further: clocks differ, and transactions may take time to commit.
OVERLAP_SECONDS = 60.0

Ended = list[tuple[str, float]]


class RevokedSessions:
    """The set of ended sessions. Notifications add to it; it is read completely after a gap in them.

    Notifications can be lost, so ``read_new`` has to be called regularly. ``read`` returns the sessions that ended
    since the given Unix time, or all for None.
    """

    def __init__(
        self,
        read: Callable[[float | None], Awaitable[Ended]],
        listener: Listener,
        now: Callable[[], float],
    ) -> None:
        self._read = read
        self._now = now
        self._ended: dict[str, float] = {}
        self._known_at = -math.inf
        listener.subscribe(CHANNEL, self._on_notification, self.read_all)

    def __len__(self) -> int:
        return len(self._ended)

    def is_revoked(self, session_id: str) -> bool:
        return session_id in self._ended

    def add(self, session_id: str, until: float) -> None:
        """Add a session that this worker has ended, without waiting for the notification. Access tokens of it may be
        valid until ``until``, in Unix time."""
        self._ended[session_id] = max(until, self._ended.get(session_id, until))

    async def read_all(self) -> None:
        """Read all ended sessions and add them. Raises what ``read`` raises."""
        await self._add_read(None)

    async def read_new(self) -> None:
        """Read what is new, and drop what has expired. Raises what ``read`` raises."""
        # After the clock was set back, it is unknown how old the last reading is.
        known = -math.inf < self._known_at <= self._now()
        await self._add_read(self._known_at - OVERLAP_SECONDS if known else None)
        now = self._now()
        for session_id in [session_id for session_id, until in self._ended.items() if until <= now]:
            del self._ended[session_id]

    async def _add_read(self, since: float | None) -> None:
        started = self._now()
        for session_id, until in await self._read(since):
            self.add(session_id, until)
        self._known_at = started

    def _on_notification(self, payload: str) -> None:
        session_id, _, end = payload.partition(" ")
        until = float(end)
        # Any database role may notify. What has no end would stay in memory until this process ends.
        if not math.isfinite(until):
            raise ValueError("an announced session without an end")
        self.add(session_id, until)


SCOPES = ("local", "global", "others")


@frozen
class SessionService:
    repository: Repository
    revoked: RevokedSessions
    context: Context

    async def refresh(self, token: str, origin: Origin) -> IssuedSession:
        """Exchange a refresh token for new tokens of its session.

        For a token that was replaced less than ``refresh_reuse_seconds`` ago, or whose successor has never been used
        (the response was lost), that is the refresh token which is active now. Raises ``invalid_refresh_token`` and
        ``refresh_token_reused`` (the session has been ended).
        """
        presented = OpaqueToken.parse(token)
        if presented is None:
            raise errors.invalid_refresh_token()
        now, salt = self.context.now(), self.context.randomness(OPAQUE_BYTES)
        successor = presented.successor(salt)
        rotation = await self.repository.rotate_refresh_token(
            digest=presented.digest,
            successor=successor.digest,
            salt=salt,
            now=now,
            reuse_window=self.context.reuse_window(),
            expires_at=now + self.context.refresh_lifetime(),
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
            successor = presented.latest(rotation.salts)
        return await self.context.issued(
            rotation.user, rotation.session_id, rotation.began, successor, now, origin, how="token_refresh"
        )

    async def log_out(self, caller: Claims, scope: str | None, origin: Origin) -> None:
        """End the caller's session (``local``, the default), all of their sessions (``global``), or all except this
        one (``others``). Raises ``validation_failed`` for another scope."""
        scope = "local" if scope is None else scope
        if scope not in SCOPES:
            raise validation_failed({"scope": f"must be one of {', '.join(SCOPES)}"})
        event = self.context.user_event(f"logout_{scope}", caller, origin)
        only, but = {"local": (caller.sid, None), "global": (None, None), "others": (None, caller.sid)}[scope]
        await self._end(caller.sub, event, only=only, but=but)

    async def list_own(self, caller: Claims) -> list[SessionInfo]:
        """The caller's newest sessions, up to ``MAX_LISTED_SESSIONS``."""
        return await self.repository.list_sessions(caller.sub, self.context.now())

    async def end_one(self, caller: Claims, session_id: str, origin: Origin) -> None:
        """End one session. Raises ``session_not_found`` if it is not among the caller's sessions that are listed."""
        # Some platforms write UUIDs in upper case.
        session_id = session_id.lower()
        if session_id not in {session.id for session in await self.list_own(caller)}:
            raise errors.session_not_found()
        await self._end(caller.sub, self.context.user_event("end_session", caller, origin), only=session_id)

    async def _end(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> None:
        for session_id, until in await self.repository.end_sessions(user_id, event, only=only, but=but):
            self.revoked.add(session_id, until)
