"""What a data directory has after its first start: keys, buckets, ``credentials.json``."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from attrs import frozen

from project_service import keys, private_file
from project_service.http.caller import KeyKind
from project_service.storage.model import BucketRules
from project_service.storage.sql.buckets import SqlBuckets
from project_service.storage.sql.database import Database

CREDENTIALS = "credentials.json"


@frozen(repr=False)
class Credentials:
    """Never printed as a whole; ``credentials.json`` has mode 0600."""

    base_url: str
    anon_key: str
    service_key: str
    dsn: str


async def ensure_keys(rows: Database, data_dir: Path) -> tuple[str, str]:
    """The anon and the service key of ``credentials.json``, made anew where the database does not know them."""
    found = private_file.read_json(data_dir / CREDENTIALS) or {}
    known = await rows.query("select sha256 from auth.project_keys where revoked_at is null")
    active = {bytes(row[0]) for row in known}
    anon = await _ensure(rows, "anon", found.get("anon_key"), active)
    service = await _ensure(rows, "service", found.get("service_key"), active)
    return anon, service


async def ensure_buckets(rows: Database) -> None:
    """One public and one private bucket, unless somebody has made, or removed, buckets already."""
    buckets = SqlBuckets(rows)
    if not await buckets.all():
        await buckets.create("public", BucketRules("public"))
        await buckets.create("private", BucketRules("private"))


async def _ensure(rows: Database, kind: KeyKind, found: Any, active: set[bytes]) -> str:
    if isinstance(found, str) and keys.digest(found) in active:
        return found
    made = keys.make(kind, secrets.token_bytes)
    await keys.store(rows, kind, made, "credentials.json")
    return made


def write_credentials(data_dir: Path, credentials: Credentials) -> Path:
    path = data_dir / CREDENTIALS
    private_file.write_json(
        path,
        {
            "base_url": credentials.base_url,
            "anon_key": credentials.anon_key,
            "service_key": credentials.service_key,
            "dsn": credentials.dsn,
        },
    )
    return path


def first_words(credentials: Credentials, path: Path, on_terminal: bool) -> list[str]:
    """What is printed when requests are answered; the keys themselves only where a person reads."""
    url, anon, shown = credentials.base_url, "$ANON_KEY", [f"  keys: {path}"]
    if on_terminal:
        anon = credentials.anon_key
        shown = [f"  anon key     {anon}", f"  service key  {credentials.service_key}"]
    curl = f'curl -H "X-Service-Key: {anon}" {url}/storage/buckets/public/objects'
    return ["", f"project-service is ready on {url}", *shown, "", "Try:", f"  {curl}", ""]
