"""docs/schema.rst: its files, commands and programs, as they stand there, beside a running service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.live.daemon import ROOT, Daemon, eventually
from tests.live.npm import install
from tests.live.services import WithDatabase

PAGE = (ROOT / "docs" / "schema.rst").read_text("utf-8")
BLOCK = re.compile(r"\.\. code-block:: \w+\n   :name: (\S+)\n\n((?:   .*\n|\n)+)")
EXAMPLES = {name: textwrap.dedent(text).strip("\n") + "\n" for name, text in BLOCK.findall(PAGE)}
REVISION = """
from alembic import op
revision, down_revision = "1", None

def upgrade():
    op.execute("create table shelves (id int primary key); grant select on shelves to anon")
"""
DBMATE = """-- migrate:up
create table boxes (id int primary key);
grant select on boxes to anon;
-- migrate:down
drop table boxes;
"""
USED = """
import { tagged } from './notes.js'
console.log(JSON.stringify(await tagged(process.argv[2], process.argv[3], process.argv[4], 'red')))
"""


class Project:
    """A folder with a service's data in ``var``, and the page's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""

    def sh(self, script: str, **more: str) -> str:
        """What the commands print. Fails if one of them does."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, **more},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,  # its output says more than a status
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self, *names: str, below: str = ".") -> None:
        (self.folder / below).mkdir(exist_ok=True)
        for name in names:
            (self.folder / below / name).write_text(EXAMPLES[name])

    def credentials(self) -> dict[str, str]:
        return dict(json.loads((self.folder / "var" / "credentials.json").read_text()))

    def serves(self, relation: str) -> bool:
        """Whether the table API has the relation; it notices by itself that there is one."""
        headers = {"apikey": self.credentials()["anon_key"]}
        return requests.get(f"{self.address}/dev/db/main/rest/{relation}", headers=headers, timeout=30).ok


@pytest.fixture(scope="module")
def project(with_database: WithDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(Path(tmp_path_factory.mktemp("schema")))
    with Daemon(with_database(made.folder / "var")) as daemon:
        made.address = daemon.wait_until_ready()
        made.write("0001_notes.sql", "0002_tags.sql", below="migrations")
        assert made.sh(EXAMPLES["apply"]) == EXAMPLES["applied"]
        yield made


def signed_up(project: Project) -> str:
    """A new user's access token."""
    user = {"email": f"{os.urandom(4).hex()}@example.test", "password": "correct horse battery"}
    answer: Any = requests.post(f"{project.address}/auth/signup", json=user, timeout=30).json()
    return str(answer["data"]["access_token"])


def test_numbered_files_are_applied_once(project: Project) -> None:
    assert project.sh(EXAMPLES["apply"]) == "nothing to apply\n"
    assert "pending" not in project.sh(f"{EXAMPLES['apply'].strip()} --status")


def test_an_index_is_made_without_a_transaction(project: Project) -> None:
    project.write("0003_owners.sql", below="migrations")
    assert project.sh(EXAMPLES["apply"]) == "applied 0003_owners.sql\n"
    assert "t\n" in project.sh(
        "echo \"select indisvalid from pg_index where indexrelid = 'notes_owner'::regclass\""
        " | project-service sql --csv"
    )


def test_a_reset_keeps_the_schema_and_seeds_it(project: Project) -> None:
    token, keys = signed_up(project), project.credentials()
    headers = {"apikey": keys["service_key"]}
    notes = f"{project.address}/dev/db/main/rest/notes"
    stored = f"{project.address}/storage/buckets/private/objects/a.txt"
    service = {"X-Service-Key": keys["service_key"]}
    assert requests.put(stored, data=b"bytes", headers=service, timeout=30).ok
    project.write("seed.sql")
    for _ in range(2):
        project.sh(EXAMPLES["reset"])
        rows = requests.get(notes, headers=headers, timeout=30).json()
        assert [(row["id"], row["text"]) for row in rows] == [(1, "the first note of each test")]
    assert requests.get(stored, headers=service, timeout=30).status_code == 404
    users = requests.get(f"{project.address}/admin/users", headers=service, timeout=30).json()
    assert users["data"]["users"] == []
    (project.folder / "bad.sql").write_text("insert into notes (owner) values (null)")
    failed = project.sh("! project-service reset --yes --seed bad.sql 2>&1")
    assert failed.startswith("project-service: bad.sql, line 1: null value")
    for seed in (
        "insert into notes (text) values ('x');\ncommit;\nselect 1 / 0",
        "-- no transaction\nselect 1 / 0",
    ):
        (project.folder / "bad.sql").write_text(seed)
        failed = project.sh("! project-service reset --yes --seed bad.sql 2>&1")
        assert failed.startswith("project-service: bad.sql") and "transaction" in failed
    assert len(requests.get(notes, headers=headers, timeout=30).json()) == 1
    assert "nothing to apply" in project.sh(EXAMPLES["apply"])
    session = {"apikey": keys["anon_key"], "Authorization": f"Bearer {token}"}
    user = f"{project.address}/auth/user"
    eventually(lambda: requests.get(user, headers=session, timeout=30).status_code == 401, "refused")
    assert "--yes" in project.sh("! project-service reset < /dev/null 2>&1")
    external = {"PROJECT_SERVICE__DATABASE__DSN": "postgresql://db.test/x"}
    assert "never reset" in project.sh("! project-service reset --yes 2>&1", **external)


def test_alembic(project: Project) -> None:
    own = project.folder / "shelves"
    own.mkdir()
    project.sh("cd shelves; alembic init alembic")
    project.write("env.py", below="shelves/alembic")
    project.write("models.py", below="shelves")
    (own / "alembic" / "versions" / "one.py").write_text(REVISION)
    for _ in range(2):
        project.sh(f"{EXAMPLES['url']}cd shelves; alembic upgrade head")
    assert project.serves("shelves")
    assert not project.serves("alembic_version")
    project.sh(f"{EXAMPLES['url']}cd shelves; {EXAMPLES['alembic']}")
    (generated,) = (own / "alembic" / "versions").glob("*_loans.py")
    upgrade = generated.read_text().partition("def downgrade")[0]
    assert re.findall(r"op\.create_table\('(\w+)'", upgrade) == ["loans"]
    assert "['auth.users.id']" in upgrade
    assert "'users'" not in upgrade


def test_dbmate(project: Project) -> None:
    install(project.folder, "dbmate")
    own = project.folder / "boxes"
    (own / "migrations").mkdir(parents=True)
    (own / "migrations" / "0001_boxes.sql").write_text(DBMATE)
    for _ in range(2):
        project.sh(f"{EXAMPLES['url']}cd boxes; {EXAMPLES['dbmate-up'].replace('dbmate', 'npx dbmate', 1)}")
    assert project.serves("boxes")
    assert not project.serves("dbmate")


def test_types_and_what_uses_them(project: Project) -> None:
    project.sh(EXAMPLES["types"])
    project.write("notes.ts", "notes.py")
    key, token = project.credentials()["anon_key"], signed_up(project)
    rest = f"{project.address}/dev/db/main/rest"
    added = "import sys, notes; print(notes.add(*sys.argv[1:]).text)"
    assert project.sh(f"python -c '{added}' {rest} {key} {token} 'from Python'") == "from Python\n"
    headers = {"apikey": key, "Authorization": f"Bearer {token}"}
    note = {"text": "tagged", "tags": ["red"]}
    assert requests.post(f"{rest}/notes", json=note, headers=headers, timeout=30).ok
    assert json.loads((project.folder / "openapi.json").read_text())["openapi"] == "3.1.0"

    install(project.folder, "@supabase/postgrest-js@2", "typescript@5", "@types/node@22")
    (project.folder / "used.ts").write_text(USED)
    project.sh("npx tsc --strict --target es2022 --module nodenext used.ts")
    assert json.loads(project.sh(f"node used.js {project.address} {key} {token}")) == ["tagged"]
