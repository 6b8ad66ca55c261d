"""Changes to an account while its password is being checked, which takes time."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.auth.passwords import Bcrypt
from tests.fakes.common import Client
from tests.http.auth.app import PASSWORD, AuthApp

ANOTHER = "another good one"


class ConcurrentChanges(TestCase):
    """Somebody with a session and the old password makes a request while the owner changes the account."""

    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.session: dict[str, Any] = self.app.sign_up().data
        self.path = f"/admin/users/{self.session['user']['id']}"

    def begin(self, method: str, body: dict[str, Any]) -> tuple[Client, Deferred[None]]:
        """Starts a request with the present password. It goes on when the Deferred fires."""
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        token = self.session["access_token"]
        client = self.app.begin(method, "/auth/user", body, Authorization=f"Bearer {token}")
        self.app.hashes.gate = None
        return client, gate

    def owner(self, **wanted: Any) -> None:
        assert self.app.call("PATCH", self.path, wanted, X_Service_Key="service-key").status == 200

    def test_a_password_that_was_set_since_stays(self) -> None:
        client, gate = self.begin("PATCH", {"password": ANOTHER, "current_password": PASSWORD})
        self.owner(password="what the owner wants")
        gate.callback(None)
        assert b"invalid_credentials" in client.received()
        assert self.app.log_in(password=ANOTHER).status == 401
        assert self.app.log_in(password="what the owner wants").status == 200

    def test_an_account_whose_password_was_set_since_is_not_deleted(self) -> None:
        client, gate = self.begin("DELETE", {"current_password": PASSWORD})
        self.owner(password="what the owner wants")
        gate.callback(None)
        assert client.received().startswith(b"HTTP/1.1 401 ")
        assert self.app.log_in(password="what the owner wants").status == 200

    def test_a_login_that_renews_the_hash_does_not_prevent_a_change(self) -> None:
        self.app.hashes.bcrypt = Bcrypt(5)
        changed, gate = self.begin("PATCH", {"password": ANOTHER, "current_password": PASSWORD})
        assert self.app.log_in().status == 200
        gate.callback(None)
        assert changed.received().startswith(b"HTTP/1.1 200 ")
        assert self.app.log_in().status == 401
        assert self.app.log_in(password=ANOTHER).status == 200
        # The same for a deletion.
        self.app.hashes.bcrypt = Bcrypt(6)
        deleted, gate = self.begin("DELETE", {"current_password": ANOTHER})
        assert self.app.log_in(password=ANOTHER).status == 200
        gate.callback(None)
        assert deleted.received().startswith(b"HTTP/1.1 200 ")
        assert self.app.log_in(password=ANOTHER).status == 401

    def test_a_user_who_was_disabled_since_changes_nothing(self) -> None:
        client, gate = self.begin("PATCH", {"password": ANOTHER, "current_password": PASSWORD})
        self.owner(disabled=True)
        gate.callback(None)
        assert b"session_revoked" in client.received()
        self.owner(disabled=False)
        assert self.app.log_in().status == 200

    def test_a_session_that_ended_since_changes_nothing(self) -> None:
        client, gate = self.begin("PATCH", {"password": ANOTHER, "current_password": PASSWORD})
        assert self.app.call("DELETE", f"{self.path}/sessions", X_Service_Key="service-key").status == 200
        gate.callback(None)
        assert client.received().startswith(b"HTTP/1.1 401 ")
        assert self.app.log_in().status == 200

    def test_a_client_that_hangs_up_gets_all_it_asked_for(self) -> None:
        client, gate = self.begin(
            "PATCH", {"password": ANOTHER, "current_password": PASSWORD, "metadata": {"a": 1}}
        )
        client.hang_up()
        gate.callback(None)
        assert self.app.log_in(password=ANOTHER).data["user"]["metadata"] == {"a": 1}

    def test_hanging_up_does_not_spare_a_wrong_password_from_being_counted(self) -> None:
        client, gate = self.begin("DELETE", {"current_password": "wrong"})
        client.hang_up()
        gate.callback(None)
        session = self.app.auth.verifier.verify(self.session["access_token"]).sid
        counter = self.app.repository.counters["session", session]
        assert (len(counter.failed), counter.pending) == (1, [])

    def test_an_operator_that_hangs_up_gets_all_it_asked_for(self) -> None:
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        wanted = {"password": ANOTHER, "disabled": True}
        client = self.app.begin("PATCH", self.path, wanted, X_Service_Key="service-key")
        client.hang_up()
        self.app.hashes.gate = None
        gate.callback(None)
        assert self.app.log_in(password=ANOTHER).code == "user_disabled"
