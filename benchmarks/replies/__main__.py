"""The replies of two checkouts to the same requests, byte for byte.

    python -m benchmarks.replies record CHECKOUT FILE
    python -m benchmarks.replies compare OLD NEW

``record`` starts the service of CHECKOUT (which has a ``.venv``) on a data directory of its own, sends it some 6,000
requests, and writes a line of JSON for each exchange. ``compare`` shows where two recordings differ, each given as a
file or as a checkout that is recorded first: one example for each kind of difference. It exits with 1 if there are.
What has to differ is masked (``wire.py``): times, ids, tokens. So are the boundaries of chunks.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2

from benchmarks.replies.requests import SECRET, steps
from benchmarks.replies.wire import Answered, Client, Exchange, shown
from benchmarks.running import Running, service

CONFIG = f"""
[stages.dev.databases.main]

[stages.dev.databases.other]
schemas = ["api", "public"]
max_rows = 20
jwt_secret = "{SECRET}"
pre_request = "api.check_request"
tx_end = "commit-allow-override"
unfiltered_writes = "allow"
aggregates = false
server_timing = true
trace_header = "trace-me"
app_settings = {{ name = "recorded" }}

[stages.dev.databases.plain]
max_rows = 0
stream_threshold_bytes = 50000
prepare = false
plan = true
error_verbosity = "minimal"
openapi = "disabled"

[auth]
bcrypt_cost = 4
signups_max_per_address = 0
"""


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--workers", type=int, default=1)
    actions = options.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="writes what CHECKOUT replies to FILE")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("file", type=Path)
    comparing = actions.add_parser("compare", help="shows where two recordings differ")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    given = options.parse_args()
    if given.action == "record":
        record(given.checkout, given.file, given.workers)
        return 0
    with tempfile.TemporaryDirectory(prefix="replies-") as scratch:
        files = []
        for name, path in (("old", given.old), ("new", given.new)):
            files.append(Path(scratch) / name if path.is_dir() else path)
            if path.is_dir():
                record(path, files[-1], given.workers)
        return compare(*files)


def record(checkout: Path, file: Path, workers: int) -> None:
    lines, replies = [], 0
    with service(workers, checkout=checkout, config=CONFIG) as running:
        _fill(running)
        where = urlsplit(running.url)
        known = {"anon": running.anon_key.encode(), "service": running.service_key.encode()}
        client = Client((where.hostname or "", where.port or 0), known)
        keys = json.loads((running.data_dir / "jwt-keys.json").read_text())["keys"]
        for step in steps(known, keys[0]):
            for exchange, answered in zip(step, client.play(step), strict=True):
                lines.append(json.dumps(_written(exchange, answered)))
                replies += len(answered.replies)
    file.write_text("\n".join(lines) + "\n")
    print(f"{replies} replies of {checkout} are in {file}")


def _written(exchange: Exchange, answered: Answered) -> dict[str, object]:
    replies = [f"{shown(reply.head)}\r\n\r\n{shown(reply.body)}" for reply in answered.replies]
    sent = shown(b"".join(exchange.sent))
    return {"name": exchange.name, "sent": sent, "replies": replies, "then": answered.then}


def _fill(running: Running) -> None:
    """The schema in one transaction, so that it is known as a whole."""
    connection = psycopg2.connect(running.dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(Path(__file__).with_name("schema.sql").read_text())
            cursor.execute("analyze")
            cursor.execute("notify pgrst, 'reload config'")
    finally:
        connection.close()


def compare(old: Path, new: Path) -> int:
    before, after = ([json.loads(line) for line in file.read_text().splitlines()] for file in (old, new))
    if [each["name"] for each in before] != [each["name"] for each in after]:
        raise SystemExit("the recordings are of different requests: record both again")
    kinds: dict[tuple[str, ...], list[tuple[dict[str, Any], list[str]]]] = {}
    for one, other in zip(before, after, strict=True):
        if changes := list(difflib.unified_diff(_lines(one), _lines(other), str(old), str(new), lineterm="")):
            # One change shows in many replies, which differ in numbers such as their length.
            kind = tuple(re.sub(r"\d+", "0", line) for line in changes[2:] if line[0] in "-+")
            kinds.setdefault(kind, []).append((one, changes))
    for alike in kinds.values():
        exchange, changes = alike[0]
        print(
            f"=== {len(alike)} like {exchange['name']}\n{exchange['sent'][:2000]}\n" + "\n".join(changes),
            "\n",
        )
    replies, different = sum(len(each["replies"]) for each in before), sum(map(len, kinds.values()))
    print(f"{replies} replies in {len(before)} exchanges compared")
    print(f"{different} exchanges differ, in {len(kinds)} ways")
    return 1 if different else 0


def _lines(entry: dict[str, Any]) -> list[str]:
    lines = [repr(line) for reply in entry["replies"] for line in reply.splitlines(keepends=True)]
    return [*lines, f"then {entry['then']}"]


if __name__ == "__main__":
    sys.exit(main())
