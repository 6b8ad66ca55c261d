"""The queries of listings. Each makes a page as JSON, ready for the reply. Pure.

By key (``page_query``) there are folders, which are passed over in the index: a page costs one index probe for each
of its entries, however much is in its folders, and however far it is from the first page.

Sorted or searched (``sorted_query``) there are none. Rows are looked at in the order of an index, from where the
page before ended. Without a search each of them is shown. With one, or with a prefix that the index does not know,
most may not be: a page looks at ``SCANNED_ROWS`` at most, and says where to go on. So every page costs the same,
without an extension for searching in texts.

By offset (``entries_query``) a page is what clients ask for that count entries. It costs as much as the entries that
it passes, of which there may be ``MAX_PASSED``.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from project_service.storage import keys
from project_service.storage.rows.columns import COLUMNS
from project_service.storage.values import Entries, Sorting

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
    more = str(limit + 1)
    entries, params = _in_order_of_keys(bucket, prefix, after, limit + 1, recursive, owner, _COLUMNS)
    return _page_sql(entries), (*params, more, more, more, more)


@lru_cache
def _page_sql(entries: str) -> str:
    return _PAGE.format(entries=entries, object=_OBJECT)


def _in_order_of_keys(
    bucket: str,
    prefix: str,
    after: str | None,
    count: int,
    recursive: bool,
    owner: UUID | None,
    columns: str,
) -> tuple[str, Params]:
    """SQL and parameters of the first ``count`` entries after the entry ``after``: ``folder``, null for an object,
    and the ``columns`` of an object, which for a folder are those of the first one in it."""
    end = keys.end_of_prefix(prefix)
    start = prefix if after is None else keys.position_after(after)
    scope: Params = (bucket,) if owner is None else (bucket, str(owner))
    below: Params = () if end is None else (end,)
    if owner is not None:
        below = (*scope, *below)
    sql = _entries_sql(recursive, end is not None, owner is not None, columns)
    if recursive:
        return sql, (*scope, start, *below, str(count))
    length, behind = str(len(prefix)), str(len(prefix) + 1)
    first = (behind, *scope, start, *below)
    following = (behind, *scope, length, keys.AFTER_SLASH, keys.LEAST_CHARACTER, *below, str(count))
    return sql, (*first, *following, length)


@lru_cache
def _entries_sql(recursive: bool, bounded: bool, owned: bool, columns: str) -> str:
    first, following = (_within(start, bounded, owned) for start in ("%s", _AFTER))
    order = "o.bucket, o.owner, o.key" if owned else "o.key"
    query = _FLAT if recursive else _WALK
    return query.format(columns=columns, first=first, next=following, order=order)


# By offset. In the order of keys no more is passed than the page needs; else all entries that there are.

# So many take about a second.
MAX_PASSED = 50_000
_WHOLE = ", ".join(f"o.{column.partition(':')[0]}" for column in COLUMNS)
_NAME = "coalesce(folder, key)"

_BY_OFFSET = """
with entries as ({entries}), found as (
    select e.*, row_number() over (order by {order}) as position from entries e where {wanted}
), passed as (select count(*) as n from entries)
select passed.n, f.folder, {columns}
from passed left join (
    select * from found where position > %s::integer and position <= %s::integer
) f on true order by f.position
"""


def entries_query(
    bucket: str, wanted: Entries, offset: int, limit: int, after: str | None, owner: UUID | None
) -> tuple[str, Params]:
    """SQL and parameters, all as text. Each row has the number of entries that were passed, a folder or null, and the
    columns of an object; where there is no entry there is one row, with nulls. ``MAX_PASSED`` is how many are passed
    at most, but for one."""
    count = offset + limit if wanted.in_order else MAX_PASSED + 1
    entries, params = _in_order_of_keys(bucket, wanted.prefix, after, count, wanted.recursive, owner, _WHOLE)
    tests: Params = ()
    if wanted.search:
        # The collation of keys knows no letters but those of ASCII.
        tests = (str(len(wanted.prefix) + 1), wanted.search)
    sql = _by_offset_sql(entries, wanted.by, wanted.descending, bool(tests))
    return sql, (*params, *tests, str(offset), str(offset + limit))


@lru_cache
def _by_offset_sql(entries: str, by: str, descending: bool, searched: bool) -> str:
    direction = " desc" if descending else ""
    order = f"{_NAME}{direction}"
    if by != "name":
        order = f"(folder is null), case when folder is null then {by} end{direction}, {order}"
    wanted = "true"
    if searched:
        wanted = f'starts_with(lower(substr({_NAME}, %s::integer) collate "default"), lower(%s))'
    columns = ", ".join(f"f.{column}" for column in COLUMNS)
    return _BY_OFFSET.format(entries=entries, order=order, wanted=wanted, columns=columns)


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
