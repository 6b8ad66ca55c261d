"""``project-service bucket``: create, list, update, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from project_service import whole_numbers
from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.errors import ApiError
from project_service.storage.buckets import Buckets, parse_rules
from project_service.storage.postgres import SqlBuckets
from project_service.storage.values import MAX_BYTES, Bucket, BucketRules


@click.group()
def command() -> None:
    """Buckets: who may read them and what they take."""


def _rules(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a bucket's rules to a command."""
    for option in (
        click.option("--public/--private", "public", default=None, help="Who may list and download."),
        click.option("--max-object-bytes", metavar="N|none", help="The greatest size of one object."),
        click.option(
            "--max-bucket-bytes", metavar="N|none", help="The greatest size of all objects together."
        ),
        click.option(
            "--content-type",
            "content_types",
            multiple=True,
            metavar="TYPE|any",
            help="A media type it takes, as image/png or image/*; may be repeated. `any` takes every one.",
        ),
        click.option(
            "--owner-only-writes/--shared-writes",
            "owner_only_writes",
            default=None,
            help="Whether only its owner may overwrite or delete an object.",
        ),
    ):
        function = option(function)
    return function


def _changes(
    public: bool | None,
    max_object_bytes: str | None,
    max_bucket_bytes: str | None,
    content_types: tuple[str, ...],
    owner_only_writes: bool | None,
) -> dict[str, Any]:
    """The rules that were given, by their names in ``/admin/buckets``. ``parse_rules`` checks them."""
    changes: dict[str, Any] = {}
    if public is not None:
        changes["visibility"] = "public" if public else "private"
    for name, text in (("max_object_bytes", max_object_bytes), ("max_bucket_bytes", max_bucket_bytes)):
        if text is not None:
            changes[name] = None if text == "none" else _whole(name, text)
    if content_types:
        changes["allowed_content_types"] = None if "any" in content_types else list(content_types)
    if owner_only_writes is not None:
        changes["owner_only_writes"] = owner_only_writes
    return changes


def _whole(name: str, text: str) -> int:
    number = whole_numbers.from_digits(text)
    if number is None or not 0 <= number <= MAX_BYTES[name]:
        why = f"must be none or a whole number up to {MAX_BYTES[name]}"
        raise click.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")
    return number


def _line(bucket: Bucket) -> str:
    counters = f"{bucket.object_count:>10} objects {bucket.total_bytes:>15} bytes"
    return f"{bucket.name:<30} {bucket.rules.visibility:<8} {counters}"


def _buckets(open_: Opened) -> Buckets:
    """Buckets without a store, so that an embedded one need not be started."""
    return Buckets(SqlBuckets(open_.pool), open_.reactor)


@command.command()
@click.argument("name")
@_rules
@shared.options
def create(invocation: shared.Invocation, name: str, **given: Any) -> None:
    """Make a bucket; private unless --public is given."""
    wanted = _changes(**given)

    async def work(open_: Opened) -> None:
        bucket = await _buckets(open_).create(name, BucketRules(**parse_rules(wanted)))
        invocation.show(bucket.as_json(), _line(bucket))

    invocation.run(work)


@command.command("list")
@shared.options
def list_(invocation: shared.Invocation) -> None:
    """All buckets, with how much is in them."""

    async def work(open_: Opened) -> None:
        found = await _buckets(open_).all()
        invocation.show([bucket.as_json() for bucket in found], *map(_line, found))

    invocation.run(work)


@command.command()
@click.argument("name")
@_rules
@shared.options
def update(invocation: shared.Invocation, name: str, **given: Any) -> None:
    """Change a bucket's rules. It holds everywhere within a second."""
    wanted = _changes(**given)

    async def work(open_: Opened) -> None:
        bucket = await _buckets(open_).change(name, parse_rules(wanted))
        invocation.show(bucket.as_json(), _line(bucket))

    invocation.run(work)


@command.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete its objects too.")
@shared.options
def delete(invocation: shared.Invocation, name: str, force: bool) -> None:
    """Delete a bucket; one that holds objects only with --force."""

    async def work(open_: Opened) -> None:
        try:
            await _buckets(open_).delete(name, open_.storage.objects if force else None)
        except ApiError as error:
            if error.code == "bucket_not_empty":
                raise shared.Failed("the bucket still holds objects; --force deletes them too") from None
            raise
        invocation.show({"name": name, "deleted": True}, f"deleted {name}")

    invocation.run(work, store=force)
