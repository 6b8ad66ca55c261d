"""The description, for ``/openapi.json``, of a route that exists only in a test."""

from __future__ import annotations

import re

from project_service.http.describe import Operation, in_path, path_of


def operation_at(url: str = "/x") -> Operation:
    names = re.findall(r"\{(\w+)\}", path_of(url))
    return Operation("test", "test", "For a test", (), tuple(in_path(name, "of the test") for name in names))
