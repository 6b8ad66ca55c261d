"""``project-service sql --dir``: numbered files are applied once, in order, and what was applied does not change."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.cli.command_line import Ended, cli
from tests.live.sql import run_sql

REFUSED = "the folder cannot be applied:\n  "
Write = Callable[..., Path]


@pytest.fixture
def project(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    config = tmp_path / "service.toml"
    config.write_text(f'[database]\ndsn = "{database}"\n')
    return commands_of(monkeypatch, "--config", config)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes files into a folder and returns it."""

    def written(**texts: str) -> Path:
        folder = tmp_path / "migrations"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name.removeprefix('_')}.sql").write_text(text)
        return folder

    return written


def applied(*names: str) -> Ended:
    return Ended(0, "".join(f"applied {name}.sql\n" for name in names) or "nothing to apply\n", "")


@beside_the_reactor
def test_each_file_is_applied_once_in_the_order_of_numbers(
    project: Command, write: Write, database: str
) -> None:
    folder = str(
        write(
            _10_third="insert into notes values ('50%s'), ('x');",
            _2_second="-- ü\nset search_path = auth; create table public.notes (text text);",
            _0001_first="create schema app; set role authenticated;",
        )
    )
    (Path(folder) / "README.md").write_text("not looked at")
    pending = project("sql", "--dir", folder, "--status")
    assert pending.out.split() == [
        "pending",
        "0001_first.sql",
        "pending",
        "2_second.sql",
        "pending",
        "10_third.sql",
    ]
    tried = project("sql", "--dir", folder, "--dry-run")
    assert tried.out == "would apply 0001_first.sql\nwould apply 2_second.sql\nwould apply 10_third.sql\n"
    assert run_sql(
        database, "select to_regclass('notes'), to_regclass('_project_service.project_migrations')"
    ) == [(None, None)]
    assert project("sql", "--dir", folder) == applied("0001_first", "2_second", "10_third")
    assert run_sql(database, "select text from notes") == [("50%s",), ("x",)]
    assert project("sql", "--dir", folder) == applied()
    write(_11_more="insert into notes values ('y')")
    assert project("sql", "--dir", folder, "--json").json == ["11_more.sql"]
    status = project("sql", "--dir", folder, "--status").out.splitlines()
    assert [re.sub(r"^20\S+Z", "at", line) for line in status] == [
        "at  0001_first.sql",
        "at  2_second.sql",
        "at  10_third.sql",
        "at  11_more.sql",
    ]


@beside_the_reactor
def test_a_file_that_fails_leaves_nothing_behind_and_those_before_it_stay(
    project: Command, write: Write, database: str
) -> None:
    folder = str(
        write(
            _1_a="create table a ();", _2_b="create table b ();\n\nselect nothing;", _3_c="create table c ()"
        )
    )
    wrong = failed('2_b.sql, line 3: column "nothing" does not exist')
    assert project("sql", "--dir", folder, "--dry-run") == wrong
    assert run_sql(database, "select to_regclass('a')") == [(None,)]
    assert project("sql", "--dir", folder) == wrong
    assert run_sql(database, "select to_regclass('a') is null, to_regclass('b'), to_regclass('c')") == [
        (False, None, None)
    ]
    write(_2_b="create table b ();")
    assert project("sql", "--dir", folder) == applied("2_b", "3_c")


@beside_the_reactor
def test_history_does_not_change(project: Command, write: Write) -> None:
    folder = write(_1_a="create table a ();", _3_c="create table c ();")
    assert project("sql", "--dir", str(folder)).code == 0
    write(_1_a="create table a (id int);", _2_b="create table b ();")
    changed = "1_a.sql has changed since it was applied: undo that, and make a new file"
    early = "2_b.sql would have come before 3_c.sql, which was applied: give it a greater number"
    for more in ((), ("--status",), ("--dry-run",)):
        assert project("sql", "--dir", str(folder), *more) == failed(f"{REFUSED}{changed}\n  {early}")
    write(_1_a="create table a ();")
    (folder / "2_b.sql").unlink()
    (folder / "3_c.sql").unlink()
    assert project("sql", "--dir", str(folder)) == failed(
        f"{REFUSED}3_c.sql was applied and is not in the folder: put it back"
    )


@beside_the_reactor
def test_names_that_say_no_order_are_refused(project: Command, write: Write, tmp_path: Path) -> None:
    folder = write(_1_a="", _01_b="", notes="")
    (folder / "4_d.sql").write_bytes(b"\xff")
    (folder / "5_e.sql").write_bytes(b"select 1;\0 drop table x")
    assert project("sql", "--dir", str(folder)) == failed(
        f"{REFUSED}1_a.sql has the same number as 01_b.sql\n"
        "  4_d.sql is not UTF-8\n"
        "  5_e.sql has a NUL character in it\n"
        "  notes.sql has no number: rename it to something like 0001_notes.sql"
    )
    assert project("sql", "--dir", str(tmp_path / "none")).code == 2
    assert project("sql", "--status").code == 2
    assert project("sql", "--dir", str(folder), str(folder / "1_a.sql")).code == 2


@beside_the_reactor
def test_a_file_cannot_end_its_transaction_and_may_do_without_one(
    project: Command, write: Write, database: str
) -> None:
    folder = str(
        write(_1_a="create table a (id int);", _2_b="create table b ();\ncommit;\ncreate table c ();")
    )
    ends = "2_b.sql has COMMIT or ROLLBACK in it; a file is one transaction by itself"
    assert project("sql", "--dir", folder) == failed(ends)
    run_sql(database, "drop table if exists b, c")
    write(_2_b="-- No transaction: an index without a lock\ncreate index concurrently on a (id);")
    assert project("sql", "--dir", folder, "--dry-run").out == "would apply 2_b.sql\n"
    assert project("sql", "--dir", folder) == applied("2_b")
    assert run_sql(database, "select count(*) from pg_indexes where tablename = 'a'") == [(1,)]


@beside_the_reactor
def test_hosts_that_deploy_at_once_take_turns(write: Write, database: str, tmp_path: Path) -> None:
    config = tmp_path / "service.toml"
    config.write_text(f'[database]\ndsn = "{database}"\n')
    folder = write(_1_a="create table a (); select pg_sleep(0.3);", _2_b="create table b ();")
    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(cli, "sql", "--dir", folder, "--config", config) for _ in range(3)]
        done = [one.result() for one in running]
    assert sorted((one.out for one in done), reverse=True) == [
        *[applied().out] * 2,
        applied("1_a", "2_b").out,
    ]
    assert {one.code for one in done} == {0}
