"""The trace header of a database: clients send it to follow their requests, and get it back with the answer. Pure.

Source: PostgREST's reference, "server-trace-header".
"""

from __future__ import annotations

from collections.abc import Mapping

from project_service.errors import Headers
from project_service.http.headers import HeaderView
from project_service.http.overload.lanes import LANE_BYTES, lane_of
from project_service.http.protocol import wire


def echoed(names: Mapping[str, str], method: str, path: bytes, headers: HeaderView) -> Headers:
    """The trace headers to send back. ``names`` are the headers' names by lane.

    A name that every answer sets itself, or that frames it, is never sent back.
    """
    name = names.get(lane_of(method, path[:LANE_BYTES]))
    if name is None or name.lower() in wire.OURS:
        return ()
    return tuple((name, value.decode("latin-1")) for value in headers.all(name.lower().encode()))
