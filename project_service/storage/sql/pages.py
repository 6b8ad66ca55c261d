"""The listing query: keyset pages, and folders found by skipping over them in the index. Pure.

A page costs one index probe for each of its entries, however much is in the folders that it passes, and however far
it is from the first page.
"""

from __future__ import annotations

from functools import lru_cache

from project_service.storage import keys
from project_service.storage.sql.rows import COLUMNS

_COLUMNS = ", ".join(f"o.{column}" for column in COLUMNS)

_FLAT = """
select null::text as folder, {columns}
from storage.objects o
where o.bucket = %s and o.key >= %s {below}
order by o.key limit %s::integer
"""

# Each step looks in the index for the first key after the entry before it (after the whole folder, if that was one).
# "slash" is the position of the first slash after the prefix, where the key's folder ends; 0 if it is in no folder.
_WALK = """
with recursive walk as (
    (
        select {columns}, strpos(substr(o.key, %s::integer), '/') as slash, 1 as n
        from storage.objects o
        where o.bucket = %s and o.key >= %s {below}
        order by o.key limit 1
    )
    union all
    select next.*, walk.n + 1
    from walk cross join lateral (
        select {columns}, strpos(substr(o.key, %s::integer), '/') as slash
        from storage.objects o
        where o.bucket = %s and o.key >= case
            when walk.slash > 0 then substr(walk.key, 1, %s::integer + walk.slash - 1) || %s::text
            else walk.key || %s::text
        end {below}
        order by o.key limit 1
    ) next
    where walk.n < %s::integer
)
select case when o.slash > 0 then substr(o.key, 1, %s::integer + o.slash) end as folder, {columns}
from walk o order by o.n
"""


# The page as JSON, ready for the reply. PostgreSQL writes a hundred objects in the time Python takes for ten.
_AS_JSON = """
with entries as (select e.*, row_number() over () as place from ({entries}) e)
select
    coalesce(json_agg(json_build_object(
        'key', key,
        'size', size,
        'content_type', content_type,
        'last_modified', to_char(updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'etag', etag
    ) order by place) filter (where folder is null and place < %s::integer), '[]')::text,
    coalesce(json_agg(folder order by place) filter (where folder is not null and place < %s::integer), '[]')::text,
    case when count(*) = %s::integer
        then (array_agg(coalesce(folder, key)) filter (where place = %s::integer - 1))[1]
    end
from entries
"""

Params = tuple[str, ...]


def json_query(
    bucket: str, prefix: str, after: str | None, limit: int, recursive: bool
) -> tuple[str, Params]:
    """SQL and parameters; one row: the objects and the folders as JSON arrays, and the last entry if more follow."""
    _, params = query(bucket, prefix, after, limit, recursive)
    return _text(recursive, keys.end_of_prefix(prefix) is not None, True), params + (str(limit + 1),) * 4


def query(bucket: str, prefix: str, after: str | None, limit: int, recursive: bool) -> tuple[str, Params]:
    """SQL and parameters, all as text; one row more than ``limit`` tells that there is more.

    Each row is the folder that stands for it (or null) and an object's columns.
    """
    end = keys.end_of_prefix(prefix)
    below = () if end is None else (end,)
    start = prefix if after is None else keys.position_after(after)
    sql = _text(recursive, end is not None, False)
    if recursive:
        return sql, (bucket, start, *below, str(limit + 1))
    length, behind = str(len(prefix)), str(len(prefix) + 1)
    first = (behind, bucket, start, *below)
    following = (behind, bucket, length, keys.AFTER_SLASH, keys.LEAST, *below, str(limit + 1))
    return sql, (*first, *following, length)


@lru_cache
def _text(recursive: bool, bounded: bool, as_json: bool) -> str:
    below = "and o.key < %s" if bounded else ""
    entries = (_FLAT if recursive else _WALK).format(columns=_COLUMNS, below=below)
    return _AS_JSON.format(entries=entries) if as_json else entries
