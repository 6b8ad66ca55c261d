"""The file that holds the signing keys: made once, replaced whole, readable by its owner alone."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from project_service.auth.keyset import KeySet, KeySetError, rotated


def write(path: Path, text: str, *, replace: bool) -> bool:
    """Put ``text`` at ``path`` whole, readable by its owner alone.

    Without ``replace`` an existing file is left as it is and False is returned: of two processes that make
    the first keys at once, both then read the winner's.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if replace:
            temporary.replace(path)
            return True
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> KeySet:
    """The keys in a file; raises ``KeySetError`` with the file's name."""
    try:
        return KeySet.parse(path.read_bytes())
    except (OSError, KeySetError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else fault
        raise KeySetError(f"{path}: {why}") from None


def load_or_create(path: Path, algorithm: str) -> KeySet:
    """As ``load``; where there is no file, one is made with a new key."""
    if not path.exists():
        write(path, rotated(None, algorithm), replace=False)
    return load(path)
