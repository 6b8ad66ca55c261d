"""What clients of the Supabase family look for and is not there."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.http.routing import Router
from project_service.supabase.absent import NotOffered
from tests.fakes.common import ANON_KEY, App


class Absent(TestCase):
    def test_realtime_and_functions_are_refused_in_plain_words(self) -> None:
        router = Router()
        NotOffered().mount(router)
        app = App(router)
        for method, path, name in (
            ("GET", "/realtime/v1/websocket?apikey=x&vsn=2.0.0", "Realtime is"),
            ("POST", "/realtime/v1/api/broadcast", "Realtime is"),
            ("POST", "/functions/v1/hello", "Functions are"),
            ("DELETE", "/functions/v1/a/b", "Functions are"),
        ):
            for headers in ({}, {"apikey": ANON_KEY}, {"apikey": "wrong"}):
                response = app.request(method, path, {**headers, "Origin": "https://app.example.test"})
                error = json.loads(response.body)["error"]
                self.assertEqual((response.status, error["code"]), (404, "not_found"))
                self.assertIn(name, error["message"])
                self.assertEqual(response.header("access-control-allow-origin"), "*")
