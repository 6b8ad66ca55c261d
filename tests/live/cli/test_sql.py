"""``project-service sql``: what runs, what is refused, and how rows are printed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.live.cli.command_here import Command, beside_the_reactor, commands_of, failed
from tests.live.cli.command_line import Ended

# Each value with how it is printed in a line and with --json.
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
    query = f"select {', '.join(value for value, _, _ in VALUES)}"
    assert project("sql", stdin=query).out == "\t".join(line for _, line, _ in VALUES) + "\n"
    assert project("sql", "--json", stdin=query).json == [[value for _, _, value in VALUES]]


@beside_the_reactor
def test_a_file_is_run_completely_or_not_at_all(project: Command, database: str, tmp_path: Path) -> None:
    file = tmp_path / "made.sql"
    # With a byte order mark, as editors on Windows write.
    file.write_text(
        "create table made (n int); insert into made values (1), (2);\nselect n from made;", "utf-8-sig"
    )
    done = project("sql", str(file))
    assert done == Ended(0, "1\n2\n", "")
    undone = project("sql", stdin="select n from made; delete from made; select 1 / 0")
    assert undone == failed("division by zero")
    # The last statement returns no rows.
    last = "select n from made; update made set n = n + 1 where n = 2"
    assert project("sql", "--json", stdin=last).json == []
    with closing(psycopg2.connect(database)) as connection:
        cursor = connection.cursor()
        cursor.execute("select array_agg(n order by n) from made")
        assert cursor.fetchone() == ([1, 3],)


@beside_the_reactor
def test_copy_is_refused(project: Command) -> None:
    refused = project("sql", stdin="copy pg_type to stdout")
    assert refused == failed("COPY can neither read standard input nor write to standard output here")


@beside_the_reactor
def test_it_may_take_longer_than_a_request(project: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__STATEMENT_TIMEOUT_SECONDS", "0.1")
    assert project("sql", stdin="select 1 from pg_sleep(0.2)") == Ended(0, "1\n", "")
