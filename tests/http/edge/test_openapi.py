"""``/openapi.json`` is complete and valid, and agrees with the routes, the lists of codes and the handlers."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.application import INTRODUCTION
from project_service.auth import errors as auth_errors
from project_service.errors import ApiError
from project_service.http import describe
from project_service.http.describe import Operation, in_path
from project_service.http.health import Health
from project_service.http.metrics import Metrics
from project_service.http.openapi import PATH, OpenApi
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Router
from project_service.storage import errors as storage_errors
from project_service.supabase.auth.mounting import ClientAuth
from project_service.supabase.tables import ClientTables
from project_service.tables import errors as table_errors
from project_service.tables.api import TableRoutes
from tests.fakes.common import App
from tests.http.auth.app import AuthApp
from tests.http.storage.app import StorageApp
from tests.route_description import inlined, operation_at

PACKAGE = Path(__file__).parents[3] / "project_service"
# The first is sent where there is no operation, so the introduction explains it; the status of the next two is what a
# trigger or a hook of the project has chosen; and the last is told to pages, by a redirect.
NOWHERE = {"method_not_allowed", "refused_by_project", "hook_refused", "provider_refused"}


# Of the clients of the Supabase family, who send members that mean nothing here.
CLIENT_PATHS = ("/auth/v1/",)


async def nothing(request: Request) -> Reply:
    return Reply(204)


def whole(test: TestCase, **auth: Any) -> Router:
    """A router with all routes of the service, on parts in memory."""
    router = Router()
    accounts = AuthApp(test, **auth).auth
    accounts.mount(router)
    StorageApp().storage.mount(router)
    TableRoutes({}).mount(router)
    ClientTables(TableRoutes({}), None).mount(router)
    ClientAuth(accounts, (), None).mount(router)
    Health({}, Metrics(), Clock()).mount(router)
    OpenApi("1.2.3", INTRODUCTION).mount(router)
    return router


def sent(router: Router) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(App(router).request("GET", PATH).body)
    return value


def document(router: Router) -> dict[str, Any]:
    return inlined(sent(router))


def catalogue(module: ModuleType) -> Iterator[ApiError]:
    """The errors that the public constructors of a module make, called with fitting arguments."""
    fitting = {"str": "x", "int": 1, "bool": True, "Mapping[str, str]": {"x": "x"}}
    for name, make in inspect.getmembers(module, inspect.isfunction):
        made = inspect.signature(make)
        if make.__module__ == module.__name__ and made.return_annotation in ("ApiError", "TableError"):
            if name.startswith("_") or {"code", "outcomes", "error"} & set(made.parameters):
                continue  # a shorthand for others
            given = [one for one in made.parameters.values() if one.default is inspect.Parameter.empty]
            yield make(*(fitting.get(str(one.annotation), []) for one in given))


def read_by_handlers(part: str, *functions: str) -> set[str]:
    """The literal names that the part's modules pass to these functions."""
    names: set[str] = set()
    for path in (PACKAGE / part).rglob("*.py"):
        if part == "supabase" and path.parent.name == "storage":
            continue  # tests/http/supabase/test_storage_described.py has the document of these
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                given = [one.value for one in node.args if isinstance(one, ast.Constant)]
                texts = [one for one in given if isinstance(one, str | bytes)] if name in functions else []
                names.update(one.decode() if isinstance(one, bytes) else one for one in texts)
    return names


class Documents(TestCase):
    def setUp(self) -> None:
        self.router = whole(self)
        self.document = document(self.router)

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                yield path, method.upper(), operation

    def test_it_is_valid_openapi(self) -> None:
        self.assertEqual([str(fault) for fault in OpenAPIV31SpecValidator(self.document).iter_errors()], [])
        self.assertEqual(self.document["openapi"], "3.1.0")

    def test_what_several_operations_have_is_there_once(self) -> None:
        whole = sent(self.router)
        self.assertEqual([str(fault) for fault in OpenAPIV31SpecValidator(whole).iter_errors()], [])
        operations = [one for methods in whole["paths"].values() for one in methods.values()]
        seen = [
            json.dumps(one)
            for operation in operations
            for one in (*operation.get("parameters", ()), *operation["responses"].values())
            if "$ref" not in one
        ]
        self.assertGreater(len(seen), 50)
        self.assertEqual(len(seen), len({*seen}))
        for kind in ("parameters", "responses"):
            known = [json.dumps(one) for one in whole["components"][kind].values()]
            self.assertGreater(len(known), 20)
            self.assertEqual(len(known), len({*known}))

    def test_every_method_of_every_route_is_described(self) -> None:
        there = {(path, method) for path, method, _ in self.operations()}
        documented = {(url, methods) for url, methods, route in self.router.routes if route.policy.documented}
        for url, methods, route in self.router.routes:
            if not route.policy.documented:
                # The same is there without what comes first.
                self.assertIn((url.removeprefix("/<stage>/db/<database>"), methods), documented)
                continue
            for one in route.described:
                path = one.path or url.replace("<path:", "<").replace("<", "{").replace(">", "}")
                for method in one.methods or methods:
                    self.assertIn((path, method), there)
            told_of = {method for one in route.described for method in one.methods or methods}
            self.assertEqual(told_of, methods, url)

    def test_every_operation_has_a_summary_and_a_success(self) -> None:
        for path, method, operation in self.operations():
            self.assertTrue(operation["summary"], path)
            self.assertTrue(any(status < "400" for status in operation["responses"]), (path, method))
            for parameter in operation.get("parameters", ()):
                self.assertTrue(parameter["description"], (path, parameter["name"]))

    def test_every_error_code_is_described_somewhere(self) -> None:
        described = {
            (error.status, error.code)
            for _, _, route in self.router.routes
            for one in route.described
            for error in describe.refusals_of(route.access, one, not route.policy.reads_by_own_rules)
        }
        for module in (errors, auth_errors, storage_errors, table_errors):
            made = [(error.status, error.code) for error in catalogue(module)]
            self.assertGreater(len(made), 5)
            self.assertEqual(
                [one for one in made if one not in described and one[1] not in NOWHERE], [], module.__name__
            )

    def test_query_parameters_read_by_handlers_are_those_described(self) -> None:
        for part, urls in (
            ("auth", ("/auth", "/admin/users", "/admin/audit")),
            ("storage", ("/storage", "/admin/buckets")),
            ("supabase", CLIENT_PATHS),
        ):
            told_of = self.parameters("query", urls)
            self.assertEqual(
                read_by_handlers(
                    part, "query_value", "query_values", "one_value", "flag", "page_limit", "_from_one"
                ),
                told_of,
                part,
            )

    def test_headers_read_by_handlers_are_those_described(self) -> None:
        others = {"range", "content-md5", "x-object-owner", "cache-control", "content-language", "x-metadata"}
        others |= {"want-repr-digest", "x-upsert", "prefer"}
        told_of = {name.lower() for name in self.parameters("header", ("/storage",))}
        known = read_by_handlers(
            "storage", "get", "text", "all", "_joined", "_tags", "_date", "_number", "_lines"
        )
        of_tus = ("if-", "tus-", "upload-", "x-http-")
        # What is refused whatever its value is no parameter.
        read = {name for name in known if name.startswith(of_tus) or name in others} - {"upload-concat"}
        # ``digests`` makes these names of the fields that it knows, and ``readers`` has that of the token.
        self.assertEqual(read | {"content-digest", "repr-digest", "consistency-token"}, told_of)
        named_for = {
            operation["operationId"]
            for _, _, operation in self.operations()
            if any(one["name"] == "X-Object-Owner" for one in operation.get("parameters", ()))
        }
        self.assertLessEqual({"copyObject", "presign", "uploadForm", "uploadRaw"}, named_for)

    def test_headers_of_storages_responses_are_described(self) -> None:
        described = {
            operation["operationId"]: {
                status: {*response.get("headers", ())} for status, response in operation["responses"].items()
            }
            for _, _, operation in self.operations()
        }
        for name in ("uploadStatus", "overrideMethod"):
            headers = {"Upload-Length", "Upload-Defer-Length", "Upload-Metadata", "Upload-Offset"}
            self.assertLessEqual(headers, described[name]["200"], name)
        for name in ("downloadObject", "downloadByLink", "downloadPublic"):
            self.assertIn("Vary", described[name]["200"], name)
        for path, method, operation in self.operations():
            if path.startswith("/storage/buckets"):
                header = "Preference-Applied" if method in ("GET", "HEAD", "OPTIONS") else "Consistency-Token"
                for status, headers in described[operation["operationId"]].items():
                    self.assertEqual(header in headers, status < "4", (path, method, status))

    def test_what_reads_are_asked_with_where_they_go_to_standbys_is_described(self) -> None:
        for path, method, operation in self.operations():
            sent = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "header"}
            reads = method in ("GET", "HEAD", "OPTIONS")
            if path.startswith("/storage/buckets"):
                self.assertEqual({"Consistency-Token", "Prefer"} <= sent, reads, (path, method))
            if operation["operationId"] in {"readRows", "callFunction", "callFunctionWithBody"}:
                self.assertIn("Consistency-Token", sent)

    def parameters(self, place: str, beginnings: tuple[str, ...]) -> set[str]:
        return {
            parameter["name"]
            for path, _, operation in self.operations()
            for parameter in operation.get("parameters", ())
            if path.startswith(beginnings) and parameter["in"] == place
            if beginnings == CLIENT_PATHS or not path.startswith(CLIENT_PATHS)
        }

    def test_security_requirements(self) -> None:
        security = {(path, method): operation["security"] for path, method, operation in self.operations()}
        key: dict[str, list[str]] = {"projectKey": []}
        alias: dict[str, list[str]] = {"apikey": []}
        user: dict[str, list[str]] = {"userToken": []}
        signed = [{**key, **user}, {**alias, **user}]
        objects = "/storage/buckets/{bucket}/objects"
        self.assertEqual(security["/live", "GET"], [{}])
        self.assertEqual(security["/auth/login", "POST"], [{}])
        self.assertEqual(security["/auth/user", "GET"], [user, *signed])
        self.assertEqual(security[objects, "GET"], [key, alias, *signed])
        self.assertEqual(security[objects, "POST"], [*signed, {"serviceKey": []}])
        self.assertEqual(security["/admin/users", "GET"], [{"serviceKey": []}])
        self.assertEqual(security["/{stage}/db/{database}/rest", "GET"], [key, alias, *signed])

    def test_a_setting_that_requires_a_key_shows(self) -> None:
        operation = document(whole(self, require_project_key=True))["paths"]["/auth/login"]["post"]
        self.assertEqual(operation["security"], [{"projectKey": []}, {"apikey": []}])

    def test_request_and_response_bodies_are_described(self) -> None:
        objects = self.document["paths"]["/storage/buckets/{bucket}/objects/{key}"]
        auth = {name: self.document["paths"][f"/auth/{name}"]["post"] for name in ("login", "logout")}
        taken = auth["login"]["requestBody"]
        self.assertEqual(
            (taken["required"], sorted(taken["content"]["application/json"]["schema"]["properties"])),
            (True, ["email", "password"]),
        )
        given = auth["login"]["responses"]["200"]["content"]["application/json"]["schema"]
        self.assertEqual(given["properties"]["data"], {"$ref": "#/components/schemas/Session"})
        self.assertEqual(
            objects["put"]["requestBody"]["description"], "Any bytes; none need Content-Length: 0."
        )
        self.assertNotIn("description", taken)
        self.assertNotIn("requestBody", auth["logout"])
        self.assertNotIn("content", objects["delete"]["responses"]["204"])

    def test_rules_of_buckets_and_details_of_objects_say_what_they_mean(self) -> None:
        paths = self.document["paths"]
        for path, method in (
            ("/admin/buckets", "post"),
            ("/admin/buckets/{bucket}", "patch"),
            ("/storage/buckets/{bucket}/objects/{key}", "patch"),
        ):
            schema = paths[path][method]["requestBody"]["content"]["application/json"]["schema"]
            for name, one in schema["properties"].items():
                self.assertTrue(name == "name" or one.get("description"), (path, name))
        page = paths["/storage/public/{bucket}/{key}"]["get"]["responses"]
        self.assertIn("Content-Security-Policy", page["200"]["headers"])
        self.assertLessEqual({"ETag", "Cache-Control"}, page["304"]["headers"].keys())

    def test_json_bodies_of_auth_and_storage_are_closed(self) -> None:
        bodies = {
            (path, method): operation["requestBody"]["content"].get("application/json")
            for path, method, operation in self.operations()
            if path.startswith(("/auth", "/storage", "/admin")) and "requestBody" in operation
            if not path.startswith(CLIENT_PATHS)
        }
        taken = {one: content["schema"] for one, content in bodies.items() if content is not None}
        self.assertGreater(len(taken), 15)
        for one, schema in taken.items():
            self.assertIs(schema["additionalProperties"], False, one)

    def test_bodies_of_clients_are_open(self) -> None:
        for path, method, operation in self.operations():
            if path.startswith(CLIENT_PATHS) and "requestBody" in operation:
                for kind, content in operation["requestBody"]["content"].items():
                    if kind == "application/json":
                        self.assertIs(content["schema"]["additionalProperties"], True, (path, method))

    def test_errors_of_clients_have_the_statuses_and_codes_that_they_know(self) -> None:
        responses = self.document["paths"]["/auth/v1/token"]["post"]["responses"]
        reference = responses["400"]["$ref"].rpartition("/")[2]
        told = self.document["components"]["responses"][reference]["content"]["application/json"]["schema"]
        codes = told["allOf"][1]["anyOf"][0]["properties"]["code"]["enum"]
        self.assertLessEqual({"invalid_credentials", "bad_json", "email_not_confirmed"}, {*codes})
        self.assertEqual(told["allOf"][0], {"$ref": "#/components/schemas/ClientAuthError"})

    def test_created_resources_have_a_location(self) -> None:
        for path, method, operation in self.operations():
            created = operation["responses"].get("201")
            if created is not None and path.startswith(("/auth", "/storage", "/admin")):
                self.assertIn("Location", created["headers"], (path, method))

    def test_errors_have_the_form_of_their_part_and_their_codes(self) -> None:
        for path, method, form, codes in (
            ("/auth/login", "post", "Error", ["invalid_credentials", "project_key_invalid"]),
            ("/storage/buckets/{bucket}/objects", "get", "Error", None),
            ("/{stage}/db/{database}/rest", "get", "TableError", None),
        ):
            reference = self.document["paths"][path][method]["responses"]["401"]["$ref"]
            response = self.document["components"]["responses"][reference.rpartition("/")[2]]
            general, narrowed = response["content"]["application/json"]["schema"]["allOf"]
            self.assertEqual(general, {"$ref": f"#/components/schemas/{form}"}, path)
            if codes is not None:
                told_of = narrowed["properties"]["error"]["properties"]["code"]["enum"]
                self.assertEqual(told_of, codes, path)

    def test_binary_bodies_are_marked_for_code_generators(self) -> None:
        binary = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
        bucket = self.document["paths"]["/storage/buckets/{bucket}/objects"]
        one = self.document["paths"]["/storage/buckets/{bucket}/objects/{key}"]
        form = bucket["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        self.assertEqual(form["properties"]["file"], binary)
        for content in (one["put"]["requestBody"]["content"], one["get"]["responses"]["206"]["content"]):
            self.assertEqual(list(content), ["application/octet-stream", "*/*"])
            self.assertEqual(content["application/octet-stream"]["schema"], binary)

    def test_error_codes_of_the_table_api_match_a_pattern(self) -> None:
        rest = self.document["paths"]["/{stage}/db/{database}/rest/{relation}"]
        reference = rest["get"]["responses"]["401"]["$ref"].rpartition("/")[2]
        schema = self.document["components"]["responses"][reference]["content"]["application/json"]["schema"]
        code = schema["allOf"][1]["properties"]["code"]
        self.assertEqual(code["type"], "string")
        for known in ("42501", "PGRST301", "project_key_required"):
            self.assertRegex(known, code["pattern"])
        for unknown in ("PGRST3010", "142501", "project_key", "x\nPGRST301"):
            self.assertNotRegex(unknown, code["pattern"])
        changed = rest["patch"]["requestBody"]["content"]["application/json"]["schema"]
        self.assertEqual(changed["type"], "object")

    def test_head_has_no_bodies(self) -> None:
        for path, method, operation in self.operations():
            if method == "HEAD":
                for status, response in operation["responses"].items():
                    name = response.get("$ref", "").rpartition("/")[2]
                    shared = self.document["components"]["responses"].get(name, response)
                    self.assertNotIn("content", shared, (path, status))


class Declaring(TestCase):
    def test_a_route_without_a_description_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "GET /x is not described"):
            Router().route("/x", methods=("GET",))
        only_get = Operation("read", "test", "Reads", (), methods=("GET",))
        with self.assertRaisesRegex(ValueError, "POST /x is not described"):
            Router().route("/x", only_get, methods=("GET", "POST"))
        Router().route("/x", only_get, methods=("GET",), any_method=True)(nothing)

    def test_path_arguments_must_be_described(self) -> None:
        with self.assertRaisesRegex(ValueError, "/x/{id} takes other arguments"):
            Router().route("/x/<id>", operation_at("/x"), methods=("GET",))
        surplus = Operation("read", "test", "Reads", (), (in_path("id", "which"),))
        with self.assertRaisesRegex(ValueError, "/x takes other arguments"):
            Router().route("/x", surplus, methods=("GET",))


class Serving(TestCase):
    def test_anyone_may_read_it_with_the_address_that_was_asked(self) -> None:
        router = whole(self)
        response = App(router).request("GET", PATH)
        self.assertEqual((response.status, response.header("cache-control")), (200, "no-store"))
        self.assertEqual(json.loads(response.body)["servers"], [{"url": "http://api.example.test"}])
        self.assertEqual(json.loads(response.body)["info"]["version"], "1.2.3")
        fixed = App(router, public_url="https://a.test/p").request("GET", PATH)
        self.assertEqual(json.loads(fixed.body)["servers"], [{"url": "https://a.test/p"}])
        self.assertEqual(App(router).request("HEAD", PATH).body, b"")
        self.assertEqual(App(router).request("GET", PATH, {"X-Service-Key": "wrong"}).status, 401)
