"""Makes the whole document for one schema, with what the caller may use."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import orjson

from project_service.tables.plan.call import RAW_TYPES
from project_service.tables.request import headers
from project_service.tables.request.scanning import as_parameter
from project_service.tables.sql.fragment import Sql, parameter
from project_service.tables.values import Argument, Column, Relation, Relationship, Routine, SchemaCache

# Asks PostgreSQL what the current role may use.


_RELATION = (
    "pg_has_role(c.relowner, 'USAGE') "
    "or has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') "
    "or has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
)


# Rights are looked up only for what is in the schema. PostgreSQL might look at all of its own functions first.
_SCHEMA = "(SELECT oid FROM pg_namespace WHERE nspname = "


def rights_sql(schema: str) -> Sql:
    """A query for one row: the names of the relations and of the functions that the current role may use, as JSON
    arrays in a fixed order."""
    return (
        "SELECT (SELECT coalesce(json_agg(c.relname ORDER BY c.oid), '[]') FROM pg_class c "
        "WHERE CASE WHEN c.relkind IN ('r', 'v', 'm', 'f', 'p') AND c.relnamespace = "
        + _SCHEMA
        + parameter(schema)
        + f") THEN {_RELATION} END)::text, "
        + "(SELECT coalesce(json_agg(DISTINCT p.proname), '[]') FROM pg_proc p WHERE CASE WHEN p.pronamespace = "
        + _SCHEMA
        + parameter(schema)
        + ") THEN has_function_privilege(p.oid, 'EXECUTE') END)::text"
    )


# Describes PostgreSQL's types as JSON Schema, and the defaults of columns as JSON.


_TYPES = {
    "boolean": "boolean",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "numeric": "number",
    "real": "number",
    "double precision": "number",
}
_FORMATS = {"smallint": "int32", "integer": "int32", "bigint": "int64"}
_LENGTH = re.compile(r"\(\d+(,\d+)?\)")
_QUOTED = re.compile(r"'((?:[^']|'')*)'(::.*)?", re.DOTALL)


def _plain(type_: str) -> str:
    """A type without its length: ``character varying(20)`` is ``character varying``."""
    return _LENGTH.sub("", type_)


def schema_of(type_: str) -> dict[str, Any]:
    """The JSON Schema of a type. ``format`` has the type's name; json and jsonb have no ``type``, for they may be
    anything."""
    name = _plain(type_)
    found: dict[str, Any] = {"format": _FORMATS.get(name, name)}
    if name in ("json", "jsonb"):
        return found
    if name.endswith("[]"):
        item = _item(name.removesuffix("[]"))
        return {**found, "type": "array", "items": item}
    return {**found, "type": _TYPES.get(name, "string")}


def _item(name: str) -> dict[str, Any]:
    return {} if name in ("json", "jsonb") else {"type": _TYPES.get(name, "string")}


def default_of(type_: str, expression: str) -> Any | None:
    """A default as a JSON value if it is a constant. If not: for a type that is shown as a string the SQL expression
    itself, and None for others."""
    quoted = _QUOTED.fullmatch(expression)
    text = quoted.group(1).replace("''", "'") if quoted else expression
    kind = schema_of(type_).get("type")
    if kind == "string":
        return text
    if kind == "array":
        # Otherwise it is in PostgreSQL's notation, which is not JSON.
        return [] if text == "{}" else None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


# Describes relations: their paths, definitions and parameters.


# How names are escaped in a JSON pointer (RFC 6901): the first two in any, the others in the fragment of a URI.
_POINTER = str.maketrans({"~": "~0", "/": "~1", "%": "%25", "#": "%23"})
# The parameters of a read that are no filters.
_READ = ("select", "order", "range", "rangeUnit", "offset", "limit", "preferCount")


def summary_of(comment: str | None) -> dict[str, str]:
    """A comment's first line as the summary, and the rest, after blank lines, as the description."""
    if not comment:
        return {}
    first, _, rest = comment.partition("\n")
    rest = rest.lstrip("\n")
    return {"summary": first, **({"description": rest} if rest else {})}


def path_of(relation: Relation) -> dict[str, Any]:
    # openapi-typescript fails for the whole document if the name of a parameter has quotes, so those are left out.
    plain = [name for name in relation.columns if as_parameter(name) == name]
    filters = [_ref(f"rowFilter.{relation.name}.{name}") for name in plain]
    common = {"tags": [relation.name], **summary_of(relation.description)}
    rows = {"items": _rows_of(relation), "type": "array"}
    responses = {"200": {"description": "OK", "schema": rows}, "206": {"description": "Partial Content"}}
    found = {"get": {**common, "parameters": [*filters, *map(_ref, _READ)], "responses": responses}}
    body = _ref(f"body.{relation.name}")
    if relation.insertable:
        parameters = [body, _ref("select"), _ref("preferPost")]
        found["post"] = {**common, "parameters": parameters, "responses": {"201": {"description": "Created"}}}
    gone = {"204": {"description": "No Content"}}
    if relation.deletable:
        found["delete"] = {**common, "parameters": [*filters, _ref("preferReturn")], "responses": gone}
    if relation.updatable:
        found["patch"] = {**common, "parameters": [*filters, body, _ref("preferReturn")], "responses": gone}
    return found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/parameters/{name.translate(_POINTER)}"}


def _rows_of(relation: Relation) -> dict[str, str]:
    return {"$ref": f"#/definitions/{relation.name.translate(_POINTER)}"}


def definition_of(relation: Relation, ways: Iterable[Relationship]) -> dict[str, Any]:
    keys: dict[str, Relationship] = {}
    # If a foreign key is known to lead to a table and to views of it, the table is named.
    for way in sorted(filter(_is_foreign_key, ways), key=lambda way: way.target_is_view):
        keys.setdefault(way.pairs[0][0], way)
    properties = {
        name: _property(column, name in relation.primary_key, keys.get(name))
        for name, column in relation.columns.items()
    }
    required = [name for name, column in relation.columns.items() if not column.nullable]
    return {
        **({"description": relation.description} if relation.description else {}),
        **({"required": required} if required else {}),
        "type": "object",
        **({"properties": properties} if properties else {}),
    }


def _is_foreign_key(way: Relationship) -> bool:
    return way.to_one and not way.is_parent and way.routine is None and len(way.pairs) == 1


def _property(column: Column, is_key: bool, way: Relationship | None) -> dict[str, Any]:
    type_ = _shown(column)
    found = schema_of(type_)
    if column.max_length is not None:
        found["maxLength"] = column.max_length
    if column.default is not None:
        default = default_of(type_, column.default)
        if default is not None:
            found["default"] = default
    if column.enum:
        found["enum"] = list(column.enum)
    description = _description(column, is_key, way)
    return {**found, "description": description} if description else found


def _shown(column: Column) -> str:
    """The type to show: for a domain its base type, if that is one of PostgreSQL's own."""
    return column.type if "." in column.base_type else column.base_type


def _description(column: Column, is_key: bool, way: Relationship | None) -> str | None:
    notes = ["This is a Primary Key.<pk/>"] if is_key else []
    if way is not None:
        table, name = way.target[1], way.pairs[0][1]
        notes.append(f"This is a Foreign Key to `{table}.{name}`.<fk table='{table}' column='{name}'/>")
    note = "\n".join(["Note:", *notes]) if notes else None
    return "\n\n".join(filter(None, (column.description, note))) or None


def parameters_of(relation: Relation) -> Iterator[tuple[str, dict[str, Any]]]:
    yield (
        f"body.{relation.name}",
        {
            "name": relation.name,
            "description": relation.name,
            "required": False,
            "in": "body",
            "schema": _rows_of(relation),
        },
    )
    for name, column in relation.columns.items():
        parameter = as_parameter(name)
        found: dict[str, Any] = {"name": parameter, "required": False, "in": "query", "type": "string"}
        if column.description:
            found["description"] = column.description
        yield f"rowFilter.{relation.name}.{name}", found


# Describes functions: their paths.


_PRODUCES = [headers.JSON, headers.OBJECT + ";nulls=stripped", headers.OBJECT]


def is_reachable(routine: Routine) -> bool:
    """Whether a request can give all arguments: by name, or a single one as the whole body."""
    return len(routine.arguments) == 1 or all(argument.name for argument in routine.arguments)


def path_of_routine(routine: Routine) -> dict[str, Any]:
    """Every function has POST. One that does not write has GET too, unless its argument is the whole body."""
    common = {
        "tags": [f"(rpc) {routine.name}"],
        **summary_of(routine.description),
        "produces": _PRODUCES,
        "responses": {"200": {"description": "OK"}},
    }
    whole = next((argument for argument in routine.arguments if not argument.name), None)
    schema = _body(routine) if whole is None else _schema(routine.schema, whole)
    arguments = {"required": True, "schema": schema, "in": "body", "name": "args"}
    found = {"post": {**common, "parameters": [arguments, {"$ref": "#/parameters/preferParams"}]}}
    if whole is not None:
        found["post"]["consumes"] = [name for name, types in RAW_TYPES.items() if whole.type in types]
    elif routine.volatility != "v":
        parameters = [_routine_parameter(routine.schema, argument) for argument in routine.arguments]
        found["get"] = {**common, **({"parameters": parameters} if parameters else {})}
    return found


def _body(routine: Routine) -> dict[str, Any]:
    required = [argument.name for argument in routine.arguments if argument.required]
    properties = {argument.name: _schema(routine.schema, argument) for argument in routine.arguments}
    return {
        **({"required": required} if required else {}),
        "type": "object",
        **({"properties": properties} if properties else {}),
        **({"description": routine.description} if routine.description else {}),
    }


def _schema(schema: str, argument: Argument) -> dict[str, Any]:
    """The JSON Schema of an argument. Types of the function's own schema are shown without it."""
    return schema_of(argument.type.removeprefix(f"{schema}."))


def _routine_parameter(schema: str, argument: Argument) -> dict[str, Any]:
    """An argument as a parameter of the query, where arrays and JSON are written as PostgreSQL's text."""
    found: dict[str, Any] = {"name": argument.name, "required": argument.required, "in": "query"}
    described = _schema(schema, argument)
    if argument.variadic:
        items = schema_of(argument.type.removeprefix(f"{schema}.").removesuffix("[]"))
        return {**found, "type": "array", "collectionFormat": "multi", "items": items}
    kind = described.get("type", "string")
    return {**found, "type": "string" if kind == "array" else kind, "format": described["format"]}


_TITLE = "PostgREST API"
_DESCRIPTION = "This is a dynamic API generated by PostgREST"
_DOCS = "https://postgrest.org/en/v16/references/api.html"
# The version of PostgREST whose conventions the document follows.
_VERSION = "16.2"
_RETURN = ["return=representation", "return=minimal", "return=none"]
_RESOLUTION = ["resolution=ignore-duplicates", "resolution=merge-duplicates"]
_SECURITY: dict[str, Any] = {
    "securityDefinitions": {
        "JWT": {
            "description": 'Add the token prepending "Bearer " (without quotes) to it',
            "in": "header",
            "name": "Authorization",
            "type": "apiKey",
        }
    },
    "security": [{"JWT": []}],
}
_BODIES = [headers.JSON, headers.OBJECT + ";nulls=stripped", headers.OBJECT, headers.CSV]


def public_url(said: str) -> str:
    """The configured URL with its port, which PostgREST always shows."""
    where = urlsplit(said)
    if where.port is None:
        where = where._replace(netloc=f"{where.netloc}:{443 if where.scheme == 'https' else 80}")
    return where.geturl()


def document(
    cache: SchemaCache,
    schema: str,
    url: str,
    usable: Container[str] | None,
    callable_: Container[str] | None,
    secured: bool = False,
) -> dict[str, Any]:
    """The document as JSON values. ``url`` is the root's. Only relations in ``usable`` and functions in ``callable_``
    are described, by name; None means all. ``secured`` adds how a token is sent."""
    shown = [
        relation
        for (of, name), relation in cache.relations.items()
        if of == schema and (usable is None or name in usable)
    ]
    functions = [
        # A path has one description: that of the overload with the most arguments.
        found[-1]
        for (of, name), overloads in cache.routines.items()
        if of == schema and (callable_ is None or name in callable_)
        if (found := [routine for routine in overloads if is_reachable(routine)])
    ]
    where = urlsplit(url)
    paths = {"/": _root(), **{f"/{relation.name}": path_of(relation) for relation in shown}}
    paths |= {f"/rpc/{routine.name}": path_of_routine(routine) for routine in functions}
    parameters = dict(_parameters())
    for relation in shown:
        parameters.update(parameters_of(relation))
    return {
        "swagger": "2.0",
        "info": _info(cache.schema_comments.get(schema)),
        "host": where.netloc,
        "basePath": where.path or "/",
        "schemes": [where.scheme or "http"],
        "consumes": _BODIES,
        "produces": _BODIES,
        "paths": paths,
        "definitions": {
            relation.name: definition_of(relation, cache.relationships.get(relation.key, ()))
            for relation in shown
        },
        "parameters": parameters,
        "externalDocs": {"description": "PostgREST Documentation", "url": _DOCS},
        **(_SECURITY if secured else {}),
    }


def _info(comment: str | None) -> dict[str, str]:
    """The schema's comment as title and description. With a comment of one line the description is empty."""
    said = {"description": "", **summary_of(comment)} if comment else {}
    return {
        "title": said.get("summary", _TITLE),
        "description": said.get("description", _DESCRIPTION),
        "version": _VERSION,
    }


def _root() -> dict[str, Any]:
    return {
        "get": {
            "tags": ["Introspection"],
            "summary": "OpenAPI description (this document)",
            "produces": [headers.OPENAPI, headers.JSON],
            "responses": {"200": {"description": "OK"}},
        }
    }


def _parameters() -> dict[str, dict[str, Any]]:
    return {
        "preferParams": _parameter("Prefer", "Preference", "header"),
        "preferReturn": _parameter("Prefer", "Preference", "header", enum=_RETURN),
        "preferCount": _parameter("Prefer", "Preference", "header", enum=["count=none"]),
        "preferPost": _parameter("Prefer", "Preference", "header", enum=[*_RETURN, *_RESOLUTION]),
        "select": _parameter("select", "Filtering Columns", "query"),
        "on_conflict": _parameter("on_conflict", "On Conflict", "query"),
        "order": _parameter("order", "Ordering", "query"),
        "range": _parameter("Range", "Limiting and Pagination", "header"),
        "rangeUnit": _parameter("Range-Unit", "Limiting and Pagination", "header", default="items"),
        "offset": _parameter("offset", "Limiting and Pagination", "query"),
        "limit": _parameter("limit", "Limiting and Pagination", "query"),
    }


def _parameter(name: str, description: str, where: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "required": False,
        "in": where,
        "type": "string",
        **more,
    }
