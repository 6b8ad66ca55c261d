"""``/object/list`` and ``/object/list-v2``: listings as those clients page through them."""

from __future__ import annotations

from typing import Any, cast

import orjson
from attrs import astuple, frozen

from project_service import base64url, whole_numbers
from project_service.errors import ApiError, validation_failed
from project_service.http.describe import BOOLEAN, STRING, Named, Operation, array, obj
from project_service.http.json_body import FLAG, TEXT, Kind, member, or_null, whole
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, json_reply
from project_service.http.routing import endpoint
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import NOT_SHARED
from project_service.storage.parsing.parameters import DEFAULT_PAGE_KEYS, MAX_PAGE_KEYS
from project_service.storage.routes.descriptions import BAD_KEY, READ_REFUSED
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.values import Bucket, Entries
from project_service.supabase.storage.common import (
    FILE,
    IN_BUCKET,
    TAG,
    body_of,
    listed,
    ok,
    read_body,
    readable,
)

_VERSION = 1
_MANY = 2**31 - 1
# When an object was read last is not recorded.
_COLUMNS = {
    "name": "name",
    "created_at": "created_at",
    "updated_at": "updated_at",
    "last_accessed_at": "created_at",
}
_ORDERS = ("asc", "desc")


def _read_sorting(name: str, value: object) -> tuple[str, bool]:
    """The column of ours, and whether backwards."""
    if value is None:
        return "name", False
    column, order = (value.get("column"), value.get("order")) if isinstance(value, dict) else ("", "")
    if column not in (None, *_COLUMNS) or order not in (None, *_ORDERS):
        why = f"must be an object with column ({', '.join(_COLUMNS)}) and order ({', '.join(_ORDERS)})"
        raise validation_failed({name: why})
    return _COLUMNS[cast(str, column or "name")], order == "desc"


_SORTING = Kind(
    {
        "type": ["object", "null"],
        "properties": {
            "column": {"enum": [*_COLUMNS, None], "default": "name"},
            "order": {"enum": [*_ORDERS, None], "default": "asc"},
        },
    },
    _read_sorting,
)
_NAMED = ("name", False)


@frozen
class Wanted:
    """A page of a folder."""

    prefix: str | None = member(or_null(TEXT), default=None, schema={"description": "A folder."})
    limit: int | None = member(or_null(whole(1, _MANY)), default=None)
    offset: int | None = member(or_null(whole(0, _MANY)), default=None)
    search: str | None = member(or_null(TEXT), default=None, schema={"description": "How names begin."})
    sorting: tuple[str, bool] = member(_SORTING, name="sortBy", default=_NAMED)


@frozen
class WantedAfter:
    """A page after a cursor."""

    prefix: str | None = member(or_null(TEXT), default=None, schema={"description": "How keys begin."})
    limit: int | None = member(or_null(whole(1, _MANY)), default=None)
    cursor: str | None = member(
        or_null(TEXT), default=None, schema={"description": "nextCursor of the page before."}
    )
    with_delimiter: bool | None = member(
        or_null(FLAG), default=None, schema={"description": "true: folders in place of what is in them."}
    )
    sorting: tuple[str, bool] = member(_SORTING, name="sortBy", default=_NAMED)


_FOLDER = obj(("name", "key"), False, name={"type": "string", "pattern": "/$"}, key=STRING)
_LISTING = Named(
    "ClientListing",
    obj(
        ("hasNext", "folders", "objects"),
        False,
        hasNext=BOOLEAN,
        nextCursor=STRING,
        folders=array(_FOLDER),
        objects=array(FILE),
    ),
)
_REFUSED = (*READ_REFUSED, errors.not_allowed(), BAD_KEY)


@frozen(eq=False)
class ListingRoutes:
    buckets: Buckets
    rows: ObjectRows

    @endpoint(
        "POST",
        "/object/list/<bucket>",
        Operation(
            "list",
            TAG,
            "The objects and folders in a folder",
            ok("Objects, and folders without an id", array(FILE)),
            (IN_BUCKET,),
            body_of(Wanted),
            _REFUSED,
        ),
    )
    async def list(self, request: Request) -> Reply:
        bucket, viewer = await readable(self.buckets, request)
        body = await read_body(request, Wanted)
        folder = (body.prefix or "").strip("/")
        prefix = keys.parse_prefix(f"{folder}/" if folder else "")
        column, descending = body.sorting
        search = keys.parse_prefix(body.search or "", "search")
        wanted = Entries(prefix, cast(Any, column), descending, search)
        limit = min(body.limit or DEFAULT_PAGE_KEYS, MAX_PAGE_KEYS)
        found = await self.rows.entries(bucket.name, wanted, body.offset or 0, limit, None, viewer)
        begin = len(prefix)
        shown = [
            _folder(entry[begin:-1]) if isinstance(entry, str) else listed(entry, entry.key[begin:])
            for entry in found
        ]
        return _reply(bucket, shown)

    @endpoint(
        "POST",
        "/object/list-v2/<bucket>",
        Operation(
            "listV2",
            TAG,
            "A page of the objects of a bucket",
            ok("A page", _LISTING),
            (IN_BUCKET,),
            body_of(WantedAfter),
            _REFUSED,
        ),
    )
    async def list_after(self, request: Request) -> Reply:
        bucket, viewer = await readable(self.buckets, request)
        body = await read_body(request, WantedAfter)
        prefix = keys.parse_prefix(body.prefix or "")
        column, descending = body.sorting
        wanted = Entries(prefix, cast(Any, column), descending, "", not body.with_delimiter)
        limit = min(body.limit or MAX_PAGE_KEYS, MAX_PAGE_KEYS)
        # storage3 sends "" for the first page.
        after, offset = decode_cursor(body.cursor, wanted) if body.cursor else (None, 0)
        found = await self.rows.entries(bucket.name, wanted, offset, limit + 1, after, viewer)
        shown, more = found[:limit], len(found) > limit
        page: dict[str, Any] = {
            "hasNext": more,
            "folders": [{"key": one[:-1], "name": one} for one in shown if isinstance(one, str)],
            "objects": [
                {**listed(one, one.key), "key": one.key} for one in shown if not isinstance(one, str)
            ],
        }
        if more:
            last = shown[-1]
            name = last if isinstance(last, str) else last.key
            page["nextCursor"] = encode_cursor(wanted, name, offset + limit)
        return _reply(bucket, page)


def encode_cursor(wanted: Entries, last: str, offset: int) -> str:
    """Where the next page of a listing begins: in the order of keys after the entry ``last``, so that pages do not
    shift when objects come or go; in any other after ``offset`` entries. It is no secret."""
    position = last if _in_order(wanted) else offset
    return base64url.encode(orjson.dumps([_VERSION, position, *astuple(wanted)]))


def decode_cursor(text: str, wanted: Entries) -> tuple[str | None, int]:
    """After which entry, and how many more to pass over. Raises ``validation_failed`` for a cursor that is not of
    this very listing."""
    bad = validation_failed({"cursor": "is not a cursor of this listing"})
    try:
        version, position, *listing = orjson.loads(base64url.decode(text))
        if version != _VERSION or listing != [*astuple(wanted)]:
            raise bad
        if _in_order(wanted):
            if not isinstance(position, str) or not position.startswith(wanted.prefix):
                raise bad
            # The entry is a key or a folder, so it has to be a possible prefix.
            return keys.parse_prefix(position), 0
        number = whole_numbers.from_json(position)
        if number is None or not 0 <= number <= _MANY:
            raise bad
        return None, number
    except (ValueError, TypeError, ApiError):
        raise bad from None


def _in_order(wanted: Entries) -> bool:
    return wanted.by == "name" and not wanted.descending


def _folder(name: str) -> dict[str, Any]:
    nothing = ("id", "updated_at", "created_at", "last_accessed_at", "metadata")
    return {"name": name, **dict.fromkeys(nothing)}


def _reply(bucket: Bucket, value: object) -> Reply:
    return json_reply(value, headers=(NO_STORE if bucket.public else NOT_SHARED,))
