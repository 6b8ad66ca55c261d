"""The URLs of databases, below which clients find everything too: they resolve their paths against any URL."""

from __future__ import annotations

from collections.abc import Collection

from project_service.errors import not_found
from project_service.http.request import Request
from project_service.http.response import Reply, StreamReply
from project_service.http.routing import Handler

OF_DATABASE = "/<stage>/db/<database>"


def of_known(databases: Collection[tuple[str, str]], handler: Handler) -> Handler:
    """``handler`` below ``OF_DATABASE``. Raises ``not_found`` unless ``databases`` has the stage and the name."""

    async def handling(request: Request) -> Reply | StreamReply:
        if (request.path_args["stage"], request.path_args["database"]) not in databases:
            raise not_found()
        return await handler(request)

    return handling
