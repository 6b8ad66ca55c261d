"""The query of a listing that is sorted or searched: keyset pages without folders. Pure.

Rows are looked at in the order of an index, from where the page before ended. Without a search each of them is shown.
With one, or with a prefix that the index does not know, most may not be: a page looks at ``SCANNED_ROWS`` at most,
and says where to go on. So every page costs the same, without an extension for searching in texts.
"""

from __future__ import annotations

from uuid import UUID

from project_service.storage import keys
from project_service.storage.values import Sorting

SCANNED_ROWS = 5000
MOMENT = """to_char(updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
# What a listing is sorted by: the columns, their parameters, and the first as text.
_ORDERS = {
    "key": (("key",), ("%s",), "''"),
    "size": (("size", "key"), ("%s::bigint", "%s"), "size::text"),
    "last_modified": (("updated_at", "key"), ("%s::timestamptz", "%s"), MOMENT),
}

_PAGE = """
with seen as (
    select s.*, row_number() over () as position
    from (
        select o.key, o.size, o.content_type, o.etag, o.updated_at
        from storage.objects o where {scope} order by {order} limit %s::integer
    ) s
), hits as (
    select h.*, row_number() over () as n
    from (select * from seen where {wanted} order by position limit %s::integer) h
)
select
    coalesce(json_agg(json_build_object(
        'key', key,
        'size', size,
        'content_type', content_type,
        'last_modified', to_char(updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'etag', etag
    ) order by n) filter (where n < %s::integer), '[]')::text,
    case when count(*) = %s::integer then (array_agg(array[{first}, key]) filter (where n = %s::integer - 1))[1:1]
        else (select array[array[{first}, key]] from seen where position = %s::integer)
    end::text[]
from hits
"""

Params = tuple[str, ...]


def sorted_query(
    bucket: str,
    prefix: str,
    sorting: Sorting,
    after: tuple[str, str] | None,
    limit: int,
    owner: UUID | None = None,
) -> tuple[str, Params]:
    """SQL and parameters, all as text; one row: the objects as a JSON array, and ``SortedPage.last`` in a list, or
    null."""
    columns, parameters, first = _ORDERS[sorting.by]
    scope, values = ["o.bucket = %s"], [bucket]
    if owner is not None:
        scope.append("o.owner = %s::uuid")
        values.append(str(owner))
    end = keys.end_of_prefix(prefix)
    if sorting.by == "key":
        scope.append("o.key >= %s")
        values.append(prefix)
        if end is not None:
            scope.append("o.key < %s")
            values.append(end)
    if after is not None:
        names = ", ".join(f"o.{column}" for column in columns)
        scope.append(f"({names}) {'<' if sorting.descending else '>'} ({', '.join(parameters)})")
        values += after[-len(columns) :]
    direction = " desc" if sorting.descending else ""
    wanted, tests = ["true"], []
    if sorting.by != "key" and prefix:
        wanted.append("starts_with(key, %s)")
        tests.append(prefix)
    if sorting.search:
        wanted.append("strpos(lower(substr(key, %s::integer)), lower(%s)) > 0")
        tests += [str(len(prefix) + 1), sorting.search]
    more = str(limit + 1)
    scanned = str(max(SCANNED_ROWS, limit + 1)) if tests else more
    sql = _PAGE.format(
        scope=" and ".join(scope),
        order=", ".join(f"o.{column}{direction}" for column in columns),
        wanted=" and ".join(wanted),
        first=first,
    )
    return sql, (*values, scanned, *tests, more, more, more, more, scanned)
