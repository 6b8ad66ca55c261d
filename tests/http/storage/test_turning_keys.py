"""Keys with characters that turn the direction of text: no new object has one, and those that exist stay in reach."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

from twisted.trial.unittest import TestCase

from project_service.storage import keys
from tests.fakes.common import Response
from tests.http.storage.app import OBJECTS, SERVICE, USER, file_form, refused
from tests.http.storage.test_resumable import UPLOADS, TusApp, metadata

BUCKET = "/storage/buckets/open"
# All of them.
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
KEY = "photos/\u202egpj.exe"
PATH = f"{OBJECTS}/{quote(KEY)}"


class Turning(TestCase):
    def setUp(self) -> None:
        self.app = TusApp()
        self.app.put("a", b"hello")

    def signed(self, **given: Any) -> Response:
        return self.app.post(f"{BUCKET}/presign", {"method": "PUT", **given})

    def test_no_request_makes_an_object_with_one(self) -> None:
        app = self.app
        link = json.loads(self.signed(key_prefix="").body)["url"].removeprefix("http://api.example.test")
        for char in TURNING:
            key = f"x{char}y"
            for number, answer in enumerate(
                (
                    app.put(quote(key)),
                    app.request("PUT", f"{OBJECTS}/{quote(key)}", SERVICE, b"x"),
                    app.upload(file_form(key=key)),
                    app.upload(file_form(filename=key)),
                    app.post(f"{OBJECTS}?dry_run=true", {"key": key, "size": 1}),
                    app.post(f"{BUCKET}/copy", {"from": "a", "to": key}),
                    app.post(f"{BUCKET}/move", {"from": "a", "to": key}),
                    app.begin(Upload_Metadata=metadata(key=key)),
                    app.begin(path=f"{UPLOADS}?key={quote(key)}", Upload_Metadata=""),
                    self.signed(key=key),
                    self.signed(keys=["b", key]),
                    self.signed(key_prefix=key),
                    app.request("PUT", f"{link}&key={quote(key)}", {}, b"x"),
                )
            ):
                self.assertEqual(refused(answer), (422, "invalid_key"), (number, char))
        self.assertEqual([key for _, key in app.tables.objects], ["a"])

    def test_marks_that_letters_need_are_allowed(self) -> None:
        for char in "\u200e\u200f\u061c\u200d\u200c":
            self.assertEqual(self.app.put(quote(f"x{char}y")).status, 201)

    def test_an_object_of_an_earlier_version_stays_in_reach(self) -> None:
        app = self.app
        with patch.object(keys, "_TURNING", keys._CONTROL):
            self.assertEqual(app.put(quote(KEY), b"old").status, 201)
        got = app.request("GET", PATH, USER)
        self.assertEqual((got.status, got.body), (200, b"old"))
        self.assertEqual(
            got.header("content-disposition"),
            "attachment; filename=\"_gpj.exe\"; filename*=UTF-8''_gpj.exe",
        )
        listed = app.request("GET", f"{OBJECTS}?prefix={quote(KEY[:9])}", USER)
        self.assertEqual([one["key"] for one in json.loads(listed.body)["objects"]], [KEY])
        self.assertEqual(app.request("GET", f"{PATH}?info=true", USER).status, 200)
        link = app.post(f"{BUCKET}/presign", {"key": KEY})
        url = json.loads(link.body)["url"].removeprefix("http://api.example.test")
        self.assertEqual(app.request("GET", url, {}).body, b"old")
        sent = {**USER, "Content-Type": "application/json"}
        self.assertEqual(app.request("PATCH", PATH, sent, b'{"metadata": {}}').status, 200)
        self.assertEqual(app.post(f"{BUCKET}/copy", {"from": KEY, "to": "copy"}).status, 201)
        self.assertEqual(app.post(f"{BUCKET}/move", {"from": KEY, "to": "moved"}).status, 200)
        for delete in ("one", "many"):
            with patch.object(keys, "_TURNING", keys._CONTROL):
                app.put(quote(KEY), b"old")
            if delete == "one":
                self.assertEqual(app.request("DELETE", PATH, USER).status, 204)
            else:
                answer = app.post(f"{BUCKET}/delete", {"keys": [KEY]})
                self.assertEqual(json.loads(answer.body)["deleted"], [KEY])
        self.assertEqual({key for _, key in app.tables.objects}, {"a", "copy", "moved"})
