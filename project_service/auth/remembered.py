"""A cache of recent replies about users, so that ``GET /auth/user`` need not ask the database each time.

Changes that are made on the same host show at once: from before it makes a change, a worker counts it where all
workers see it (``changes``). Of changes by other hosts, or by SQL, the worker is notified some milliseconds later.
And a user is read again after a second in any case.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen

from project_service.auth.model import Account
from project_service.auth.ports import Event, Proof, Users
from project_service.auth.revocations import Currency
from project_service.deferreds import shield
from project_service.workers.changes import Changes, place_of, settled

T = TypeVar("T")

CHANNEL = "auth_users"
# A user is read again after so long in any case.
FRESH_SECONDS = 1.0
MOST_ANSWERS = 1000


@frozen
class _Answer(Generic[T]):
    value: T
    stamp: bytes
    until: float


class Remembered(Generic[T]):
    """Answers by user id. ``seconds`` is any clock that never goes back."""

    def __init__(self, changes: Changes, listener: Currency, seconds: Callable[[], float]) -> None:
        self._changes = changes
        self._listener = listener
        self._seconds = seconds
        self._kept: OrderedDict[str, _Answer[T]] = OrderedDict()
        listener.subscribe(CHANNEL, self._hear, self._nothing_missed)

    def find(self, user_id: str) -> T | None:
        """The cached answer; None if it has to be made."""
        found = self._kept.get(user_id)
        if found is None or not self._listener.current or found.until <= self._seconds():
            return None
        return found.value if found.stamp == self._changes.stamp(place_of(user_id)) else None

    async def make(self, user_id: str, answer: Awaitable[T]) -> T:
        """The result of ``answer``, which must not read the user before it is awaited. It is cached unless a change
        is under way. Raises what ``answer`` raises.
        """
        stamp, until = self._changes.stamp(place_of(user_id)), self._seconds() + FRESH_SECONDS
        value = await answer
        if settled(stamp):
            self._kept.pop(user_id, None)
            self._kept[user_id] = _Answer(value, stamp, until)
            self._forget()
        return value

    def _forget(self) -> None:
        """Drop the oldest answers: those that have expired, and those beyond ``MOST_ANSWERS``."""
        now = self._seconds()
        while len(self._kept) > MOST_ANSWERS or next(iter(self._kept.values())).until <= now:
            self._kept.popitem(last=False)
            if not self._kept:
                return

    def _hear(self, payload: str) -> None:
        self._changes.happened(place_of(payload))

    async def _nothing_missed(self) -> None:
        """Called after a gap in the notifications: drops everything."""
        self._kept.clear()


class CountedUsers:
    """Implements ``ports.Users`` by another one, and counts each change to a user, so that caches notice it."""

    def __init__(self, users: Users, changes: Changes) -> None:
        self._users = users
        self._changes = changes
        # These change no existing user.
        self.create, self.page = users.create, users.page
        self.find, self.find_by_email = users.find, users.find_by_email

    async def set_metadata(self, user_id: str, metadata: Mapping[str, Any], event: Event) -> Account | None:
        return await self._counted(user_id, self._users.set_metadata(user_id, metadata, event))

    async def set_password(
        self, user_id: str, password_hash: bytes, proof: Proof | None, event: Event
    ) -> Account | None:
        return await self._counted(user_id, self._users.set_password(user_id, password_hash, proof, event))

    async def set_disabled(self, user_id: str, disabled: bool, event: Event) -> Account | None:
        return await self._counted(user_id, self._users.set_disabled(user_id, disabled, event))

    async def delete(self, user_id: str, event: Event, proof: Proof | None = None) -> bool:
        return await self._counted(user_id, self._users.delete(user_id, event, proof))

    async def _counted(self, user_id: str, change: Coroutine[Any, Any, T]) -> T:
        """Make the change, counted. Shielded, so that it is counted to its end even if the client hangs up."""

        async def counted() -> T:
            with self._changes.under_way(place_of(user_id)):
                return await change

        return await shield(counted())
