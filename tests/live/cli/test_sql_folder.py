"""``project-service sql --dir``: numbered files are applied once, in order, and what was applied does not change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from project_service.database.locks import PROJECT_MIGRATIONS
from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.cli.command_line import Ended, cli
from tests.live.daemon import eventually
from tests.live.sql import run_sql

REFUSED = "the folder cannot be applied:\n  "
Write = Callable[..., Path]
# Where the part begins that undoes a file, in dbmate, goose, sql-migrate, micrate, Rambler, node-pg-migrate, sqlite
# for Node, shmig, MyBatis, tern and Play.
DOWN = [
    "-- migrate:down",
    "--migrate:down transaction:false",
    "-- +goose Down",
    "--   +goose down",
    "-- +migrate Down",
    "-- +migrate Down notransaction",
    "-- +micrate Down",
    "-- rambler down",
    "-- Down Migration",
    "-- Down",
    "-- ==== DOWN ====",
    "-- //@UNDO",
    "---- create above / drop below ----",
    "--- !Downs",
]
NOT_DOWN = [
    "-- scale down",
    "-- Down with duplicates: a constraint",
    "-- the rollback of invoices",
    "--rollback drop table a;",
    "-- note: down here the index is needed",
    "create type direction as enum (\n 'up', -- up\n 'down' -- down\n);",
    "/* -- migrate:down */",
    "select '\n-- migrate:down\n';",
]
NEARLY = [
    "-- no-transaction",
    "--notransaction",
    "-- no_transaction",
    "-- NO-TRANSACTION",
    "/* no transaction */",
    "-- disable transaction",
    "-- disable-transaction",
    "-- disable_ddl_transaction!",
    "-- without a transaction",
    "-- outside transaction",
    "-- transaction: false",
    "-- transaction = off",
    "-- migrate:up transaction:false",
    "-- +goose NO TRANSACTION",
    "-- +migrate Up notransaction",
    "-- executeInTransaction=false",
    "-- runInTransaction:false",
    "-- atlas:txmode none",
    "---- tern: disable-tx ----",
]


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
    refused = failed(f"{REFUSED}{changed}\n  {early}")
    for more in ((), ("--dry-run",)):
        assert project("sql", "--dir", str(folder), *more) == refused
    (folder / "notes.sql").write_text("")
    status = project("sql", "--dir", str(folder), "--status")
    assert [line.split()[-1] for line in status.out.splitlines()] == ["1_a.sql", "3_c.sql", "2_b.sql"]
    assert status.code == 1
    unnumbered = "notes.sql has no number: rename it to something like 0001_notes.sql"
    assert status.err == failed(f"{REFUSED}{unnumbered}\n  {changed}\n  {early}").err
    listed = project("sql", "--dir", str(folder), "--status", "--json")
    assert [one["name"] for one in listed.json] == ["1_a.sql", "3_c.sql", "2_b.sql"]
    (folder / "notes.sql").unlink()
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
def test_a_file_with_begin_or_commit_is_refused_before_any_file_is_run(
    project: Command, write: Write, database: str
) -> None:
    folder = str(
        write(
            _1_a="create table a ();",
            _2_b="BEGIN;\ncreate table b ();\nselect ';commit;';\ncommit;\ncreate table c ();",
            _3_c="-- no transaction\nbegin; create table d (); commit",
        )
    )
    why = (
        "2_b.sql, line 1: BEGIN, line 4: COMMIT: a file is one transaction, which it cannot begin or end by itself; "
        "delete that, or, if each statement is to be a transaction of its own, begin the file with the line "
        '"-- no transaction"'
    )
    for more in ((), ("--dry-run",)):
        assert project("sql", "--dir", folder, *more) == failed(REFUSED + why)
    assert run_sql(database, "select to_regclass('a'), to_regclass('b'), to_regclass('d')") == [
        (None, None, None)
    ]
    status = project("sql", "--dir", folder, "--status")
    assert status.err == failed(REFUSED + why).err
    assert status.out.split() == ["pending", "1_a.sql", "pending", "2_b.sql", "pending", "3_c.sql"]
    write(_2_b="create table b ();")
    assert project("sql", "--dir", folder) == applied("1_a", "2_b", "3_c")


@beside_the_reactor
def test_what_undoes_a_file_for_other_tools_is_refused(project: Command, write: Write, database: str) -> None:
    for down in DOWN:
        folder = write(_1_a=f"-- migrate:up\ncreate table a ();\n\n{down}\ndrop table a;\n")
        refused = project("sql", "--dir", str(folder))
        # dbmate and others go by lines, and need no semicolon before.
        assert project("sql", stdin=f"select 1\n{down}\nselect 1").err.startswith(
            'project-service: standard input, line 2: "--'
        )
        assert refused.err.startswith(
            f'project-service: {REFUSED}1_a.sql, line 4: "{down}" begins what undoes the file, and would be run too: '
            "delete that part"
        )
    (folder / "1_a.down.sql").write_text("drop table a")
    by_name = (
        "1_a.down.sql undoes another file, going by its name, and would be applied too: keep it elsewhere"
    )
    assert by_name in project("sql", "--dir", str(folder)).err
    (folder / "1_a.down.sql").unlink()
    # The empty part that a template has does no harm.
    write(_1_a="-- migrate:up\ncreate table a ();\n-- migrate:down\n\n-- nothing\n")
    for number, comment in enumerate(NOT_DOWN, 2):
        (folder / f"{number}_x.sql").write_text(f"{comment}\nselect 1;")
    assert project("sql", "--dir", str(folder)).code == 0
    assert run_sql(database, "select to_regclass('a') is not null") == [(True,)]


@beside_the_reactor
def test_a_file_may_do_without_a_transaction(project: Command, write: Write, database: str) -> None:
    folder = str(
        write(
            _1_a="create table a (id int);",
            _2_b="\n/* Carol */\n-- 2026\n\n-- No transaction: an index without a lock\n"
            "set lock_timeout = '2s';\ncreate index concurrently on a (id);\ncreate index concurrently on a (id);",
            _3_c="select 1;\nselect 1 / (current_setting('lock_timeout') = '0')::int",
        )
    )
    assert project("sql", "--dir", folder, "--dry-run") == Ended(
        0,
        "would apply 1_a.sql\n"
        "would apply 2_b.sql; not tried, because a file without a transaction cannot be undone\n"
        "would apply 3_c.sql; not tried, because it comes after 2_b.sql\n",
        "",
    )
    assert project("sql", "--dir", folder) == applied("1_a", "2_b", "3_c")
    assert run_sql(database, "select count(*) from pg_indexes where tablename = 'a'") == [(2,)]
    # What was done stays, and the file counts as not applied.
    run_sql(database, "insert into a values (1), (1)")
    write(_4_d="-- no transaction\ncreate table d ();\n\ncreate unique index concurrently on a (id)")
    assert project("sql", "--dir", folder) == failed(
        '4_d.sql, line 4: could not create unique index "a_id_idx2"\n  DETAIL: Key (id)=(1) is duplicated.\n'
        "  HINT: there is no transaction: what stands before line 4 has been done; if the statement has left an "
        "index behind, that is invalid: drop it"
    )
    assert run_sql(database, "select to_regclass('d') is null") == [(False,)]
    assert "pending                   4_d.sql" in project("sql", "--dir", folder, "--status").out


@beside_the_reactor
def test_who_forgets_or_misspells_that_there_is_no_transaction_is_told(
    project: Command, write: Write
) -> None:
    how = (
        "to run each statement of the file as a transaction of its own, begin the file with the line "
        '"-- no transaction"'
    )
    failing = "create table a (id int);\ncreate index concurrently on a (id)"
    failure = "CREATE INDEX CONCURRENTLY cannot run inside a transaction block\n  HINT: "
    folder = str(write(_1_a=failing))
    assert project("sql", "--dir", folder) == failed(f"1_a.sql, line 2: {failure}{how}")
    for near in NEARLY:
        write(_1_a=f"{near}\n{failing}")
        assert project("sql", "--dir", folder) == failed(
            f'1_a.sql, line 3: {failure}{how} (line 1, "{near}", does not count)'
        )
    enum = "create type c as enum ('a'); create table x (c c);"
    write(_1_a=enum, _2_b="alter type c add value 'b';\ninsert into x values ('b')")
    unsafe = project("sql", "--dir", folder)
    assert unsafe.err.startswith(
        'project-service: 2_b.sql, line 2: unsafe use of new value "b" of enum type c\n'
    )
    assert unsafe.err.endswith(f"  HINT: {how}\n")


@beside_the_reactor
def test_a_file_finds_nothing_of_the_session_of_the_one_before(
    project: Command, write: Write, database: str
) -> None:
    """Applied, each has a connection of its own; --dry-run has to put everything back on the one that it has."""
    folder = str(
        write(
            _1_a="create table notes (text text); create schema other; grant usage on schema other to authenticated;"
            "create table parents (id int primary key);"
            "create table children (id int references parents deferrable initially deferred);"
            "set search_path = other; set statement_timeout = '1h'; set datestyle = 'German';"
            "create temporary table notes (other int); prepare one as select 1; set constraints all immediate;"
            "create sequence numbers; select nextval('numbers');"
            "declare one cursor with hold for select 1; set role authenticated; set client_encoding = 'LATIN1'",
            _2_b="""
insert into notes values ('ü'), (current_date - current_date), (current_setting('datestyle')),
  (current_setting('search_path')), (current_user = session_user), (current_setting('statement_timeout'));
create temporary table notes (other int); prepare one as select 1; declare one cursor with hold for select 1;
insert into children values (1); insert into parents values (1);
do $$ begin
  perform lastval();
  raise 'there is a last value';
exception when object_not_in_prerequisite_state then null;
end $$;
""",
            _3_c="alter table children add column more int; select pg_advisory_lock(7);",
        )
    )
    tried = project("sql", "--dir", folder, "--dry-run")
    assert tried == Ended(0, "".join(f"would apply {one}.sql\n" for one in ("1_a", "2_b", "3_c")), "")
    assert project("sql", "--dir", folder) == applied("1_a", "2_b", "3_c")
    assert run_sql(database, "select text from notes") == [
        ("ü",),
        ("0",),
        ("ISO, MDY",),
        ('"$user", public',),
        ("true",),
        ("0",),
    ]
    names = "select name from _project_service.project_migrations order by number"
    assert run_sql(database, names) == [("1_a.sql",), ("2_b.sql",), ("3_c.sql",)]


@beside_the_reactor
def test_what_fails_at_commit_has_the_name_of_its_file(project: Command, write: Write, database: str) -> None:
    folder = str(
        write(
            _1_a="create table parents (id int primary key);"
            "create table children (id int references parents deferrable initially deferred)",
            _2_größe="insert into children values (7)",
            _3_c="select 1 / 0",
        )
    )
    late = failed(
        '2_größe.sql, at its end (COMMIT): insert or update on table "children" violates foreign key constraint '
        '"children_id_fkey"\n  DETAIL: Key (id)=(7) is not present in table "parents".'
    )
    assert project("sql", "--dir", folder, "--dry-run") == late
    assert project("sql", "--dir", folder) == late
    assert run_sql(database, "select count(*) from children") == [(0,)]


@beside_the_reactor
def test_line_ends_are_no_change(project: Command, write: Write, database: str) -> None:
    text = b"create table a (\n  text text default 'two\nlines'\n);\n"
    folder = write()
    (folder / "1_a.sql").write_bytes(text.replace(b"\n", b"\r\n"))
    assert project("sql", "--dir", str(folder)) == applied("1_a")
    record = "update _project_service.project_migrations set sha256 = %s"
    for recorded in (None, text, text.replace(b"\n", b"\r\n")):
        if recorded is not None:  # as release 0.1.0 did, whichever line ends the file had
            run_sql(database, record, hashlib.sha256(recorded).hexdigest())
        for end in (b"\n", b"\r\n"):
            (folder / "1_a.sql").write_bytes(text.replace(b"\n", end))
            assert project("sql", "--dir", str(folder)) == applied()
    mixed = text.replace(b"\n", b"\r\n", 1)
    run_sql(database, record, hashlib.sha256(mixed).hexdigest())
    (folder / "1_a.sql").write_bytes(mixed)
    assert project("sql", "--dir", str(folder)) == applied()
    # The database is the same from either.
    assert run_sql(database, "insert into a default values returning text") == [("two\nlines",)]
    (folder / "1_a.sql").write_bytes(text.replace(b"two", b"one"))
    assert "1_a.sql has changed" in project("sql", "--dir", str(folder)).err


@beside_the_reactor
def test_which_files_count(project: Command, write: Write, database: str) -> None:
    folder = write(_1_empty="", _2_comment="-- nothing\n/* here */;\n", _3_space=" \n")
    (folder / "4_upper.SQL").write_text("create table upper ()")
    for hidden in (".5_x.sql", "._6_x.sql", ".sql"):
        (folder / hidden).write_text("select 1 / 0")
    for other in ("7_x.sql~", "8_x.sql.orig", "9_x.md"):
        (folder / other).write_text("select 1 / 0")
    (folder / "10_x.sql").mkdir()
    done = project("sql", "--dir", str(folder))
    names = ["1_empty.sql", "2_comment.sql", "3_space.sql", "4_upper.SQL"]
    assert done == Ended(0, "".join(f"applied {name}\n" for name in names), "")
    recorded = run_sql(database, "select name from _project_service.project_migrations order by number")
    assert [name for (name,) in recorded] == names
    assert project("sql", "--dir", str(folder)) == applied()
    (folder / "notes.Sql").write_text("")
    assert "notes.Sql has no number" in project("sql", "--dir", str(folder)).err


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


@beside_the_reactor
def test_an_index_is_made_concurrently_while_other_hosts_wait(
    write: Write, database: str, tmp_path: Path
) -> None:
    """CREATE INDEX CONCURRENTLY waits for all snapshots, so who waits for the turn must have none."""
    config = tmp_path / "service.toml"
    config.write_text(f'[database]\ndsn = "{database}"\n')
    folder = write(
        _1_a="create table a (id int);",
        _2_b="-- no transaction\nselect pg_advisory_lock(7);\ncreate index concurrently a_id on a (id)",
    )
    # Two that have tried to take the turn in vain, while the third is in the middle of its own.
    waiting = (
        f"select count(*) filter (where query like '%advisory_lock({PROJECT_MIGRATIONS})' and state = 'idle'),"
        " count(*) filter (where query like '%advisory_lock(7)%' and wait_event = 'advisory')"
        " from pg_stat_activity where datname = current_database()"
    )
    with closing(psycopg2.connect(database)) as other, ThreadPoolExecutor(3) as threads:
        other.autocommit = True
        other.cursor().execute("select pg_advisory_lock(7)")
        running = [threads.submit(cli, "sql", "--dir", folder, "--config", config) for _ in range(3)]
        eventually(lambda: run_sql(database, waiting) == [(2, 1)], "two wait for the third")
        other.cursor().execute("select pg_advisory_unlock(7)")
        done = [one.result() for one in running]
    assert sorted(one.out for one in done) == sorted([*[applied().out] * 2, applied("1_a", "2_b").out])
    assert {one.code for one in done} == {0}
    waited = "project-service: another host applies files to the database; waiting until it has ended\n"
    assert sorted(one.err for one in done) == ["", waited, waited]
    assert run_sql(database, "select indisvalid from pg_index where indexrelid = 'a_id'::regclass") == [
        (True,)
    ]


@beside_the_reactor
def test_a_turn_lasts_for_longer_than_a_session_may_be_idle(
    project: Command, write: Write, database: str
) -> None:
    run_sql(
        database,
        "do $$ begin execute format('alter database %I set idle_session_timeout = 2000', current_database()); end $$",
    )
    folder = str(write(_1_a="-- no transaction\nselect pg_sleep(2.3)", _2_b="select pg_sleep(2.3)", _3_c=""))
    assert project("sql", "--dir", folder) == applied("1_a", "2_b", "3_c")
