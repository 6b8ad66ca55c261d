"""When ``GET /auth/user`` answers from its cache, and when it asks the database again."""

from __future__ import annotations

from typing import Any, cast

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.auth import remembered
from project_service.auth.model import Account
from project_service.auth.remembered import CHANNEL
from project_service.deferreds import start
from tests.auth_fakes import MemoryUsers
from tests.fakes import Client
from tests.http.auth_app import AuthApp


class RememberedUsers(TestCase):
    def setUp(self) -> None:
        self.reads = 0
        self.after: Deferred[None] | None = None
        self.changing: Deferred[None] | None = None
        self._watch()
        self.app = AuthApp(self)
        self.session: dict[str, Any] = self.app.sign_up().data
        self.token: str = self.session["access_token"]
        self.user_id: str = self.session["user"]["id"]

    def _watch(self) -> None:
        """Counts ``reads``, which wait for ``after`` before they return what they found. A change waits for
        ``changing``."""
        find, set_metadata = MemoryUsers.find, MemoryUsers.set_metadata

        async def counted(users: MemoryUsers, user_id: str) -> Account | None:
            self.reads += 1
            found = await find(users, user_id)
            if self.after is not None:
                await self.after
            return found

        async def slow(users: MemoryUsers, *what: Any) -> Account | None:
            changed = await set_metadata(users, *what)
            if self.changing is not None:
                await self.changing
            return changed

        self.patch(MemoryUsers, "find", counted)
        self.patch(MemoryUsers, "set_metadata", slow)

    def shown(self, token: str | None = None) -> Any:
        return self.app.user(token or self.token).data["user"]["metadata"]

    def reads_of(self, *asked: Any) -> int:
        """Sends ``GET /auth/user`` and returns how often the database was asked for the user."""
        self.reads = 0
        self.shown(*asked)
        return self.reads

    def change(self, metadata: dict[str, Any]) -> None:
        self.app.call("PATCH", "/auth/user", {"metadata": metadata}, token=self.token)

    def change_by_sql(self, metadata: dict[str, Any]) -> None:
        account = self.app.store.accounts[self.user_id]
        self.app.store.accounts[self.user_id] = evolve(account, user=evolve(account.user, metadata=metadata))

    def test_a_user_is_read_once_a_second(self) -> None:
        assert [self.reads_of() for _ in range(3)] == [1, 0, 0]
        self.app.clock.advance(0.99)
        assert self.reads_of() == 0
        self.app.clock.advance(0.02)
        assert [self.reads_of() for _ in range(2)] == [1, 0]

    def test_a_cached_response_is_the_same(self) -> None:
        first, second = self.app.user(self.token), self.app.user(self.token)
        assert first.data == second.data == {"user": self.session["user"]}
        assert second.response.header("cache-control") == "no-store"

    def test_the_users_own_changes_are_shown_at_once(self) -> None:
        for number in range(3):
            self.change({"number": number})
            assert self.shown() == {"number": number}
            assert self.shown() == {"number": number}

    def test_each_user_sees_himself(self) -> None:
        other = self.app.sign_up("eve@example.test").data
        for _ in range(2):
            assert self.app.user(self.token).data["user"]["email"] == "ada@example.test"
            assert self.app.user(other["access_token"]).data["user"]["email"] == "eve@example.test"

    def test_an_ended_session_shows_nobody(self) -> None:
        assert self.shown() == {}
        self.app.call("POST", "/auth/logout", token=self.token)
        assert self.app.user(self.token).code == "session_revoked"

    def test_changes_elsewhere_are_shown_once_notified(self) -> None:
        assert self.shown() == {}
        self.change_by_sql({"plan": "gold"})
        self.app.listener.heard[CHANNEL](self.user_id[-3:])
        assert self.shown() == {"plan": "gold"}

    def test_without_notifications_a_user_is_read_each_time(self) -> None:
        assert self.shown() == {}
        self.app.listener.current = False
        self.read_what_was_missed()
        assert [self.reads_of() for _ in range(2)] == [1, 1]
        # Afterwards nothing is shown that was read before.
        self.read_what_was_missed()
        self.app.listener.current = True
        assert self.reads_of() == 1

    def read_what_was_missed(self) -> None:
        for gap in self.app.listener.gaps:
            self.successResultOf(start(cast(Any, gap())))

    def test_what_was_read_before_a_change_is_not_cached_after_it(self) -> None:
        answered: Deferred[None] = Deferred()
        self.after = answered
        client = self.begin("GET")
        self.after = None
        self.change_by_sql({"plan": "gold"})
        self.app.listener.heard[CHANNEL](self.user_id[-3:])
        answered.callback(None)
        assert client.received().startswith(b"HTTP/1.1 200 ")
        assert self.reads_of() == 1

    def test_what_is_read_during_a_change_is_not_cached(self) -> None:
        """A client must not be shown the new value and then the old one."""
        changed: Deferred[None] = Deferred()
        self.changing = changed
        client = self.begin("PATCH", {"metadata": {"plan": "gold"}})
        assert [self.reads_of() for _ in range(2)] == [1, 1]
        changed.callback(None)
        assert client.received().startswith(b"HTTP/1.1 200 ")
        assert self.shown() == {"plan": "gold"}
        assert self.reads_of() == 0

    def test_the_number_of_cached_users_is_bounded(self) -> None:
        self.patch(remembered, "MOST_ANSWERS", 2)
        tokens = [self.app.sign_up(f"user{number}@example.test").data["access_token"] for number in range(3)]
        assert [self.reads_of(token) for token in tokens] == [1, 1, 1]
        # The first was dropped.
        assert [self.reads_of(token) for token in reversed(tokens)] == [0, 0, 1]

    def test_outdated_entries_are_dropped(self) -> None:
        for number in range(3):
            self.shown(self.app.sign_up(f"user{number}@example.test").data["access_token"])
        kept = self.app.auth.routes.remembered._kept
        assert len(kept) == 3
        self.app.clock.advance(1.5)
        self.shown()
        assert list(kept) == [self.user_id]

    def test_what_took_too_long_to_read_is_not_cached(self) -> None:
        answered: Deferred[None] = Deferred()
        self.after = answered
        client = self.begin("GET")
        self.after = None
        self.app.clock.advance(1)
        answered.callback(None)
        assert client.received().startswith(b"HTTP/1.1 200 ")
        assert self.reads_of() == 1

    def begin(self, method: str, body: Any = None) -> Client:
        return self.app.begin(method, "/auth/user", body, Authorization=f"Bearer {self.token}")
