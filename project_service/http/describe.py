"""What a route says of itself, for ``/openapi.json``: values that stand beside the routes they describe.

What follows from a route's demands (keys, tokens, a body) need not be described: ``refusals_of`` derives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from attrs import field, frozen

from project_service import errors
from project_service.errors import ApiError
from project_service.http.caller import Access

Schema = Mapping[str, Any]
Location = Literal["query", "header", "path"]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
MOMENT: Schema = {"type": "string", "format": "date-time"}
UUID: Schema = {"type": "string", "format": "uuid"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {}
JSON = "application/json"
LOCATION = {"Location": "The path of what was created."}

_PATH_ARGUMENT = re.compile(r"<(?:\w+:)?(\w+)>")


@frozen
class Named:
    """A schema that the document refers to by name wherever it is used, inside other schemas too."""

    name: str
    schema: Schema


@frozen
class Parameter:
    """A parameter of the query, unless ``location`` says otherwise. Those of a path are always required."""

    name: str
    summary: str
    schema: Schema = STRING
    location: Location = "query"
    required: bool = False


@frozen
class RequestBody:
    """A request body: ``content`` is media type to schema."""

    content: Mapping[str, Schema | Named]
    required: bool = True
    summary: str = ""


@frozen
class Answer:
    """A success: what comes with ``status``. ``headers`` are the ones of interest, name to meaning."""

    status: int
    summary: str
    content: Mapping[str, Schema | Named] = field(factory=dict)
    headers: Mapping[str, str] = field(factory=dict)


_DATABASE = (errors.database_unavailable(),)


@frozen
class Operation:
    """One operation of the document, or the same one under several methods.

    - ``name`` is the operation's id.
    - ``errors`` are made by the very functions that raise them, so that status, code, message and headers cannot
      drift. Those that follow from what the route demands are added by ``refusals_of``.
    - ``needs`` are the errors that are returned while the database or the store is away.
    - ``methods``: those of the route that this describes; if empty, all of them.
    - ``path`` replaces the route's pattern where the pattern takes more than one kind of path.
    - ``reads_bearer``: the handler of a route with ``bearer="own"`` looks at the token itself.
    - ``open_ended``: why any other status may be returned.
    """

    name: str
    tag: str
    summary: str
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: RequestBody | None = None
    errors: tuple[ApiError, ...] = ()
    needs: tuple[ApiError, ...] = _DATABASE
    details: str = ""
    methods: tuple[str, ...] = ()
    path: str | None = None
    reads_bearer: bool = False
    open_ended: str = ""


def in_path(name: str, summary: str, schema: Schema = STRING) -> Parameter:
    return Parameter(name, summary, schema, "path", True)


def in_header(name: str, summary: str) -> Parameter:
    return Parameter(name, summary, STRING, "header")


def obj(required: Iterable[str], closed: bool = True, /, **properties: Schema | Named) -> Schema:
    """An object's schema. ``closed``: members with other names are refused, or never there."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if names := list(required):
        schema["required"] = names
    if closed:
        schema["additionalProperties"] = False
    return schema


def exactly(**properties: Schema | Named) -> Schema:
    """An object that has every one of these members and no other."""
    return obj(properties, **properties)


def array(items: Schema | Named, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def path_of(url: str) -> str:
    """A route's pattern in OpenAPI's form."""
    return _PATH_ARGUMENT.sub(r"{\1}", url)


def check(url: str, methods: Iterable[str], described: Iterable[Operation]) -> None:
    """Raises ``ValueError`` for a method without a description, or for arguments of the path that differ from it."""
    operations = list(described)
    for method in methods:
        if not any(not one.methods or method in one.methods for one in operations):
            raise ValueError(f"{method} {url} is not described")
    for one in operations:
        path = one.path or path_of(url)
        named = {parameter.name for parameter in one.parameters if parameter.location == "path"}
        if named != set(re.findall(r"\{(\w+)\}", path)):
            raise ValueError(f"{path} takes other arguments than {one.name} describes: {sorted(named)}")


# How a request may identify its caller.
SECURITY_SCHEMES = {
    "projectKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Service-Key",
        "description": "A project key: the anon key, which may be published, or the service key.",
    },
    "apikey": {
        "type": "apiKey",
        "in": "header",
        "name": "apikey",
        "description": "The same keys under the name that clients of this ecosystem send.",
    },
    "serviceKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Service-Key",
        "description": "The secret project key. It stands for a signed-in end user and passes every rule.",
    },
    "userToken": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The access token of a signed-in end user.",
    },
}


# The errors that follow from what a route demands, so that no description has to list them.


def refusals_of(access: Access, described: Operation, strict: bool) -> list[ApiError]:
    """Every refusal that a caller of the operation can meet, the described ones first, each status and code once.

    ``strict``: queries and bodies are read by the methods of ``Request``, and not by rules of the part's own.
    """
    refusals: dict[tuple[int, str], ApiError] = {}
    for error in (
        *described.errors,
        *_of_access(access, described),
        *_of_request(described),
        *(_of_values(described) if strict else ()),
        *_of_needs(access, described),
        *_of_everything(),
    ):
        refusals.setdefault((error.status, error.code), error)
    return list(refusals.values())


def reads_token(access: Access, described: Operation) -> bool:
    return access.bearer != "own" or described.reads_bearer


def _of_access(access: Access, described: Operation) -> Iterator[ApiError]:
    if access.key not in ("ignored", "optional"):
        yield errors.project_key_required()
    if access.key != "ignored":
        yield errors.project_key_invalid()
    if access.key == "service":
        yield errors.service_key_required()
    if access.bearer == "required":
        yield errors.authentication_required()
    if reads_token(access, described):
        yield errors.invalid_token()
        yield errors.session_revoked()


def _of_request(described: Operation) -> Iterator[ApiError]:
    locations = {parameter.location for parameter in described.parameters}
    if "path" in locations:
        yield errors.not_found()
    if "query" in locations:
        yield errors.invalid_query()
    if described.body is not None:
        yield errors.request_timeout()
        yield ApiError(413, "payload_too_large", "The body is larger than allowed here.")
        yield errors.unsupported_media_type_encoded()


def _of_values(described: Operation) -> Iterator[ApiError]:
    takes_json = described.body is not None and JSON in described.body.content
    if takes_json:
        yield errors.invalid_json()
        yield errors.unsupported_media_type(JSON)
    if takes_json or any(parameter.location == "query" for parameter in described.parameters):
        yield errors.validation_failed({})


def _of_everything() -> Iterator[ApiError]:
    """What the connection refuses before there is a request, and what can happen to any."""
    yield errors.bad_request()
    yield ApiError(414, "uri_too_long", "The request target is too long.")
    yield ApiError(431, "headers_too_large", "The request headers are too large.")
    yield ApiError(500, "internal_error", "Something went wrong here; the request id leads to the log.")
    yield errors.overloaded()
    yield errors.shutting_down()


def _of_needs(access: Access, described: Operation) -> Iterator[ApiError]:
    yield from described.needs
    if access.key not in ("ignored", "optional") or reads_token(access, described):
        yield errors.database_unavailable()
