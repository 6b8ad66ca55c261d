"""``project-service sql``: what runs, what is refused, and how rows are printed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.live.command_line import Ended, cli

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
def project(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that knows a database of the test's own."""
    monkeypatch.setenv("PROJECT_SERVICE__DATABASE__DSN", database)
    return tmp_path


def sql(project: Path, text: str, *options: str) -> Ended:
    return cli("sql", "--data-dir", project, *options, stdin=text)


def test_values_are_printed_as_postgresql_writes_them(project: Path) -> None:
    query = f"select {', '.join(value for value, _, _ in VALUES)}"
    assert sql(project, query).out == "\t".join(line for _, line, _ in VALUES) + "\n"
    assert sql(project, query, "--json").json == [[value for _, _, value in VALUES]]


def test_all_of_a_file_or_nothing_of_it(project: Path) -> None:
    file = project / "made.sql"
    # As editors on Windows begin a file.
    file.write_text(
        "create table made (n int); insert into made values (1), (2);\nselect n from made;", "utf-8-sig"
    )
    done = cli("sql", file, "--data-dir", project)
    assert done == Ended(0, "1\n2\n", "")
    failed = sql(project, "select n from made; delete from made; select 1 / 0")
    assert failed == Ended(1, "", "project-service: division by zero\n")
    # The last statement returns no rows.
    assert sql(project, "select n from made; update made set n = n + 1 where n = 2", "--json").json == []
    with closing(psycopg2.connect(os.environ["PROJECT_SERVICE__DATABASE__DSN"])) as connection:
        cursor = connection.cursor()
        cursor.execute("select array_agg(n order by n) from made")
        assert cursor.fetchone() == ([1, 3],)


def test_copy_has_no_place_in_it(project: Path) -> None:
    refused = sql(project, "copy pg_type to stdout")
    said = "project-service: COPY can neither read standard input nor write to standard output here\n"
    assert refused == Ended(1, "", said)
