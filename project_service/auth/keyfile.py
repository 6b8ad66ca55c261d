"""The file that holds the signing keys."""

from __future__ import annotations

from pathlib import Path

from project_service import private_file
from project_service.auth.keyset import KeySet, KeySetError, announced, promoted, rotated


def create(path: Path, algorithm: str) -> bool:
    """A file with one new key; False where there is a file, which stays as it is."""
    return private_file.create(path, rotated(None, algorithm).encode())


def rotate(path: Path, algorithm: str, keep: int) -> None:
    """A new key in front of ``keep`` of the file's; raises ``KeySetError`` where those cannot be used."""
    _replace(path, rotated(path.read_bytes(), algorithm, keep))


def announce(path: Path, algorithm: str, keep: int) -> None:
    """A new key that verifies and does not sign yet, and ``keep`` older ones; raises ``KeySetError``."""
    _replace(path, announced(path.read_bytes(), algorithm, keep))


def promote(path: Path, kid: str, keep: int) -> None:
    """The file's key ``kid`` signs from now on, ``keep`` others verify; raises ``KeySetError``."""
    _replace(path, promoted(path.read_bytes(), kid, keep))


def _replace(path: Path, text: str) -> None:
    KeySet.parse(text)
    private_file.replace(path, text.encode())


def load(path: Path) -> KeySet:
    """The keys in a file; raises ``KeySetError`` with the file's name."""
    try:
        return KeySet.parse(path.read_bytes())
    except FileNotFoundError:
        raise KeySetError(f"{path}: there is none (`project-service jwt-keys create` makes it)") from None
    except (OSError, KeySetError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else fault
        raise KeySetError(f"{path}: {why}") from None


def load_or_create(path: Path, algorithm: str) -> KeySet:
    """As ``load``; where there is no file, one is made with a new key."""
    if not path.exists():
        create(path, algorithm)
    return load(path)
