"""Sample cases of PostgREST's conventions against this service's table API, group by group.

    POSTGREST_SUITE=/path/to/postgrest-suite python -m benchmarks.tables_conformance [group…]

The suite brings the fixture database (it wants Debian's postgresql), the cases and the replayer that scores them.
Each group's settings are PostgREST's; the service runs with the same meaning under its own names. Exits 1 where a
case fails.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from project_service.settings.model import StageDatabase
from project_service.settings.reading import own_name
from tests.temporary import free_port

AUTHENTICATOR, OWNER = "Postgrest_Test_Authenticator", "postgres"
KNOWN = frozenset(one.name for one in attrs.fields(StageDatabase))
BASE: dict[str, Any] = {
    "schemas": ["test"],
    "extra_search_path": [],
    "anon_role": "postgrest_test_anonymous",
    "jwt_secret": "reallyreallyreallyreallyverysafe",
    "pre_request": "test.switch_role",
    "tx_end": "rollback-allow-override",
    "max_rows": 0,
    "aggregates": False,
    "plan": False,
    "unfiltered_writes": "allow",
    "server_timing": True,
    "error_hints": False,
    "app_settings": {"app_host": "localhost", "external_api_secret": "0123456789abcdef"},
}
# Those that the service has one of for all its databases, or none.
ELSEWHERE = ("server-cors-allowed-origins", "jwt-cache-max-entries", "db-pre-config")


def main(wanted: list[str]) -> int:
    folder = os.environ.get("POSTGREST_SUITE")
    if not folder:
        print("POSTGREST_SUITE does not name the suite's folder: nothing to do")
        return 0
    suite = Path(folder)
    with tempfile.TemporaryDirectory(prefix="conformance") as scratch:
        cluster = Path(scratch) / "cluster"
        Path(scratch).chmod(0o755)
        port = free_port()
        subprocess.run([suite / "database", "start", cluster, str(port)], check=True)
        try:
            return _groups(suite, Path(scratch), port, wanted)
        finally:
            subprocess.run([suite / "database", "stop", cluster], check=False)


def _groups(suite: Path, scratch: Path, port: int, wanted: list[str]) -> int:
    with gzip.open(suite / "cases.jsonl.gz", "rt", encoding="utf-8") as lines:
        groups = {case["config_group"]: case["config"] for case in map(json.loads, lines)}
    passed = total = 0
    for group, config in groups.items():
        if wanted and group not in wanted:
            continue
        report = scratch / "report.json"
        _replay(suite, port, group, config, report)
        found = json.loads(report.read_text())
        passed, total = passed + found["passed"], total + found["total"]
        print(f"{found['passed']:4} / {found['total']:<4} {group}")
        if group == "base":
            for tag, score in found["tags"].items():
                print(f"     {score['pass']:4} / {score['total']:<4} {tag}")
        for case in found["cases"]:
            if case["result"] == "fail":
                print(f"       failed: {case['id']} {case['title']} ({', '.join(case['failed_on'])})")
    print(f"{passed:4} / {total:<4} in all")
    return 0 if passed == total else 1


def _dsn(user: str, port: int) -> str:
    return f"postgresql://{user}@127.0.0.1:{port}/suite"


def _replay(suite: Path, port: int, group: str, config: dict[str, Any], report: Path) -> None:
    settings = {
        **BASE,
        "dsn": _dsn(AUTHENTICATOR, port),
        **{own_name(name, KNOWN): value for name, value in config.items() if name not in ELSEWHERE},
    }
    origins = config.get("server-cors-allowed-origins", ["*"])
    serving = [sys.executable, "-m", "benchmarks.tables_serving", json.dumps(settings), json.dumps(origins)]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.fullmatch(r"serving (\d+)\n", server.stdout.readline())
            assert found is not None, "the service did not start"
            replay = [
                *(sys.executable, str(suite / "replay.py"), "--corpus", str(suite / "cases.jsonl.gz")),
                *("--base-url", f"http://127.0.0.1:{found[1]}", "--path-prefix", "/dev/db/suite/rest"),
                *("--header", "X-Service-Key: anon", "--dsn", _dsn(OWNER, port)),
                *("--group", group, "--report", str(report)),
            ]
            subprocess.run(replay, check=False, stdout=subprocess.DEVNULL)
        finally:
            server.terminate()
            server.wait(timeout=10)


if __name__ == "__main__":
    started = time.monotonic()
    code = main(sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
