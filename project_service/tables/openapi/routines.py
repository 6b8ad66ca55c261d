"""Describes functions: their paths."""

from __future__ import annotations

from typing import Any

from project_service.tables.model import Argument, Routine
from project_service.tables.openapi.relations import summary_of
from project_service.tables.openapi.types import schema_of
from project_service.tables.parse import media
from project_service.tables.plan.call import RAW_TYPES

_PRODUCES = [media.JSON, media.OBJECT + ";nulls=stripped", media.OBJECT]


def is_reachable(routine: Routine) -> bool:
    """Whether a request can give all arguments: by name, or a single one as the whole body."""
    return len(routine.arguments) == 1 or all(argument.name for argument in routine.arguments)


def path_of(routine: Routine) -> dict[str, Any]:
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
        parameters = [_parameter(routine.schema, argument) for argument in routine.arguments]
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


def _parameter(schema: str, argument: Argument) -> dict[str, Any]:
    """An argument as a parameter of the query, where arrays and JSON are written as PostgreSQL's text."""
    found: dict[str, Any] = {"name": argument.name, "required": argument.required, "in": "query"}
    described = _schema(schema, argument)
    if argument.variadic:
        items = schema_of(argument.type.removeprefix(f"{schema}.").removesuffix("[]"))
        return {**found, "type": "array", "collectionFormat": "multi", "items": items}
    kind = described.get("type", "string")
    return {**found, "type": "string" if kind == "array" else kind, "format": described["format"]}
