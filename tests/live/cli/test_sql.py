"""``project-service sql``: what runs, what is refused, how results are printed, and what is said of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.cli.command_line import Ended
from tests.live.sql import run_sql

# Each value with how it is printed in a column and with --json.
VALUES = [
    ("1", "1", 1),
    ("9223372036854775807", "9223372036854775807", 9223372036854775807),
    ("1.50", "1.50", "1.50"),
    ("0.25::float8", "0.25", 0.25),
    ("'NaN'::float8", "NaN", "NaN"),
    ("true", "t", True),
    ("false", "f", False),
    ("null", "", None),
    ("'50 %s'", "50 %s", "50 %s"),
    ("array[1.5, null]", "{1.5,NULL}", "{1.5,NULL}"),
    (
        """'{"a":[123456789012345678901]}'::json""",
        '{"a":[123456789012345678901]}',
        {"a": [1.2345678901234568e20]},
    ),
    ("'[null]'::jsonb", "[null]", [None]),
    (r"'\x00ff'::bytea", r"\x00ff", r"\x00ff"),
    ("'infinity'::timestamptz", "infinity", "infinity"),
    ("interval '1 day'", "1 day", "1 day"),
]


@pytest.fixture
def project(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands on a data directory whose database is the test's own."""
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__DSN", database)
    return commands_of(monkeypatch, "--data-dir", tmp_path)


@beside_the_reactor
def test_values_are_printed_as_postgresql_writes_them(project: Command) -> None:
    for value, line, as_json in VALUES:
        query = f"select {value} as v"
        assert project("sql", stdin=query).out.splitlines()[2:] == [line, "(1 row)"]
        assert project("sql", "--json", stdin=query).json[0]["rows"] == [[as_json]]


SEVERAL = """
create table made (id int, "Name" text, price numeric);
insert into made values (1, 'tea', 2.50), (20, null, 13), (3, '', null) returning id;
select * from made order by id;
update made set price = 0 where id > 1;
select 1, 2 where false;
"""


@beside_the_reactor
def test_the_result_of_every_statement_is_printed_below_the_names_of_its_columns(project: Command) -> None:
    assert project("sql", stdin=SEVERAL) == Ended(
        0,
        """\
id
--
 1
20
 3
(3 rows)

id | Name | price
---+------+------
 1 | tea  |  2.50
 3 |      |
20 |      |    13
(3 rows)

?column? | ?column?
---------+---------
(0 rows)
""",
        "",
    )
    assert project("sql", stdin="create view one as select 1") == Ended(0, "", "")
    assert project("sql", stdin="-- nothing\n;") == Ended(0, "", "")


@beside_the_reactor
def test_results_are_printed_as_csv(project: Command) -> None:
    assert project("sql", "--csv", stdin=SEVERAL).out == (
        'id\n1\n20\n3\n\nid,Name,price\n1,tea,2.50\n3,"",\n20,,13\n\n?column?,?column?\n'
    )
    quoted = project("sql", "--csv", stdin="select 'a,b' as \"x\"\"y\", E'1\n2', '\"'")
    assert quoted.out == '"x""y",?column?,?column?\n"a,b","1\n2",""""\n'
    assert project("sql", "--csv", "--json", stdin="select 1").code == 2


@beside_the_reactor
def test_results_are_printed_as_json(project: Command) -> None:
    assert project("sql", "--json", stdin=SEVERAL).json == [
        {"command": "CREATE TABLE", "columns": None, "rows": []},
        {"command": "INSERT 0 3", "columns": ["id"], "rows": [[1], [20], [3]]},
        {
            "command": "SELECT 3",
            "columns": ["id", "Name", "price"],
            "rows": [[1, "tea", "2.50"], [3, "", None], [20, None, "13"]],
        },
        {"command": "UPDATE 2", "columns": None, "rows": []},
        {"command": "SELECT 0", "columns": ["?column?", "?column?"], "rows": []},
    ]
    assert project("sql", "--json", stdin="").json == []


@beside_the_reactor
def test_a_file_is_run_completely_or_not_at_all(project: Command, database: str, tmp_path: Path) -> None:
    file = tmp_path / "made.sql"
    # With a byte order mark, as editors on Windows write.
    file.write_text(
        "create table made (n int); insert into made values (1), (2);\r\nselect n from made;", "utf-8-sig"
    )
    assert project("sql", "--csv", str(file)) == Ended(0, "n\n1\n2\n", "")
    file.write_text("select n from made;\ndelete from made; select\n  1 / 0")
    assert project("sql", str(file)) == failed(f"{file}, line 2: division by zero")
    assert project("sql", stdin=file.read_text()) == failed("standard input, line 2: division by zero")
    assert run_sql(database, "select array_agg(n order by n) from made") == [([1, 2],)]


@beside_the_reactor
def test_what_begins_or_ends_a_transaction_is_refused_before_anything_runs(
    project: Command, database: str, tmp_path: Path
) -> None:
    for statement in (
        "begin",
        "BEGIN isolation level serializable",
        "start transaction",
        "commit",
        "COMMIT AND CHAIN",
        "end work",
        "rollback",
        "rollback and chain",
        "abort",
        "prepare transaction 'x'",
        "prepare transaction $$x$$",
        "commit prepared 'x'",
        "rollback prepared 'x'",
        "/* ; */ comMit",
    ):
        refused = project("sql", stdin=f"create table made ();\n\n{statement};\nselect 1 / 0")
        word = statement.removeprefix("/* ; */ ").split()[0].upper()
        assert refused.err.startswith(
            f"project-service: standard input, line 3: {word}: a file is one transaction"
        )
        assert (refused.code, refused.out) == (1, "")
    assert run_sql(database, "select to_regclass('made')") == [(None,)]


@beside_the_reactor
def test_words_in_strings_bodies_and_savepoints_end_no_transaction(project: Command, database: str) -> None:
    allowed = r"""
    create table made (n int); -- commit;
    insert into made values (1);
    savepoint one; insert into made values (2); rollback to one; rollback work to savepoint one; release one;
    select ';commit;', E'\';commit;', $$;commit;$$, "begin" from (select 1 as begin) /* ;commit; */ x;
    do $$ begin perform 1; end $$;
    create function f() returns int begin atomic select case when true then 1 end; end;
    prepare transaction as select 1; prepare transaction (int) as select $1
    """
    done = project("sql", stdin=allowed)
    assert done == failed('standard input, line 8: prepared statement "transaction" already exists')
    assert project("sql", stdin=allowed.rpartition(";")[0]).code == 0
    assert run_sql(database, "select n from made") == [(1,)]


@beside_the_reactor
def test_what_a_lexer_cannot_see_does_not_end_the_transaction_either(project: Command, database: str) -> None:
    made = "create table made (); create procedure p() language plpgsql as $$ begin commit; end $$;"
    for hidden in ("call p()", "do $$ begin commit; end $$", "do $$ begin rollback; end $$"):
        refused = project("sql", stdin=f"{made}\n{hidden}")
        assert refused.err.startswith(
            "project-service: standard input, line 2: invalid transaction termination\n"
        )
        assert 'begin the file with the line "-- no transaction"' in refused.err
    # With it, the first string would end at its second quote, and COMMIT would be a statement.
    tricked = project(
        "sql",
        stdin=rf"{made}set standard_conforming_strings = off;{chr(10)}select '\'' ; commit; select '\'' ",
    )
    assert tricked.err.startswith(
        "project-service: standard input, line 2: the file has set standard_conforming"
    )
    assert run_sql(database, "select to_regclass('made')") == [(None,)]


@beside_the_reactor
def test_statements_that_cannot_run_in_a_transaction_do_without_one(
    project: Command, database: str, tmp_path: Path
) -> None:
    refused = project("sql", stdin="vacuum pg_class")
    assert refused == failed(
        "standard input, line 1: VACUUM cannot run inside a transaction block\n  HINT: to run each statement of the "
        'file as a transaction of its own, begin the file with the line "-- no transaction"'
    )
    assert (
        project("sql", stdin="-- no transaction\nvacuum pg_class; select 1 as n").out == "n\n-\n1\n(1 row)\n"
    )
    partly = "-- no transaction\ncreate table made ();\nselect 1 / 0"
    assert project("sql", stdin=partly) == failed(
        "standard input, line 3: division by zero\n  HINT: there is no transaction: what stands before line 3 has "
        "been done"
    )
    assert run_sql(database, "select to_regclass('made')") == [("made",)]
    batches = "-- no transaction\nbegin; create table a (); commit; begin; create table b ();"
    left = project("sql", stdin=batches)
    assert left == failed(
        "standard input begins a transaction and does not end it, so that was undone: add COMMIT"
    )
    assert run_sql(database, "select to_regclass('a'), to_regclass('b')") == [("a", None)]


@beside_the_reactor
def test_everything_that_postgresql_says_of_an_error_is_printed(project: Command, database: str) -> None:
    run_sql(
        database,
        "create table parents (id int primary key);"
        "create table children (parent int constraint c references parents deferrable initially deferred)",
    )
    late = project("sql", stdin="insert into children values (7)")
    assert late == failed(
        'standard input, at its end (COMMIT): insert or update on table "children" violates foreign key constraint '
        '"c"\n  DETAIL: Key (parent)=(7) is not present in table "parents".'
    )
    unknown = project("sql", stdin="select 'ü';\nselect 1,\n  idd from parents")
    assert unknown == failed(
        'standard input, line 3: column "idd" does not exist\n  HINT: Perhaps you meant to reference the column '
        '"parents.id".'
    )
    raised = project("sql", stdin="do $$ begin\nraise 'no' using detail = E'a\nb', hint = 'c'; end $$")
    assert raised == failed(
        "standard input, line 1: no\n  DETAIL: a\n  b\n  HINT: c\n  CONTEXT: PL/pgSQL function inline_code_block "
        "line 2 at RAISE"
    )
    ended = project("sql", stdin="select pg_terminate_backend(pg_backend_pid())")
    assert ended.err.startswith("project-service: standard input, line 1: the database cannot be reached")


@beside_the_reactor
def test_text_keeps_its_meaning_when_the_file_sets_another_encoding(project: Command) -> None:
    latin = "set client_encoding = 'LATIN1'; select 1;\n"
    assert project("sql", stdin=latin).code == 0
    assert project("sql", stdin=f"{latin}select 'ü'") == failed(
        "standard input, line 2: the file is in UTF-8, and has set client_encoding to LATIN1: leave that out"
    )


@beside_the_reactor
def test_copy_is_refused(project: Command) -> None:
    for copy in ("copy pg_type to stdout", "create table made (n text); copy made from stdin;\nit's\n\\.\n"):
        assert project("sql", stdin=copy) == failed(
            "standard input, line 1: COPY can neither read standard input nor write to standard output here"
        )


@beside_the_reactor
def test_it_may_take_longer_than_a_request(project: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__STATEMENT_TIMEOUT_SECONDS", "0.1")
    assert project("sql", "--csv", stdin="select 1 as n from pg_sleep(0.2)") == Ended(0, "n\n1\n", "")
