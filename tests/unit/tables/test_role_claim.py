"""Paths to the role in a token's claims: JSON Path (RFC 9535), and the older syntax of PostgREST."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.role_claim import parse_role_claim

CLAIMS = {
    "role": "top",
    "none": None,
    "on": True,
    "realm_access": {"roles": ["offline_access", "uma_authorization", "app_editor", "app_admin"]},
    "groups": [
        {"name": "a", "level": 1, "role": "one", "tags": ["x"]},
        {"name": "b", "level": 2.5, "role": "two", "main": True},
        {"name": "c", "level": "9", "role": "three", "main": None, "of": "top"},
        "loose",
        {"name": "d's", "role": "four"},
    ],
    "it's": "a",
    'q"q': "b",
    "n": 5,
    "ärzte": "umlaut",
    "https://a.example/role": "claimed",
    "path": "/group",
}
NAMES = "$.realm_access.roles"


class Paths(SynchronousTestCase):
    def each(self, *cases: tuple[str, str | None]) -> None:
        for path, role in cases:
            self.assertEqual(parse_role_claim(path).of(CLAIMS), role, path)

    def test_conditions_with_and_or_not_and_parentheses(self) -> None:
        self.each(
            (f'{NAMES}[?@ != "offline_access" && @ != "uma_authorization"]', "app_editor"),
            (f'{NAMES}[?@ == "no" || @ == "app_admin"]', "app_admin"),
            (f'{NAMES}[?!(@ == "offline_access" || search(@, "^uma"))]', "app_editor"),
            (f'{NAMES}[?!search(@, "_a") && match(@, "app_.*")]', "app_editor"),
            # "and" binds closer than "or".
            (f'{NAMES}[?@ == "no" && @ == "no" || @ == "app_admin"]', "app_admin"),
            (f'{NAMES}[?@ == "app_admin" || @ == "no" && @ == "no"]', "app_admin"),
            (f'{NAMES}[?(@ == "app_admin" || @ == "no") && @ == "no"]', None),
            (f'{NAMES}[? @  ==  "app_admin" ]', "app_admin"),
            (f"{NAMES}[?match(@, 'app')]", None),
            ('$.groups[?search(@.name, "^c")].role', "three"),
            ('$.groups[?@.name.nothing == "x"].role', None),
        )

    def test_existence_and_comparison_conditions(self) -> None:
        self.each(
            ("$.groups[?@.main].role", "two"),
            ("$.groups[?!@.main].role", "one"),
            ("$.groups[?@.main == null].role", "three"),
            ("$.groups[?@.main == true].role", "two"),
            ("$.groups[?@.tags[*]].role", "one"),
            ("$.groups[?@.level > 1].role", "two"),
            ("$.groups[?@.level >= 2.5].role", "two"),
            ("$.groups[?@.level < 2].role", "one"),
            ("$.groups[?@.level <= 1.0].role", "one"),
            ("$.groups[?@.level > '8'].role", "three"),
            ("$.groups[?1 < @.level].role", "two"),
            ("$.groups[?@.level == 1e0].role", "one"),
            ("$.groups[?@.tags[0] == 'x'].role", "one"),
            ("$.groups[?@['name'] == 'b']['role']", "two"),
            ("$.groups[?@.of == $.role].role", "three"),
            ("$.groups[?@.of == $.nothing].role", "one"),
            ("$.groups[?$.on].role", "one"),
            ("$.groups[?$.off].role", None),
            # Values of different types are neither less nor greater than each other, and true is not a number.
            ("$.groups[?@.main == 1].role", None),
            ("$.groups[?@.main > 0].role", None),
            ("$.groups[?@.main >= false].role", None),
            ("$.groups[?@.level < 'a'].role", "three"),
            ("$.groups[?@.tags == @.tags].role", "one"),
            ("$.groups[?@.none != 'x'].role", "one"),
        )

    def test_several_selectors_slices_and_descendants(self) -> None:
        self.each(
            (f"{NAMES}[7, 3]", "app_admin"),
            (f"{NAMES}[3,0]", "app_admin"),
            (f"{NAMES}[7]", None),
            (f"{NAMES}[-1]", "app_admin"),
            (f"{NAMES}[-7]", None),
            (f"{NAMES}[*]", "offline_access"),
            (f"{NAMES}[1::2]", "uma_authorization"),
            (f"{NAMES}[:1]", "offline_access"),
            (f"{NAMES}[ 2 : ]", "app_editor"),
            (f"{NAMES}[::-1]", "app_admin"),
            (f"{NAMES}[5:]", None),
            (f"{NAMES}[::0]", None),
            ("$['none', \"role\"]", None),
            ("$['nothing', \"role\"]", "top"),
            ("$..roles[2]", "app_editor"),
            ("$..[?@.name == 'c'].role", "three"),
            ("$..*", "top"),
            ("$..['roles'][?search(@, '^uma')]", "uma_authorization"),
            ("$..[2].name", "c"),
            ("$..nothing", None),
            ("$.groups..role", "one"),
            ("$.groups.*.tags[0]", "x"),
            ("$.groups[1:].role", "two"),
            ("$.groups[*].nothing", None),
            ("$ .realm_access [ 'roles' ] [ 2 ]", "app_editor"),
        )

    def test_only_lists_have_elements_and_strings_no_slices(self) -> None:
        for path in ("$.realm_access[0]", "$.realm_access[0:]", "$.n[0]", "$.n[0:]", "$.n[*]", "$.path[1:]"):
            self.each((path, None))

    def test_names_may_be_quoted_escaped_and_of_any_script(self) -> None:
        self.each(
            ("$.ärzte", "umlaut"),
            ("$['\\u00e4rzte']", "umlaut"),
            ('$["https:\\/\\/a.example\\/role"]', "claimed"),
            ("$['https://a.example/role']", "claimed"),
            ('."it\'s"', "a"),
            ("$['it\\'s']", "a"),
            ('$["q\\"q"]', "b"),
            ("$['q\"q']", "b"),
            ('$.groups[?@.name == "d\'s"].role', "four"),
            (f"{NAMES}[?search(@, '^app_\\\\w+n$')]", "app_admin"),
        )

    def test_doubled_dollars_of_postgrests_configuration_files_are_accepted(self) -> None:
        self.each(("$$.role", "top"), ("$$.groups[?@.of == $$.role].role", "three"))
        self.each((f"${NAMES}[?search(@, 'n$$')]", "uma_authorization"))

    def test_the_older_syntax_of_postgrest_is_accepted(self) -> None:
        self.each(
            (".role", "top"),
            ('."https://a.example/role"', "claimed"),
            ('.realm_access.roles[?(@ ^== "app")]', "app_editor"),
            ('.realm_access.roles[?(@ ==^ "min")]', "app_admin"),
            ('.realm_access.roles[?(@ *== "edit")]', "app_editor"),
            (".realm_access.roles[1]", "uma_authorization"),
            (".realm_access.nothing[3]", None),
            (".path[1:]", "group"),
            (".path[1:-1]", "grou"),
            (".path[5:2]", None),
        )

    def test_invalid_paths_are_refused(self) -> None:
        shapes = (
            *("role", "$role", "$.", "$..", "$...a", "$[", "$[]", "$[1", "$[1,]", "$['a]", "$", "$$"),
            *(".", ".a[", ".a[1:", ".a[1:2:3]", ".'a", "$.a.."),
        )
        blanks = ("", "$.a b", "$.role ", " $.role")
        conditions = (
            *(
                "$[?]",
                "$[?@ ==]",
                "$[?== 1]",
                "$[?@ = 1]",
                "$[?(@ == 1]",
                "$[?@ == 1)]",
                "$[?@ && ]",
                "$[?'a']",
            ),
            *("$[?@.* == 1]", "$[?@..a == 1]", "$[?1 == @[0,1]]", "$[?@ == 01]", "$[?@ == nil]"),
            *("$[?search(@)]", "$[?search(@.*, 'a')]", "$[?search(@, 'a'", "$[?search(@, '\\w')]"),
            *('.a[?(@ == "a"]', '.a[?@ == "a")]', ".a[?@ == \"a']"),
            *('$.a[?(@ ^== "x")]', '.a[?(@ = "x")]', '.a[?@ == "x"]', "$[::::]", "$[1:2:3:4]"),
        )
        for bad in (*shapes, *blanks, *conditions, "$" + "[?" * 5000):
            raised = self.assertRaises(ValueError, parse_role_claim, bad)
            self.assertEqual(str(raised), f"not a path to a claim: {bad!r}")
        raised = self.assertRaises(ValueError, parse_role_claim, "$[?search(@, '(')]")
        self.assertTrue(str(raised).startswith("not a regular expression: "))

    def test_an_invalid_pattern_from_the_claims_matches_nothing(self) -> None:
        self.assertIsNone(parse_role_claim("$.a[?search(@, $.b)]").of({"a": ["("], "b": "("}))

    def test_claims_nested_too_deeply_for_a_path_are_refused(self) -> None:
        deep: dict[str, object] = {}
        for _ in range(500):
            deep = {"a": deep}
        self.assertRaises(ValueError, parse_role_claim("$..role").of, deep)

    @given(st.text(alphabet="$.@[]?()'\"*:,! =<>&|-01aé\\u", max_size=30))
    def test_any_text_is_a_path_or_refused(self, text: str) -> None:
        try:
            found = parse_role_claim("$" + text)
        except ValueError:
            return
        role = found.of({"a": {"0": ["1", {"a": "01"}]}, "é": "a"})
        self.assertTrue(role is None or isinstance(role, str))
