"""The file with the signing keys."""

from __future__ import annotations

from pathlib import Path

from project_service import private_file
from project_service.auth.keyset import KeySet, KeySetError, announced, promoted, rotated
from project_service.regular_file import regular


def create(path: Path, algorithm: str) -> bool:
    """Create a file with one new key. If there is a file already, it is left as it is and False is returned."""
    return private_file.create(path, rotated(None, algorithm).encode())


def rotate(path: Path, algorithm: str, keep: int) -> None:
    """Add a new key that signs from now on, and keep ``keep`` of the others. Raises ``KeySetError`` if the file
    cannot be used."""
    _replace(path, rotated(path.read_bytes(), algorithm, keep))


def announce(path: Path, algorithm: str, keep: int) -> None:
    """Add a new key that verifies but does not sign yet, and keep ``keep`` of the others. Raises ``KeySetError``."""
    _replace(path, announced(path.read_bytes(), algorithm, keep))


def promote(path: Path, kid: str, keep: int) -> None:
    """Make the key ``kid`` sign from now on, and keep ``keep`` of the others. Raises ``KeySetError``."""
    _replace(path, promoted(path.read_bytes(), kid, keep))


def _replace(path: Path, text: str) -> None:
    KeySet.parse(text)
    private_file.replace(path, text.encode())


def load(path: Path) -> KeySet:
    """The keys in a file. Raises ``KeySetError``, whose message names the file."""
    try:
        return KeySet.parse(regular(path).read_bytes())
    except FileNotFoundError:
        raise KeySetError(f"{path}: there is none (`project-service jwt-keys create` makes it)") from None
    except (OSError, KeySetError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else fault
        raise KeySetError(f"{path}: {why}") from None


def load_or_create(path: Path, algorithm: str) -> KeySet:
    """As ``load``, but if there is no file one is created with a new key."""
    if not path.exists():
        create(path, algorithm)
    return load(path)
