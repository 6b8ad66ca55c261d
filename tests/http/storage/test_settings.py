"""The settings of ``[storage]`` take effect, and a reload changes them."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from project_service.settings.model import Storage as StorageSettings
from tests.http.storage.app import USER, StorageApp, refused


class InForce(TestCase):
    def setUp(self) -> None:
        self.app = StorageApp()
        self.app.put("k")

    def set(self, **settings: int) -> None:
        self.app.current_settings = StorageSettings(**settings)

    def test_default_expires_in_seconds(self) -> None:
        for seconds, expires_at in ((60, "2026-11-21T00:01:00.000Z"), (7200, "2026-11-21T02:00:00.000Z")):
            self.set(default_expires_in_seconds=seconds)
            made = self.app.post("/storage/buckets/open/presign", {"key": "k"})
            self.assertEqual(json.loads(made.body)["expires_at"], expires_at)

    def test_public_max_age_seconds(self) -> None:
        for seconds, caching in ((0, "public, no-cache"), (60, "public, max-age=60")):
            self.set(public_max_age_seconds=seconds)
            self.assertEqual(self.app.get("k").header("cache-control"), caching)

    def test_max_object_bytes(self) -> None:
        self.set(max_object_bytes=4)
        self.assertEqual(refused(self.app.put("k")), (413, "payload_too_large"))
        self.set(max_object_bytes=5)
        self.assertEqual(self.app.put("k").status, 200)

    def test_keep_removed_seconds(self) -> None:
        self.set(keep_removed_seconds=100)
        self.assertEqual(self.app.request("DELETE", "/storage/buckets/open/objects/k", USER).status, 204)
        self.assertEqual(len(self.app.store.objects), 1)
        self.app.put("k")
        self.set()
        self.assertEqual(self.app.request("DELETE", "/storage/buckets/open/objects/k", USER).status, 204)
        self.assertEqual(len(self.app.store.objects), 1)
