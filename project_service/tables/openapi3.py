"""The description of a database in OpenAPI 3.1, made of the one in OpenAPI 2 that PostgREST's clients read.

Generators of clients have moved to OpenAPI 3. Nothing is described twice: what ``tables.openapi`` says is rewritten
(OpenAPI 3.1.0, and 2.0 for the source).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

# Members of a parameter of OpenAPI 2 that are not those of its schema.
_PARAMETER = frozenset({"name", "in", "description", "required", "collectionFormat", "schema"})
# Members of a schema that hold values and not schemas.
_LITERAL = frozenset({"default", "enum", "required", "properties"})
# PostgreSQL's types that JSON Schema has a format for. The names of others become formats, which tools ignore.
_FORMATS = {"timestamp with time zone": "date-time"}
_METHODS = ("get", "post", "patch", "delete", "put")


def openapi3(document: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` (OpenAPI 2, as ``tables.openapi.document`` makes it) in OpenAPI 3.1."""
    shared: Mapping[str, Any] = document["parameters"]
    bodies = {name: one for name, one in shared.items() if one["in"] == "body"}
    server = f"{document['schemes'][0]}://{document['host']}{document['basePath']}".rstrip("/")
    components: dict[str, Any] = {
        "schemas": {_component(name): _rows(one) for name, one in document["definitions"].items()},
        "requestBodies": {
            _component(name): {
                "content": {"application/json": {"schema": _input(document["definitions"][one["name"]])}}
            }
            for name, one in bodies.items()
        },
        "parameters": {
            _component(name): _parameter(one) for name, one in shared.items() if name not in bodies
        },
        "securitySchemes": {
            "projectKey": {"type": "apiKey", "in": "header", "name": "apikey"},
            "accessToken": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": document["info"],
        "servers": [{"url": server}],
        "security": [{"projectKey": []}, {"projectKey": [], "accessToken": []}],
        "paths": {
            path: {method: _operation(item[method], bodies) for method in _METHODS if method in item}
            for path, item in document["paths"].items()
        },
        "components": components,
    }


def _component(name: str) -> str:
    """A name that a component may have: letters, digits, dots, hyphens and underscores; others by their number."""
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character in ".-_")
        else f"_{ord(character):x}_"
        for character in name
    )


def _pointed(reference: str) -> str:
    """The name at the end of a JSON pointer in a URI fragment (RFC 6901, 6)."""
    return unquote(reference.rsplit("/", 1)[1]).replace("~1", "/").replace("~0", "~")


def _schema(schema: Any) -> Any:
    """The same in JSON Schema 2020-12: with other references, and without what is an SQL expression."""
    if isinstance(schema, list):
        return [_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"#/components/schemas/{_component(_pointed(schema['$ref']))}"}
    made = {name: value if name in _LITERAL else _schema(value) for name, value in schema.items()}
    if "properties" in schema:
        made["properties"] = {name: _schema(one) for name, one in schema["properties"].items()}
    if schema.get("type") == "string" and schema.get("default") not in schema.get("enum", ()):
        # The default of a column is a text or an expression such as "now()", which cannot be told apart here.
        made.pop("default", None)
    if schema.get("format") in _FORMATS:
        made["format"] = _FORMATS[schema["format"]]
    return made


def _rows(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The rows that a relation returns: a column that is not required may be null."""
    made: dict[str, Any] = _schema(definition)
    required = definition.get("required", ())
    for name, one in made.get("properties", {}).items():
        if name not in required and "type" in one:
            one["type"] = [one["type"], "null"]
            if "enum" in one:
                one["enum"] = [*one["enum"], None]
    return made


def _input(definition: Mapping[str, Any]) -> dict[str, Any]:
    """One row or many as a request gives them: any columns, because the others have defaults or stay as they are."""
    row = {name: one for name, one in _rows(definition).items() if name != "required"}
    return {"anyOf": [row, {"type": "array", "items": row}]}


def _parameter(one: Mapping[str, Any]) -> dict[str, Any]:
    schema = _schema({name: value for name, value in one.items() if name not in _PARAMETER})
    plain = {name: one[name] for name in ("name", "in", "description", "required") if name in one}
    repeated = {"style": "form", "explode": True} if one.get("collectionFormat") == "multi" else {}
    return {**plain, **repeated, "schema": schema}


def _operation(one: Mapping[str, Any], bodies: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: one[name] for name in ("tags", "summary", "description") if name in one}
    parameters: list[dict[str, Any]] = []
    for parameter in one.get("parameters", ()):
        name = _pointed(parameter["$ref"]) if "$ref" in parameter else None
        if name is not None and name in bodies:
            made["requestBody"] = {"$ref": f"#/components/requestBodies/{_component(name)}"}
        elif name is not None:
            parameters.append({"$ref": f"#/components/parameters/{_component(name)}"})
        elif parameter["in"] == "body":
            media = one.get("consumes", ["application/json"])
            schema = _schema(parameter["schema"])
            made["requestBody"] = {"content": {name: {"schema": schema} for name in media}, "required": True}
        else:
            parameters.append(_parameter(parameter))
    if parameters:
        made["parameters"] = parameters
    made["responses"] = {status: _response(answer) for status, answer in one["responses"].items()}
    return made


def _response(answer: Mapping[str, Any]) -> dict[str, Any]:
    made = {"description": answer["description"]}
    if "schema" in answer:
        made["content"] = {"application/json": {"schema": _schema(answer["schema"])}}
    return made
