"""``/rest/v1``: the table API where supabase-js and its like look for it. It costs the same there.

A project key may be wherever these clients put it; all else is as at the database's own path.
"""

from __future__ import annotations

from collections.abc import Awaitable

from attrs import evolve, frozen

from project_service.http.request import Request
from project_service.http.response import Reply, StreamReply
from project_service.http.routing import Router
from project_service.supabase import databases
from project_service.tables import errors
from project_service.tables.api import POLICY, TableRoutes, admission_class
from project_service.tables.endpoints import AT_ROOT, BELOW, at
from project_service.tables.request.request import READING, WRITING

TAG = "supabase"
BASE = "/rest/v1"
# Below the URL of a database it is that database.
OF_DATABASE = f"{databases.OF_DATABASE}{BASE}"
# The parameter that may have the key. It is no filter.
KEY = "apikey"
_AT_ROOT = (*READING, "OPTIONS")
_BELOW = (*_AT_ROOT, *WRITING)


@frozen(eq=False)
class ClientTables:
    """The routes. ``database`` is the stage and the name of the one at ``/rest/v1``; without one, requests there are
    refused and told which setting names it."""

    routes: TableRoutes
    database: tuple[str, str] | None

    def mount(self, router: Router) -> None:
        policy = evolve(POLICY, key_anywhere=True)
        admission = "" if self.database is None else admission_class(*self.database)
        # Braces would stand for arguments of the path.
        admission = admission.replace("{", "{{").replace("}", "}}")
        only = router.of_part(evolve(policy, admission=admission))
        for url, described, methods in ((BASE, AT_ROOT, _AT_ROOT), (f"{BASE}/<path:below>", BELOW, _BELOW)):
            operations = [at(one, BASE, TAG, "client") for one in described]
            only.route(url, *operations, methods=methods, any_method=True, bearer="own")(self._only)
        named = router.of_part(policy).undocumented()
        named.route(f"{OF_DATABASE}/<path:below>", methods=_BELOW, any_method=True, bearer="own")(self._named)

    def _only(self, request: Request) -> Awaitable[Reply | StreamReply]:
        if self.database is None:
            raise errors.no_client_database()
        return self.routes.answer_of(self.database, BASE.count("/"), request, KEY)

    def _named(self, request: Request) -> Awaitable[Reply | StreamReply]:
        where = (request.path_args["stage"], request.path_args["database"])
        return self.routes.answer_of(where, OF_DATABASE.count("/"), request, KEY)
