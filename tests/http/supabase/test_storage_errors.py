"""Every error that these endpoints can send is in the table, and has the form of this interface."""

from __future__ import annotations

import json
from types import ModuleType

from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.errors import ApiError
from project_service.http.describe import refusals_of
from project_service.storage import errors as storage_errors
from project_service.supabase.storage.mounting import BASE
from project_service.supabase.storage_errors import TABLE, as_sent, as_sent_to_tus
from tests.http.edge.test_openapi import catalogue
from tests.http.supabase.storage_app import SERVICE, ClientApp, told


def made_by(*modules: ModuleType) -> list[ApiError]:
    return [error for module in modules for error in catalogue(module)]


class Errors(TestCase):
    def test_the_table_has_every_code_and_no_other(self) -> None:
        codes = {error.code for error in made_by(errors, storage_errors)}
        self.assertGreater(len(codes), 50)
        self.assertEqual(codes, {*TABLE})

    def test_what_routes_say_that_they_refuse_is_in_the_table(self) -> None:
        for url, _, route in ClientApp().router.routes:
            if BASE in url:
                for one in route.described:
                    codes = {error.code for error in refusals_of(route.access, one, True)}
                    self.assertLessEqual(codes, TABLE.keys(), url)

    def test_the_form(self) -> None:
        sent = as_sent(storage_errors.object_not_found())
        self.assertEqual(
            (sent.status, json.loads(sent.body())),
            (
                400,
                {
                    "statusCode": "404",
                    "error": "not_found",
                    "code": "NoSuchKey",
                    "message": "Object not found",
                },
            ),
        )

    def test_statuses_that_http_needs_are_kept(self) -> None:
        for error in made_by(errors, storage_errors):
            status = as_sent(error).status
            kept = error.status in (405, 412, 416, 429) or error.status >= 500
            self.assertEqual(status if error.code != "object_exists" else 412, error.status if kept else 400)
        for error in (storage_errors.offset_mismatch(3), storage_errors.upload_locked()):
            self.assertEqual(as_sent_to_tus(error).status, error.status)
            self.assertEqual(as_sent_to_tus(error).headers, error.headers)

    def test_messages_that_clients_look_for(self) -> None:
        for error, message in (
            (storage_errors.bucket_not_found(), "Bucket not found"),
            (storage_errors.object_exists(), "The resource already exists"),
            (
                errors.payload_too_large(5, "the bucket's max_object_bytes"),
                "The object exceeded the maximum allowed size",
            ),
            (
                storage_errors.unsupported_media_type_of_object("image/jpeg"),
                "mime type image/jpeg is not supported",
            ),
            (storage_errors.not_allowed(), "new row violates row-level security policy"),
        ):
            self.assertEqual(as_sent(error).message, message)
        for ours in (
            errors.payload_too_large(5),
            storage_errors.payload_too_large_for_bucket(),
            storage_errors.not_owner(),
        ):
            self.assertEqual(as_sent(ours).message, ours.message)

    def test_what_is_not_there_says_so_in_this_form(self) -> None:
        app = ClientApp()
        for path in (
            "/vector/ListIndexes",
            "/iceberg/v1/config",
            "/s3/bucket",
            "/cdn/open/x",
            "/",
            "/nothing",
        ):
            for method in ("GET", "POST", "DELETE"):
                self.assertEqual(told(app.ask(method, path)), (400, "404", "InvalidRequest"))


class Databases(TestCase):
    def test_the_url_of_a_database_has_them_too(self) -> None:
        app = ClientApp()
        names = [
            one["name"]
            for one in app.value("GET", "/bucket", headers=SERVICE, base="/dev/db/main/storage/v1")
        ]
        self.assertIn("policed", names)
        for base in ("/dev/db/none/storage/v1", "/prod/db/main/storage/v1"):
            self.assertEqual(
                told(app.ask("GET", "/bucket", headers=SERVICE, base=base)), (400, "404", "InvalidRequest")
            )
