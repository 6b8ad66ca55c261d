"""Keys in the path of a request."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from tests.http.storage.app import (
    ANON,
    OBJECTS,
    SERVICE,
    USER,
    StorageApp,
    refused,
)


class Keys(TestCase):
    """Keys in the path of a request: percent-decoded once."""

    def test_allowed_keys(self) -> None:
        app = StorageApp()
        for sent, key in {
            "a%2Fb": "a/b",
            "a%252Fb": "a%2Fb",
            "a%5Cb": "a\\b",
            "..%5C..%5Cx": "..\\..\\x",
            "%2e%2e%2e": "...",
            "a;b&c=d+e": "a;b&c=d+e",
            "100%zz%2": "100%zz%2",
            "%E2%82%AC%F0%9F%98%80": "€😀",
            "a%20b%3Fc%23": "a b?c#",
            "x" * 900: "x" * 900,
        }.items():
            response = app.request("PUT", f"{OBJECTS}/{sent}", USER, b"x")
            self.assertEqual(response.status, 201, sent)
            self.assertEqual(json.loads(response.body)["key"], key)
            self.assertEqual(app.request("GET", f"{OBJECTS}/{sent}", ANON).body, b"x")

    def test_refused_keys(self) -> None:
        app = StorageApp()
        for sent in (
            "../x", "a/../b", "%2e%2e/x", "a/%2E%2e", ".", "a/.", "/a", "a//b", "a%2F%2Fb", "a/", "%2Fa",
            "a%00b", "a%0Ab", "a%7Fb", "a%C2%85b", "%FF", "%C3", "%ED%A0%80", "x" * 901, "",
        ):  # fmt: skip
            for method in ("PUT", "GET", "DELETE"):
                response = app.request(
                    method, f"{OBJECTS}/{sent}", SERVICE, b"x" if method == "PUT" else None
                )
                self.assertEqual(refused(response), (422, "invalid_key"), (method, sent))
        self.assertEqual(app.stored(), [])
