"""What has expired is cleaned up, and nothing that counts."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from tests.http.auth_app import AuthApp


class Upkeep(TestCase):
    def test_each_minute_salts_whose_window_has_passed_and_the_audit_of_days_ago_go(self) -> None:
        app = AuthApp(self, audit_days=1)
        (upkeep,) = [service for service in app.auth.services if service.name == "auth-upkeep"]
        upkeep.startService()
        self.addCleanup(upkeep.stopService)
        session = app.sign_up().data
        app.clock.advance(55)
        assert app.refresh(session["refresh_token"]).status == 200
        app.clock.advance(5)
        assert app.refresh(session["refresh_token"]).status == 200
        app.clock.advance(60)
        assert [row.salt for row in app.store.session_rows.values()] == [b""]
        app.clock.advance(86400 - 120)
        assert len(app.store.events) == 1
        app.clock.advance(60)
        assert app.store.events == []
