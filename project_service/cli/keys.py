"""``project-service keys``, ``env`` and ``jwt-keys``: the project keys that clients send, those of a data directory
for a shell, and the keys that sign access tokens."""

from __future__ import annotations

import secrets
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import click
from attrs import asdict

from project_service import bootstrap, keys
from project_service.audit import Event, Origin
from project_service.auth import tokens
from project_service.auth.tokens import ALGORITHMS, KeySetError
from project_service.cli import NonEmptyPath, project_options
from project_service.cli.invocation import (
    FAILED,
    USAGE,
    Failed,
    Invocation,
    Project,
    common_options,
    end,
    on_project,
)
from project_service.files import printable
from project_service.http.caller import KeyKind
from project_service.settings.reading import BadSettings


@click.group()
@project_options
def project_keys() -> None:
    """The project keys that clients send as apikey."""


@project_keys.command("create")
@click.argument("kind", type=click.Choice(["anon", "service"]))
@click.option("--label", default="", help="What the list shows the key with, such as its use.")
@common_options
def create_project_key(invocation: Invocation, kind: str, label: str) -> None:
    """Create a key and print it. It is printed only once: the database has just its SHA-256.

    An anon key may be published. A service key passes every rule and must stay secret.
    """
    _check_label(label)

    async def operation(project: Project) -> None:
        key = keys.make(cast(KeyKind, kind), secrets.token_bytes)
        event = _event("create_key")
        record = await keys.store(project.pool, cast(KeyKind, kind), key, label, event)
        invocation.show({**asdict(record), "key": key}, key)

    invocation.run(operation)


@project_keys.command("import")
@click.argument("kind", type=click.Choice(["anon", "service"]))
@click.option("--label", default="", help="What the list shows the key with, such as its use.")
@common_options
def import_project_key(invocation: Invocation, kind: str, label: str) -> None:
    """Take over a key that applications have already, such as that of a project that moves here.

    The key is read from standard input, or asked for. It is 20 to 1,000 printable characters of ASCII, a JWT for
    example; what is in it does not matter. Whoever has it can call this service as with a key made here.
    """
    _check_label(label)
    key = _read_key()

    async def operation(project: Project) -> None:
        event = _event("import_key")
        record = await keys.take_over(project.pool, cast(KeyKind, kind), key, label, event)
        if record is None:
            raise Failed("this key is there already; `keys list` shows it, perhaps as revoked")
        invocation.show(asdict(record), f"imported {record.id}")

    invocation.run(operation)


def _event(action: str) -> Event:
    return Event(
        datetime.now(UTC), action, actor="operator", origin=Origin(user_agent="project-service keys")
    )


def _read_key() -> str:
    text = (
        click.prompt("Key", hide_input=True) if sys.stdin.isatty() else sys.stdin.read(keys.MAX_IMPORTED + 2)
    )
    key = str(text).strip()
    if not keys.importable(key):
        raise click.UsageError(
            f"a key is {keys.MIN_IMPORTED} to {keys.MAX_IMPORTED} printable ASCII characters without spaces"
        )
    return key


def _check_label(label: str) -> None:
    if not label.isprintable():
        raise click.BadParameter("must be printable, on one line", param_hint="--label")
    if len(label) > keys.LABEL_MAX:
        raise click.BadParameter(f"must be at most {keys.LABEL_MAX} characters", param_hint="--label")


@project_keys.command("list")
@on_project()
async def list_project_keys(invocation: Invocation, project: Project) -> None:
    """List all keys, without the keys themselves, and when each was last used.

    That is to the minute, and shows up to a minute later.
    """
    records = await keys.listed(project.pool)
    lines = [
        f"{one.id}  {one.kind:<7}  {one.created_at}  "
        f"{'revoked ' + one.revoked_at if one.revoked_at else 'active'}  "
        f"{'used ' + one.used_at[:16] + 'Z' if one.used_at else 'not used'}  {one.label}".rstrip()
        for one in records
    ]
    invocation.show([asdict(one) for one in records], *lines)


@project_keys.command("revoke")
@click.argument("key_id", metavar="ID")
@on_project()
async def revoke_project_key(invocation: Invocation, project: Project, key_id: str) -> None:
    """Revoke a key, everywhere within a second. ID is the one that `keys list` shows."""
    if not await keys.revoke(project.pool, key_id, _event("revoke_key")):
        raise Failed(f"there is no active key with the id {key_id}")
    invocation.show({"id": key_id, "revoked": True}, f"revoked {key_id}")


@click.command()
@common_options
def env(invocation: Invocation) -> None:
    """Print URL, REST, ANON_KEY and SERVICE_KEY for a shell: eval "$(project-service env)".

    They are those of credentials.json in the data directory. REST is the first database of the table API.
    """
    try:
        data_dir = invocation.source().data_dir
        if data_dir is None:
            end(
                "--config alone names no data directory, and only a data directory has credentials.json; "
                "name its --data-dir, or make keys with: project-service keys create",
                FAILED,
            )
        variables = bootstrap.shell_variables(data_dir)
    except BadSettings as fault:
        end(f"the configuration cannot be used\n{fault}", USAGE)
    except (OSError, ValueError) as fault:
        end(str(fault), FAILED)
    invocation.show(variables, *(f"{name}={shlex.quote(value)}" for name, value in variables.items()))


@click.group()
@project_options
def jwt_keys() -> None:
    """The keys of access tokens: the first in the file signs, all verify."""


_FILE = click.option(
    "--file", "path", type=NonEmptyPath(path_type=Path), help="[default: auth.jwt_keys_file]"
)
_ALGORITHM = click.option("--algorithm", type=click.Choice(ALGORITHMS), help="[default: auth.jwt_algorithm]")


@jwt_keys.command("create")
@_FILE
@_ALGORITHM
@common_options
def create_jwt_key(invocation: Invocation, path: Path | None, algorithm: str | None) -> None:
    """Create the key file. An existing one is left alone; `rotate` adds keys to it."""
    file, chosen = _chosen(invocation, path, algorithm)
    if file.is_dir():
        end(f"{file}: Is a directory", FAILED)
    try:
        if not tokens.create_keys(file, chosen):
            end(f"{file} exists; add a key with: project-service jwt-keys rotate", FAILED)
    except OSError as fault:
        end(f"{file}: {fault.strerror}", FAILED)
    _show(invocation, file)


@jwt_keys.command("rotate")
@_FILE
@_ALGORITHM
@click.option(
    "--keep",
    type=click.IntRange(0, 100),
    default=2,
    show_default=True,
    help="How many older keys still verify.",
)
@click.option("--announce", is_flag=True, help="Add a new key that only verifies, until --to lets it sign.")
@click.option("--to", "kid", help="Let this key of the file sign, instead of a new one.")
@common_options
def rotate_jwt_keys(
    invocation: Invocation,
    path: Path | None,
    algorithm: str | None,
    keep: int,
    announce: bool,
    kid: str | None,
) -> None:
    """Let a new key sign. A running service uses it after a SIGHUP.

    Tokens signed by the older keys remain valid until they expire. With --keep 0 they become invalid at once.
    """
    if announce and kid is not None:
        raise click.UsageError("--announce makes a new key, --to takes one of the file")
    file, chosen = _chosen(invocation, path, algorithm)
    try:
        tokens.change_keys(file, chosen, keep, announce=announce, kid=kid)
    except OSError as fault:
        end(f"{file}: {fault.strerror}", FAILED)
    except KeySetError as fault:
        end(f"{file}: {fault}", FAILED)
    _show(invocation, file)


def _chosen(invocation: Invocation, path: Path | None, algorithm: str | None) -> tuple[Path, str]:
    settings = (invocation.launch("token keys") if path is None else invocation.launch()).settings.auth
    if path is None:
        assert settings.jwt_keys_file is not None
        path = Path(settings.jwt_keys_file)
    return path, algorithm or settings.jwt_algorithm


def _show(invocation: Invocation, file: Path) -> None:
    in_file = tokens.load_keys(file).keys
    value = [{"kid": key.kid, "algorithm": key.algorithm, "signs": key is in_file[0]} for key in in_file]
    lines = (f"{key.kid}  {key.algorithm}  {'signs' if key is in_file[0] else 'verifies'}" for key in in_file)
    name = printable(file)
    invocation.show({"file": name, "keys": value}, name, *lines)
