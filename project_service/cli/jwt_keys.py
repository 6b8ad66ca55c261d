"""``project-service jwt-keys``: the keys that sign access tokens."""

from __future__ import annotations

from pathlib import Path

import click

from project_service.auth import tokens
from project_service.auth.tokens import ALGORITHMS, KeySetError
from project_service.cli import shared
from project_service.files import printable

_FILE = click.option(
    "--file", "path", type=shared.Place(path_type=Path), help="Instead of auth.jwt_keys_file."
)
_ALGORITHM = click.option("--algorithm", type=click.Choice(ALGORITHMS), help="Instead of auth.jwt_algorithm.")


@click.group()
def command() -> None:
    """The keys that sign and verify access tokens: the first of the file signs, all verify."""


@command.command()
@_FILE
@_ALGORITHM
@shared.options
def create(invocation: shared.Invocation, path: Path | None, algorithm: str | None) -> None:
    """Make the key file. An existing one is left alone: `rotate` adds to it."""
    where, chosen = _chosen(invocation, path, algorithm)
    if where.is_dir():
        shared.end(f"{where}: Is a directory", shared.FAILED)
    try:
        if not tokens.create_keys(where, chosen):
            shared.end(f"{where} exists; add a key with: project-service jwt-keys rotate", shared.FAILED)
    except OSError as fault:
        shared.end(f"{where}: {fault.strerror}", shared.FAILED)
    _show(invocation, where)


@command.command()
@_FILE
@_ALGORITHM
@click.option(
    "--keep", type=click.IntRange(0, 100), default=2, show_default=True, help="Older keys that still verify."
)
@click.option("--announce", is_flag=True, help="Add a new key that verifies only, until --to has it sign.")
@click.option("--to", "kid", help="Have a key of the file sign, instead of a new one.")
@shared.options
def rotate(
    invocation: shared.Invocation,
    path: Path | None,
    algorithm: str | None,
    keep: int,
    announce: bool,
    kid: str | None,
) -> None:
    """Put a new signing key in front. A running service takes it over on SIGHUP.

    Tokens signed by the older keys stay good until they expire; --keep 0 makes them worthless at once.
    """
    if announce and kid is not None:
        raise click.UsageError("--announce makes a new key, --to takes one of the file")
    where, chosen = _chosen(invocation, path, algorithm)
    try:
        old = where.read_bytes()
        if kid is not None:
            new = tokens.promoted(old, kid, keep)
        elif announce:
            new = tokens.announced(old, chosen, keep)
        else:
            new = tokens.rotated(old, chosen, keep)
        tokens.replace_keys(where, new)
    except OSError as fault:
        shared.end(f"{where}: {fault.strerror}", shared.FAILED)
    except KeySetError as fault:
        shared.end(f"{where}: {fault}", shared.FAILED)
    _show(invocation, where)


def _chosen(invocation: shared.Invocation, path: Path | None, algorithm: str | None) -> tuple[Path, str]:
    settings = (invocation.launch("token keys") if path is None else invocation.launch()).settings.auth
    if path is None:
        assert settings.jwt_keys_file is not None
        path = Path(settings.jwt_keys_file)
    return path, algorithm or settings.jwt_algorithm


def _show(invocation: shared.Invocation, path: Path) -> None:
    keys = tokens.load_keys(path).keys
    value = [{"kid": key.kid, "algorithm": key.algorithm, "signs": key is keys[0]} for key in keys]
    lines = (f"{key.kid}  {key.algorithm}  {'signs' if key is keys[0] else 'verifies'}" for key in keys)
    name = printable(path)
    invocation.show({"file": name, "keys": value}, name, *lines)
