"""The published keys (/.well-known/jwks.json), and signing keys that change while the service runs."""

from __future__ import annotations

from pathlib import Path

import jwt
from attrs import evolve
from twisted.trial.unittest import TestCase

from project_service.auth import tokens
from project_service.auth.tokens import KeySetError
from project_service.settings.model import Server
from tests.http.auth.app import AuthApp


class Keys(TestCase):
    def setUp(self) -> None:
        self.app = AuthApp(self)
        self.path = Path(str(self.app.settings.auth.jwt_keys_file))

    def rotate(self, algorithm: str, keep: int) -> None:
        tokens.change_keys(self.path, algorithm, keep)

    def published(self) -> list[dict[str, str]]:
        keys: list[dict[str, str]] = self.app.call("GET", "/.well-known/jwks.json").body["keys"]
        return keys

    def test_anybody_may_read_the_public_keys_and_cache_them_for_five_minutes(self) -> None:
        answer = self.app.call("GET", "/.well-known/jwks.json", Authorization="Bearer stale")
        assert answer.status == 200
        assert answer.response.header("cache-control") == "public, max-age=300"
        (key,) = answer.body["keys"]
        assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("EC", "P-256", "ES256", "sig")
        assert "d" not in key
        head = self.app.call("HEAD", "/.well-known/jwks.json")
        assert (head.status, head.response.body) == (200, b"")

    def test_a_rotated_file_is_taken_over_and_old_tokens_stay_valid(self) -> None:
        before = self.app.sign_up().data["access_token"]
        self.rotate("EdDSA", keep=2)
        assert len(self.published()) == 1
        self.app.reload()
        after = self.app.log_in().data["access_token"]
        assert [key["alg"] for key in self.published()] == ["EdDSA", "ES256"]
        assert jwt.get_unverified_header(after)["alg"] == "EdDSA"
        assert [self.app.user(token).status for token in (before, after)] == [200, 200]

    def test_a_removed_key_invalidates_its_tokens_but_not_the_session(self) -> None:
        session = self.app.sign_up().data
        assert self.app.user(session["access_token"]).status == 200
        self.rotate("ES256", keep=0)
        self.app.reload()
        assert self.app.user(session["access_token"]).code == "invalid_token"
        fresh = self.app.refresh(session["refresh_token"]).data
        assert self.app.user(fresh["access_token"]).status == 200

    def test_an_unusable_file_changes_nothing(self) -> None:
        token = self.app.sign_up().data["access_token"]
        self.path.write_text("{")
        with self.assertRaises(KeySetError) as refused:
            self.app.reload(access_token_seconds=60, allow_signup=False)
        assert str(refused.exception).startswith(f"auth.jwt_keys_file: {self.path}: ")
        assert self.app.user(token).status == 200
        assert self.app.sign_up("bob@example.test").status == 201

    def test_changed_lifetimes_are_taken_over(self) -> None:
        self.app.reload(access_token_seconds=60, refresh_token_seconds=100)
        session = self.app.sign_up().data
        assert session["expires_at"] == int(self.app.clock.seconds()) + 60
        self.app.clock.advance(91)
        assert self.app.user(session["access_token"]).code == "invalid_token"
        self.app.clock.advance(9)
        assert self.app.refresh(session["refresh_token"]).code == "invalid_refresh_token"

    def test_the_issuer_is_configured_or_else_the_public_url(self) -> None:
        for changes, name in (
            ({}, "project-service"),
            ({"server": Server(public_url="https://api.example.test")}, "https://api.example.test"),
            ({"auth": evolve(self.app.settings.auth, issuer="us")}, "us"),
        ):
            self.app.settings = evolve(self.app.settings, **changes)
            self.app.reload()
            token = self.app.log_in().data["access_token"] if name != "project-service" else self.token()
            assert jwt.decode(token, options={"verify_signature": False})["iss"] == name
            assert self.app.user(token).status == 200

    def token(self) -> str:
        return str(self.app.sign_up().data["access_token"])

    def test_a_shared_secret_is_not_published(self) -> None:
        app = AuthApp(self, jwt_algorithm="HS256")
        token = app.sign_up().data["access_token"]
        assert app.user(token).status == 200
        assert app.call("GET", "/.well-known/jwks.json").body == {"keys": []}
