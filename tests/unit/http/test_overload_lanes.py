"""Which lane a request belongs to, by its method and path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.http.admission import lane_of


class Names(TestCase):
    def test_the_lane_of_each_kind_of_request(self) -> None:
        for asked, name in {
            ("GET", b"/auth/user"): "auth",
            ("POST", b"/auth/refresh"): "auth",
            ("POST", b"/auth/login"): "passwords",
            ("POST", b"/auth/signup"): "passwords",
            ("PATCH", b"/auth/user"): "passwords",
            ("POST", b"/admin/users"): "passwords",
            ("PATCH", b"/admin/users/ada@example.test"): "passwords",
            ("GET", b"/admin/users"): "auth",
            ("DELETE", b"/admin/users/1/sessions"): "auth",
            ("GET", b"/admin/buckets"): "storage",
            ("DELETE", b"/admin/buckets/b/objects"): "storage",
            ("GET", b"/admin"): "-",
            ("GET", b"/storage/download"): "storage",
            ("PUT", b"/storage/buckets/b/objects/a/b/c"): "storage",
            ("GET", b"/dev/db/main/rest/orders"): "tables:dev/main",
            ("GET", b"/dev/db/main/rest"): "tables:dev/main",
            ("GET", b"/d%65v/db/m%61in/rest/orders"): "tables:dev/main",
            ("GET", b"/dev/db/main"): "-",
            ("GET", b"/dev/db"): "-",
            ("GET", b"/dev/buckets"): "-",
            ("GET", b"/live"): "-",
            ("GET", b"/ready"): "-",
            ("GET", b"/metrics"): "-",
            ("GET", b"/"): "-",
            ("OPTIONS", b"*"): "-",
            ("GET", b"//auth/user"): "-",
        }.items():
            self.assertEqual(lane_of(*asked), name, asked)

    @given(st.binary())
    def test_any_target_has_a_lane(self, target: bytes) -> None:
        self.assertIsInstance(lane_of("GET", target), str)
