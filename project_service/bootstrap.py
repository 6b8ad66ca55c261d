"""What the first start makes for a data directory: keys, buckets and ``credentials.json``."""

from __future__ import annotations

import secrets
import shlex
import sys
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from project_service import files, keys
from project_service.audit import Rows
from project_service.database.pool import Pool
from project_service.http.caller import KeyKind
from project_service.storage.rows.buckets import BucketRows
from project_service.storage.values import BucketRules

CREDENTIALS = "credentials.json"


@frozen(repr=False)
class Credentials:
    """What ``credentials.json``, of mode 0600, contains. It is never printed as a whole. ``rest_url`` is the first
    database of the table API, "" if there is none."""

    base_url: str
    rest_url: str
    anon_key: str
    service_key: str
    dsn: str


async def ensure_keys(rows: Rows, data_dir: Path) -> tuple[str, str]:
    """The anon key and the service key in ``credentials.json``. One that is missing, or not valid in the database, is
    created."""
    credentials = files.read_json(data_dir / CREDENTIALS) or {}
    ring = keys.KeyRing(rows)
    await ring.reload()

    async def ensured(kind: KeyKind, key: Any) -> str:
        if isinstance(key, str) and ring.kind_of(key) is not None:
            return key
        made = keys.make(kind, secrets.token_bytes)
        await keys.store(rows, kind, made, CREDENTIALS)
        return made

    anon_key = await ensured("anon", credentials.get("anon_key"))
    return anon_key, await ensured("service", credentials.get("service_key"))


async def ensure_buckets(pool: Pool) -> None:
    """Create the buckets ``public``, ``private`` and ``personal`` if there are none."""
    buckets = BucketRows(pool)
    if not await buckets.all():
        await buckets.create("public", BucketRules("public"))
        await buckets.create("private", BucketRules("private"))
        await buckets.create("personal", BucketRules(owner_only_writes=True, owner_only_reads=True))


def write_credentials(data_dir: Path, credentials: Credentials) -> Path:
    path = data_dir / CREDENTIALS
    files.write_json(path, asdict(credentials))
    return path


def shell_variables(data_dir: Path) -> dict[str, str]:
    """What scripts need of ``credentials.json``, by the names that the documentation's commands use.

    Raises ``ValueError`` if the file does not have it, and ``OSError`` if it cannot be read.
    """
    path = data_dir / CREDENTIALS
    credentials = files.read_json(path)
    if credentials is None:
        raise ValueError(f"there is no {path}; start the service once, or name another --data-dir")
    names = {"URL": "base_url", "REST": "rest_url", "ANON_KEY": "anon_key", "SERVICE_KEY": "service_key"}
    for name in names.values():
        if not isinstance(credentials.get(name), str):
            raise ValueError(f"{path} has no {name}; a restart of the service writes it again")
    return {variable: credentials[name] for variable, name in names.items()}


def welcome(
    credentials: Credentials, path: Path, state: str, console: str | None, on_terminal: bool
) -> list[str]:
    """What to print when the service serves; ``state`` says where, and whether it is ready, and ``console`` is the
    address of that. The keys themselves are only printed on a terminal."""
    shown = [f"  keys: {path}"]
    if on_terminal:
        shown = [f"  anon key     {credentials.anon_key}", f"  service key  {credentials.service_key}"]
    env = shlex.join(
        [str(Path(sys.executable).with_name("project-service")), "env", "--data-dir", str(path.parent)]
    )
    tried = [f'  eval "$({env})"', '  curl -H "apikey: $ANON_KEY" $URL/storage/buckets/public/objects']
    if console is not None:
        shown.append(f"  {'console':<13}{console}" if on_terminal else f"  console: {console}")
    return ["", f"project-service is {state}", *shown, "", "Try:", *tried, ""]
