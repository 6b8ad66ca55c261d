"""What was answered lately about users, so that ``GET /auth/user`` need not ask the database each time.

On one host nobody is shown an older user than somebody has been told of: a worker counts each change where all see
it, from before it is made (``changes``). Of what other hosts change, or SQL, it is notified some milliseconds later;
and a user is read again after a second, whatever was heard.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen

from project_service.auth.model import Account, Email
from project_service.auth.ports import Event, Proof, Users
from project_service.auth.revocations import FRESH_SECONDS, Currency
from project_service.changes import Changes, place_of, settled
from project_service.deferreds import shield

T = TypeVar("T")

CHANNEL = "auth_users"
MOST_ANSWERS = 1000


@frozen
class _Answer(Generic[T]):
    value: T
    stamp: bytes
    until: float


class Remembered(Generic[T]):
    """Answers by user. ``seconds`` is any clock that only goes forward."""

    def __init__(self, changes: Changes, listener: Currency, seconds: Callable[[], float]) -> None:
        self._changes = changes
        self._listener = listener
        self._seconds = seconds
        self._kept: OrderedDict[str, _Answer[T]] = OrderedDict()
        listener.subscribe(CHANNEL, self._hear, self._nothing_missed)

    def find(self, user_id: str) -> T | None:
        """None where it has to be made."""
        found = self._kept.get(user_id)
        if found is None or not self._listener.current or found.until <= self._seconds():
            return None
        return found.value if found.stamp == self._changes.stamp(place_of(user_id)) else None

    async def make(self, user_id: str, answer: Awaitable[T]) -> T:
        """``answer``, which is to read the user only when it is awaited; remembered where nothing changes meanwhile.

        Raises what it raises.
        """
        stamp, until = self._changes.stamp(place_of(user_id)), self._seconds() + FRESH_SECONDS
        value = await answer
        if settled(stamp):
            self._kept.pop(user_id, None)
            self._kept[user_id] = _Answer(value, stamp, until)
            self._forget()
        return value

    def _forget(self) -> None:
        """Whatever is remembered for nothing; the oldest come first."""
        now = self._seconds()
        while len(self._kept) > MOST_ANSWERS or next(iter(self._kept.values())).until <= now:
            self._kept.popitem(last=False)
            if not self._kept:
                return

    def _hear(self, payload: str) -> None:
        self._changes.happened(place_of(payload))

    async def _nothing_missed(self) -> None:
        """What was read while nobody listened is forgotten."""
        self._kept.clear()


class CountedUsers:
    """``users``, whose changes are counted for who remembers what he has read. Implements ``ports.Users``."""

    def __init__(self, users: Users, changes: Changes) -> None:
        self._users = users
        self._changes = changes

    # What changes nobody who is there passes as it is.

    @property
    def create(self) -> Callable[..., Coroutine[Any, Any, Account | None]]:
        return self._users.create

    @property
    def find(self) -> Callable[[str], Coroutine[Any, Any, Account | None]]:
        return self._users.find

    @property
    def find_by_email(self) -> Callable[[Email], Coroutine[Any, Any, Account | None]]:
        return self._users.find_by_email

    @property
    def page(self) -> Callable[..., Coroutine[Any, Any, list[Account]]]:
        return self._users.page

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
        """Who has asked for it may leave before it is over, and then it is counted nevertheless."""

        async def counted() -> T:
            with self._changes.under_way(place_of(user_id)):
                return await change

        return await shield(counted())
