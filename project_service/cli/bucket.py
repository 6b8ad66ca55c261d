"""``project-service bucket``: create, list, update, delete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from project_service.audit import Event
from project_service.cli import project_options
from project_service.cli.invocation import Failed, Invocation, Project, common_options, on_project
from project_service.errors import ApiError
from project_service.settings.kinds import SIZE_FORM, bytes_of
from project_service.storage.buckets import Buckets, parse_rules
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.values import MAX_BYTES, Bucket, BucketRules


@click.group()
@project_options
def bucket() -> None:
    """Buckets: who may read them and what they accept."""


def _rules(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a bucket's rules to a command."""
    for option in (
        click.option("--public/--private", "public", default=None, help="Who may list and download."),
        click.option(
            "--max-object-bytes", metavar="SIZE|none", help="The largest object, in bytes or as 10MB."
        ),
        click.option(
            "--max-bucket-bytes", metavar="SIZE|none", help="The largest size of all objects together."
        ),
        click.option(
            "--content-type",
            "content_types",
            multiple=True,
            metavar="TYPE|any",
            help="A media type to accept, such as image/png or image/*; may be repeated. `any` accepts all.",
        ),
        click.option(
            "--owner-only-writes/--shared-writes",
            "owner_only_writes",
            default=None,
            help="Whether only the owner of an object may overwrite or delete it.",
        ),
        click.option(
            "--owner-only-reads/--no-owner-only-reads",
            " /--shared-reads",
            "owner_only_reads",
            default=None,
            help="Whether an object is seen only by its owner, who alone may change it then.",
        ),
        click.option(
            "--anonymous-reads/--no-anonymous-reads",
            "anonymous_reads",
            default=None,
            help="Whether a public bucket's objects are shown to anybody, without a key, at /storage/public.",
        ),
        click.option(
            "--policies/--no-policies",
            default=None,
            help="Whether row-level security on storage.objects decides what users may do.",
        ),
        click.option(
            "--cache-control",
            metavar="TEXT|none",
            help="Cache-Control of objects that have none of their own, such as max-age=3600.",
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
    owner_only_reads: bool | None,
    anonymous_reads: bool | None,
    policies: bool | None,
    cache_control: str | None,
) -> dict[str, Any]:
    """The rules that were given, by their names in ``/admin/buckets``. ``parse_rules`` checks them."""
    changes: dict[str, Any] = {}
    if public is not None:
        changes["visibility"] = "public" if public else "private"
    for name, text in (("max_object_bytes", max_object_bytes), ("max_bucket_bytes", max_bucket_bytes)):
        if text is not None:
            changes[name] = None if text == "none" else _bytes(name, text)
    if content_types:
        changes["allowed_content_types"] = None if "any" in content_types else list(content_types)
    if cache_control is not None:
        changes["cache_control"] = None if cache_control == "none" else cache_control
    flags = {
        "owner_only_writes": owner_only_writes,
        "owner_only_reads": owner_only_reads,
        "anonymous_reads": anonymous_reads,
        "policies": policies,
    }
    return {**changes, **{name: flag for name, flag in flags.items() if flag is not None}}


def _bytes(name: str, text: str) -> int:
    number = bytes_of(text)
    if number is None or not 0 <= number <= MAX_BYTES[name]:
        why = f"must be none or {SIZE_FORM}, up to {MAX_BYTES[name]}"
        raise click.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")
    return number


def _line(one: Bucket) -> str:
    counters = f"{one.object_count:>10} objects {one.total_bytes:>15} bytes"
    rules = ", ".join(name for name, value in one.as_json().items() if value is True)
    return f"{one.name:<30} {one.rules.visibility:<8} {counters}  {rules}".rstrip()


def _by_operator(action: str, subject: str) -> Event:
    return Event(datetime.now(UTC), action, actor="operator", subject=subject)


def _buckets(project: Project) -> Buckets:
    """Buckets without a store, so that an embedded one need not be started."""
    return Buckets(BucketRows(project.pool), project.reactor)


@bucket.command()
@click.argument("name")
@_rules
@click.option(
    "--per-user",
    is_flag=True,
    help="As --owner-only-reads --owner-only-writes: each user has objects of their own.",
)
@common_options
def create(invocation: Invocation, name: str, per_user: bool, **given: Any) -> None:
    """Create a bucket, private unless --public is given."""
    both = {"owner_only_reads": True, "owner_only_writes": True} if per_user else {}
    wanted = {**both, **_changes(**given)}

    async def operation(project: Project) -> None:
        created = await _buckets(project).create(name, BucketRules(**parse_rules(wanted)), _by_operator)
        invocation.show(created.as_json(), _line(created))

    invocation.run(operation)


@bucket.command("list")
@on_project()
async def list_(invocation: Invocation, project: Project) -> None:
    """List all buckets, with the number and size of their objects, and who may do what; --json shows every rule."""
    every = await _buckets(project).all()
    invocation.show([one.as_json() for one in every], *map(_line, every))


@bucket.command()
@click.argument("name")
@_rules
@common_options
def update(invocation: Invocation, name: str, **given: Any) -> None:
    """Change a bucket's rules, everywhere within a second."""
    wanted = _changes(**given)

    async def operation(project: Project) -> None:
        changed = await _buckets(project).change(name, parse_rules(wanted), by=_by_operator)
        invocation.show(changed.as_json(), _line(changed))

    invocation.run(operation)


@bucket.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete its objects too.")
@common_options
def delete(invocation: Invocation, name: str, force: bool) -> None:
    """Delete a bucket. One that holds objects is deleted only with --force."""

    async def operation(project: Project) -> None:
        try:
            delete = project.storage.objects.delete_bucket if force else _buckets(project).delete
            await delete(name, by=_by_operator)
        except ApiError as error:
            if error.code == "bucket_not_empty":
                raise Failed("the bucket still holds objects; --force deletes them too") from None
            raise
        invocation.show({"name": name, "deleted": True}, f"deleted {name}")

    invocation.run(operation, store=force)
