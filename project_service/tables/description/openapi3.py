"""The description of a database in OpenAPI 3.1, made of the one in OpenAPI 2 that PostgREST's clients read.

Generators of clients have moved to OpenAPI 3. What ``openapi`` says of paths and parameters is rewritten
(OpenAPI 3.1.0, and 2.0 for the source). The schemas of rows, bodies and results are made of the catalog's types,
because PostgREST's description calls everything a string that OpenAPI 2 has no type for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from attrs import evolve, frozen

from project_service.tables.description.type_catalog import Column, Function, Shape, TypeCatalog

# Members of a parameter of OpenAPI 2 that are not those of its schema.
_PARAMETER = frozenset({"name", "in", "description", "required", "collectionFormat", "schema"})
# Members of a schema that hold values and not schemas.
_LITERAL = frozenset({"default", "enum", "required", "properties"})
# PostgreSQL's types that JSON Schema has a format for. The names of others become formats, which tools ignore.
_FORMATS = {"timestamp with time zone": "date-time"}
# The JSON Schemas of shapes, and of PostgreSQL's types that have more than that.
_PLAIN: Mapping[Shape, Mapping[str, str]] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "json": {},
    "record": {"type": "object"},
    "void": {"type": "null"},
}
_OWN_TYPES: Mapping[str, Mapping[str, str]] = {
    "int2": {"type": "integer", "format": "int32"},
    "int4": {"type": "integer", "format": "int32"},
    "int8": {"type": "integer", "format": "int64"},
    "timestamptz": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
}
_METHODS = ("get", "post", "patch", "delete", "put")


def openapi3(document: Mapping[str, Any], catalog: TypeCatalog, schema: str) -> dict[str, Any]:
    """``document`` (OpenAPI 2, as ``openapi.document`` makes it of ``schema``) in OpenAPI 3.1."""
    shared: Mapping[str, Any] = document["parameters"]
    bodies = {name: one for name, one in shared.items() if one["in"] == "body"}
    server = f"{document['schemes'][0]}://{document['host']}{document['basePath']}".rstrip("/")
    types = _Types(catalog, schema)
    components: dict[str, Any] = {
        "schemas": {
            **types.composites(),
            **{
                _component(name): _relation(types, name, one, sent=True)
                for name, one in document["definitions"].items()
            },
        },
        "requestBodies": {
            _component(name): _body(
                _relation(types, one["name"], document["definitions"][one["name"]], sent=False)
            )
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
            path: {
                method: _operation(item[method], bodies, types, path) for method in _METHODS if method in item
            }
            for path, item in document["paths"].items()
        },
        "components": components,
    }


@frozen
class _Types:
    """The JSON Schemas of types, in the description of ``schema``."""

    catalog: TypeCatalog
    schema: str

    def composites(self) -> dict[str, Any]:
        return {
            _component(one.name): self.object(one.fields)
            for one in self.catalog.types.values()
            if one.relation == "c" and one.schema == self.schema
        }

    def object(
        self, columns: Iterable[Column], *, nullable: bool = True, rows: bool = False
    ) -> dict[str, Any]:
        """An object with all of these columns. ``nullable``: any may be null, whatever was declared, because
        PostgreSQL does not look after composite values. ``rows``: of a relation of the table API."""
        columns = list(columns)
        properties = {
            one.name: self.column(
                evolve(one, nullable=nullable or one.nullable),
                as_json=rows and self.catalog.sent_as_json(one),
            )
            for one in columns
        }
        return {
            "type": "object",
            **({"required": list(properties), "properties": properties} if properties else {}),
        }

    def column(self, column: Column, as_json: bool = False) -> dict[str, Any]:
        """The schema of a column's values. With ``as_json`` a data representation may make anything of them."""
        if as_json:
            return {}
        made = self.value(column.type, column.dimensions)
        return _or_null(made) if column.nullable else made

    def value(self, oid: int, dimensions: int = 0) -> dict[str, Any]:
        """What a value that is not null is in JSON."""
        type_ = self.catalog.below(oid)
        shape = self.catalog.shape(type_)
        if type_.element is not None:
            item = _or_null(self.value(type_.element))
            return _array(item, self.catalog.dimensions(oid, dimensions))
        if shape == "enum":
            return {"type": "string", "enum": list(type_.labels)}
        if shape == "row" and type_.relation == "c" and type_.schema == self.schema:
            return {"$ref": f"#/components/schemas/{_component(type_.name)}"}
        if shape == "row":
            return self.object(type_.fields)
        own = _OWN_TYPES if type_.schema == "pg_catalog" else {}
        return dict(own.get(type_.name, _PLAIN[shape]))

    def function(self, name: str, arguments: Iterable[str]) -> Function | None:
        """The overload that has these arguments. If there are several, the one that ``openapi`` describes."""
        wanted = set(arguments)
        named = [one for one in self.functions(name) if {given.name for given in one.arguments} == wanted]
        return named[-1] if named else None

    def functions(self, name: str) -> list[Function]:
        return [one for one in self.catalog.functions if (one.schema, one.name) == (self.schema, name)]

    def result(self, one: Function) -> dict[str, Any] | None:
        """The JSON that a function returns. None: nothing."""
        type_, columns = self.catalog.result_type(one), self.catalog.result_columns(one)
        shape, relation = self.catalog.shape(type_), self.catalog.returned(one)
        if shape == "void":
            return None
        if columns:
            item = self.object(columns)
        elif relation is not None and relation.schema == self.schema and one.is_set:
            item = {"$ref": f"#/components/schemas/{_component(relation.name)}"}
        elif shape == "row":
            # A function that returns no row at all is answered with one of nulls.
            item = self.object(type_.fields, nullable=not one.is_set, rows=relation is not None)
        else:
            item = _or_null(self.value(one.returns))
        return {"type": "array", "items": item} if one.is_set else item


def _array(item: Mapping[str, Any], dimensions: int) -> dict[str, Any]:
    """An array with as many dimensions as it was declared with. Of results of functions and expressions that is not
    known, so their items may be arrays again."""
    if dimensions == 0:
        item = {"anyOf": [item, {"type": "array", "items": {}}]} if item else {}
    made: dict[str, Any] = {"type": "array", "items": item}
    for _ in range(dimensions - 1):
        made = {"type": "array", "items": made}
    return made


def _or_null(made: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, which null matches too."""
    if "type" not in made:
        return {"anyOf": [made, {"type": "null"}]} if made else {}
    enum = {"enum": [*made["enum"], None]} if "enum" in made else {}
    return {**made, "type": made["type"] if made["type"] == "null" else [made["type"], "null"], **enum}


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


def _relation(types: _Types, name: str, definition: Mapping[str, Any], sent: bool) -> dict[str, Any]:
    """The rows of a relation as they are sent, or as the body of a request gives them: any columns but those that
    PostgreSQL generates, because the others have defaults or stay as they are."""
    relation, made = types.catalog.by_key[types.schema, name], _schema(definition)
    properties = {
        column.name: _property(types, column, made["properties"][column.name], sent)
        for column in relation.columns
        if sent or not column.generated
    }
    kept = {name: one for name, one in made.items() if name != "properties" and (sent or name != "required")}
    return {**kept, **({"properties": properties} if properties else {})}


def _property(types: _Types, column: Column, described: Mapping[str, Any], sent: bool) -> dict[str, Any]:
    """A column's JSON Schema: what is ``described`` of it beside its type, and its type."""
    as_json = types.catalog.sent_as_json(column) if sent else types.catalog.given_as_json(column)
    made = types.column(column, as_json)
    kept = ["description"]
    if not as_json and described.get("type") in _listed(made.get("type")):
        kept += ["format", "maxLength", "default"]
    return {**{name: described[name] for name in kept if name in described}, **made}


def _listed(one: Any) -> Sequence[Any]:
    return one if isinstance(one, list) else (one,)


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    """The request body of a write: one row, or an array of rows."""
    schema = {"anyOf": [row, {"type": "array", "items": row}]}
    return {"content": {"application/json": {"schema": schema}}}


def _parameter(one: Mapping[str, Any]) -> dict[str, Any]:
    schema = _schema({name: value for name, value in one.items() if name not in _PARAMETER})
    plain = {name: one[name] for name in ("name", "in", "description", "required") if name in one}
    repeated = {"style": "form", "explode": True} if one.get("collectionFormat") == "multi" else {}
    return {**plain, **repeated, "schema": schema}


def _operation(one: Mapping[str, Any], bodies: Mapping[str, Any], types: _Types, path: str) -> dict[str, Any]:
    made = {name: one[name] for name in ("tags", "summary", "description") if name in one}
    parameters: list[dict[str, Any]] = []
    called = path.removeprefix("/rpc/") if path.startswith("/rpc/") else None
    for parameter in one.get("parameters", ()):
        name = _pointed(parameter["$ref"]) if "$ref" in parameter else None
        if name is not None and name in bodies:
            made["requestBody"] = {"$ref": f"#/components/requestBodies/{_component(name)}"}
        elif name is not None:
            parameters.append({"$ref": f"#/components/parameters/{_component(name)}"})
        elif parameter["in"] == "body":
            media = one.get("consumes", ["application/json"])
            schema = _schema(parameter["schema"])
            if called is not None:
                schema = _arguments(types, called, schema, "consumes" in one)
            made["requestBody"] = {"content": {name: {"schema": schema} for name in media}, "required": True}
        else:
            parameters.append(_parameter(parameter))
    if parameters:
        made["parameters"] = parameters
    if called is not None and types.functions(called):
        made["responses"] = _results(types, called)
    else:
        made["responses"] = {status: _response(answer) for status, answer in one["responses"].items()}
    return made


def _arguments(types: _Types, name: str, schema: dict[str, Any], whole: bool) -> dict[str, Any]:
    """What a function is given in the body: one argument as the whole of it, or all by name."""
    function = types.function(name, [""] if whole else schema.get("properties", {}))
    if function is None:
        return schema
    if whole:
        return types.value(function.arguments[0].type)
    properties = {given.name: types.value(given.type) for given in function.arguments}
    return {**schema, **({"properties": properties} if properties else {})}


def _results(types: _Types, name: str) -> dict[str, Any]:
    """What calling a function is answered with, whichever of its overloads is called."""
    media: dict[str, list[dict[str, Any]]] = {}
    answers: dict[str, Any] = {}
    for one in types.functions(name):
        made, sent_as = types.result(one), types.catalog.types[one.returns].name
        if made is None:
            answers["204"] = {"description": "No Content"}
            continue
        raw = "/" in sent_as and not one.is_set and not one.columns
        schemas = media.setdefault(sent_as.lower() if raw else "application/json", [])
        if not raw and made not in schemas:
            schemas.append(made)
    if media:
        content = {
            name: {} if not made else {"schema": made[0] if len(made) == 1 else {"anyOf": made}}
            for name, made in media.items()
        }
        answers["200"] = {"description": "OK", "content": content}
    return dict(sorted(answers.items()))


def _response(answer: Mapping[str, Any]) -> dict[str, Any]:
    made = {"description": answer["description"]}
    if "schema" in answer:
        made["content"] = {"application/json": {"schema": _schema(answer["schema"])}}
    return made
