"""The cleanup removes what has expired, and nothing that is still needed."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from tests.http.auth.app import AuthApp


class Upkeep(TestCase):
    def app(self, **auth: Any) -> AuthApp:
        app = AuthApp(self, **auth)
        (upkeep,) = [service for service in app.auth.services if service.name == "auth-upkeep"]
        upkeep.startService()
        self.addCleanup(upkeep.stopService)
        return app

    def test_each_minute_old_salts_and_audit_entries_are_removed(self) -> None:
        app = self.app(audit_days=1)
        session = app.sign_up().data
        app.clock.advance(55)
        child = app.refresh(session["refresh_token"]).data["refresh_token"]
        app.refresh(child)
        app.clock.advance(5)
        assert app.refresh(session["refresh_token"]).status == 200
        app.clock.advance(60)
        (row,) = app.store.session_rows.values()
        assert (row.older, bool(row.salt)) == ({}, True)
        app.clock.advance(86400 - 120)
        assert len(app.store.events) == 1
        app.clock.advance(60)
        assert app.store.events == []

    def test_salts_are_kept_for_two_windows(self) -> None:
        """A host whose clock is ahead must not take them away from the others."""
        app = self.app()
        session = app.sign_up().data
        app.clock.advance(41)
        app.refresh(app.refresh(session["refresh_token"]).data["refresh_token"])
        app.clock.advance(19)
        (row,) = app.store.session_rows.values()
        assert len(row.older) == 1
        app.clock.advance(60)
        assert row.older == {}

    def test_an_expired_refresh_token_is_forgotten(self) -> None:
        app = self.app(refresh_token_seconds=300)
        tokens = [app.sign_up().data["refresh_token"]]
        for _ in range(6):
            app.clock.advance(60)
            tokens.append(app.refresh(tokens[-1]).data["refresh_token"])
        refused = [app.refresh(token).code for token in tokens[:2]]
        assert refused == ["invalid_refresh_token", "refresh_token_reused"]
