"""Objects that no row of a project's table names, and rows that name no object."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import groupby

from attrs import frozen

from project_service.cli.invocation import Failed
from project_service.database.connection import Connection, Row
from project_service.database.pool import Pool

BATCH = 1000

# A table and its column as SQL, and whether policies hide rows from this role.
_LOOK_UP = """
select format('%%I.%%I', n.nspname, c.relname), row_security_active(c.oid),
    (select format('%%I', a.attname) from pg_attribute a
     where a.attrelid = c.oid and a.attname = %(column)s and a.attnum > 0 and not a.attisdropped)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%(table)s)
"""
# As every change of objects does first.
_LOCK = """
select from storage.usage
where bucket = %(of)s and slot in (select storage.slot(key) from unnest(%(keys)s::text[]) key)
order by slot for update
"""


@frozen
class Names:
    """The column of a table that names objects: the keys of those in ``bucket`` or, where that is None, of all as
    bucket/key. ``table`` and ``column`` are SQL."""

    table: str
    column: str
    bucket: str | None

    @classmethod
    async def of(cls, connection: Connection, table: str, column: str, bucket: str | None) -> Names:
        """``table`` is a name as in SQL, found as in SQL, and ``column`` one without quotes. Raises ``Failed``
        if these cannot be what names objects."""
        # The connection has no search path, as all of the service's.
        await connection.query("reset search_path")
        rows = await connection.query(_LOOK_UP, {"table": table, "column": column})
        await connection.query("set search_path = ''")
        if not rows:
            raise Failed(f"there is no table {table} in the system database")
        name, hides, found = rows[0]
        if found is None:
            raise Failed(f"{name} has no column {column}")
        if hides:
            raise Failed(f"row-level security hides rows of {name} from this role: use the owner's DSN")
        if bucket is not None and not await connection.query(
            "select from storage.buckets where name = %s", (bucket,)
        ):
            raise Failed(f"there is no bucket {bucket}")
        return cls(name.replace("%", "%%"), found.replace("%", "%%"), bucket)

    @property
    def _name(self) -> str:
        """The name that rows have for the object ``o``, as SQL."""
        return "o.key" if self.bucket is not None else "(o.bucket || '/' || o.key)"

    @property
    def _of_row(self) -> str:
        # The tables may have different collations, and equal texts are equal in all that are compared here.
        return f't.{self.column}::text collate "C"'

    @property
    def _among(self) -> str:
        """Whether the object ``o`` is one of those that are to have a row, as SQL."""
        if self.bucket is not None:
            return "o.bucket = %(bucket)s"
        return f"o.bucket in (select split_part({self._of_row}, '/', 1) from {self.table} t)"

    async def fit(self, connection: Connection) -> bool:
        """Whether a row names an object at all."""
        rows = await connection.query(
            f"select exists (select from {self.table} t, storage.objects o"
            f" where {self._among} and {self._of_row} = {self._name})",
            {"bucket": self.bucket},
        )
        return bool(rows[0][0])

    async def objects(
        self, connection: Connection, older_than: timedelta
    ) -> AsyncIterator[list[tuple[str, str, str]]]:
        """The objects that no row names and that have been as they are for so long: bucket, key and version of each,
        in batches. ``connection`` is in a transaction."""
        query = (
            f"select o.bucket, o.key, o.version::text from storage.objects o"
            f" where o.updated_at <= now() - %(older_than)s and {self._among}"
            f" and not exists (select from {self.table} t where {self._of_row} = {self._name})"
            " order by o.bucket, o.key"
        )
        async for rows in _fetched(connection, query, {"bucket": self.bucket, "older_than": older_than}):
            yield [(bucket, key, version) for bucket, key, version in rows]

    async def rows(self, connection: Connection) -> AsyncIterator[list[str]]:
        """The names of rows that have no object, each once, in batches. ``connection`` is in a transaction."""
        query = (
            f"select distinct {self._of_row} as name from {self.table} t where t.{self.column} is not null"
            f" and not exists (select from storage.objects o where {self._of_row} = {self._name}"
            f"{' and o.bucket = %(bucket)s' if self.bucket is not None else ''}) order by name"
        )
        async for rows in _fetched(connection, query, {"bucket": self.bucket}):
            yield [name for (name,) in rows]

    async def delete(self, pool: Pool, found: list[tuple[str, str, str]]) -> list[str]:
        """Delete those that are still what was ``found`` and that still no row names, and leave the bytes to the
        sweeper. Returns their names."""
        gone: list[str] = []
        for bucket, group in groupby(found, key=lambda one: one[0]):
            objects = list(group)
            keys = [key for _, key, _ in objects]
            # Whoever changes one of these keys waits, so what the second statement sees is what it deletes.
            # It uses an index on the column if there is one.
            rows = await pool.query(
                f"{_LOCK}; select key from storage.delete_objects(%(of)s, array("
                f" select o.key from storage.objects o"
                f' where o.bucket = %(of)s and o.version = any(%(versions)s::uuid[]) and {self._name} collate "C"'
                f" <> all (array(select t.{self.column}::text from {self.table} t"
                f" where t.{self.column}::text = any(%(names)s::text[])))"
                "), null, true, null, null, null, null) where outcome = 'deleted' order by key",
                {
                    "of": bucket,
                    "keys": keys,
                    "names": keys if self.bucket is not None else [f"{bucket}/{key}" for key in keys],
                    "versions": [version for _, _, version in objects],
                },
            )
            gone += [f"{bucket}/{key}" for (key,) in rows]
        return gone


async def _fetched(connection: Connection, query: str, params: dict[str, object]) -> AsyncIterator[list[Row]]:
    await connection.execute(f"declare found no scroll cursor for {query}", params)
    while rows := await connection.query(f"fetch {BATCH} from found"):
        yield rows
    await connection.execute("close found")
