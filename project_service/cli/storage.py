"""``project-service storage``: verify, sweep, import."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click
from attrs import asdict, define, field

from project_service.cli import frame
from project_service.cli.opened import Opened
from project_service.errors import ApiError
from project_service.storage import content_types, keys
from project_service.storage.assemble import Storage, build, sql_rows
from project_service.storage.model import Bucket, Conditions, Writer
from project_service.storage.objects import Described, Fill
from project_service.storage.sweeper import STALE_AFTER
from project_service.storage.upload import PartStream

READ_BYTES = 1024 * 1024
SERVICE = Writer(None, is_service=True)


@click.group()
def command() -> None:
    """The objects behind the buckets: check them, clean up, bring files in."""


def _storage(open_: Opened) -> Storage:
    return build(open_.reactor, open_.settings.storage, open_.store, sql_rows(open_.pool))


@command.command()
@frame.options
def verify(invocation: frame.Invocation) -> None:
    """Compare every object with the store. Exit code 1 where bytes are missing or differ; changes nothing.

    What is only in the store is garbage, which `storage sweep` removes; it is no fault.
    """

    async def work(open_: Opened) -> None:
        report = await _storage(open_).sweeper.verify()
        faults = [f"missing  {name}" for name in report.missing] + [
            f"torn     {name}" for name in report.torn
        ]
        summary = (
            f"{report.objects} objects, {len(faults)} faults, {len(report.unproven)} unproven,"
            f" {len(report.orphans)} orphans in the store"
        )
        invocation.show({**asdict(report), "sound": report.sound}, *faults, summary)
        if not report.sound:
            raise frame.Failed("the store does not have what the database says")

    invocation.run(work, store=True)


@command.command()
@click.option(
    "--stale-after",
    type=click.IntRange(min=0),
    default=int(STALE_AFTER.total_seconds()),
    show_default=True,
    metavar="SECONDS",
    help="Uploads that were silent for so long are given up. 0 only where no service runs.",
)
@frame.options
def sweep(invocation: frame.Invocation, stale_after: int) -> None:
    """Remove garbage: dead uploads, versions no object has, stale multipart uploads, expired links.

    Unlike the service's own sweeper it looks through the whole store. The store bucket must belong to this
    database alone.
    """

    async def work(open_: Opened) -> None:
        swept = await _storage(open_).sweeper.sweep(timedelta(seconds=stale_after), orphans=True)
        invocation.show(asdict(swept), ", ".join(f"{name} {count}" for name, count in asdict(swept).items()))

    invocation.run(work, store=True)


@define
class _Imported:
    """What became of each file; ``refused`` has a reason for each."""

    imported: list[str] = field(factory=list)
    skipped: list[str] = field(factory=list)
    refused: dict[str, str] = field(factory=dict)


@command.command("import")
@click.argument("bucket")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--prefix", default="", help="Put before every file's path within DIRECTORY.")
@click.option("--overwrite", is_flag=True, help="Replace objects that are there already.")
@frame.options
def import_(invocation: frame.Invocation, bucket: str, directory: Path, prefix: str, overwrite: bool) -> None:
    """Upload every file below DIRECTORY into BUCKET, past its rules on owners and content types.

    May be repeated: what is there already stays, unless --overwrite is given.
    """
    conditions = Conditions() if overwrite else Conditions(if_none_match=("*",))
    result = _Imported()
    files = _files(directory, prefix)

    async def work(open_: Opened) -> None:
        storage = _storage(open_)
        target = await storage.buckets.fresh(bucket)
        limit = target.rules.max_object_bytes or open_.settings.storage.max_object_bytes
        for path, key in files:
            await _import_one(storage, target, limit, path, key)
        refusals = [f"refused  {key}: {why}" for key, why in result.refused.items()]
        counts = (
            f"{len(result.imported)} imported, {len(result.skipped)} there already, {len(refusals)} refused"
        )
        invocation.show(asdict(result), *refusals, counts)
        if refusals:
            raise frame.Failed("not every file could be imported")

    async def _import_one(storage: Storage, target: Bucket, limit: int, path: Path, key: str) -> None:
        try:
            fill = _file(path, keys.parse_key(key))
            await storage.objects.check_write(target, key, SERVICE, conditions)
            await storage.objects.upload(target, SERVICE, conditions, limit, limit, fill)
        except ApiError as error:
            if error.status >= 500:
                raise
            if error.code == "object_exists":
                result.skipped.append(key)
            else:
                result.refused[key] = error.message
        else:
            result.imported.append(key)

    invocation.run(work, store=True)


def _files(directory: Path, prefix: str) -> list[tuple[Path, str]]:
    """Every file with its key, in order."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(path, prefix + path.relative_to(directory).as_posix()) for path in found]


def _file(path: Path, key: str) -> Fill:
    content_type = content_types.guess(key)

    async def fill(parts: PartStream) -> Described:
        parts.describe(content_type, key)
        for data in _pieces(path):
            await parts.write(data)
        return Described(key, content_type)

    return fill


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            yield data
