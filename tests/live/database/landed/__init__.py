"""Databases as versions that have landed left them. README.rst says what is here."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from functools import cache
from importlib import resources

from tests.live.sql import run_sql

_TABLE = """
create schema _project_service;
create table _project_service.migrations (
  number      int primary key,
  name        text not null,
  sha256      text not null,
  applied_at  timestamptz not null default now()
)
"""


@cache
def with_functions() -> tuple[tuple[str, str], ...]:
    """Name and text of the numbered files as they were while they held functions too, in order."""
    packed = (resources.files(__name__) / "migrations.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = []
        for name in sorted(archive.getnames()):
            file = archive.extractfile(name)
            assert file is not None
            found.append((name, file.read().decode()))
        return tuple(found)


def migrated_then(dsn: str, number: int) -> None:
    """Migrate the empty database to ``number``, as the versions did of which that was the newest migration."""
    run_sql(dsn, _TABLE)
    for name, text in with_functions()[:number]:
        run_sql(dsn, text)
        run_sql(
            dsn,
            "insert into _project_service.migrations (number, name, sha256) values (%s, %s, %s)",
            int(re.match("[0-9]+", name)[0]),  # type: ignore[index]  # all begin with one
            name,
            hashlib.sha256(text.encode()).hexdigest(),
        )
