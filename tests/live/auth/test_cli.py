"""``project-service user`` and ``jwt-keys``, on a real database."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import bcrypt
import pytest

from project_service.auth.tokens import KeySet
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of
from tests.live.cli.command_line import cli
from tests.live.sql import run_sql

PASSWORD = "correct horse battery"
SESSION = """
insert into auth.sessions
  (id, user_id, created_at, refreshed_at, rotated_at, expires_at, access_expires_at, current_hash)
select gen_random_uuid(), %s, now(), now(), now(), now() + interval '1 h', now() + interval '1 h', '\\x01'
"""


@pytest.fixture
def project(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line on a database of the test's own, with its keys in ``tmp_path``."""
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__DSN", database)
    return commands_of(monkeypatch, "--data-dir", tmp_path)


@beside_the_reactor
def test_a_user_is_created_and_unlocked(project: Command, database: str, tmp_path: Path) -> None:
    # As a program, with a pipe as standard input, and a line end as in files from Windows.
    words = ("user", "create", "Ada@example.test", "--password-stdin", "--json", "--data-dir", tmp_path)
    made = cli(*words, stdin=PASSWORD + "\r\n")
    assert made.code == 0, made.err
    ((stored,),) = run_sql(database, "select password_hash from auth.users")
    assert bcrypt.checkpw(PASSWORD.encode(), stored.encode())
    user = made.json
    assert (user["email"], user["disabled"], user["email_confirmed"]) == ("Ada@example.test", False, True)
    again = project("user", "create", "ADA@example.test")
    assert (again.code, again.out) == (1, "")
    assert "already a user" in again.err
    attempts = (
        "insert into auth.throttle values ('login', 'ada@example.test', array[now()], array[now()], now())"
    )
    run_sql(database, attempts)
    assert project("user", "unlock", "Ada@example.test").out == f"unlocked {user['id']}\n"
    assert run_sql(database, "select failed, pending from auth.throttle") == [([], [])]
    assert project("user", "unlock", "nobody@example.test").code == 1
    assert run_sql(database, "select action from auth.audit order by id")[-1] == ("unlock_user",)


@beside_the_reactor
def test_a_password_is_one_line_and_the_audit_names_the_operator(
    project: Command, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__AUTH__BCRYPT_COST", "4")
    for number, password in enumerate((f" {PASSWORD} ", "x" * 72)):
        email = f"user{number}@example.test"
        assert project("user", "create", email, "--password-stdin", stdin=f"{password}\n").code == 0
        stored = run_sql(database, "select password_hash from auth.users where email = %s", email)
        assert bcrypt.checkpw(password.encode(), stored[0][0].encode())
    assert project("user", "disable", email).code == 0
    assert run_sql(database, "select distinct actor from auth.audit") == [("operator",)]


@beside_the_reactor
def test_a_new_password_ends_sessions_unless_they_are_kept(
    project: Command, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__AUTH__BCRYPT_COST", "4")
    user = project("user", "create", "ada@example.test").out.strip()
    sessions = "select count(*) from auth.sessions where ended_at is null"
    run_sql(database, SESSION, user)
    words = ("user", "set-password", "ADA@example.test", "--password-stdin")
    kept = project(*words, "--keep-sessions", stdin="another horse 1\n")
    assert (kept.code, kept.out) == (0, f"set the password of {user}\n")
    assert run_sql(database, sessions) == [(1,)]
    assert project("user", "set-password", user, "--password-stdin", stdin=PASSWORD).code == 0
    assert run_sql(database, sessions) == [(0,)]
    ((stored,),) = run_sql(database, "select password_hash from auth.users")
    assert bcrypt.checkpw(PASSWORD.encode(), stored.encode())
    audit = "select actor, email, count(*) from auth.audit where action = 'set_password' group by 1, 2"
    assert run_sql(database, audit) == [("operator", "ada@example.test", 2)]
    assert "password" in project(*words, stdin="short").err
    assert project("user", "set-password", "bob@example.test", "--password-stdin", stdin=PASSWORD).code == 1
    untold = project("user", "set-password", user)
    assert (untold.code, "--password-stdin" in untold.err) == (2, True)


@beside_the_reactor
def test_weak_passwords_and_invalid_addresses_are_refused_and_hashes_accepted(project: Command) -> None:
    for password in ("short", "x" * 73):
        refused = project("user", "create", "ada@example.test", "--password-stdin", stdin=password)
        assert refused.code == 1
        assert "password" in refused.err
    assert project("user", "create", "no address").code == 1
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    assert project("user", "create", "old@example.test", "--password-hash", hashed).code == 0


@beside_the_reactor
def test_keys_are_made_announced_and_rotated(project: Command, tmp_path: Path) -> None:
    path = tmp_path / "jwt-keys.json"
    assert project("jwt-keys", "rotate").code == 1
    made = project("jwt-keys", "create", "--json")
    assert made.code == 0, made.err
    (first,) = made.json["keys"]
    assert (first["algorithm"], first["signs"]) == ("ES256", True)
    assert path.stat().st_mode & 0o777 == 0o600
    refused = project("jwt-keys", "create")
    assert refused.code == 1
    assert "rotate" in refused.err
    assert project("jwt-keys", "rotate", "--algorithm", "EdDSA").code == 0
    keys = KeySet.parse(path.read_bytes()).keys
    assert [key.algorithm for key in keys] == ["EdDSA", "ES256"]
    assert keys[1].kid == first["kid"]
    announced = project("jwt-keys", "rotate", "--announce", "--json").json["keys"]
    assert [(key["algorithm"], key["signs"]) for key in announced] == [
        ("EdDSA", True),
        ("ES256", False),
        ("ES256", False),
    ]
    promoted = project("jwt-keys", "rotate", "--to", announced[1]["kid"], "--json").json["keys"]
    assert [key["kid"] for key in promoted] == [announced[place]["kid"] for place in (1, 0, 2)]
    assert "no key x" in project("jwt-keys", "rotate", "--to", "x").err
    elsewhere = tmp_path / "elsewhere.json"
    assert project("jwt-keys", "create", "--file", str(elsewhere), "--algorithm", "HS256").code == 0
    assert KeySet.parse(elsewhere.read_bytes()).signing.algorithm == "HS256"
    path.write_text("{}")
    broken = project("jwt-keys", "rotate")
    assert broken.code == 1
    assert "JWK Set" in broken.err


def line(number: int, **more: object) -> str:
    user = {
        "id": str(UUID(int=number)),
        "email": f"u{number}@example.test",
        "encrypted_password": None,
        "created_at": "2023-02-03T04:05:06.789012+01:00",
        "raw_user_meta_data": None,
        "raw_app_meta_data": {"provider": "email", "role": "editor"},
        "phone": None,
    }
    return json.dumps({**user, **more})


@beside_the_reactor
def test_users_of_another_service_are_imported_once(project: Command, database: str) -> None:
    hashed = bcrypt.hashpw(b"their old password", bcrypt.gensalt(4)).decode()
    confirmed, seen = "2023-03-03T00:00:00+00:00", "2024-01-01T00:00:00+00:00"
    known = {"email_confirmed_at": confirmed, "last_sign_in_at": seen, "encrypted_password": hashed}
    github = {"provider": "github", "provider_id": "7", "identity_data": {"a": 1}}
    lines = [
        line(1, **known, raw_user_meta_data={"n": [1, "é\n"]}, email="Ann@Example.test"),
        line(2, banned_until="infinity", encrypted_password=""),
        line(3, banned_until="2020-01-01T00:00:00+00:00"),
        line(
            4,
            deleted_at=confirmed,
            identities=[github],
        ),
        "",
    ]
    done = project("user", "import", "--json", stdin="\n".join(lines))
    ids = [str(UUID(int=number)) for number in (1, 2, 3, 4)]
    assert (done.code, done.json) == (0, {"imported": ids, "there": [], "refused": {}})
    columns = (
        "email, password_hash is not null, metadata, raw_app_meta_data ->> 'role', created_at, confirmed_at,"
        " last_login_at, disabled_at is not null"
    )
    query = f"select {columns} from auth.users order by id"
    rows = run_sql(database, query)
    made = datetime.fromisoformat("2023-02-03T04:05:06.789012+01:00")
    ann = datetime.fromisoformat(confirmed), datetime.fromisoformat(seen)
    others = ("editor", made, None, None)
    assert rows == [
        ("Ann@example.test", True, {"n": [1, "é\n"]}, "editor", made, *ann, False),
        ("u2@example.test", False, {}, *others, True),
        ("u3@example.test", False, {}, *others, False),
        ("u4@example.test", False, {}, *others, True),
    ]
    identities = "select user_id, provider_id, identity_data from auth.identities where provider <> 'email'"
    assert run_sql(database, identities) == [(ids[3], "7", {"a": 1})]
    # What is there stays as it is by now.
    run_sql(
        database, "update auth.users set disabled_at = null, last_login_at = now() where email like 'u2%'"
    )
    before = run_sql(database, query)
    again = project("user", "import", stdin="\n".join(lines))
    assert (again.code, again.out) == (0, "0 imported, 4 there already, 0 refused\n")
    assert run_sql(database, query) == before
    # An import that was killed in between is completed.
    run_sql(database, "update auth.users set created_at = now(), confirmed_at = now() where email like 'u3%'")
    assert project("user", "import", stdin=lines[2]).code == 0
    assert run_sql(database, query) == before


@beside_the_reactor
def test_bans_come_with_their_end(project: Command, database: str) -> None:
    ends = "2124-01-01T00:00:00+00:00"
    lines = [
        line(1, banned_until=ends),
        line(2, banned_until="infinity"),
        line(3, banned_until=ends, deleted_at="2023-03-03T00:00:00+00:00"),
        line(4, banned_until="2020-01-01T00:00:00+00:00"),
    ]
    assert project("user", "import", stdin="\n".join(lines)).code == 0
    disabled = "select disabled_at is not null, disabled_until from auth.users order by id"
    until = datetime.fromisoformat(ends)
    assert run_sql(database, disabled) == [(True, until), (True, None), (True, None), (False, None)]
    # Who is disabled here by now is so for as long as was said here.
    by_us = (
        "disabled_at = now(), disabled_until = null, created_at = now()"  # after an import that was killed
    )
    run_sql(database, f"update auth.users set {by_us} where email like 'u1%'")
    assert project("user", "import", stdin=lines[0]).code == 0
    assert run_sql(database, disabled)[0] == (True, None)


@beside_the_reactor
def test_users_without_an_address_are_imported(project: Command, database: str) -> None:
    seen = "2024-01-01T00:00:00+00:00"
    x = {"provider": "x", "provider_id": "7"}
    none: dict[str, Any] = {
        "email": None,
        "encrypted_password": "",
        "raw_app_meta_data": {},
        "last_sign_in_at": seen,
    }
    lines = [
        line(1, **none, is_anonymous=True),
        line(2, **none, is_anonymous=False, identities=[x]),
        line(3, is_anonymous=True),
        line(4, **none, is_anonymous=False, identities=[{"provider": "phone", "provider_id": "8"}]),
    ]
    ids = [str(UUID(int=number)) for number in (1, 2, 3, 4)]
    done = project("user", "import", "--json", stdin="\n".join(lines))
    assert done.json == {"imported": ids[:3], "there": [], "refused": {ids[3]: "email is missing"}}
    columns = "email, is_anonymous, raw_app_meta_data ->> 'provider', password_hash"
    rows = run_sql(database, f"select {columns} from auth.users order by id")
    address = ("u3@example.test", False, "email", None)
    assert rows == [(None, True, None, None), (None, False, "x", None), address]
    # They would be deleted at once otherwise, with what is theirs.
    recent = "select extract(epoch from now() - last_login_at)::float8 from auth.users order by id limit 2"
    ((anonymous,), (of_provider,)) = run_sql(database, recent)
    assert anonymous < 60 < of_provider
    again = project("user", "import", "--json", stdin="\n".join(lines))
    assert (again.json["imported"], again.json["there"]) == ([], ids[:3])
    assert project("user", "list").out.splitlines()[0].endswith("  -")


@beside_the_reactor
def test_who_cannot_be_imported_is_named_and_the_others_come(project: Command, database: str) -> None:
    lines = [
        "{",
        "[]",
        line(1, email=None),
        line(2, email="no address"),
        line(3, encrypted_password="$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"),
        line(4, created_at="yesterday"),
        line(5, created_at=None),
        line(6, raw_user_meta_data=[1]),
        line(7, raw_user_meta_data={"long": "x" * 20_000}),
        line(8, id="8"),
        line(9),
        line(10, email="u9@example.test"),
        line(11, identities=[{"provider": "google"}]),
    ]
    done = project("user", "import", stdin="\n".join(lines))
    assert (done.code, done.err) == (1, "project-service: not everybody could be imported\n")
    *refusals, summary = done.out.splitlines()
    assert summary == "1 imported, 0 there already, 12 refused"
    ids = [str(UUID(int=number)) for number in (*range(1, 8), 10, 11)]
    why = {
        "line 1": "it is not a JSON object",
        "line 2": "it is not a JSON object",
        ids[0]: "email is missing",
        ids[1]: "email is not an e-mail address",
        ids[2]: "encrypted_password must be a bcrypt hash",
        ids[3]: "created_at is not a time",
        ids[4]: "created_at is missing",
        ids[5]: "raw_user_meta_data must be",
        ids[6]: "raw_user_meta_data must",
        "8": "id must be a UUID",
        ids[7]: "There is already a user",
        ids[8]: "identities must have a provider",
    }
    for refusal, (name, beginning) in zip(refusals, why.items(), strict=True):
        assert refusal.startswith(f"refused  {name}: {beginning}"), refusal
    assert run_sql(database, "select email from auth.users") == [("u9@example.test",)]
