"""Project keys and bearer tokens at the edge."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from tests.fakes import ANON_KEY, SERVICE_KEY, App
from tests.http.toy_app import ANON, SERVICE, app_of, hello


class Keys(TestCase):
    def code(self, app: App, headers: dict[str, str]) -> tuple[int, str | None]:
        response = app.request("GET", "/x", headers)
        error = json.loads(response.body)["error"]
        if response.status == 401:
            self.assertTrue((response.header("www-authenticate") or "").startswith("Bearer"))
        return response.status, error and error["code"]

    def test_required(self) -> None:
        app = app_of(hello, key="required")
        self.assertEqual(self.code(app, {}), (401, "project_key_required"))
        self.assertEqual(self.code(app, {"X-Service-Key": "wrong"}), (401, "project_key_invalid"))
        self.assertEqual(self.code(app, ANON), (200, None))
        self.assertEqual(self.code(app, {"apikey": ANON_KEY}), (200, None))

    def test_a_wrong_key_is_refused_where_none_is_needed(self) -> None:
        self.assertEqual(self.code(app_of(hello), {"apikey": "wrong"}), (401, "project_key_invalid"))

    def test_a_wrong_key_beside_a_right_one_is_refused(self) -> None:
        both = {"X-Service-Key": ANON_KEY, "apikey": "wrong"}
        self.assertEqual(self.code(app_of(hello), both), (401, "project_key_invalid"))
        self.assertEqual(self.code(app_of(hello), {**both, "apikey": ANON_KEY}), (200, None))

    def test_two_good_ones_are_refused_too(self) -> None:
        both = {"X-Service-Key": ANON_KEY, "apikey": SERVICE_KEY}
        self.assertEqual(self.code(app_of(hello), both), (401, "project_key_invalid"))

    def test_where_no_key_is_asked_for_the_service_key_is_no_user(self) -> None:
        app = app_of(hello, bearer="required")
        self.assertEqual(self.code(app, SERVICE), (401, "authentication_required"))
        self.assertEqual(self.code(app, {"Authorization": "Bearer user:7"}), (200, None))

    def test_service_only(self) -> None:
        app = app_of(hello, key="service")
        self.assertEqual(self.code(app, ANON), (403, "service_key_required"))
        self.assertEqual(self.code(app, SERVICE), (200, None))

    def test_a_signed_in_user(self) -> None:
        app = app_of(hello, key="required", bearer="required")
        self.assertEqual(self.code(app, ANON), (401, "authentication_required"))
        self.assertEqual(self.code(app, SERVICE), (200, None))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Bearer user:7"}), (200, None))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Bearer nobody"}), (401, "invalid_token"))
        for other in ("Basic user:7", "Bearer", "Bearer ", "user:7", "Bearer user:\u00e9"):
            self.assertEqual(self.code(app, {**ANON, "Authorization": other}), (401, "invalid_token"), other)
        two = {"Authorization": "Bearer user:7", "authorization": "Bearer user:7"}
        self.assertEqual(self.code(app, {**ANON, **two}), (401, "invalid_token"))

    def test_the_project_key_repeated_as_bearer_signs_nobody_in(self) -> None:
        app = app_of(hello, key="required", bearer="required")
        self.assertEqual(
            self.code(app, {**ANON, "Authorization": f"Bearer {ANON_KEY}"}), (401, "authentication_required")
        )

    def test_a_bad_token_says_so_in_the_challenge(self) -> None:
        response = app_of(hello).request("GET", "/x", {"Authorization": "Bearer nobody"})
        self.assertIn('error="invalid_token"', response.header("www-authenticate") or "")
