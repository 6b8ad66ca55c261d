"""Files that the configuration names have to be regular ones: reading a pipe or a device may block the process for
ever."""

from __future__ import annotations

from errno import EINVAL
from pathlib import Path


def regular(path: Path) -> Path:
    """``path``. Raises ``OSError`` for a pipe, a device or a socket; what is not there is left to who reads it."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(EINVAL, "it is a pipe or a device", str(path))
    return path
