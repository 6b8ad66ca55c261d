"""Refusals of values name the field or parameter as it was sent."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import TestCase

from tests.http.storage.app import OBJECTS, SERVICE, USER, StorageApp

BUCKET = "/storage/buckets/open"


class Details(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k")

    def named(self, method: str, path: str, value: Any = None, headers: dict[str, str] = USER) -> list[str]:
        sent = headers if value is None else {**headers, "Content-Type": "application/json"}
        response = self.app.request(method, path, sent, b"" if value is None else json.dumps(value).encode())
        self.assertEqual(response.status, 422, response.body)
        details: dict[str, str] = json.loads(response.body)["error"]["details"]
        self.assertNotIn("", details.values())
        return sorted(details)

    def test_query_parameters_are_named(self) -> None:
        for path, name in (
            (f"{OBJECTS}?max_keys=0", "max_keys"), (f"{OBJECTS}?recursive=x", "recursive"),
            (f"{OBJECTS}?page_token=x", "page_token"), (f"{OBJECTS}?prefix=%00", "prefix"),
            (f"{OBJECTS}/k?inline=x", "inline"), (f"{OBJECTS}/a//b", "key"), ("/storage/download", "token"),
        ):  # fmt: skip
            self.assertEqual(self.named("GET", path), [name], path)
        for path, name in (("/open?force=x", "force"), ("/open/objects", "prefix")):
            self.assertEqual(self.named("DELETE", f"/admin/buckets{path}", headers=SERVICE), [name], path)

    def test_body_fields_are_named(self) -> None:
        for path, value, names in (
            ("presign", {}, ["key"]), ("presign", {"key": "../k"}, ["key"]), ("presign", {"key": "k", "x": 1}, ["x"]),
            ("presign", {"key": "k", "expires_in_seconds": 0}, ["expires_in_seconds"]),
            ("presign", {"key": "k", "uses": -1}, ["uses"]),
            ("copy", {}, ["from", "to"]), ("copy", {"from": "a", "to": 1}, ["to"]),
            ("copy", {"from": "../k", "to": "a"}, ["from"]), ("copy", {"from": "k", "to": "../a"}, ["to"]),
            ("move", {"from": "k", "to": "k"}, ["to"]), ("move", {"from": "k", "to": "a", "x": 1}, ["x"]),
            ("delete", {}, ["keys"]), ("delete", {"keys": ["k", 1]}, ["keys"]),
            ("delete", {"keys": ["../k"]}, ["keys"]), ("delete", {"keys": ["k"], "x": 1}, ["x"]),
        ):  # fmt: skip
            self.assertEqual(self.named("POST", f"{BUCKET}/{path}", value), names, (path, value))
        self.assertEqual(self.app.stored(), [b"hello"])
