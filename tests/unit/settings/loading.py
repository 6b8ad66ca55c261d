"""Settings as they are read from a file with some text, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from project_service.settings.model import Settings
from project_service.settings.reading import BadSettings, Source


def loaded(
    toml: str = "", environ: dict[str, str] | None = None, embedded: bool = True, **options: Any
) -> Settings:
    """Raises ``BadSettings``. The options have two underscores for the dot."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.toml"
        path.write_text(toml)
        given_options = {name.replace("__", "."): value for name, value in options.items()}
        return Source(path, given_options, Path("/data") if embedded else None).read(environ or {})


def faults(
    toml: str = "", environ: dict[str, str] | None = None, embedded: bool = True, **options: Any
) -> list[str]:
    """Name and reason of each fault. Fails if there are none."""
    try:
        loaded(toml, environ, embedded, **options)
    except BadSettings as fault:
        return [f"{one.name} {one.reason}" for one in fault.faults]
    raise AssertionError("was accepted")
