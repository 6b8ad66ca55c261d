"""Databases as versions that have landed left them. README.rst says what is here."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from functools import cache
from importlib import resources
from typing import Any

from attrs import frozen

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
    with tarfile.open(fileobj=io.BytesIO(_file("migrations.tar.gz"))) as archive:
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


@frozen
class Known:
    """What the users of a dumped database know, and what is stored in it."""

    anon_key: str
    service_key: str
    users: list[dict[str, Any]]
    objects: list[dict[str, str]]
    links: list[dict[str, Any]]
    used_links: list[str]
    upload_links: list[dict[str, str]]


# Everything in a dump has expired or will; its times are those at which it was made.
_AS_IF_NOW = """
update auth.sessions set expires_at = now() + interval '1 day' where ended_at is null;
update auth.refresh_tokens set issued_at = now();
update storage.links set expires_at = now() + interval '1 day';
"""


def restored(admin_dsn: str, dump: str) -> Known:
    """Restore the dump of this name, as a superuser, into the empty database."""
    run_sql(admin_dsn, gzip.decompress(_file(f"{dump}.sql.gz")).decode())
    run_sql(admin_dsn, _AS_IF_NOW)
    return Known(**json.loads(_file(f"{dump}.json")))


def statements_of_0_1_0() -> list[tuple[str, list[str | None]]]:
    """What 0.1.0 sent to its database while the dump 0016 came about, in order: statements and their parameters."""
    return [(one[0], one[1]) for one in json.loads(gzip.decompress(_file("0016-statements.json.gz")))]


def _file(name: str) -> bytes:
    return (resources.files(__name__) / name).read_bytes()
