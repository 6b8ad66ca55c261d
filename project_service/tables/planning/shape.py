"""The shape of a request: everything but the operands of its filters, the values of its arguments, and its body.

Requests of one shape have the same plan; only the parameters differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from project_service.tables import errors
from project_service.tables.parse.filters import shape_of_filter
from project_service.tables.parse.names import AT_PATH, WHOLE
from project_service.tables.parse.payload import Payload
from project_service.tables.parse.query import is_argument


def shape_of_query(pairs: Sequence[tuple[str, str]], arguments: bool) -> tuple[Hashable, list[str]]:
    """The shape, and the operands in the order in which ``parse_query`` numbers them. Raises PGRST100.

    ``arguments``: parameters may be arguments of a function.
    """
    shape: list[tuple[str, str]] = []
    operands: list[str] = []
    for name, value in pairs:
        if "\0" in value or "\0" in name:
            raise errors.invalid_parameter("A parameter holds a NUL character")
        if name in WHOLE:
            shape.append((name, value))
        elif arguments and is_argument(name, value):
            shape.append((name, "="))
            operands.append(value)
        elif name.rpartition(".")[2] in AT_PATH:
            shape.append((name, value))
        elif (found := shape_of_filter(value)) is None:
            shape.append((name, "." + value))
        else:
            shape.append((name, found[0]))
            operands.append(found[1])
    return tuple(shape), operands


def shape_of_payload(payload: Payload | None) -> Hashable | None:
    """The payload's part of the shape; None where the body itself is part of the plan, which then is not kept."""
    if payload is None:
        return ()
    if payload.kind != "json":
        return None
    return (payload.media, payload.keys, payload.is_array, payload.is_empty, payload.keys_match)
