"""Resumable uploads in buckets with rules about whose an object is: they are refused exactly as a PUT is, when they
begin and again when they become an object. ``tests/live/storage/test_policies_resumable.py`` has policies in SQL."""

from __future__ import annotations

import itertools
import json
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import TestCase

from project_service.storage.values import Identity, ObjectRow
from tests.fakes.common import Response
from tests.fakes.storage import FakeResumables
from tests.http.storage.app import ALICE, ANON, BOB, OTHER, SERVICE, USER, refused
from tests.http.storage.test_resumable import TUS, TusApp, metadata

RULES: tuple[dict[str, bool], ...] = (
    {},
    {"owner_only_writes": True},
    {"owner_only_reads": True},
    {"policies": True},
    {"owner_only_writes": True, "policies": True},
    {"owner_only_reads": True, "policies": True},
)
CALLERS = (USER, OTHER, SERVICE, ANON)
# Of a folder that the policies open to all, one that they open to nobody, and Bob's; and whose object is there.
OBJECTS = [(folder, owner) for folder in ("seen", "hidden", BOB) for owner in (ALICE, BOB, None)]
CONDITIONS: tuple[dict[str, str], ...] = ({}, {"If-None-Match": "*"}, {"If-Match": "*"})
SHUT = "/storage/buckets/shut"


def allows(command: str, row: ObjectRow, caller: Identity) -> bool:
    """All may see and write what is in ``seen`` and in the folder of their own."""
    return row.key.partition("/")[0] in ("seen", json.loads(caller.claims).get("sub"))


def nothing(command: str, row: ObjectRow, caller: Identity) -> bool:
    return False


class RulesApp(TusApp):
    """Uploads of ``hello`` to the bucket ``shut``."""

    def __init__(self) -> None:
        super().__init__()
        self.tables.policies = allows
        self.keys = itertools.count()

    def key(self, folder: str, owner: str | None) -> str:
        """A new key in ``folder``, at which there is an object of ``owner``, if any."""
        key = f"{folder}/{next(self.keys)}"
        if owner is not None:
            sent = {**SERVICE, "X-Object-Owner": owner}
            assert self.request("PUT", f"{SHUT}/objects/{key}", sent, b"old").status == 201
        return key

    def plain(self, key: str, caller: dict[str, str], conditions: dict[str, str]) -> Any:
        """How a PUT ends."""
        sent = {**caller, **conditions, "Content-Type": "text/plain"}
        return outcome(self.request("PUT", f"{SHUT}/objects/{key}", sent, b"hello"))

    def started(
        self, key: str, caller: dict[str, str] = USER, conditions: dict[str, str] | None = None
    ) -> Response:
        described = {"Upload-Length": "5", "Upload-Metadata": metadata(key=key, filetype="text/plain")}
        sent = {**caller, **TUS, **described, **(conditions or {})}
        return self.request("POST", f"{SHUT}/resumable", sent, b"")

    def path(self, key: str) -> str:
        """That of a new upload."""
        response = self.started(key)
        assert response.status == 201, response
        return response.header("location") or ""


def outcome(response: Response) -> Any:
    return "accepted" if response.status < 300 else refused(response)


class AsPut(TestCase):
    def test_an_upload_begins_where_a_put_would_be_accepted(self) -> None:
        app, outcomes = RulesApp(), set()
        for rules in RULES:
            app.rules("shut", **rules)
            for case in itertools.product(CALLERS, OBJECTS, CONDITIONS):
                caller, there, conditions = case
                began = outcome(app.started(app.key(*there), caller, conditions))
                expected = app.plain(app.key(*there), caller, conditions)
                self.assertEqual(began, expected, (rules, case))
                outcomes.add(expected if expected == "accepted" else expected[1])
        refusals = {"authentication_required", "not_allowed", "not_owner", "object_exists"}
        self.assertEqual(outcomes, {"accepted", "precondition_failed", *refusals})

    def test_an_upload_ends_as_a_put_would_by_the_rules_and_policies_of_then(self) -> None:
        app = RulesApp()
        for rules, policies in itertools.product(RULES, (allows, nothing)):
            for case in itertools.product(CALLERS[:3], OBJECTS):
                self.compare_ends(app, rules, policies, *case)

    def compare_ends(
        self,
        app: RulesApp,
        rules: dict[str, bool],
        policies: Any,
        caller: dict[str, str],
        there: tuple[str, str | None],
    ) -> None:
        app.rules("shut")
        app.tables.policies = allows
        path = app.started(app.key(*there), caller).header("location") or ""
        app.patch(path, 0, b"hel", caller)
        app.rules("shut", **rules)
        app.tables.policies = policies
        ended = outcome(app.patch(path, 3, b"lo", caller))
        why = (rules, policies, caller, there)
        if ended != "accepted":
            # Nothing of it is left, and what was there stays.
            self.assertEqual(app.head(path, caller).status, 404, why)
            rows = {row.path for row in app.tables.objects.values()}
            self.assertEqual(app.store.objects.keys(), rows, why)
        self.assertEqual(ended, app.plain(app.key(*there), caller, {}), why)


class Meanwhile(TestCase):
    """What becomes of an upload whose user may no longer write the key, and of others' requests to it."""

    def test_only_its_user_and_the_service_key_can_see_continue_or_terminate_it(self) -> None:
        for rules in RULES:
            app = RulesApp()
            app.rules("shut", **rules)
            path = app.path("seen/new")
            for caller, status in ((OTHER, 404), (ANON, 401)):
                for answer in (
                    app.head(path, caller),
                    app.request("GET", path, caller),
                    app.patch(path, 0, b"he", caller),
                    app.delete(path, caller),
                ):
                    self.assertEqual(answer.status, status, (rules, caller))
            for number, caller in enumerate((USER, SERVICE)):
                self.assertEqual(app.patch(path, number, b"x", caller).status, 204)
                self.assertEqual(app.head(path, caller).header("upload-offset"), str(number + 1))
            self.assertEqual(app.delete(path, SERVICE).status, 204)
            self.assertEqual(app.head(path).status, 404)

    def test_an_object_that_somebody_else_made_meanwhile_is_not_replaced(self) -> None:
        for rule in ("owner_only_writes", "owner_only_reads"):
            app = RulesApp()
            app.rules("shut", **{rule: True})
            path = app.path("k")
            self.assertEqual(app.plain("k", OTHER, {}), "accepted")
            self.assertEqual(refused(app.patch(path, 0, b"hello")), (403, "not_owner"))
            self.assertEqual(str(app.tables.objects["shut", "k"].owner), BOB)

    def test_a_user_who_may_not_write_any_more_can_still_terminate(self) -> None:
        app = RulesApp()
        app.rules("shut", policies=True)
        path = app.path("seen/new")
        app.patch(path, 0, b"hel")
        app.tables.policies = nothing
        self.assertEqual(app.head(path).status, 200)
        self.assertEqual(app.delete(path).status, 204)
        app.nothing_left()

    def test_policies_judge_the_user_who_began_it_or_not_at_all_by_the_service_key(self) -> None:
        app = RulesApp()
        app.rules("shut", policies=True)
        path = app.path(f"{ALICE}/new")
        app.tables.policies = nothing
        self.assertEqual(app.patch(path, 0, b"hello", SERVICE).status, 204)
        self.assertEqual(str(app.tables.objects["shut", f"{ALICE}/new"].owner), ALICE)

    def dies_before_the_object(self, app: RulesApp, path: str, caller: dict[str, str] = USER) -> None:
        """The process dies between the last byte and the object."""
        with patch.object(FakeResumables, "commit", side_effect=RuntimeError):
            self.assertEqual(app.patch(path, 0, b"hello", caller).status, 500)
        self.flushLoggedErrors(RuntimeError)

    def test_a_head_that_makes_the_object_asks_the_policies_too(self) -> None:
        for policies, status in ((allows, 200), (nothing, 403)):
            app = RulesApp()
            app.rules("shut", policies=True)
            path = app.path("seen/new")
            self.dies_before_the_object(app, path)
            app.tables.policies = policies
            self.assertEqual(app.head(path).status, status)
            self.assertEqual(("shut", "seen/new") in app.tables.objects, status == 200)

    def test_the_service_key_that_looks_at_a_users_whole_upload_does_not_make_its_object(self) -> None:
        """By its rights, the object would be there although the user may not write it any more."""
        app = RulesApp()
        app.rules("shut", policies=True)
        path = app.path("seen/new")
        self.dies_before_the_object(app, path)
        app.tables.policies = nothing
        by_post = {**SERVICE, **TUS, "X-HTTP-Method-Override": "HEAD"}
        for answer in (
            app.head(path, SERVICE),
            app.request("GET", path, SERVICE),
            app.request("POST", path, by_post),
        ):
            self.assertEqual((answer.status, answer.header("upload-offset")), (200, "5"))
            self.assertIsNone(answer.header("content-location"))
            self.assertNotIn(("shut", "seen/new"), app.tables.objects)
        app.tables.policies = allows
        self.assertIsNotNone(app.head(path).header("content-location"))
        self.assertEqual(str(app.tables.objects["shut", "seen/new"].owner), ALICE)

    def test_the_service_key_makes_the_object_of_an_upload_of_its_own(self) -> None:
        app = RulesApp()
        path = app.started("seen/new", SERVICE).header("location") or ""
        self.dies_before_the_object(app, path, SERVICE)
        self.assertIsNotNone(app.head(path, SERVICE).header("content-location"))
