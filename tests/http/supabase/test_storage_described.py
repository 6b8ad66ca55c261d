"""What ``/openapi.json`` says of ``/storage/v1``, compared with what its handlers read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator
from twisted.trial.unittest import TestCase

from project_service.http.openapi import OpenApi
from project_service.http.routing import Router
from project_service.supabase.storage import pictures
from project_service.supabase.storage.mounting import ClientStorage
from project_service.supabase.storage.signatures import Signatures
from tests.http.edge.test_openapi import document, read_by_handlers
from tests.http.supabase.storage_app import ClientApp


class Described(TestCase):
    def setUp(self) -> None:
        router, app = Router(), ClientApp()
        ClientStorage(app.storage, set(), Signatures(lambda: app.key_set, app.clock.seconds)).mount(router)
        OpenApi("1.2.3", "").mount(router)
        self.document = document(router)

    def names(self, place: str) -> set[str]:
        return {
            parameter["name"]
            for _, operation in self.operations()
            for parameter in operation.get("parameters", ())
            if parameter["in"] == place
        }

    def operations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path, methods in self.document["paths"].items():
            if path.startswith("/storage/v1/"):
                for operation in methods.values():
                    yield path, operation

    def test_query_parameters_are_those_that_handlers_read(self) -> None:
        read = read_by_handlers("supabase/storage", "query_value", "_number", "_choice")
        self.assertGreater(len(read), 5)
        # The names of a picture's are those described; how a download is shown the domain reads.
        read |= {*pictures.NAMES, "download"}
        self.assertEqual(read, self.names("query"))

    def test_headers_of_clients_are_those_that_handlers_read(self) -> None:
        read = {name for name in read_by_handlers("supabase/storage", "text", "all") if name.startswith("x-")}
        # The domain reads these.
        read |= {"x-metadata", "x-http-method-override"}
        told_of = {name.lower() for name in self.names("header")}
        self.assertEqual(read, {name for name in told_of if name.startswith("x-")})

    def test_the_document_is_valid_and_has_the_statuses_that_are_sent(self) -> None:
        self.assertEqual([str(one) for one in OpenAPIV31SpecValidator(self.document).iter_errors()], [])
        create = self.document["paths"]["/storage/v1/bucket"]["post"]
        self.assertEqual(create["tags"], ["supabase"])
        self.assertNotIn("409", create["responses"])
        name = create["responses"]["400"]["$ref"].rpartition("/")[2]
        schema = self.document["components"]["responses"][name]["content"]["application/json"]["schema"]
        self.assertIn("BucketAlreadyExists", schema["allOf"][1]["properties"]["code"]["enum"])
        self.assertNotIn("/{stage}/db/{database}/storage/v1/bucket", self.document["paths"])
