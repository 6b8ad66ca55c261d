"""Files of SQL are split where PostgreSQL ends a statement, whatever they consist of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.database.sql_statements import Script, read_script

# Each hides a semicolon, a word that ends a transaction, or a quote.
OPAQUE = [
    "'a;b'",
    "';commit;'",
    "'it''s;'",
    r"'a\'",
    r"E'it\'s;'",
    r"e'\\'",
    r"E'a''\';'",
    "E'a' -- ;\n '\\';'",
    "E'a'\n\n'\\''",
    '"x;y"',
    '"a"";"',
    "U&'\\0061;'",
    "B'1'",
    "$$;commit;$$",
    "$$it's$$",
    "$a$ $b$; $$;$$ $a$",
    "$é1$;$$é1$é1$",
    "/* ; ' */",
    "/* /* ; */ $$ ; */",
    "-- ; ' $$ /*\n",
    "a$b$c",
    "$1",
    "1$$;$$",
    "(a; b)",
    "((';'))",
    "word",
    "2.5",
    "<=>",
    "a-b",
    "a/b",
    "::text",
    "é",
    "\n",
]
# With commas, because a string on the next line goes on with the one before.
fragments = st.lists(st.sampled_from(OPAQUE), max_size=6).map(", ".join)
# A first word, because a comment alone is no statement.
statements = st.lists(fragments.map(lambda text: f"select {text} x"), max_size=6)


def texts(text: str) -> list[str]:
    return [one.text for one in read_script(text).statements]


def words(text: str) -> list[tuple[str, ...]]:
    return [one.words for one in read_script(text).statements]


class Splitting(TestCase):
    @given(statements, st.sampled_from([";", ";\n", " ;; ", ";\n-- a comment; of several words\n"]))
    def test_what_was_joined_is_split(self, joined: list[str], separator: str) -> None:
        text = separator.join(joined)
        script = read_script(text)
        self.assertEqual([one.text.rstrip() for one in script.statements], joined)
        position = 0
        for one, original in zip(script.statements, joined, strict=True):
            position = text.index(original, position)
            self.assertEqual(one.line, text.count("\n", 0, position) + 1)
            self.assertEqual(one.line_at(1), one.line)
            position += len(original)
            self.assertEqual(one.line_at(len(original)), text.count("\n", 0, position - 1) + 1)

    @given(st.text(alphabet="abE$'\"\\;-/*()\n x1", max_size=60))
    def test_nothing_but_semicolons_comments_and_space_is_lost(self, text: str) -> None:
        script = read_script(text)
        rest = text
        for one in script.statements:
            before, found, rest = rest.partition(one.text)
            self.assertTrue(found)
            self.assertEqual(read_script(before), Script((), read_script(before).comments, 0))
        self.assertEqual(read_script(rest).statements, ())

    def test_what_is_not_closed_lasts_until_the_end(self) -> None:
        for begun in ("'", '"', "E'", "e'\\", "$$", "$a$ $$", "(", "create function f() begin atomic"):
            self.assertEqual(texts(f"select 1;{begun};a;b"), ["select 1", f"{begun};a;b"])
        self.assertEqual(texts("select 1; /* /* */ ; commit"), ["select 1"])

    def test_bodies_of_functions_and_rules_are_part_of_their_statement(self) -> None:
        function = (
            "create or replace function f(begin int) returns int\nbegin /* x */ atomic\n"
            "  select case when a then 1 end; select 1 end; select 2 as begin;\nend"
        )
        empty = "create procedure p() begin atomic end"
        rule = "create rule r as on insert to t do also (delete from a; delete from b)"
        self.assertEqual(
            texts(f"{function}; {empty};{rule};commit"),
            [function, empty, rule, "commit"],
        )
        # A function with such a name, and a transaction with words behind BEGIN.
        self.assertEqual(
            texts("create function begin() as $$;$$; end"), ["create function begin() as $$;$$", "end"]
        )
        self.assertEqual(texts("begin; select 1; end"), ["begin", "select 1", "end"])

    def test_words_are_in_lower_case_and_strings_are_none(self) -> None:
        self.assertEqual(
            words("/* x */ COMMIT;Prepare Transaction 'commit'; \"commit\"; 'commit'"),
            [("commit",), ("prepare", "transaction", "'"), ('"',), ("'",)],
        )

    def test_comments_know_where_they_are(self) -> None:
        script = read_script("-- a\n\n /* b */ select '-- no' -- c\n  -- d\n, 2;-- e\r-- f")
        self.assertEqual(
            [(one.text, one.line, one.after, one.alone) for one in script.comments],
            [
                ("-- a", 1, 0, True),
                ("/* b */", 3, 0, True),
                ("-- c", 3, 2, False),
                ("-- d", 4, 2, True),
                ("-- e", 5, 4, False),
                ("-- f", 5, 4, False),
            ],
        )
        self.assertEqual(script.tokens, 4)

    def test_a_large_file_is_read(self) -> None:
        text = "insert into t values (E'" + "\\n''x" * 500_000 + "'), ('" + "''" * 500_000 + "');\n" * 2
        self.assertEqual(len(texts(text)), 2)
