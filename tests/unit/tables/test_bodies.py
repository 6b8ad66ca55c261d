"""Bodies of writes: which members are used, and which row a PUT writes."""

from __future__ import annotations

import json

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.request.body import _shallow, parse_payload
from tests.unit.tables.planning import planned, text


def put(*pairs: tuple[str, str], body: bytes, prefer: str) -> WritePlan:
    plan = planned("PUT", "works", *pairs, body=body, prefer=prefer).compiled.plan
    assert isinstance(plan, WritePlan)
    return plan


class Members(SynchronousTestCase):
    @given(st.permutations(["c", "a", "b"]))
    def test_columns_of_a_body_are_sorted_by_name_in_every_media_type(self, names: list[str]) -> None:
        body = json.dumps(dict.fromkeys(names, 1)).encode()
        for found in (
            parse_payload(None, body, None, False),
            parse_payload(None, b"[" + body + b"]", None, False),
            parse_payload(None, body, (*names, "a"), False),
            parse_payload("text/csv", ",".join(names).encode() + b"\n1,2,3", None, False),
            parse_payload("application/x-www-form-urlencoded", "=&".join(names).encode(), None, False),
        ):
            self.assertEqual(found.keys, ("a", "b", "c"))

    def test_json_is_not_parsed_if_columns_are_given(self) -> None:
        for body, is_array in ((b"\n\t {nonsense", False), (b" [nonsense", True), (b"", True), (b"3", True)):
            found = parse_payload(None, body, ("a",), False)
            self.assertEqual((found.text, found.is_array, found.is_empty), (body.decode(), is_array, False))

    def test_a_body_with_invalid_utf8_or_nul_is_refused_even_if_columns_are_given(self) -> None:
        for body in (b"{\xff}", b'{"a": "\0"}'):
            error = self.assertRaises(TableError, parse_payload, None, body, ("a",), False)
            self.assertEqual(error.code, "PGRST102")

    def test_json_numbers_beyond_a_double_are_passed_through(self) -> None:
        for number in ("1e400", "-2.5E+1000", "9" * 400):
            body = f'[{{"a": {number}, "b": [1, 1.5, null]}}]'.encode()
            found = parse_payload(None, body, None, False)
            self.assertEqual((found.keys, found.text), (("a", "b"), body.decode()))

    def test_invalid_json_is_refused_even_with_numbers_beyond_a_double(self) -> None:
        for rest in (b"", b', "b": NaN}', b', "\\ud83d": 1}', b', "b": "\xff"}', b', "b": ' + b"[" * 10_000):
            error = self.assertRaises(TableError, parse_payload, None, b'{"a": 1e400' + rest, None, False)
            self.assertEqual((error.code, error.message), ("PGRST102", "Empty or invalid json"))

    def test_json_of_any_depth_is_passed_through(self) -> None:
        for levels in (1_000, 1_023, 1_024, 6_000, 100_000):
            for deep in ("[" * levels + "]" * levels, '{"x":' * levels + "1e400" + "}" * levels):
                for body in (
                    f'{{"b": {deep}, "a": "]}}{{"}}',
                    f'[{{"a": [], "b": {deep}}}, {{"b": {deep}, "a": 1}}]',
                ):
                    found = parse_payload(None, body.encode(), None, False)
                    self.assertEqual((found.keys, found.text), (("a", "b"), body))
                    self.assertGreater(found.depth, levels)

    def test_deep_json_keeps_its_rules_at_the_top(self) -> None:
        deep = "[" * 2_000 + "]" * 2_000
        for body in (
            f'{{"a": {deep}',
            f'{{"a": {deep}}}}}',
            f'{{"a": {deep} 1}}',
            f'{{"a": {deep}, NaN}}',
            f"{{a: {deep}}}",
            f'[{{"a": {deep}}}, {{"b": {deep}}}]',
            "[[1]," * 100_000,
            deep[:-1],
        ):
            error = self.assertRaises(TableError, parse_payload, None, body.encode(), None, False)
            self.assertEqual(error.code, "PGRST102", body[:30])

    @given(
        st.recursive(
            st.none() | st.text('[]{}",:\\a'), lambda of: st.lists(of) | st.dictionaries(st.text('["a'), of)
        )
    )
    def test_a_shallow_text_has_the_same_names(self, value: object) -> None:
        shallow = json.loads(_shallow(json.dumps(value)))
        self.assertEqual(type(shallow), type(value))
        if isinstance(value, dict):
            self.assertEqual(shallow.keys(), value.keys())
        elif isinstance(value, list):
            names = [item.keys() if isinstance(item, dict) else None for item in value]
            self.assertEqual([item.keys() if isinstance(item, dict) else None for item in shallow], names)

    def test_a_patch_takes_one_object(self) -> None:
        several = b'[{"title": "a"}, {"title": "b"}]'
        for pairs, media, body in (
            ((), "application/json", several),
            ((), "application/json", b"[{}, {}]"),
            ((("columns", "title"),), "application/json", several),
            ((("columns", "title"),), "application/json", b'[{"title": 1}, 2]'),
            ((), "text/csv", b"title\na\nb\n"),
        ):
            error = self.assertRaises(TableError, planned, "PATCH", "works", *pairs, body=body, media=media)
            self.assertEqual((error.status, error.code), (400, "PGRST102"))
            self.assertIn("merge-duplicates", str(error.hint))
        for pairs, media, body in (
            ((), "application/json", b'[{"title": "a"}]'),
            ((), "application/json", b"[]"),
            ((("columns", "title"),), "application/json", b'[{"title": "a"}]'),
            ((("columns", "title"),), "application/json", b"[nonsense"),
            ((), "text/csv", b"title\na\n"),
        ):
            planned("PATCH", "works", *pairs, body=body, media=media)
        planned("POST", "works", body=several)

    def test_a_form_may_have_at_most_25000_fields(self) -> None:
        form = "application/x-www-form-urlencoded"
        self.assertEqual(len(parse_payload(form, b"a&" * 24_999 + b"a", None, True).arguments), 25_000)
        error = self.assertRaises(TableError, parse_payload, form, b"a&" * 25_000 + b"a", None, True)
        self.assertEqual((error.status, error.code), (400, "PGRST102"))

    def test_a_form_is_one_object_and_the_last_of_equal_names_counts(self) -> None:
        media, body = "application/x-www-form-urlencoded; charset=utf-8", b"b=x+y&a=&b=%C3%A9"
        for columns, keys in ((None, ("a", "b")), (("b",), ("b",))):
            found = parse_payload(media, body, columns, False)
            self.assertEqual((json.loads(found.text), found.keys), ({"a": "", "b": "é"}, keys))
            self.assertEqual(found.arguments, (("b", "x y"), ("a", ""), ("b", "é")))
        for bad in (b"a=%ff", b"a=\xff"):
            error = self.assertRaises(TableError, parse_payload, media, bad, None, False)
            self.assertEqual((error.code, error.message), ("PGRST102", "Invalid form"))

    def test_raw_media_types_are_accepted_by_functions_only(self) -> None:
        for media, routine, refused in (
            ("text/plain", True, False),
            ("text/xml", True, False),
            ("application/octet-stream", True, False),
            ("image/png", True, True),
            ("text/plain", False, True),
            ("application/octet-stream", False, True),
        ):
            if refused:
                error = self.assertRaises(TableError, parse_payload, media, b"x", None, routine)
                expected = (400, "PGRST102", f"Content-Type not acceptable: {media}")
                self.assertEqual((error.status, error.code, error.message), expected)
            else:
                found = parse_payload(media, b"x", None, routine)
                self.assertEqual((found.kind, found.raw), ("raw", b"x"))

    def test_a_text_that_is_not_utf8_is_refused_and_octets_are_kept(self) -> None:
        """PostgreSQL cannot hold it, and a function should not be given another text than was sent."""
        for media in ("text/plain", "text/plain; charset=latin-1", "text/xml"):
            error = self.assertRaises(TableError, parse_payload, media, b"caf\xe9", None, True)
            self.assertEqual(
                (error.status, error.code, error.message), (400, "PGRST102", "The body is not UTF-8")
            )
        self.assertEqual(parse_payload("text/plain", "café".encode(), None, True).raw, "café".encode())
        self.assertEqual(parse_payload("application/octet-stream", b"\xe9", None, True).raw, b"\xe9")

    def test_a_function_may_be_called_with_an_empty_body(self) -> None:
        self.assertEqual(parse_payload(None, b"", ("a",), True).text, "{}")


class Wholes(SynchronousTestCase):
    """Bodies passed whole to a function with a single unnamed argument."""

    def test_any_json_is_passed_whole(self) -> None:
        for body in (b"[]", b"3", b'[{"a": 1}]', b'{"a": 1}'):
            found = planned("POST", "rpc/whole", body=body)
            plan = found.compiled.plan
            assert isinstance(plan, CallPlan)
            self.assertEqual((plan.whole, found.raw), (True, body))

    def test_an_array_whose_objects_differ_in_keys_is_refused(self) -> None:
        for body in (b"[1, 2]", b'[{"a": 1}, {"b": 2}]', b"[[1], {}]"):
            for method, path in (("POST", "rpc/add"), ("POST", "rpc/whole_text"), ("POST", "works")):
                error = self.assertRaises(TableError, planned, method, path, body=body)
                self.assertEqual((error.code, error.message), ("PGRST102", "All object keys must match"))


class Puts(SynchronousTestCase):
    def test_put_writes_the_whole_row_whatever_columns_are_named(self) -> None:
        body, key = b'{"id": 1, "title": "x"}', ("id", "eq.1")
        found = put(key, ("columns", "id"), body=body, prefer="missing=default")
        self.assertEqual([column.name for column in found.columns], ["id", "title"])
        self.assertFalse(found.fills_defaults)

    def test_put_writes_the_first_row_of_the_body_that_has_the_key_of_the_url(self) -> None:
        found = text(planned("PUT", "works", ("id", "eq.1"), body=b'[{"id": 2}, {"id": 1}]'))
        self.assertIn('WHERE pgrst_body."id" = ', found)
        self.assertEqual(found.count("LIMIT 1"), 1)
        self.assertLess(found.index("WHERE"), found.index("LIMIT 1"))

    def test_put_of_an_empty_object_inserts_nothing(self) -> None:
        found = text(planned("PUT", "works", ("id", "eq.1"), body=b"{}"))
        self.assertNotIn("INSERT", found)

    def test_put_with_limit_or_offset_is_refused_before_the_body_is_parsed(self) -> None:
        for pair in (("limit", "1"), ("offset", "1")):
            error = self.assertRaises(TableError, planned, "PUT", "works", ("id", "eq.1"), pair, body=b"}")
            self.assertEqual(error.code, "PGRST114")
        planned("PUT", "works", ("id", "eq.1"), ("offset", "0"), body=b'{"id": 1}')
        planned("PUT", "works", ("id", "eq.1"), ("id", "eq.1"), body=b'{"id": 1}')


class Locations(SynchronousTestCase):
    def test_location_names_the_primary_key_in_the_order_of_the_tables_columns(self) -> None:
        found = planned(
            "POST", "works_tags", body=b'{"tag_id": 1, "work_id": 2}', prefer="return=headers-only"
        )
        plan = found.compiled.plan
        assert isinstance(plan, WritePlan)
        relation = evolve(plan.relation, primary_key=("tag_id", "work_id"))
        self.assertEqual(evolve(plan, relation=relation).location, ("work_id", "tag_id"))
        self.assertEqual(evolve(plan, representation="representation").location, ())
