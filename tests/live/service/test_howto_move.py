"""docs/howto/move-supabase.rst: its commands as they stand there, on a project that a dump has made, and whose files
a server of the test has."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import requests

from project_service.embedded.postgres import program_directory
from tests.live.daemon import Daemon
from tests.live.programs import program
from tests.live.service.documented import run, shell
from tests.live.services import Services, WithDatabase
from tests.live.sql import run_sql

OLD = Path(__file__).parent / "supabase_project" / "old.sql"
ADA = "11111111-1111-4111-8111-111111111111"
PAPER = f"My papers/{ADA}/a & b?.txt"
FILES = {"avatars/ada.txt": b"Ada", PAPER: b"Paper"}
OLD_ANON, OLD_SERVICE = "old-anon-key-of-the-project", "old-service-key-of-the-project"
ROLES = "anon", "authenticated", "service_role"


class _OldFiles(BaseHTTPRequestHandler):
    """``GET /storage/v1/object/…`` of the old project, by its service key."""

    def do_GET(self) -> None:  # the name is http.server's
        found = FILES.get(unquote(self.path.removeprefix("/storage/v1/object/")))
        allowed = self.headers["Authorization"] == f"Bearer {OLD_SERVICE}"
        self.send_response(200 if allowed and found is not None else 400)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(found if allowed and found is not None else b"")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def old_files() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OldFiles) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def old_database(services: Services) -> Iterator[str]:
    with services.database("old") as dsn:
        for role in ROLES:
            made = f"if to_regrole('{role}') is null then create role {role}; end if;"
            services.admin(f"do $$ begin {made} end $$")
        admin = services.admin_dsn(dsn)
        loaded = subprocess.run(
            [program("psql"), admin, "-q", "-v", "ON_ERROR_STOP=1", "-f", str(OLD)],
            capture_output=True,
            text=True,
            check=False,  # its output says more than a status
        )
        assert loaded.returncode == 0, loaded.stderr
        yield admin


def test_a_project_moves(services: Services, with_database: WithDatabase, tmp_path: Path) -> None:
    var = with_database(tmp_path / "var")
    with old_database(services) as database, old_files() as files, Daemon(var) as daemon:
        url = daemon.wait_until_ready()
        replaced = {
            "postgresql://postgres:…@db.….supabase.co:5432/postgres": database,
            "https://….supabase.co": files,
            "OLD_ANON_KEY='eyJ…' OLD_SERVICE_KEY='eyJ…'": f"OLD_ANON_KEY={OLD_ANON} OLD_SERVICE_KEY={OLD_SERVICE}",
            'pg_dump "': f'{program_directory() / "pg_dump"} "',
        }
        run(tmp_path, "howto/move-supabase.rst", replaced)
        _moved(url, shell(tmp_path, "project-service dsn").strip())


def _moved(url: str, dsn: str) -> None:
    """Apps find everything as it was, with the keys that they had."""

    def ask(
        method: str, path: str, token: str | None = None, key: str = OLD_ANON, body: object = None
    ) -> requests.Response:
        headers = {"apikey": key, **({} if token is None else {"Authorization": f"Bearer {token}"})}
        return requests.request(method, url + path, headers=headers, json=body, timeout=60)

    def sign_in(email: str) -> requests.Response:
        body = {"email": email, "password": "the old password"}
        return ask("POST", "/auth/v1/token?grant_type=password", body=body)

    session = sign_in("ada@example.com").json()
    user, token = session["user"], session["access_token"]
    assert (user["id"], user["user_metadata"]) == (ADA, {"nick": 'Ada "the first"', "lines": "one\ntwo"})
    assert user["app_metadata"] == {"provider": "email", "providers": ["email", "google"], "role": "editor"}
    ways = {one["provider"]: (one["id"], one["identity_data"].get("email")) for one in user["identities"]}
    google = ("100000000000000000001", "ada@gmail.example")
    assert ways == {"email": (ADA, "ada@example.com"), "google": google}
    assert user["created_at"].startswith("2023-02-03T04:05:00")
    assert user["email_confirmed_at"].startswith("2023-02-03T04:05:06.789")
    assert sign_in("ben@example.com").json()["error_code"] == "user_banned"

    notes = ask("GET", "/rest/v1/notes?select=text,mood", token).json()
    assert notes == [{"text": "Two\nlines", "mood": "good"}]
    assert len(ask("GET", "/rest/v1/notes", key=OLD_SERVICE).json()) == 2
    made = ask("POST", "/rest/v1/notes", token, body={"text": "New"})
    assert made.status_code == 201, made.text
    body = {"email": "new@example.com", "password": "a long enough one", "data": {"nick": "New"}}
    assert ask("POST", "/auth/v1/signup", body=body).status_code == 200
    assert ask("GET", "/rest/v1/profiles?nick=eq.new&select=nick").json() == [{"nick": "New"}]

    public = requests.get(f"{url}/storage/v1/object/public/avatars/ada.txt", timeout=60)
    assert (public.content, public.headers["Content-Type"]) == (b"Ada", "text/plain")
    info = ask("GET", "/storage/v1/object/info/avatars/ada.txt", key=OLD_SERVICE).json()
    assert (info["metadata"], info["cache_control"]) == ({"by": "Ada"}, "max-age=60")
    path = f"/storage/v1/object/My%20papers/{ADA}/a%20%26%20b%3F.txt"
    assert ask("GET", path, token).content == b"Paper"
    assert ask("GET", path).json()["code"] == "NoSuchKey"
    assert [one["id"] for one in ask("GET", "/storage/v1/bucket", token).json()] == ["My papers"]
    limits = ask("GET", "/storage/v1/bucket/avatars", key=OLD_SERVICE).json()
    assert (limits["file_size_limit"], limits["allowed_mime_types"]) == (1048576, ["image/*", "text/plain"])
    owners = run_sql(
        dsn, "select distinct owner::text from storage.objects where bucket in ('avatars', 'My papers')"
    )
    assert owners == [(ADA,)]
    published = run_sql(dsn, "select tablename from pg_publication_tables")
    assert published == [("notes",)]
