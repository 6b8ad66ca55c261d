"""The admission class of each kind of request, as the parts name it when their routes are mounted."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from project_service.application import admission_limits
from project_service.errors import ApiError
from project_service.settings.model import Settings, Stage, StageDatabase
from tests.http.edge.test_openapi import whole


class Classes(TestCase):
    def test_the_class_of_each_kind_of_request(self) -> None:
        router = whole(self)
        for asked, name in {
            ("GET", b"/auth/user"): "auth",
            ("POST", b"/auth/refresh"): "auth",
            ("POST", b"/auth/login"): "passwords",
            ("POST", b"/auth/signup"): "passwords",
            ("POST", b"/auth/reset"): "passwords",
            ("PATCH", b"/auth/user"): "passwords",
            ("DELETE", b"/auth/user"): "passwords",
            ("POST", b"/admin/users"): "passwords",
            ("PATCH", b"/admin/users/ada@example.test"): "passwords",
            ("GET", b"/admin/users"): "auth",
            ("DELETE", b"/admin/users/1/sessions"): "auth",
            ("GET", b"/.well-known/jwks.json"): "",
            ("GET", b"/admin/buckets"): "storage",
            ("GET", b"/storage/download"): "storage",
            ("PUT", b"/storage/buckets/b/objects/a/b/c"): "storage",
            ("GET", b"/dev/db/main/rest/orders"): "tables:dev/main",
            ("PURGE", b"/dev/db/main/rest/orders"): "tables:dev/main",
            ("GET", b"/dev/db/main/rest"): "tables:dev/main",
            ("GET", b"/d%65v/db/m%61in/rest/orders"): "tables:dev/main",
            ("GET", b"/live"): "",
            ("GET", b"/ready"): "",
            ("GET", b"/metrics"): "",
            ("GET", b"/openapi.json"): "",
        }.items():
            self.assertEqual(router.match(*asked).admission, name, asked)

    def test_a_method_that_a_path_lacks_has_the_class_of_the_path_and_an_unknown_path_none(self) -> None:
        router = whole(self)
        self.assertRaises(ApiError, router.match, "PUT", b"/auth/user")
        at = router.at(b"/storage/buckets/b/objects")
        assert at is not None
        self.assertEqual(at.admission, "storage")
        for path in (b"/", b"*", b"/auth/nothing", b"/dev/db/main", b"/dev/db/%ff/rest\xff"):
            match = router.at(path)
            self.assertIn(match and match.admission, (None, ""), path)

    def test_each_class_of_a_mounted_route_is_limited(self) -> None:
        settings = Settings(stages={"{stage}": Stage({"{database}": StageDatabase()})})
        named = {route.policy.admission for _, _, route in whole(self).routes} - {""}
        self.assertEqual(named, set(admission_limits(settings, 1)))
