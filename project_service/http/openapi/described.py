"""What a route says of itself, for ``/openapi.json``: values that stand beside the routes they describe.

Pure. What follows from a route's demands (keys, tokens, a body) is not said here but derived: ``refusals``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from attrs import field, frozen

from project_service.errors import ApiError

Schema = Mapping[str, Any]
Place = Literal["query", "header", "path"]
Need = Literal["database", "store"]

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
    """``name`` in the query unless ``place`` says otherwise. Parameters of a path are always required."""

    name: str
    summary: str
    schema: Schema = STRING
    place: Place = "query"
    required: bool = False


@frozen
class Taken:
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


@frozen
class Described:
    """One operation of the document, or the same one under several methods.

    ``name`` is the operation's id. ``errors`` are made by the very functions that raise them, so that status, code,
    message and headers cannot drift; those that follow from the route's demands are added by ``refusals.of``.
    ``methods`` empty: all of the route's. ``path`` stands in for the route's pattern where that one takes more than
    one kind of path. ``reads_bearer``: a route with ``bearer="own"`` that looks at the token by itself.
    ``open_ended``: what SQL or a function says may bring any other status.
    """

    name: str
    tag: str
    summary: str
    answers: tuple[Answer, ...]
    parameters: tuple[Parameter, ...] = ()
    body: Taken | None = None
    errors: tuple[ApiError, ...] = ()
    needs: tuple[Need, ...] = ("database",)
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
    """An object's schema; ``closed`` means that members with other names are refused, or never there."""
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


def takes(optional: Mapping[str, Schema] | None = None, /, **required: Schema | Named) -> Taken:
    """A body that is an object in JSON; members with other names are refused."""
    return Taken({JSON: obj(required, **required, **(optional or {}))})


def path_of(url: str) -> str:
    """A route's pattern in OpenAPI's form."""
    return _PATH_ARGUMENT.sub(r"{\1}", url)


def check(url: str, methods: Iterable[str], described: Iterable[Described]) -> None:
    """Raises ``ValueError`` for a method or path argument without a description, or a description without use."""
    told = list(described)
    for method in methods:
        if not any(not one.methods or method in one.methods for one in told):
            raise ValueError(f"{method} {url} is not described")
    for one in told:
        path = one.path or path_of(url)
        named = {parameter.name for parameter in one.parameters if parameter.place == "path"}
        if named != set(re.findall(r"\{(\w+)\}", path)):
            raise ValueError(f"{path} takes other arguments than {one.name} describes: {sorted(named)}")
