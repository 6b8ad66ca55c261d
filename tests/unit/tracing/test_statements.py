"""What a trace shows of a statement: nothing that a client has written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.database.quoting import ident, literal
from project_service.tracing.statements import MAX_CHARACTERS, UNREAD, shape_of

SHAPES = {
    "select * from auth.users where id = $1": ("SELECT", "auth.users"),
    'SELECT "a"."b" FROM "public"."notes" JOIN "public"."parts" ON true': ("SELECT", "public.notes"),
    "with source as (insert into public.notes (a) select $1 returning *) select count(*) from source": (
        "INSERT",
        "public.notes",
    ),
    "update auth.sessions set ended_at = now() where id = $1": ("UPDATE", "auth.sessions"),
    "delete from storage.objects where key = $1": ("DELETE", "storage.objects"),
    "select id from auth.users where id = $1 for update": ("SELECT", "auth.users"),
    "select id from auth.users where id = $1 for no key update": ("SELECT", "auth.users"),
    "insert into a.b values ($1) on conflict (id) do update set x = 1": ("INSERT", "a.b"),
    "select storage.put_object($1, $2)": ("SELECT", ""),
    "select * from storage.put_object($1, $2)": ("SELECT", "storage.put_object"),
    # It may be a name that the client chose.
    'select 1 from "one"': ("SELECT", ""),
    'select 1 from "one" join "two"."three" on true': ("SELECT", ""),
    "begin": ("BEGIN", ""),
    "set local search_path = ''; select 1 from auth.users;": ("SELECT", "auth.users"),
    "select 'from a.b' from c.d": ("SELECT", "c.d"),
    "select 1 -- from a.b": ("SELECT", ""),
    "": ("", ""),
    ";": ("", ""),
    "select 'not closed": ("", ""),
}
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


class Shapes(TestCase):
    def test_a_statement_is_its_verb_and_the_first_that_it_names_with_its_schema(self) -> None:
        for text, expected in SHAPES.items():
            shape = shape_of(text)
            self.assertEqual((shape.operation, shape.target), expected, text)

    def test_settings_before_it_make_no_other_shape(self) -> None:
        plain = shape_of("select * from a.b")
        self.assertEqual(shape_of("select set_config('role', 'x', true); select * from a.b"), plain)
        self.assertEqual(shape_of("select set_config('role', 'y', true); select * from a.b;"), plain)
        self.assertNotEqual(shape_of("select * from a.b where true").digest, plain.digest)

    def test_one_that_is_very_long_is_not_read(self) -> None:
        self.assertEqual(shape_of("select 1 from a.b " + "x" * MAX_CHARACTERS), UNREAD)

    @given(NAMES, NAMES, st.sampled_from(("from a.b", "insert into a.b", "update a.b", "; delete from a.b")))
    def test_neither_a_name_that_a_client_chose_nor_a_literal_is_shown(
        self, name: str, value: str, injected: str
    ) -> None:
        name, value = f"zqj{name} {injected}", f"zqj{value} {injected}"
        text = f'select {literal(value)} as {ident(name)}, {ident(name)}.* from "public"."notes" as {ident(name)}'
        shape = shape_of(text)
        self.assertEqual((shape.operation, shape.target), ("SELECT", "public.notes"))
