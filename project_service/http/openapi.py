"""``/openapi.json``: the OpenAPI 3.1 document of the routes that were declared.

It is public, like ``/live``: it shows no secret and nothing of what a database holds. Source: OpenAPI Specification
3.1.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from attrs import define, field

from project_service.errors import ApiError
from project_service.http import describe
from project_service.http.caller import Access
from project_service.http.describe import (
    JSON,
    SECURITY_SCHEMES,
    STRING,
    Answer,
    Named,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    path_of,
)
from project_service.http.request import Request
from project_service.http.response import JSON as JSON_TYPE
from project_service.http.response import NO_STORE, Reply
from project_service.http.routing import Policy, Route, Router, endpoint

_REQUEST_ID = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}


def document(
    routes: Iterable[tuple[str, frozenset[str], Route]], version: str, introduction: str
) -> dict[str, Any]:
    """The document but for ``servers``. Every operation is there under every method it answers. ``introduction`` is
    the description of the whole."""
    gathered = _Document()
    for url, methods, route in routes:
        for described in route.described if route.policy.documented else ():
            answered = _with_head(described.methods or tuple(methods)) & methods
            for method in sorted(answered):
                gathered.add(described.path or path_of(url), method, route, described)
    gathered.share()
    tags = sorted({operation["tags"][0] for path in gathered.paths.values() for operation in path.values()})
    return {
        "openapi": "3.1.0",
        "info": {"title": "project-service", "version": version, "description": introduction},
        "tags": [{"name": tag} for tag in tags],
        "paths": dict(sorted(gathered.paths.items())),
        "components": {
            "schemas": dict(sorted(gathered.schemas.items())),
            "responses": gathered.responses,
            "parameters": gathered.parameters,
            "headers": {"RequestId": {"description": "The log has it too.", "schema": STRING}},
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _with_head(methods: Sequence[str]) -> frozenset[str]:
    return frozenset((*methods, "HEAD")) if "GET" in methods else frozenset(methods)


@define
class _Document:
    """What has been gathered: schemas and error responses are kept once and referred to, and after ``share`` so is
    what else several operations have."""

    paths: dict[str, dict[str, Any]] = field(factory=dict)
    schemas: dict[str, Any] = field(factory=dict)
    responses: dict[str, Any] = field(factory=dict)
    parameters: dict[str, Any] = field(factory=dict)

    def add(self, path: str, method: str, route: Route, described: Operation) -> None:
        name = f"{described.name}Head" if method == "HEAD" else described.name
        operation: dict[str, Any] = {
            "operationId": name,
            "tags": [described.tag],
            "summary": described.summary,
        }
        if described.details:
            operation["description"] = described.details
        if described.parameters:
            operation["parameters"] = [self._parameter(one) for one in described.parameters]
        if described.body is not None:
            operation["requestBody"] = self._body(described.body)
        operation["responses"] = self._responses(method, route, described)
        operation["security"] = _security(route.access, described)
        self.paths.setdefault(path, {})[method.lower()] = operation

    def share(self) -> None:
        """Move the parameters and responses that several operations have to the components."""
        operations = [operation for path in self.paths.values() for operation in path.values()]
        uses = Counter(
            orjson.dumps(one)
            for operation in operations
            for one in (*operation.get("parameters", ()), *operation["responses"].values())
        )
        references: dict[bytes, dict[str, str]] = {}

        def shared(one: dict[str, Any], kind: str, there: dict[str, Any], name: str) -> dict[str, Any]:
            text = orjson.dumps(one)
            if "$ref" in one or uses[text] == 1:
                return one
            if text not in references:
                references[text] = {"$ref": f"#/components/{kind}/{_name_of(name, one, there)}"}
            return references[text]

        for operation in operations:
            if "parameters" in operation:
                operation["parameters"] = [
                    shared(one, "parameters", self.parameters, one["name"]) for one in operation["parameters"]
                ]
            title = operation["operationId"][0].upper() + operation["operationId"][1:]
            operation["responses"] = {
                status: shared(one, "responses", self.responses, f"{title}{status}")
                for status, one in operation["responses"].items()
            }

    def _parameter(self, one: Parameter) -> dict[str, Any]:
        parameter = {
            "name": one.name,
            "in": one.location,
            "description": one.summary,
            "schema": self._schema(one.schema),
        }
        if one.required:
            parameter["required"] = True
        return parameter

    def _body(self, body: RequestBody) -> dict[str, Any]:
        description = {"description": body.summary} if body.summary else {}
        return {**description, "required": body.required, "content": self._content(body.content)}

    def _responses(self, method: str, route: Route, described: Operation) -> dict[str, Any]:
        responses = {str(answer.status): self._answer(method, answer) for answer in described.answers}
        by_status: dict[int, list[ApiError]] = {}
        sent = route.policy.error_form.sent
        for refusal in describe.refusals_of(route.access, described, not route.policy.reads_by_own_rules):
            error = sent(refusal)
            by_status.setdefault(error.status, []).append(error)
        for status, errors in sorted(by_status.items()):
            responses[str(status)] = self._refusal(method, status, errors, route.policy)
        if described.open_ended:
            responses["default"] = {"description": described.open_ended}
        return responses

    def _answer(self, method: str, answer: Answer) -> dict[str, Any]:
        headers = {name: {"description": why, "schema": STRING} for name, why in answer.headers.items()}
        response: dict[str, Any] = {"description": answer.summary, "headers": {**headers, **_REQUEST_ID}}
        if answer.content and method != "HEAD":
            response["content"] = self._content(answer.content)
        return response

    def _refusal(
        self, method: str, status: int, errors: Sequence[ApiError], policy: Policy
    ) -> dict[str, str]:
        """A reference to the response with these codes, which is made when it is first asked for."""
        headers = {name: {"schema": STRING} for error in errors for name, _ in error.headers}
        phrase = _phrase(status, errors)
        told = "\n".join(dict.fromkeys(f"- `{error.code}`: {error.message}" for error in errors))
        response: dict[str, Any] = {
            # Which of them it is, a response without a body does not say.
            "description": f"{phrase}: as to GET, without the body." if method == "HEAD" else told,
            "headers": {**headers, **_REQUEST_ID},
        }
        if method != "HEAD":
            codes = sorted({error.code for error in errors})
            response["content"] = {JSON: {"schema": self._schema(policy.error_form.schema(codes))}}
        stem = phrase.title().replace(" ", "").replace("-", "").replace("'", "")
        return {"$ref": f"#/components/responses/{_name_of(stem, response, self.responses)}"}

    def _content(self, content: Mapping[str, Schema | Named]) -> dict[str, Any]:
        return {kind: {"schema": self._schema(schema)} for kind, schema in content.items()}

    def _schema(self, value: Any) -> Any:
        """The schema as JSON; what has a name is put among the components and referred to."""
        if isinstance(value, Named):
            if value.name not in self.schemas:
                self.schemas[value.name] = None
                self.schemas[value.name] = self._schema(value.schema)
            return {"$ref": f"#/components/schemas/{value.name}"}
        if isinstance(value, Mapping):
            return {name: self._schema(inner) for name, inner in value.items()}
        return [self._schema(inner) for inner in value] if isinstance(value, list | tuple) else value


def _name_of(stem: str, one: dict[str, Any], there: dict[str, Any]) -> str:
    """The name of ``one`` among the components that are there: ``stem``, with a number if another has that."""
    number = 1
    while there.setdefault(name := stem if number == 1 else f"{stem}{number}", one) != one:
        number += 1
    return name


def _security(access: Access, described: Operation) -> list[dict[str, list[str]]]:
    """Alternatives, each of which is enough (OpenAPI 3.1, Security Requirement Object)."""
    if access.key == "service":
        return [{"serviceKey": []}]
    keys: list[dict[str, list[str]]] = [{"projectKey": []}, {"apikey": []}]
    signed: list[dict[str, list[str]]] = [{**key, "userToken": []} for key in keys]
    if access.bearer == "required":
        return [*signed, {"serviceKey": []}] if access.key == "required" else [{"userToken": []}, *signed]
    if access.key == "required":
        return [*keys, *signed] if describe.reads_token(access, described) else keys
    return [{}]


PATH = "/openapi.json"


@define(eq=False)
class OpenApi:
    """The route of the document. It describes every route that was mounted before it, and itself."""

    version: str
    introduction: str
    _rest: bytes = field(default=b"", init=False)

    def mount(self, router: Router) -> None:
        router.mount(self)
        self._rest = orjson.dumps(document(router.routes, self.version, self.introduction))

    @endpoint(
        "GET",
        PATH,
        Operation(
            "describeService",
            "service",
            "This document",
            (Answer(200, "OpenAPI 3.1", {JSON: {"type": "object"}}),),
            needs=(),
        ),
        key="optional",
        bearer="own",
    )
    async def answer(self, request: Request) -> Reply:
        """The document with the address under which it was asked for."""
        servers = orjson.dumps({"servers": [{"url": request.base_url}]})
        return Reply(200, (("Content-Type", JSON_TYPE), NO_STORE), servers[:-1] + b"," + self._rest[1:])


def _phrase(status: int, errors: Sequence[ApiError]) -> str:
    """The reason phrase of a status, which for one that HTTP does not know is that of its errors."""
    own = next((error.reason for error in errors if error.reason is not None), None)
    return own or HTTPStatus(status).phrase
