"""Listings: the buckets that a caller sees, and the objects in one of them."""

from __future__ import annotations

from attrs import frozen
from orjson import Fragment

from project_service.http.describe import (
    BOOLEAN,
    STRING,
    Named,
    Operation,
    Parameter,
    Schema,
    array,
    exactly,
)
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import NOT_SHARED
from project_service.storage.parsing import parameters
from project_service.storage.parsing.parameters import DEFAULT_PAGE_KEYS, MAX_PAGE_KEYS
from project_service.storage.reading import Reading
from project_service.storage.routes.common import readable
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    BUCKETS,
    IN_BUCKET,
    METADATA,
    OBJECTS,
    PREFIX,
    READ_REFUSED,
    TAG,
    json_answer,
)
from project_service.storage.values import NOT_SEEN, RULE_SCHEMAS, SORTS

_VISIBLE_BUCKET = Named(
    "VisibleBucket",
    exactly(name=STRING, **{rule: schema for rule, schema in RULE_SCHEMAS.items() if rule not in NOT_SEEN}),
)
_NEXT_TOKEN: Schema = {
    "type": ["string", "null"],
    "description": "page_token of the next page; null on the last.",
}
_LISTING = Named(
    "ObjectListing",
    exactly(
        objects=array(METADATA),
        folders=array({"type": "string", "pattern": "/$"}),
        prefix=STRING,
        is_truncated=BOOLEAN,
        next_token=_NEXT_TOKEN,
    ),
)

_SORTS: Schema = {"enum": [*SORTS], "default": "key"}
_ORDERS: Schema = {"enum": ["asc", "desc"], "default": "asc"}


@frozen(eq=False)
class ListingRoutes:
    buckets: Buckets
    reading: Reading

    @endpoint(
        "GET",
        BUCKETS,
        Operation(
            "listVisibleBuckets",
            TAG,
            "The buckets from which the caller may read: all of them for a signed-in user, else the public ones",
            (json_answer(200, "The buckets, by name", exactly(buckets=array(_VISIBLE_BUCKET))),),
        ),
    )
    async def list_buckets(self, request: Request) -> Reply:
        signed_in = request.caller.signed_in
        shown = [one.as_seen() for one in await self.buckets.all() if one.public or signed_in]
        return json_reply({"buckets": shown}, headers=(NOT_SHARED if signed_in else NO_STORE,))

    @endpoint(
        "GET",
        OBJECTS,
        Operation(
            "listObjects",
            TAG,
            "List objects, ordered bytewise by key and grouped into folders",
            (json_answer(200, "A page of the listing", _LISTING),),
            (
                IN_BUCKET,
                Parameter("prefix", "Only keys that begin with it.", PREFIX),
                Parameter(
                    "max_keys",
                    "Objects and folders on a page.",
                    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_KEYS, "default": DEFAULT_PAGE_KEYS},
                ),
                Parameter("recursive", "true: no folders, every key.", BOOLEAN),
                Parameter("sort", "What to sort by; other than by key there are no folders.", _SORTS),
                Parameter("order", "desc: backwards, and without folders.", _ORDERS),
                Parameter(
                    "search",
                    "Only objects with this, in either case, in what follows the prefix; without folders. A page may "
                    "then have few objects or none and not be the last.",
                    {"type": "string", "maxLength": parameters.MAX_SEARCH_LENGTH},
                ),
                Parameter("page_token", "next_token of the page before, of the same listing."),
            ),
            errors=(*READ_REFUSED, errors.not_allowed(), BAD_KEY),
        ),
    )
    async def list(self, request: Request) -> Reply:
        bucket, viewer = await readable(self.buckets, request)
        prefix = keys.parse_prefix(request.query_value("prefix") or "")
        recursive = parameters.flag(request, "recursive")
        limit = parameters.page_limit(request, "max_keys")
        token = request.query_value("page_token")
        sorting = parameters.sorting_of(request) if request.raw_query else None
        if sorting is None:
            after = None if token is None else parameters.decode_page_token(token, prefix, recursive)
            page = await self.reading.listed(
                request,
                bucket.name,
                viewer,
                lambda rows: rows.page(bucket.name, prefix, after, limit, recursive, viewer),
            )
            objects, folders = page.objects, page.folders
            following = page.last and parameters.encode_page_token(page.last, prefix, recursive)
        else:
            after_entry = None if token is None else parameters.decode_sorted_token(token, prefix, sorting)
            flat = await self.reading.listed(
                request,
                bucket.name,
                viewer,
                lambda rows: rows.sorted_page(bucket.name, prefix, sorting, after_entry, limit, viewer),
            )
            objects, folders = flat.objects, b"[]"
            following = flat.last and parameters.encode_sorted_token(flat.last, prefix, sorting)
        return json_reply(
            {
                "objects": Fragment(objects),
                "folders": Fragment(folders),
                "prefix": prefix,
                "is_truncated": following is not None,
                "next_token": following,
            },
            # Without this header a cache may store the listing, some do for a day, and return it without any key.
            headers=(NO_STORE if bucket.public else NOT_SHARED,),
        )
