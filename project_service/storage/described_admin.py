"""What ``/openapi.json`` says of the routes below ``/admin/buckets``."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from project_service.http.openapi.described import (
    BOOLEAN,
    COUNT,
    MOMENT,
    Answer,
    Described,
    Named,
    Parameter,
    Schema,
    array,
    exactly,
    takes,
)
from project_service.storage import errors
from project_service.storage.buckets import MAX_BYTES, MAX_CONTENT_TYPES
from project_service.storage.described import BAD_KEY, BOTH, IN_BUCKET, NO_BUCKET, json_answer
from project_service.storage.schemas import BUCKET_NAME, PREFIX

TAG = "buckets"

_LIMIT: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_BYTES}
_RULES: Mapping[str, Schema] = {
    "visibility": {"enum": ["public", "private"]},
    "max_object_bytes": _LIMIT,
    "max_bucket_bytes": _LIMIT,
    "allowed_content_types": {
        "type": ["array", "null"],
        "maxItems": MAX_CONTENT_TYPES,
        "items": {"type": "string", "description": "type/subtype, type/* or */*"},
    },
    "owner_only_writes": BOOLEAN,
}
BUCKET = Named(
    "Bucket",
    exactly(name=BUCKET_NAME, **_RULES, object_count=COUNT, total_bytes=COUNT, created_at=MOMENT),
)


CREATE_BUCKET = Described(
    "createBucket",
    TAG,
    "Make a bucket",
    (json_answer(201, "The new bucket", BUCKET),),
    body=takes(_RULES, name=BUCKET_NAME),
    errors=(errors.bucket_exists(),),
)
LIST_BUCKETS = Described(
    "listBuckets",
    TAG,
    "Every bucket",
    (json_answer(200, "The buckets", exactly(buckets=array(BUCKET))),),
)
SHOW_BUCKET = Described(
    "showBucket",
    TAG,
    "One bucket",
    (json_answer(200, "The bucket", BUCKET),),
    (IN_BUCKET,),
    errors=(NO_BUCKET,),
)
CHANGE_BUCKET = evolve(
    SHOW_BUCKET, name="changeBucket", summary="Change rules of a bucket", body=takes(_RULES)
)
DELETE_BUCKET = Described(
    "deleteBucket",
    TAG,
    "Delete a bucket",
    (Answer(204, "It is gone."),),
    (IN_BUCKET, Parameter("force", "true: with everything in it.", BOOLEAN)),
    errors=(NO_BUCKET, errors.bucket_not_empty(), errors.bucket_in_use(), errors.object_in_use()),
    needs=BOTH,
)
DELETE_PREFIX = Described(
    "deletePrefix",
    TAG,
    "Delete every object under a prefix; the empty one means all",
    (json_answer(200, "How many there were", exactly(deleted=COUNT)),),
    (
        IN_BUCKET,
        Parameter("prefix", "What their keys begin with.", PREFIX, required=True),
    ),
    errors=(NO_BUCKET, BAD_KEY, errors.object_in_use()),
    needs=BOTH,
)
