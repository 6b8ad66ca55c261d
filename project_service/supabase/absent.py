"""``/realtime/v1`` and ``/functions/v1``, where clients of the Supabase family look for what is not offered."""

from __future__ import annotations

from attrs import frozen

from project_service.errors import ApiError, not_found
from project_service.http.describe import Operation, in_path
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Policy, Router

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@frozen
class NotOffered:
    """The routes, which refuse everything in plain words."""

    def mount(self, router: Router) -> None:
        part = router.of_part(Policy()).undocumented()
        for base in ("/realtime/v1", "/functions/v1"):
            described = Operation(
                f"refuse{base.split('/')[1].title()}",
                "supabase",
                "Refused: accounts, tables and storage are all that there is",
                (),
                (in_path("below", "Any path."),),
                errors=(not_found(),),
                needs=(),
            )
            part.route(
                f"{base}/<path:below>",
                described,
                methods=_METHODS,
                any_method=True,
                key="ignored",
                bearer="own",
            )(_refuse)


async def _refuse(request: Request) -> Reply:
    name = request.raw_path.split(b"/")[1].decode().title()
    raise ApiError(404, "not_found", f"{name} {'is' if name == 'Realtime' else 'are'} not offered here.")
