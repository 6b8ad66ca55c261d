"""Bodies of requests: JSON, CSV, forms and raw bodies, and which members of them are used."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.call import CallPlan
from project_service.tables.request.body import parse_csv, parse_payload
from project_service.tables.request.json_text import _shallow
from tests.unit.tables.planning import planned


class Members(SynchronousTestCase):
    @given(st.permutations(["c", "a", "b"]))
    def test_columns_of_a_body_are_sorted_by_name_in_every_media_type(self, names: list[str]) -> None:
        body = json.dumps(dict.fromkeys(names, 1)).encode()
        for payload in (
            parse_payload(None, body, None, False),
            parse_payload(None, b"[" + body + b"]", None, False),
            parse_payload(None, body, (*names, "a"), False),
            parse_payload("text/csv", ",".join(names).encode() + b"\n1,2,3", None, False),
            parse_payload("application/x-www-form-urlencoded", "=&".join(names).encode(), None, False),
        ):
            self.assertEqual(payload.keys, ("a", "b", "c"))

    def test_json_is_not_parsed_if_columns_are_given(self) -> None:
        for body, is_array in ((b"\n\t {nonsense", False), (b" [nonsense", True), (b"", True), (b"3", True)):
            payload = parse_payload(None, body, ("a",), False)
            self.assertEqual(
                (payload.text, payload.is_array, payload.is_empty), (body.decode(), is_array, False)
            )

    def test_a_body_with_invalid_utf8_or_nul_is_refused_even_if_columns_are_given(self) -> None:
        for body in (b"{\xff}", b'{"a": "\0"}'):
            error = self.assertRaises(TableError, parse_payload, None, body, ("a",), False)
            self.assertEqual(error.code, "PGRST102")

    def test_json_numbers_beyond_a_double_are_passed_through(self) -> None:
        for number in ("1e400", "-2.5E+1000", "9" * 400):
            body = f'[{{"a": {number}, "b": [1, 1.5, null]}}]'.encode()
            payload = parse_payload(None, body, None, False)
            self.assertEqual((payload.keys, payload.text), (("a", "b"), body.decode()))

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
                    payload = parse_payload(None, body.encode(), None, False)
                    self.assertEqual((payload.keys, payload.text), (("a", "b"), body))
                    # What is far behind is not counted: there the body is too deep by far already.
                    self.assertGreater(payload.depth, min(levels, 40_000))

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
        shallow = json.loads("".join(_shallow(json.dumps(value))))
        self.assertEqual(type(shallow), type(value))
        if isinstance(value, dict):
            self.assertEqual(shallow.keys(), value.keys())
        elif isinstance(value, list):
            names = [item.keys() if isinstance(item, dict) else None for item in value]
            self.assertEqual([item.keys() if isinstance(item, dict) else None for item in shallow], names)

    def test_an_array_of_many_objects_is_read_in_pieces_with_the_same_result(self) -> None:
        row = {"b": [{"c": ["]", '\\"']}], "a": {"b": {}}}
        rows = [json.dumps(row)] * 20_000
        for body, keys, matching in (
            (rows, ("a", "b"), True),
            ([*rows, '{"b": 1, "a": 1e400}'], ("a", "b"), True),
            ([*rows, '{"b": 1}'], (), False),
            ([*rows, "1"], (), False),
            (["1", *rows], (), False),
            (["[]"] * 50_000, (), False),
            (["{}"] * 50_000, (), True),
        ):
            payload = parse_payload(None, f" [ {' , '.join(body)} ] ".encode(), None, True)
            self.assertEqual((payload.keys, payload.keys_match, payload.is_array), (keys, matching, True))
        for begin, end in (
            ("", "]"),
            ("[", ""),
            ("[,", "]"),
            ("[", ",]"),
            ("[", "] 1"),
            ("[", "]]"),
            ('["', "]"),
        ):
            broken = (begin + ",".join(rows) + end).encode()
            error = self.assertRaises(TableError, parse_payload, None, broken, None, True)
            self.assertEqual(error.code, "PGRST102", (begin, end))

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
            payload = parse_payload(media, body, columns, False)
            self.assertEqual((json.loads(payload.text), payload.keys), ({"a": "", "b": "é"}, keys))
            self.assertEqual(payload.arguments, (("b", "x y"), ("a", ""), ("b", "é")))
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
                payload = parse_payload(media, b"x", None, routine)
                self.assertEqual((payload.kind, payload.raw), ("raw", b"x"))

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
            payload = planned("POST", "rpc/whole", body=body)
            plan = payload.compiled.plan
            assert isinstance(plan, CallPlan)
            self.assertEqual((plan.whole, payload.raw), (True, body))

    def test_an_array_whose_objects_differ_in_keys_is_refused(self) -> None:
        for body in (b"[1, 2]", b'[{"a": 1}, {"b": 2}]', b"[[1], {}]"):
            for method, path in (("POST", "rpc/add"), ("POST", "rpc/whole_text"), ("POST", "works")):
                error = self.assertRaises(TableError, planned, method, path, body=body)
                self.assertEqual((error.code, error.message), ("PGRST102", "All object keys must match"))


class EmptyBodies(SynchronousTestCase):
    def test_an_empty_body_is_an_empty_object_for_json_and_empty_text_otherwise(self) -> None:
        self.assertEqual(planned("POST", "rpc/whole").raw, b"{}")
        self.assertEqual(planned("POST", "rpc/whole_text", media="text/plain").raw, b"")


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=5)
TABLES = st.lists(st.tuples(CELLS, CELLS | st.just("NULL")), max_size=6)


def as_csv(lines: list[tuple[str, str]]) -> bytes:
    written = io.StringIO()
    csv.writer(written).writerows(lines)
    return written.getvalue().encode()


class Csv(SynchronousTestCase):
    @given(TABLES, st.sampled_from([1, 300]))
    def test_each_line_becomes_an_object_with_null_for_the_word_null(
        self, lines: list[tuple[str, str]], times: int
    ) -> None:
        payload = parse_csv(as_csv([("a", "b"), *lines * times]))
        # Python's writer quotes no cell of letters.
        expected = [{"a": a if a != "NULL" else None, "b": b if b != "NULL" else None} for a, b in lines]
        self.assertEqual(json.loads(payload.text), expected * times)
        self.assertEqual((payload.keys, payload.is_empty), (("a", "b"), not lines))

    def test_many_lines_are_not_objects_at_the_same_time(self) -> None:
        """As objects these would take 47 MB."""
        body = b"a\n" + b"x\n" * 100_000
        tracemalloc.start()
        try:
            payload = parse_csv(body)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertEqual(payload.text.count("x"), 100_000)
        self.assertLess(most, 6 * len(payload.text))

    def test_a_cell_may_be_as_long_as_the_body(self) -> None:
        cell = "x" * 200_000
        self.assertEqual(json.loads(parse_csv(f"a\n{cell}".encode()).text), [{"a": cell}])

    def test_a_csv_header_longer_than_any_column_name_is_refused(self) -> None:
        """It would be repeated for every line: a megabyte of CSV would become a hundred gigabytes of JSON."""
        body = b"n" * 10_000 + b"\n" + b"x\n" * 10_000
        error = self.assertRaises(TableError, parse_csv, body)
        self.assertEqual((error.status, error.code), (400, "PGRST102"))
        longest, lines = b"n" * 63, b",\n" * 10_000
        self.assertEqual(parse_csv(longest + b"," + b"m" * 63 + b"\n" + lines).text.count("{"), 10_000)

    def test_it_may_begin_with_a_byte_order_mark(self) -> None:
        for head in (b"a,b", b'"a",b'):
            payload = parse_csv(b"\xef\xbb\xbf" + head + b"\n\xef\xbb\xbfx,y")
            self.assertEqual(
                (payload.keys, json.loads(payload.text)), (("a", "b"), [{"a": "\ufeffx", "b": "y"}])
            )

    def test_what_is_malformed_is_refused_wherever_it_stands(self) -> None:
        for body in (b"", b"\n\n", b"a,b\n1", b"a\n1,2", b'a\n"x"y', b'a\n"x', b"a\n\xff"):
            error = self.assertRaises(TableError, parse_csv, body)
            self.assertEqual((error.status, error.code), (400, "PGRST102"), body)
        many = b"a,b\n" + b"1,2\n" * 2_000
        for last in (b"1", b"1,2,3", b'"x"y,', b'"x'):
            error = self.assertRaises(TableError, parse_csv, many + last)
            self.assertEqual((error.status, error.code), (400, "PGRST102"), last)

    def test_a_line_of_names_alone_is_no_rows(self) -> None:
        payload = parse_payload("text/csv", b"a,b\n\n", ("a",), False)
        self.assertEqual((payload.text, payload.keys, payload.is_empty), ("[]", ("a",), True))
