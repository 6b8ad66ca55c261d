"""Changes to users are counted for other workers, from before they are made until they are known to be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import TestCase

from project_service.auth.remembered import CountedUsers
from project_service.deferreds import start
from project_service.workers.changes import Changes, place_of, settled

USER = "8f14e45f-ceea-467f-ab5e-5a1b7b0f6c3d"
OTHER = "8f14e45f-ceea-467f-ab5e-5a1b7b0f6c3e"
CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("set_metadata", (USER, {}, None)),
    ("set_password", (USER, b"", None, None)),
    ("set_disabled", (USER, True, None)),
    ("delete", (USER, None, None)),
)


class Users:
    """Fake users: each call waits for ``gate`` and returns its arguments."""

    def __init__(self) -> None:
        self.gate: Deferred[None] = Deferred()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def called(*what: Any, **more: Any) -> Any:
            await self.gate
            return name, what, more

        return called


class Counted(TestCase):
    def setUp(self) -> None:
        self.changes = Changes.alone()
        self.users = Users()
        self.counted = CountedUsers(cast(Any, self.users), self.changes)

    def stamps(self) -> tuple[bytes, bytes]:
        return self.changes.stamp(place_of(USER)), self.changes.stamp(place_of(OTHER))

    def begin(self, name: str, what: tuple[Any, ...]) -> Deferred[Any]:
        self.users.gate = Deferred()
        return start(getattr(self.counted, name)(*what))

    def test_each_change_is_counted_while_under_way_and_afterwards(self) -> None:
        for name, what in CHANGES:
            before, others = self.stamps()
            doing = self.begin(name, what)
            assert not settled(self.stamps()[0]), name
            self.users.gate.callback(None)
            assert self.successResultOf(doing) == (name, what, {})
            assert settled(self.stamps()[0])
            assert self.stamps()[0] != before
            assert self.stamps()[1] == others

    def test_a_failed_change_counts_too_since_it_may_have_been_made(self) -> None:
        for name, what in CHANGES:
            before, _ = self.stamps()
            doing = self.begin(name, what)
            self.users.gate.errback(ConnectionError())
            self.failureResultOf(doing, ConnectionError)
            assert settled(self.stamps()[0])
            assert self.stamps()[0] != before

    def test_a_cancelled_change_counts_as_under_way_until_it_ends(self) -> None:
        for name, what in CHANGES:
            doing = self.begin(name, what)
            doing.cancel()
            self.failureResultOf(doing, CancelledError)
            assert not settled(self.stamps()[0]), name
            self.users.gate.callback(None)
            assert settled(self.stamps()[0])

    def test_reads_are_not_counted(self) -> None:
        before = self.stamps()
        for name, what in (("find", (USER,)), ("find_by_email", (None,)), ("page", (None, 1))):
            doing = self.begin(name, what)
            self.users.gate.callback(None)
            assert self.successResultOf(doing) == (name, what, {})
        assert self.stamps() == before
