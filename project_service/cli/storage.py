"""``project-service storage``: verify, sweep, links, orphans, import."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from functools import partial
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import click
from attrs import asdict, define, evolve, field
from orjson import dumps

from project_service.cli import project_options
from project_service.cli.invocation import (
    Failed,
    Invocation,
    Listing,
    Project,
    common_options,
    on_a_line,
    on_project,
)
from project_service.cli.orphans import Names
from project_service.errors import ApiError
from project_service.files import printable
from project_service.lifecycle import shield, timestamp
from project_service.settings.kinds import SIZE_FORM, bytes_of, store_bucket
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.durations import STALE_AFTER
from project_service.storage.objects import Objects
from project_service.storage.parsing.details import MAX_METADATA_BYTES, with_field
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.rows.links import LinkRows
from project_service.storage.s3.client import S3Store, connect_store
from project_service.storage.s3.errors import BrokenRead, NoSuchObject
from project_service.storage.s3.reading import list_all, read_all
from project_service.storage.s3.xml import StoredStat
from project_service.storage.sha256 import Reader
from project_service.storage.sweeper import Verified
from project_service.storage.upload import SizeLimit, Upload
from project_service.storage.values import NO_DETAILS, SERVICE, Bucket, Conditions, Details, Link

READ_BYTES = 1024 * 1024
LINKS_AT_ONCE = 1000
FROM_STORE = "s3://"

# Writes one file or object into the upload, given the key that it is to have; returns its media type and its details.
Read = Callable[[str, Upload], Awaitable[tuple[str, Details]]]
# Files or objects: the name within the source, and what reads it.
Files = AsyncIterator[tuple[str, Read]]


@click.group()
@project_options
def storage() -> None:
    """The objects in the buckets: verify them, remove garbage, compare them with a table, import files; and links."""


def _rate(context: click.Context, option: click.Parameter, text: str | None) -> int:
    """Bytes in a second; 0 for no limit."""
    if text is None:
        return 0
    if not context.params["contents"]:
        raise click.BadParameter("is for --contents")
    number = bytes_of(text)
    if not number:
        raise click.BadParameter(f"must be {SIZE_FORM}")
    return number


def _bucket_and_key(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[str, str] | None:
    if text is None:
        return None
    bucket, slash, key = text.partition("/")
    if not (bucket and slash):
        raise click.BadParameter("must be a bucket and a key, as photos/trip/1.jpg")
    return bucket, key


@storage.command()
@click.option(
    "--contents",
    is_flag=True,
    is_eager=True,
    help="Also read the bytes of objects that have a SHA-256, and compare it.",
)
@click.option(
    "--rate",
    metavar="SIZE",
    callback=_rate,
    help="With --contents: read at most so much in a second, as 50MB.",
)
@click.option(
    "--after",
    metavar="BUCKET/KEY",
    callback=_bucket_and_key,
    help="Check only objects after this one, by bucket and key, to go on there.",
)
@on_project(store=True)
async def verify(
    invocation: Invocation, project: Project, contents: bool, rate: int, after: tuple[str, str] | None
) -> None:
    """Compare every object with the store. Exit code 1 if bytes are missing or differ. Changes nothing.

    Size and ETag are compared, and with --contents the SHA-256 of the bytes, which are all read for that. Then stderr
    has a line of how far it has come, with which --after goes on.

    Bytes that only the store has are no fault: they are garbage, which `storage sweep` removes.
    """
    sweeper, report = project.storage.sweeper, Verified()
    reader = Reader(sweeper.store, project.reactor, rate) if contents else None
    async for _ in sweeper.verifying(report, after, reader):
        if reader is not None:
            click.echo(f"{report.objects} objects, up to {report.last}", err=True)
    faults = [
        *(f"missing  {name}" for name in report.missing),
        *(f"torn     {name}" for name in report.torn),
        *(f"damaged  {name}" for name in report.damaged),
    ]
    summary = (
        f"{report.objects} objects, {len(faults)} faults, {len(report.unproven)} unproven,"
        f" {len(report.orphans)} orphans in the store"
    )
    if contents:
        summary += f", {report.without_sha256} without SHA-256"
    invocation.show({**asdict(report), "sound": report.sound}, *faults, summary)
    if not report.sound:
        raise Failed("the store does not have what the database says")


@storage.command()
@click.option(
    "--stale-after",
    type=click.IntRange(0, 10**9),
    default=int(STALE_AFTER.total_seconds()),
    show_default=True,
    metavar="SECONDS",
    help="Give up uploads without progress for this long. Use 0 only if no service runs.",
)
@on_project(store=True)
async def sweep(invocation: Invocation, project: Project, stale_after: int) -> None:
    """Remove garbage: abandoned uploads, versions of no object, stale multipart uploads, expired links.

    Unlike the service's own sweeper this looks through the whole store. The store's bucket must belong to this
    database alone.
    """
    swept = await project.storage.sweeper.sweep(timedelta(seconds=stale_after), orphans=True)
    invocation.show(asdict(swept), ", ".join(f"{name} {count}" for name, count in asdict(swept).items()))


@storage.command()
@click.argument("bucket", required=False)
@click.option("--created-by", type=click.UUID, metavar="USER_ID", help="Only the links that this user made.")
@click.option("--id", "ids", type=click.UUID, multiple=True, help="Only this link; may be repeated.")
@click.option("--revoke", is_flag=True, help="Revoke what is listed.")
@on_project()
async def links(
    invocation: Invocation,
    project: Project,
    bucket: str | None,
    created_by: UUID | None,
    ids: tuple[UUID, ...],
    revoke: bool,
) -> None:
    """List the links for downloads and uploads that have not expired, in BUCKET or in all; or revoke them.

    Tokens are not shown: only their digests are stored.
    """
    buckets, rows = Buckets(BucketRows(project.pool), project.reactor), LinkRows(project.pool)
    chosen = await buckets.all() if bucket is None else [await buckets.fresh(bucket)]
    found = [
        link
        for one in chosen
        async for link in _links_of(rows, one.name, created_by)
        if not ids or link.id in ids
    ]
    if revoke:
        for link in found:
            await rows.revoke(link.bucket, link.id, None)
    shown = [{"bucket": link.bucket, **link.as_json()} for link in found]
    count = f"{len(found)} links{' revoked' if revoke else ''}"
    invocation.show(shown, *map(_link_line, found), count)


async def _links_of(rows: LinkRows, bucket: str, creator: UUID | None) -> AsyncIterator[Link]:
    after: tuple[datetime, UUID] | None = None
    now = datetime.now(UTC)
    while page := await rows.page(bucket, now, creator, after, LINKS_AT_ONCE):
        for link in page:
            yield link
        after = (page[-1].created_at, page[-1].id)


def _link_line(link: Link) -> str:
    key = f"{link.key}*" if link.upload is not None and link.upload.by_prefix else link.key
    uses = "any number of uses" if link.uses_left is None else f"{link.uses_left} uses left"
    creator = "a service" if link.created_by is None else str(link.created_by)
    expiry = timestamp(link.expires_at)
    return f"{link.id}  {link.method}  {link.bucket}/{key}  {uses}, until {expiry}, by {creator}"


@storage.command()
@click.option(
    "--table",
    required=True,
    metavar="NAME",
    help="The table, as in SQL: files, or app.files in another schema.",
)
@click.option("--column", required=True, metavar="NAME", help="Its column that names objects.")
@click.option(
    "--bucket",
    metavar="NAME",
    help="The column has keys of this bucket. Without it: BUCKET/KEY, as photos/1.jpg.",
)
@click.option(
    "--older-than",
    type=click.IntRange(0, 10**9),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="Pass over objects that were stored later than that: their rows may be on the way.",
)
@click.option("--delete", is_flag=True, help="Delete the objects that no row names. Rows stay.")
@on_project()
async def orphans(
    invocation: Invocation,
    project: Project,
    table: str,
    column: str,
    bucket: str | None,
    older_than: int,
    delete: bool,
) -> None:
    """List the objects that no row of a table names, and the rows that name no object.

    The table is in the system database. Without --bucket all buckets count that some row has in its column. The lists
    show one moment, and are printed while they are read. Nothing changes without --delete. That looks up each object
    once more before it deletes it, and leaves the bytes to the sweeper.
    """
    age, listing = timedelta(seconds=older_than), Listing(invocation.json)
    async with project.connection(unhurried=True) as connection:
        names = await Names.of(connection, table, column, bucket)
        await connection.execute("begin isolation level repeatable read read only")
        if delete and not await names.fit(connection):
            raise Failed(
                f"no row of {table} names an object by {column}: is it another column? Nothing was deleted"
            )

        async def objects() -> AsyncIterator[str]:
            async for found in names.objects(connection, age):
                gone = await names.delete(project.pool, found) if delete else None
                for name in [f"{of}/{key}" for of, key, _ in found] if gone is None else gone:
                    yield name

        async def rows() -> AsyncIterator[str]:
            async for found in names.rows(connection):
                for name in found:
                    yield name

        without_row = await listing.show("deleted" if delete else "objects", objects())
        without_object = await listing.show("rows", rows())
    what = "objects deleted" if delete else "objects that no row names"
    listing.end(f"{without_row} {what}, {without_object} rows that name no object")


@define
class _Import:
    """Imports objects into ``bucket`` and records what became of each. ``refused`` has the reason by key."""

    buckets: Buckets
    objects: Objects
    bucket: Bucket
    limit: int
    conditions: Conditions
    imported: list[str] = field(factory=list, init=False)
    skipped: list[str] = field(factory=list, init=False)
    refused: dict[str, str] = field(factory=dict, init=False)

    async def bring(self, key: str, read: Read) -> None:
        """Import one object. Raises only errors that concern more than this object."""
        try:
            keys.parse_new_key(key)
            await self.objects.uploads.check(self.bucket, key, SERVICE, self.conditions)
            async with await self.objects.uploads.begin(self.bucket.name, SizeLimit(self.limit)) as upload:
                content_type, details = await read(key, upload)
                # An import takes long, and there may be another bucket of that name by now.
                await self.buckets.same(self.bucket)
                await upload.store()
                # Shielded, so that a command that is interrupted ends here.
                await shield(upload.commit(key, content_type, details, SERVICE, self.conditions))
        except ApiError as error:
            if error.status >= 500 or error.code == "bucket_not_found":
                raise
            if error.code == "object_exists":
                self.skipped.append(key)
            else:
                self._refuse(key, error.message)
        except NoSuchObject:
            self._refuse(key, "It is no longer in the source.")
        except Unreadable as why:
            self._refuse(key, f"It cannot be read: {why}.")
        except BrokenRead:
            raise Failed(f"the store stopped in the middle of {key}; import again to go on") from None
        else:
            self.imported.append(key)

    def _refuse(self, key: str, why: str) -> None:
        self.refused[printable(key)] = why

    def show(self, invocation: Invocation) -> None:
        refusals = [f"refused  {on_a_line(key)}: {why}" for key, why in self.refused.items()]
        counts = f"{len(self.imported)} imported, {len(self.skipped)} there already, {len(refusals)} refused"
        value = {"imported": self.imported, "skipped": self.skipped, "refused": self.refused}
        invocation.show(value, *refusals, counts)


@storage.command("import")
@click.argument("bucket")
@click.argument("source", metavar="DIRECTORY|s3://BUCKET[/FOLDER]")
@click.option("--prefix", default="", help="Put this before every name.")
@click.option("--overwrite", is_flag=True, help="Replace existing objects.")
@common_options
def import_(invocation: Invocation, bucket: str, source: str, prefix: str, overwrite: bool) -> None:
    """Import files into BUCKET, whatever its rules on owners and content types.

    They come from below DIRECTORY, or from another bucket of the store at the [store] address, which is only read.
    The command may be repeated: existing objects stay, unless --overwrite is given.
    """
    if source.startswith(FROM_STORE):
        try:
            store_bucket(_bucket_and_folder(source)[0])
        except ValueError:
            raise click.BadParameter("names no bucket", param_hint="s3://BUCKET") from None
    elif not source or not Path(source).is_dir():
        # An empty one is probably a shell variable that is not set. It must not mean the current directory.
        raise click.BadParameter("there is no such directory", param_hint="DIRECTORY")

    async def operation(project: Project) -> None:
        storage = project.storage
        target = await storage.buckets.fresh(bucket)
        limit = target.rules.max_object_bytes or project.settings.storage.max_object_bytes
        conditions = Conditions() if overwrite else Conditions(if_none_match=("*",))
        importing = _Import(storage.buckets, storage.objects, target, limit, conditions)
        try:
            async with _files_of(project, source) as files:
                async for name, read in files:
                    await importing.bring(prefix + name, read)
        finally:
            await storage.reservations.release_all()
        importing.show(invocation)
        if importing.refused:
            raise Failed("not everything could be imported")

    invocation.run(operation, store=True)


@asynccontextmanager
async def _files_of(project: Project, source: str) -> AsyncIterator[Files]:
    if not source.startswith(FROM_STORE):
        yield files_in_directory(Path(source))
        return
    name, folder = _bucket_and_folder(source)
    if name == project.settings.store.bucket:
        raise Failed(f"{name} is where this service keeps its own objects")
    store = connect_store(project.reactor, evolve(project.settings.store, bucket=name))
    try:
        yield files_in_bucket(store, folder if folder.endswith("/") or not folder else f"{folder}/")
    finally:
        await store.close()


def _bucket_and_folder(source: str) -> tuple[str, str]:
    name, _, folder = source.removeprefix(FROM_STORE).partition("/")
    return name, folder


# What ``storage import`` reads from is a directory, or another bucket of the store.


class Unreadable(Exception):
    """A file or object could not be read as it is. The message says why."""


async def files_in_directory(directory: Path) -> Files:
    """All regular files, in order. Raises ``OSError`` if a folder cannot be listed."""

    def not_listed(fault: OSError) -> NoReturn:
        raise fault

    # Path.rglob() silently leaves out folders that cannot be listed.
    walked = os.walk(directory, onerror=not_listed)
    paths = [path for folder, _, names in walked for name in names if (path := Path(folder, name)).is_file()]
    for path in sorted(paths):
        yield path.relative_to(directory).as_posix(), partial(_read_file, path)


async def _read_file(path: Path, key: str, upload: Upload) -> tuple[str, Details]:
    content_type = keys.guess_content_type(key)
    upload.describe(content_type, key)
    try:
        with path.open("rb") as file:  # a command has nothing else to do
            while data := file.read(READ_BYTES):
                await upload.write(data)
    except OSError as fault:
        raise Unreadable(fault.strerror) from None
    return content_type, NO_DETAILS


async def files_in_bucket(store: S3Store, folder: str) -> Files:
    """The objects under ``folder`` ("" for all) in the bucket of ``store``."""
    async for page in list_all(store, folder):
        for entry in page.objects:
            # Other programs make such objects to represent empty folders.
            if not (entry.key.endswith("/") and entry.size == 0):
                yield entry.key.removeprefix(folder), partial(_read_object, store, entry.key)


async def _read_object(store: S3Store, name: str, key: str, upload: Upload) -> tuple[str, Details]:
    before = await store.stat(name)
    if _is_encoded(before.coding):
        raise Unreadable(f"its Content-Encoding, {before.coding}, would be forgotten")
    content_type, details = _type(before.content_type, key), _details(before)
    upload.describe(content_type, key)
    for first in range(0, before.size, READ_BYTES):
        length = min(READ_BYTES, before.size - first)
        await upload.write(await read_all(await store.open(name, first, length, before.size)))
    if await store.stat(name) != before:
        # It was overwritten while it was read, so what was read may be partly old and partly new.
        raise errors.precondition_failed()
    return content_type, details


def _type(declared: str, key: str) -> str:
    try:
        return keys.parse_content_type(declared)
    except ApiError:
        return keys.guess_content_type(key)


def _details(stored: StoredStat) -> Details:
    """What the source says of an object. A ``Cache-Control`` or language that no object may have is left out."""
    details = NO_DETAILS
    with suppress(ApiError):
        details = with_field(details, "cache_control", stored.cache_control)
    if stored.content_language:
        with suppress(ApiError):
            details = with_field(details, "content_language", stored.content_language)
    if not stored.metadata:
        return details
    members = {name: _decoded(value) for name, value in stored.metadata}
    try:
        return with_field(details, "metadata", dumps(members).decode())
    except ApiError:
        raise Unreadable(f"its metadata has more than {MAX_METADATA_BYTES} bytes, or NUL") from None


def _decoded(value: str) -> str:
    """A value of ``x-amz-meta-…``. What is not ASCII, some stores send as RFC 2047 has it."""
    try:
        return str(make_header(decode_header(value)))
    except (UnicodeError, LookupError, HeaderParseError):
        return value


def _is_encoded(coding: str) -> bool:
    """Whether bytes with this Content-Encoding are compressed or otherwise encoded.

    "aws-chunked" is only how an SDK has sent them. Some stores keep it, although it says nothing about the bytes.
    """
    return bool({one.strip().lower() for one in coding.split(",")} - {"", "identity", "aws-chunked"})
