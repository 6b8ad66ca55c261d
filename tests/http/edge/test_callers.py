"""Project keys and revocations: who calls, and how current the edge is about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.errors import session_revoked
from project_service.http.caller import NOBODY, BearerDemand, KeyDemand
from project_service.http.request import Request
from project_service.http.response import Reply, envelope
from project_service.http.routing import Router
from tests.fakes.common import (
    ANON_KEY,
    SERVICE_KEY,
    App,
    Client,
    FakeKeys,
    FakeRevocations,
    Response,
    parse_response,
    raw_request,
)
from tests.http.toy_app import ANON, SERVICE, app_of, hello
from tests.route_description import operation_at


class Keys(TestCase):
    def code(self, app: App, headers: dict[str, str]) -> tuple[int, str | None]:
        response = app.request("GET", "/x", headers)
        error = json.loads(response.body)["error"]
        if response.status == 401:
            self.assertTrue((response.header("www-authenticate") or "").startswith("Bearer"))
        return response.status, error and error["code"]

    def test_a_required_key(self) -> None:
        app = app_of(hello, key="required")
        self.assertEqual(self.code(app, {}), (401, "project_key_required"))
        self.assertEqual(self.code(app, {"X-Service-Key": "wrong"}), (401, "project_key_invalid"))
        self.assertEqual(self.code(app, ANON), (200, None))
        self.assertEqual(self.code(app, {"apikey": ANON_KEY}), (200, None))

    def test_a_wrong_key_is_refused_even_if_none_is_needed(self) -> None:
        self.assertEqual(self.code(app_of(hello), {"apikey": "wrong"}), (401, "project_key_invalid"))

    def test_a_wrong_key_beside_a_right_one_is_refused(self) -> None:
        both = {"X-Service-Key": ANON_KEY, "apikey": "wrong"}
        self.assertEqual(self.code(app_of(hello), both), (401, "project_key_invalid"))
        self.assertEqual(self.code(app_of(hello), {**both, "apikey": ANON_KEY}), (200, None))

    def test_two_different_valid_keys_are_refused(self) -> None:
        both = {"X-Service-Key": ANON_KEY, "apikey": SERVICE_KEY}
        self.assertEqual(self.code(app_of(hello), both), (401, "project_key_invalid"))

    def test_without_a_required_key_the_service_key_is_no_user(self) -> None:
        app = app_of(hello, bearer="required")
        self.assertEqual(self.code(app, SERVICE), (401, "authentication_required"))
        self.assertEqual(self.code(app, {"Authorization": "Bearer user:7"}), (200, None))

    def test_a_route_for_the_service_key_only(self) -> None:
        app = app_of(hello, key="service")
        self.assertEqual(self.code(app, ANON), (403, "service_key_required"))
        self.assertEqual(self.code(app, SERVICE), (200, None))

    def test_a_route_for_signed_in_users(self) -> None:
        app = app_of(hello, key="required", bearer="required")
        self.assertEqual(self.code(app, ANON), (401, "authentication_required"))
        self.assertEqual(self.code(app, SERVICE), (200, None))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Bearer user:7"}), (200, None))
        self.assertEqual(self.code(app, {**ANON, "Authorization": "Bearer nobody"}), (401, "invalid_token"))
        for other in ("Basic user:7", "Bearer", "Bearer ", "user:7", "Bearer user:\u00e9"):
            self.assertEqual(self.code(app, {**ANON, "Authorization": other}), (401, "invalid_token"), other)
        two = {"Authorization": "Bearer user:7", "authorization": "Bearer user:7"}
        self.assertEqual(self.code(app, {**ANON, **two}), (401, "invalid_token"))

    def test_the_project_key_as_bearer_token_signs_nobody_in(self) -> None:
        app = app_of(hello, key="required", bearer="required")
        self.assertEqual(
            self.code(app, {**ANON, "Authorization": f"Bearer {ANON_KEY}"}), (401, "authentication_required")
        )

    def test_an_invalid_token_is_named_in_the_challenge(self) -> None:
        response = app_of(hello).request("GET", "/x", {"Authorization": "Bearer nobody"})
        self.assertIn('error="invalid_token"', response.header("www-authenticate") or "")


class Impersonation(TestCase):
    """A token that was made with the service key, to see what somebody sees."""

    def answer(self, token: str, app: App | None = None, **access: Any) -> tuple[int, Any]:
        app = app or app_of(who, **access)
        response = app.request("GET", "/x", {"Authorization": f"Bearer {token}"})
        body = json.loads(response.body)
        return response.status, body["data"] or body["error"]["code"]

    def test_it_stands_for_the_anon_key_as_well(self) -> None:
        for bearer in ("optional", "required"):
            assert self.answer("as:7", key="required", bearer=bearer) == (200, ["anon", "7"])
        # The route reads the token itself.
        assert self.answer("as:7", key="required", bearer="own") == (200, ["anon", None])
        assert self.answer("as:7", key="optional") == (200, [None, "7"])

    def test_other_tokens_stand_for_no_key(self) -> None:
        for token in ("user:7", "nonsense", ANON_KEY):
            assert self.answer(token, key="required") == (401, "project_key_required")

    def test_it_is_worth_no_service_key(self) -> None:
        for bearer in ("optional", "required", "own"):
            refused = (401, "project_key_required")
            assert self.answer("as:7", key="service", bearer=bearer) == refused

    def test_nobody_is_not_signed_in(self) -> None:
        nobody = f"as:{NOBODY}"
        assert self.answer(nobody, key="required") == (200, ["anon", None])
        assert self.answer(nobody, key="optional") == (200, [None, None])
        refused = (401, "authentication_required")
        assert self.answer(nobody, key="required", bearer="required") == refused
        # Only the claim makes it nobody: a user may have been imported with this id.
        assert self.answer(f"user:{NOBODY}", key="optional") == (200, [None, NOBODY])

    def test_it_is_verified_with_each_request_of_a_connection(self) -> None:
        nobody = f"as:{NOBODY}"
        cases: tuple[tuple[str, KeyDemand, BearerDemand, dict[str, str]], ...] = (
            ("as:7", "required", "optional", {}),
            ("as:7", "required", "own", {}),
            (nobody, "required", "optional", {}),
            (nobody, "required", "optional", ANON),
            (nobody, "optional", "optional", {}),
            (nobody, "optional", "optional", ANON),
        )
        for token, key, bearer, more in cases:
            router = Router()
            router.route("/x", operation_at("/x"), methods=("GET",), key=key, bearer=bearer)(who)
            app = App(router, keys=SameKeys())
            client, headers = app.connect(), {"Authorization": f"Bearer {token}", **more}
            statuses = []
            for expired in (False, False, True):
                app.tokens.expired = expired
                statuses.append(client.request("GET", "/x", headers).status)
            assert statuses == [200, 200, 401], (token, key, bearer, more)


class SameKeys(FakeKeys):
    """Keys that do not change, so that callers are cached."""

    active: Any = "these"


async def who(request: Request) -> Reply:
    caller = request.caller
    return envelope([caller.key, caller.user and caller.user.sub])


class SlowBodies(TestCase):
    """Credentials that were valid when a slow body began may be invalid when it ends."""

    BODY = b'{"a": 1}'

    def asked(
        self, sent: dict[str, str], before_the_end: Callable[[App], None] | None, **access: Any
    ) -> Response:
        """The response to a request whose last byte is sent after ``before_the_end`` was called, if it is given."""
        app = app_of(whole, methods=("POST",), **access)
        client = app.connect()
        raw = raw_request("POST", "/x", {"Content-Type": "application/json", **sent}, self.BODY)
        client.send(raw if before_the_end is None else raw[:-1])
        if before_the_end is not None:
            self.assertEqual(client.received(), b"")
            before_the_end(app)
            client.send(raw[-1:])
        return parse_response(client.received())

    def test_a_key_revoked_during_the_body_is_refused(self) -> None:
        response = self.asked(SERVICE, revoke, key="service")
        self.assertEqual(
            (response.status, json.loads(response.body)["error"]["code"]), (401, "project_key_invalid")
        )

    def test_a_session_ended_during_the_body_is_refused(self) -> None:
        response = self.asked({"Authorization": "Bearer user:7"}, end_sessions, bearer="required")
        self.assertEqual(
            (response.status, json.loads(response.body)["error"]["code"]), (401, "session_revoked")
        )

    def test_credentials_that_are_still_valid_are_accepted(self) -> None:
        for before_the_end in (None, lambda app: None):
            both = {**SERVICE, "Authorization": "Bearer user:7"}
            response = self.asked(both, before_the_end, key="service")
            self.assertEqual(json.loads(response.body)["data"], {"a": 1, "who": ["service", "7"]})


async def whole(request: Request) -> Reply:
    body, caller = await request.json_object(), request.caller
    return envelope({**body, "who": [caller.key, caller.user and caller.user.sub]})


def revoke(app: App) -> None:
    app.keys.kinds.clear()


def end_sessions(app: App) -> None:
    def refuse(token: str) -> NoReturn:
        raise session_revoked()

    app.tokens.verify = refuse


USER = {"Authorization": "Bearer user:7"}


class Revoked(TestCase):
    def app(self, handler: Any = hello, **access: Any) -> None:
        self.served = app_of(handler, methods=("GET", "PUT"), **access)
        self.revocations: FakeRevocations = self.served.revocations
        self.keys: FakeKeys = self.served.keys

    def ask(self, headers: dict[str, str], method: str = "GET") -> Client:
        client = self.served.connect()
        client.send(raw_request(method, "/x", headers, None))
        return client

    def test_requests_do_not_wait_while_revocations_are_current(self) -> None:
        self.app(key="required")
        self.assertIn(b"200 OK", self.ask({**ANON, **USER}).received())
        self.assertEqual(self.revocations.waiting, [])

    def test_requests_with_a_key_or_token_wait_for_a_read(self) -> None:
        for access, headers in (({"key": "required"}, ANON), ({"bearer": "required"}, USER)):
            self.app(**access)
            self.revocations.current = False
            client = self.ask(headers)
            self.assertEqual(client.received(), b"")
            self.revocations.waiting[0].callback(None)
            self.assertIn(b"200 OK", client.received())

    def test_a_key_revoked_according_to_that_read_is_refused(self) -> None:
        self.app(key="required")
        self.revocations.current = False
        client = self.ask(ANON)
        self.keys.kinds.clear()
        self.revocations.waiting[0].callback(None)
        self.assertIn(b"project_key_invalid", client.received())

    def test_it_is_503_if_revocations_cannot_be_read(self) -> None:
        self.app(key="required")
        self.revocations.current = False
        client = self.ask(ANON)
        self.revocations.waiting[0].errback(errors.database_unavailable())
        answer = client.received()
        self.assertIn(b"503 ", answer)
        self.assertIn(b"database_unavailable", answer)
        self.assertIn(b"Retry-After", answer)

    def test_requests_without_credentials_do_not_wait(self) -> None:
        self.app(key="required")
        self.revocations.current = False
        self.assertIn(b"project_key_required", self.ask({}).received())

    def test_routes_with_optional_credentials_do_not_wait(self) -> None:
        """A probe of ``/live`` may send a key, and must be answered while the database is away."""
        self.app(key="optional", bearer="own")
        self.revocations.current = False
        self.assertIn(b"200 OK", self.ask({**ANON, **USER}).received())
        # In a process that has just started no key has been read yet.
        self.keys.kinds.clear()
        self.assertIn(b"200 OK", self.ask({**ANON, **USER}).received())

    def test_a_key_is_checked_again_after_a_slow_body(self) -> None:
        async def store(request: Request) -> Reply:
            return envelope({"size": len(await request.read(100))})

        self.app(store, key="required")
        client = self.ask({**ANON, "Content-Length": "4"}, "PUT")
        self.revocations.current = False
        client.send(b"body")
        self.assertEqual(client.received(), b"")
        self.keys.kinds.clear()
        self.revocations.waiting[0].callback(None)
        self.assertIn(b"project_key_invalid", client.received())
