"""``project-service keys``: create, list, revoke."""

from __future__ import annotations

import secrets
from typing import cast

import click
from attrs import asdict

from project_service import keys
from project_service.cli import shared
from project_service.cli.shared import Opened
from project_service.http.caller import KeyKind


@click.group()
def command() -> None:
    """The project keys that clients send as X-Service-Key."""


@command.command()
@click.argument("kind", type=click.Choice(["anon", "service"]))
@click.option("--label", default="", help="A word or two to know the key by in the list.")
@shared.options
def create(invocation: shared.Invocation, kind: str, label: str) -> None:
    """Make a key and print it. It is printed this once: only its SHA-256 is kept.

    An anon key may be published; a service key passes every rule and must stay secret.
    """
    if not label.isprintable():
        raise click.BadParameter("must be printable, on one line", param_hint="--label")
    if len(label) > keys.LABEL_MAX:
        raise click.BadParameter(f"must be at most {keys.LABEL_MAX} characters", param_hint="--label")

    async def work(open_: Opened) -> None:
        made = keys.make(cast(KeyKind, kind), secrets.token_bytes)
        record = await keys.store(open_.pool, cast(KeyKind, kind), made, label)
        invocation.show({**asdict(record), "key": made}, made)

    invocation.run(work)


@command.command("list")
@shared.options
def list_(invocation: shared.Invocation) -> None:
    """All keys, without the keys themselves."""

    async def work(open_: Opened) -> None:
        found = await keys.listed(open_.pool)
        lines = [
            f"{one.id}  {one.kind:<7}  {one.created_at}  "
            f"{'revoked ' + one.revoked_at if one.revoked_at else 'active'}  {one.label}".rstrip()
            for one in found
        ]
        invocation.show([asdict(one) for one in found], *lines)

    invocation.run(work)


@command.command()
@click.argument("key_id", metavar="ID")
@shared.options
def revoke(invocation: shared.Invocation, key_id: str) -> None:
    """Make a key useless everywhere within a second. ID is the one that `keys list` shows."""

    async def work(open_: Opened) -> None:
        if not await keys.revoke(open_.pool, key_id):
            raise shared.Failed(f"there is no active key with the id {key_id}")
        invocation.show({"id": key_id, "revoked": True}, f"revoked {key_id}")

    invocation.run(work)
