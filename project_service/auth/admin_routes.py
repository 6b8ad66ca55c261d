"""The operator's endpoints, below ``/admin/users``, for the service key only."""

from __future__ import annotations

from attrs import frozen

from project_service.auth import described
from project_service.auth.admin import Administration
from project_service.auth.routes import origin_of, token_reply
from project_service.http.inbound import Inbound
from project_service.http.outbound import Reply, envelope
from project_service.http.router import Router


@frozen
class AdminRoutes:
    administration: Administration

    def mount(self, router: Router) -> None:
        one = "/admin/users/<user_id>"
        for url, method, said, handler in (
            ("/admin/users", "GET", described.LIST_USERS, self.page),
            ("/admin/users", "POST", described.CREATE_USER, self.create),
            (one, "GET", described.SHOW_USER, self.read),
            (one, "PATCH", described.UPDATE_USER, self.change),
            (one, "DELETE", described.REMOVE_USER, self.delete),
            (f"{one}/sessions", "DELETE", described.END_USER_SESSIONS, self.end_sessions),
        ):
            router.route(url, said, methods=(method,), key="service", bearer="own")(handler)

    async def page(self, inbound: Inbound) -> Reply:
        page = await self.administration.page(inbound.query_value("cursor"), inbound.query_value("limit"))
        users = [account.view() for account in page.accounts]
        return token_reply({"users": users, "next_cursor": page.next_cursor})

    async def create(self, inbound: Inbound) -> Reply:
        account = await self.administration.create(await inbound.json_object(), origin_of(inbound))
        location = inbound.location(f"/admin/users/{account.user.id}")
        return token_reply({"user": account.view()}, 201, location)

    async def read(self, inbound: Inbound) -> Reply:
        account = await self.administration.find(inbound.path_args["user_id"])
        return token_reply({"user": account.view()})

    async def change(self, inbound: Inbound) -> Reply:
        wanted = await inbound.json_object()
        account = await self.administration.change(inbound.path_args["user_id"], wanted, origin_of(inbound))
        return token_reply({"user": account.view()})

    async def delete(self, inbound: Inbound) -> Reply:
        await self.administration.delete(inbound.path_args["user_id"], origin_of(inbound))
        return envelope(None)

    async def end_sessions(self, inbound: Inbound) -> Reply:
        ended = await self.administration.end_sessions(inbound.path_args["user_id"], origin_of(inbound))
        return token_reply({"ended": ended})
