"""The description, for ``/openapi.json``, of a route that exists only in a test; and that document with what it
refers to in its place."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

from project_service.http.describe import Operation, in_path, path_of


def operation_at(url: str = "/x") -> Operation:
    names = re.findall(r"\{(\w+)\}", path_of(url))
    return Operation("test", "test", "For a test", (), tuple(in_path(name, "of the test") for name in names))


def inlined(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI document with the parameters and successes of each operation in their places, where they may be
    changed; its errors stay references."""
    for methods in document["paths"].values():
        for operation in methods.values():
            if "parameters" in operation:
                operation["parameters"] = [_resolved(one, document) for one in operation["parameters"]]
            operation["responses"] = {
                status: one if status >= "400" else _resolved(one, document)
                for status, one in operation["responses"].items()
            }
    return document


def _resolved(one: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    for name in one.get("$ref", "#").split("/")[1:]:
        one = whole = whole[name]
    return deepcopy(one)
