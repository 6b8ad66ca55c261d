"""The queries of listings. Each makes a page as JSON, ready for the reply. Pure.

By key (``page_query``) there are folders, which are passed over in the index: a page costs one index probe for each
of its entries, however much is in its folders, and however far it is from the first page.

Sorted or searched (``sorted_query``) there are none. Rows are looked at in the order of an index, from where the
page before ended. Without a search each of them is shown. With one, or with a prefix that the index does not know,
most may not be: a page looks at ``SCANNED_ROWS`` at most, and says where to go on. So every page costs the same,
without an extension for searching in texts.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from project_service.storage import keys
from project_service.storage.values import Sorting

Params = tuple[str, ...]

# An object as the listing shows it, as ``ObjectRow.as_json`` has it. PostgreSQL writes a hundred in the time Python
# takes for ten.
_OBJECT = """json_build_object(
        'key', key,
        'size', size,
        'content_type', content_type,
        'last_modified', to_char(updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'etag', etag
    )"""

# What a listing shows.
_COLUMNS = ", ".join(f"o.{column}" for column in ("key", "size", "content_type", "etag", "updated_at"))

_FLAT = """
select null::text as folder, {columns}
from storage.objects o
where {first}
order by {order} limit %s::integer
"""

# Each step looks in the index for the first key after the entry before it (after the whole folder, if that was one).
# "slash" is the position of the first slash after the prefix, where the key's folder ends; 0 if it is in no folder.
_WALK = """
with recursive walk as (
    (
        select {columns}, strpos(substr(o.key, %s::integer), '/') as slash, 1 as n
        from storage.objects o
        where {first}
        order by {order} limit 1
    )
    union all
    select next.*, walk.n + 1
    from walk cross join lateral (
        select {columns}, strpos(substr(o.key, %s::integer), '/') as slash
        from storage.objects o
        where {next}
        order by {order} limit 1
    ) next
    where walk.n < %s::integer
)
select case when o.slash > 0 then substr(o.key, 1, %s::integer + o.slash) end as folder, {columns}
from walk o order by o.n
"""

_AFTER = """case
            when walk.slash > 0 then substr(walk.key, 1, %s::integer + walk.slash - 1) || %s::text
            else walk.key || %s::text
        end"""


def _within(start: str, bounded: bool, owned: bool) -> str:
    """The condition for keys from ``start``, below the end of the prefix, of one owner or of all."""
    if not owned:
        return f"o.bucket = %s and o.key >= {start}" + (" and o.key < %s" if bounded else "")
    # Whole rows are compared, which only the index on these three columns can do in order. With "owner = ..." a plan
    # for any parameters may walk through everybody's keys and skip those of others: it does not know how
    # few are the caller's.
    end = (
        "(o.bucket, o.owner, o.key) < (%s, %s::uuid, %s)"
        if bounded
        else "(o.bucket, o.owner) <= (%s, %s::uuid)"
    )
    return f"(o.bucket, o.owner, o.key) >= (%s, %s::uuid, {start}) and {end}"


_PAGE = """
with entries as (select e.*, row_number() over () as position from ({entries}) e)
select
    coalesce(json_agg({object} order by position) filter (where folder is null and position < %s::integer),
        '[]')::text,
    coalesce(json_agg(folder order by position) filter (where folder is not null and position < %s::integer),
        '[]')::text,
    case when count(*) = %s::integer
        then (array_agg(coalesce(folder, key)) filter (where position = %s::integer - 1))[1]
    end
from entries
"""


def page_query(
    bucket: str, prefix: str, after: str | None, limit: int, recursive: bool, owner: UUID | None = None
) -> tuple[str, Params]:
    """SQL and parameters, all as text; one row: the objects and the folders as JSON arrays, and the last entry if
    more follow."""
    end = keys.end_of_prefix(prefix)
    start = prefix if after is None else keys.position_after(after)
    scope: Params = (bucket,) if owner is None else (bucket, str(owner))
    below: Params = () if end is None else (end,)
    if owner is not None:
        below = (*scope, *below)
    sql = _page_sql(recursive, end is not None, owner is not None)
    more = str(limit + 1)
    entries: Params = (*scope, start, *below, more)
    if not recursive:
        length, behind = str(len(prefix)), str(len(prefix) + 1)
        first = (behind, *scope, start, *below)
        following = (behind, *scope, length, keys.AFTER_SLASH, keys.LEAST_CHARACTER, *below, more)
        entries = (*first, *following, length)
    return sql, (*entries, more, more, more, more)


@lru_cache
def _page_sql(recursive: bool, bounded: bool, owned: bool) -> str:
    first, following = (_within(start, bounded, owned) for start in ("%s", _AFTER))
    order = "o.bucket, o.owner, o.key" if owned else "o.key"
    query = _FLAT if recursive else _WALK
    entries = query.format(columns=_COLUMNS, first=first, next=following, order=order)
    return _PAGE.format(entries=entries, object=_OBJECT)


# Sorted or searched.

SCANNED_ROWS = 5000
_MOMENT = """to_char(updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
# What a listing is sorted by (``values.SORTS``): the columns, their parameters, and the first as text. Each needs an
# index, in ``database/migrations``, and texts the collation of it.
SORTED_BY = {
    "key": (("key",), ("%s",), "''"),
    "size": (("size", "key"), ("%s::bigint", "%s"), "size::text"),
    "last_modified": (("updated_at", "key"), ("%s::timestamptz", "%s"), _MOMENT),
}

_SORTED = """
with seen as (
    select s.*, row_number() over () as position
    from (
        select {columns}
        from storage.objects o where {scope} order by {order} limit %s::integer
    ) s
), hits as (
    select h.*, row_number() over () as n
    from (select * from seen where {wanted} order by position limit %s::integer) h
)
select
    coalesce(json_agg({object} order by n) filter (where n < %s::integer), '[]')::text,
    case when count(*) = %s::integer then (array_agg(array[{first}, key]) filter (where n = %s::integer - 1))[1:1]
        else (select array[array[{first}, key]] from seen where position = %s::integer)
    end::text[]
from hits
"""


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
    columns, parameters, first = SORTED_BY[sorting.by]
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
        # The collation of keys knows no letters but those of ASCII.
        wanted.append('strpos(lower(substr(key, %s::integer) collate "default"), lower(%s)) > 0')
        tests += [str(len(prefix) + 1), sorting.search]
    more = str(limit + 1)
    scanned = str(max(SCANNED_ROWS, limit + 1)) if tests else more
    sql = _SORTED.format(
        columns=_COLUMNS,
        scope=" and ".join(scope),
        order=", ".join(f"o.{column}{direction}" for column in columns),
        wanted=" and ".join(wanted),
        first=first,
        object=_OBJECT,
    )
    return sql, (*values, scanned, *tests, more, more, more, more, scanned)
