"""``/admin/keys/signing``: the keys of access tokens, and another one that signs."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from twisted.trial.unittest import TestCase

from project_service import files
from project_service.auth import tokens
from project_service.auth.tokens import KeySet
from project_service.http.routing import Router
from project_service.operators.assemble import Operators
from project_service.operators.keys import SigningKeyRoutes
from project_service.operators.sql import Audited
from project_service.settings.model import Auth
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App, Response
from tests.temporary import temporary_directory

T = TypeVar("T")


class Recording:
    """A pool that keeps the parameters of what is written."""

    def __init__(self) -> None:
        self.params: list[Any] = []

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        self.params.append(params)
        return []


async def at_once(function: Callable[[], T]) -> T:
    return function()


class SigningKeys(TestCase):
    def setUp(self) -> None:
        self.path = temporary_directory(self) / "jwt-keys.json"
        tokens.create_keys(self.path, "ES256")
        self.rows, self.reloads = Recording(), 0
        self.keys = self.in_file()
        settings = Auth(jwt_keys_file=str(self.path))
        router = Router()
        self.app = App(router)
        audited = Audited(self.rows, lambda: 1_795_230_240.0)
        routes = SigningKeyRoutes(lambda: settings, lambda: self.keys, at_once, self.reload, audited)
        Operators((routes,)).mount(router)

    def reload(self) -> None:
        self.reloads += 1
        self.keys = self.in_file()

    def in_file(self) -> KeySet:
        return tokens.load_keys(self.path)

    def ask(self, method: str, path: str, body: Any = None, key: str = SERVICE_KEY) -> Response:
        raw = None if body is None else json.dumps(body).encode()
        headers = {"X-Service-Key": key, "Content-Type": "application/json"}
        return self.app.request(method, f"/admin/keys/signing{path}", headers, raw)

    def rotated(self, **body: Any) -> list[dict[str, Any]]:
        response = self.ask("POST", "/rotate", body)
        self.assertEqual(response.status, 200, response.body)
        keys: list[dict[str, Any]] = json.loads(response.body)["keys"]
        self.assertEqual(keys, json.loads(self.ask("GET", "").body)["keys"])
        return keys

    def refused(self, **body: Any) -> tuple[int, str]:
        response = self.ask("POST", "/rotate", body)
        return response.status, json.loads(response.body)["error"]["code"]

    def test_they_are_listed_without_the_keys_themselves(self) -> None:
        response = self.ask("GET", "")
        self.assertEqual(response.header("cache-control"), "no-store")
        (key,) = json.loads(response.body)["keys"]
        self.assertEqual((key["algorithm"], key["state"]), ("ES256", "signs"))
        made = datetime.fromisoformat(key["created_at"])
        self.assertLess(abs((datetime.now(UTC) - made).total_seconds()), 60)
        (whole,) = json.loads(self.path.read_text())["keys"]
        for secret in ("d", "x", "y"):
            self.assertNotIn(whole[secret], response.body.decode())

    def test_a_key_that_does_not_say_when_it_was_made_has_no_age(self) -> None:
        for made in (None, "yesterday", -1, 10**20, 1.5):
            whole = json.loads(self.path.read_text())
            whole["keys"][0]["iat"] = made
            self.path.write_text(json.dumps(whole))
            self.reload()
            (key,) = json.loads(self.ask("GET", "").body)["keys"]
            self.assertIsNone(key["created_at"])

    def test_a_new_key_signs_and_the_old_ones_still_verify(self) -> None:
        first = self.keys.signing.kid
        new, old = self.rotated()
        self.assertEqual((old["kid"], old["state"], new["state"]), (first, "verifies", "signs"))
        self.assertEqual(self.reloads, 1)
        self.assertEqual(len(self.rotated()), 3)
        self.assertEqual(len(self.rotated()), 3)
        (last,) = self.rotated(keep=0, algorithm="EdDSA")
        self.assertEqual((last["algorithm"], last["state"]), ("EdDSA", "signs"))

    def test_a_key_is_announced_before_it_signs(self) -> None:
        first = self.keys.signing.kid
        signing, announced = self.rotated(announce=True)
        self.assertEqual((signing["kid"], announced["state"]), (first, "verifies"))
        new, old = self.rotated(kid=announced["kid"])
        self.assertEqual((new["kid"], new["state"], old["kid"]), (announced["kid"], "signs", first))
        actions = [(one["action"], one["audit_subject"], one["result"]) for one in self.rows.params]
        self.assertEqual(actions, [("rotate_signing_key", announced["kid"], "ok")] * 2)

    def test_what_makes_no_sense_changes_nothing(self) -> None:
        before = self.path.read_bytes()
        for body in (
            {"kid": "unknown"},
            {"kid": self.keys.signing.kid, "announce": True},
            {"keep": -1},
            {"keep": 101},
            {"algorithm": "none"},
            {"announce": None},
            {"more": 1},
        ):
            self.assertEqual(self.refused(**body), (422, "validation_failed"), body)
        self.assertEqual((self.path.read_bytes(), self.reloads, self.rows.params), (before, 0, []))

    def test_a_file_that_cannot_be_changed_is_said_with_the_command(self) -> None:
        def check(why: str) -> None:
            response = self.ask("POST", "/rotate", {})
            error = json.loads(response.body)["error"]
            self.assertEqual((response.status, error["code"]), (409, "signing_keys_not_writable"))
            self.assertIn("project-service jwt-keys rotate", error["message"])
            self.assertIn(why, error["message"])
            self.assertEqual((self.reloads, self.rows.params), (0, []))

        self.path.write_text("{")
        check("is not JSON")
        self.path.unlink()
        check("No such file")

    def test_a_folder_that_cannot_be_written_to_is_said_too(self) -> None:
        def refuse(*_: Any) -> None:
            raise PermissionError(13, "Permission denied")

        self.patch(files, "replace", refuse)
        before = self.path.read_bytes()
        self.assertEqual(self.refused(), (409, "signing_keys_not_writable"))
        self.assertEqual((self.path.read_bytes(), self.reloads), (before, 0))

    def test_the_file_stays_secret(self) -> None:
        self.rotated()
        self.assertEqual(stat.S_IMODE(Path(self.path).stat().st_mode), 0o600)

    def test_only_the_service_key_may(self) -> None:
        for method, path, body in (("GET", "", None), ("POST", "/rotate", {})):
            self.assertEqual(self.ask(method, path, body, key=ANON_KEY).status, 403)
        self.assertEqual(self.reloads, 0)
