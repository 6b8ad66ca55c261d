"""``/admin/buckets``: buckets by the service key."""

from __future__ import annotations

from attrs import frozen

from project_service.errors import validation_failed
from project_service.http.inbound import Inbound
from project_service.http.outbound import NO_STORE, Reply, json_reply
from project_service.http.router import Router
from project_service.storage import described_admin as described
from project_service.storage import keys, requests
from project_service.storage.buckets import Buckets, name_faults, parse_rules
from project_service.storage.failures import translated
from project_service.storage.model import BucketRules
from project_service.storage.objects import Objects

BUCKETS = "/admin/buckets"
BUCKET = f"{BUCKETS}/<bucket>"


@frozen(eq=False)
class BucketRoutes:
    buckets: Buckets
    objects: Objects

    def mount(self, router: Router) -> None:
        for url, method, said, handler in (
            (BUCKETS, "POST", described.CREATE_BUCKET, self.create),
            (BUCKETS, "GET", described.LIST_BUCKETS, self.list),
            (BUCKET, "GET", described.SHOW_BUCKET, self.show),
            (BUCKET, "PATCH", described.CHANGE_BUCKET, self.change),
            (BUCKET, "DELETE", described.DELETE_BUCKET, self.delete),
            (f"{BUCKET}/objects", "DELETE", described.DELETE_PREFIX, self.delete_prefix),
        ):
            router.route(url, said, methods=(method,), key="service")(translated(handler))

    async def create(self, inbound: Inbound) -> Reply:
        body = await inbound.json_object()
        name = body.pop("name", None)
        rules = parse_rules(body, name_faults(name))
        bucket = await self.buckets.create(name, BucketRules(**rules))
        return _answered(bucket.as_json(), 201, inbound.location(f"{BUCKETS}/{bucket.name}"))

    async def list(self, inbound: Inbound) -> Reply:
        return _answered({"buckets": [bucket.as_json() for bucket in await self.buckets.all()]})

    async def show(self, inbound: Inbound) -> Reply:
        return _answered((await self.buckets.fresh(inbound.path_args["bucket"])).as_json())

    async def change(self, inbound: Inbound) -> Reply:
        changes = parse_rules(await inbound.json_object())
        return _answered((await self.buckets.change(inbound.path_args["bucket"], changes)).as_json())

    async def delete(self, inbound: Inbound) -> Reply:
        objects = self.objects if requests.flag(inbound, "force") else None
        await self.buckets.delete(inbound.path_args["bucket"], objects)
        return Reply(204)

    async def delete_prefix(self, inbound: Inbound) -> Reply:
        """A prefix must be given; the empty one means everything."""
        prefix = inbound.query_value("prefix")
        if prefix is None:
            raise validation_failed({"prefix": "is required"})
        bucket = await self.buckets.fresh(inbound.path_args["bucket"])
        count = await self.objects.delete_prefix(bucket, keys.parse_prefix(prefix))
        return _answered({"deleted": count})


def _answered(value: object, status: int = 200, *more: tuple[str, str]) -> Reply:
    """By the service key alone, which a cache does not know for a credential."""
    return json_reply(value, status, (NO_STORE, *more))
