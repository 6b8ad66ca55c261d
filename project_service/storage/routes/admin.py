"""``/admin/buckets``: buckets by the service key. Each endpoint has its description and the model of its body beside
it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from attrs import frozen

from project_service.audit import By, by_service
from project_service.errors import validation_failed
from project_service.http.describe import (
    BOOLEAN,
    COUNT,
    MOMENT,
    Answer,
    Named,
    Operation,
    Parameter,
    array,
    exactly,
)
from project_service.http.json_body import body_of, member, read_members
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.storage import errors, keys
from project_service.storage.buckets import NOT_A_RULE, Buckets, parse_rules
from project_service.storage.objects import Objects
from project_service.storage.parsing import parameters
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    DATABASE_AND_STORE,
    IN_BUCKET,
    NO_BUCKET,
    PREFIX,
    json_answer,
)
from project_service.storage.values import BUCKET_NAME, RULE_SCHEMAS, BucketRules

BUCKETS = "/admin/buckets"
ONE_BUCKET = f"{BUCKETS}/<bucket>"
TAG = "buckets"

BUCKET = Named(
    "Bucket",
    exactly(
        name=BUCKET_NAME.schema, **RULE_SCHEMAS, object_count=COUNT, total_bytes=COUNT, created_at=MOMENT
    ),
)


@frozen(kw_only=True)
class NewBucket(BucketRules):
    """The body that makes a bucket: its name beside its rules."""

    name: str = member(BUCKET_NAME)


@frozen(eq=False)
class BucketRoutes:
    buckets: Buckets
    objects: Objects
    now: Callable[[], datetime]

    def by(self, request: Request) -> By:
        return partial(by_service, request, self.now())

    @endpoint(
        "POST",
        BUCKETS,
        Operation(
            "createBucket",
            TAG,
            "Make a bucket",
            (json_answer(201, "The new bucket", BUCKET),),
            body=body_of(NewBucket),
            errors=(errors.bucket_exists(),),
        ),
    )
    async def create(self, request: Request) -> Reply:
        rules = read_members(NewBucket, await request.json_object(), NOT_A_RULE, required=True)
        bucket = await self.buckets.create(rules.pop("name"), BucketRules(**rules), self.by(request))
        return _reply(bucket.as_json(), 201, request.location(f"{BUCKETS}/{bucket.name}"))

    @endpoint(
        "GET",
        BUCKETS,
        Operation(
            "listBuckets",
            TAG,
            "Every bucket",
            (json_answer(200, "The buckets", exactly(buckets=array(BUCKET))),),
        ),
    )
    async def list(self, request: Request) -> Reply:
        return _reply({"buckets": [bucket.as_json() for bucket in await self.buckets.all()]})

    @endpoint(
        "GET",
        ONE_BUCKET,
        Operation(
            "showBucket",
            TAG,
            "One bucket",
            (json_answer(200, "The bucket", BUCKET),),
            (IN_BUCKET,),
            errors=(NO_BUCKET,),
        ),
    )
    async def show(self, request: Request) -> Reply:
        return _reply((await self.buckets.fresh(request.path_args["bucket"])).as_json())

    @endpoint(
        "PATCH",
        ONE_BUCKET,
        Operation(
            "changeBucket",
            TAG,
            "Change rules of a bucket",
            (json_answer(200, "The bucket", BUCKET),),
            (IN_BUCKET,),
            body_of(BucketRules),
            (NO_BUCKET,),
        ),
    )
    async def change(self, request: Request) -> Reply:
        changes = parse_rules(await request.json_object())
        bucket = await self.buckets.change(request.path_args["bucket"], changes, by=self.by(request))
        return _reply(bucket.as_json())

    @endpoint(
        "DELETE",
        ONE_BUCKET,
        Operation(
            "deleteBucket",
            TAG,
            "Delete a bucket",
            (Answer(204, "It is gone."),),
            (IN_BUCKET, Parameter("force", "true: with everything in it.", BOOLEAN)),
            errors=(NO_BUCKET, errors.bucket_not_empty(), errors.bucket_in_use(), errors.object_in_use()),
            needs=DATABASE_AND_STORE,
        ),
    )
    async def delete(self, request: Request) -> Reply:
        name = request.path_args["bucket"]
        if parameters.flag(request, "force"):
            await self.objects.delete_bucket((await self.buckets.fresh(name)).name, self.by(request))
        else:
            await self.buckets.delete(name, by=self.by(request))
        return Reply(204)

    @endpoint(
        "GET",
        f"{ONE_BUCKET}/usage",
        Operation(
            "showUsage",
            TAG,
            "How many objects there are under a prefix, and their bytes",
            (json_answer(200, "What there is", exactly(object_count=COUNT, total_bytes=COUNT)),),
            (IN_BUCKET, Parameter("prefix", "What their keys begin with; without it all count.", PREFIX)),
            errors=(NO_BUCKET, BAD_KEY),
            details="The objects are counted one by one. Those of the whole bucket are in the bucket, ready made.",
        ),
    )
    async def usage(self, request: Request) -> Reply:
        bucket = await self.buckets.fresh(request.path_args["bucket"])
        prefix = keys.parse_prefix(request.query_value("prefix") or "")
        count, size = await self.objects.rows.usage(bucket.name, prefix)
        return _reply({"object_count": count, "total_bytes": size})

    @endpoint(
        "DELETE",
        f"{ONE_BUCKET}/objects",
        Operation(
            "deletePrefix",
            TAG,
            "Delete every object under a prefix; the empty one means all",
            (json_answer(200, "How many there were", exactly(deleted=COUNT)),),
            (IN_BUCKET, Parameter("prefix", "What their keys begin with.", PREFIX, required=True)),
            errors=(NO_BUCKET, BAD_KEY, errors.object_in_use()),
            needs=DATABASE_AND_STORE,
        ),
    )
    async def delete_prefix(self, request: Request) -> Reply:
        prefix = request.query_value("prefix")
        if prefix is None:
            raise validation_failed({"prefix": "is required"})
        bucket = await self.buckets.fresh(request.path_args["bucket"])
        count = await self.objects.delete_prefix(bucket, keys.parse_prefix(prefix), self.by(request))
        return _reply({"deleted": count})


def _reply(value: object, status: int = 200, *headers: tuple[str, str]) -> Reply:
    """Not to be cached: a cache does not know the service key for a credential."""
    return json_reply(value, status, (NO_STORE, *headers))
