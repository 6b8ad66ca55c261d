"""The tokens of SQL, by the rules of PostgreSQL's manual, "Lexical Structure"."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.sql_lexer import Token, Unreadable, cut, tokens


def shown(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokens(text)]


NAMES = st.from_regex(r"\A[a-zé_][a-z0-9_$é]{0,70}\Z")
LITERALS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
SPACES = st.sampled_from(
    (" ", "\n", "\t", " -- set x = 1\n", "/* select */", "/* a /* 'b */ c */ ", "--'\n", "\r\n")
)


@st.composite
def pieces(draw: st.DrawFn) -> tuple[str, tuple[str, str]]:
    """A token as it may be written, and what it is."""
    kind = draw(
        st.sampled_from(
            ("name", "quoted", "literal", "dollar", "number", "operator", "punctuation", "parameter")
        )
    )
    if kind == "name":
        name = draw(NAMES)
        return "".join(draw(st.sampled_from((c, c.upper() if c.isascii() else c))) for c in name), (
            kind,
            cut(name),
        )
    if kind in ("quoted", "literal"):
        text, quote = draw(LITERALS), '"' if kind == "quoted" else "'"
        return quote + text.replace(quote, quote * 2) + quote, (kind, cut(text) if kind == "quoted" else text)
    if kind == "dollar":
        text = draw(LITERALS).replace("$", "")
        return f"$tag${text}$tag$", ("literal", text)
    words = {
        "number": ("1", "2.5", ".5", "1e9", "0x1f", "1_000", "3.e-2"),
        "operator": ("<=", "||", "->>", "@>", "=", "!~*"),
        "punctuation": ("(", ")", "[", "]", ",", ";", "::", ":=", ".."),
        "parameter": ("$1", "$12"),
    }
    text = draw(st.sampled_from(words[kind]))
    return text, (kind, text)


class Tokens(SynchronousTestCase):
    @given(st.lists(st.tuples(pieces(), SPACES), max_size=12))
    def test_what_is_written_is_what_is_read(
        self, written: list[tuple[tuple[str, tuple[str, str]], str]]
    ) -> None:
        text = "".join(piece + space for (piece, _), space in written)
        # A literal after another on a new line continues it, which is one literal to PostgreSQL.
        self.assertEqual(shown(text), [expected for (_, expected), _ in written])

    @given(st.text(max_size=40))
    def test_any_text_has_tokens_or_is_unreadable(self, text: str) -> None:
        try:
            found = tokens(text)
        except Unreadable:
            return
        positions = [token.position for token in found]
        self.assertEqual(positions, sorted(set(positions)))

    def test_words_are_folded_and_quoted_names_are_not(self) -> None:
        self.assertEqual(shown('SeT "SeT"'), [("name", "set"), ("quoted", "SeT")])
        self.assertEqual(shown("ÄSet"), [("name", "Äset")])

    def test_names_are_cut_off(self) -> None:
        self.assertEqual(shown("a" * 70), [("name", "a" * 63)])
        self.assertEqual(shown('"' + "é" * 40 + '"'), [("quoted", "é" * 31)])

    def test_comments_hide_nothing(self) -> None:
        self.assertEqual(
            shown("f(/* x /* ) */ , true) */, false) -- , true)"),
            [
                ("name", "f"),
                ("punctuation", "("),
                ("punctuation", ","),
                ("name", "false"),
                ("punctuation", ")"),
            ],
        )
        self.assertEqual(
            shown("1 +--\n-2"), [("number", "1"), ("operator", "+"), ("operator", "-"), ("number", "2")]
        )

    def test_a_backslash_escapes_in_literals_with_e_only(self) -> None:
        self.assertEqual(shown(r"'\' set"), [("literal", "\\"), ("name", "set")])
        self.assertEqual(tokens(r"e'\' set'"), [Token("literal", r"\' set", 0, exact=False)])
        self.assertEqual(tokens("E'a'"), [Token("literal", "a", 0)])
        self.assertEqual(tokens("U&'a'"), [Token("literal", "a", 0, exact=False)])

    def test_dollars_within_names_begin_no_literal(self) -> None:
        self.assertEqual(shown("a$b$c $b$ d $b$"), [("name", "a$b$c"), ("literal", " d ")])

    def test_what_does_not_end_is_unreadable(self) -> None:
        for text in (
            "'a",
            '"a',
            "/* a /* */",
            "$a$ b $A$",
            "e'\\'",
            "1a",
            "$1a",
            'U&"a"',
            "e'a'\n'\\'",
            "\\",
            "{",
        ):
            with self.assertRaises(Unreadable, msg=text):
                tokens(text)
