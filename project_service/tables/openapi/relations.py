"""Describes relations: their paths, definitions and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from project_service.tables.model import Column, Relation, Relationship
from project_service.tables.openapi.types import default_of, schema_of
from project_service.tables.parse import names

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
    plain = [name for name in relation.columns if names.as_parameter(name) == name]
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
        parameter = names.as_parameter(name)
        found: dict[str, Any] = {"name": parameter, "required": False, "in": "query", "type": "string"}
        if column.description:
            found["description"] = column.description
        yield f"rowFilter.{relation.name}.{name}", found
