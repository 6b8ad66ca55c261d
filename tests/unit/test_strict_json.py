"""JSON bodies: what is refused as invalid, or because two parsers could read it differently."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.errors import ApiError
from project_service.http.strict_json import MAX_DEPTH, loads


class Json(TestCase):
    @given(st.binary())
    def test_any_bytes_are_parsed_or_refused(self, raw: bytes) -> None:
        try:
            loads(raw)
        except ApiError as fault:
            self.assertEqual((fault.status, fault.code), (400, "invalid_json"))

    def test_duplicate_keys_are_refused_at_any_depth(self) -> None:
        for raw in (b'{"a":1,"a":1}', b'[{"b":{"a":1,"a":2}}]', b'{"a":1,"\\u0061":2}'):
            self.assertRaises(ApiError, loads, raw)

    @given(st.lists(st.text('"\\:{[]},a', max_size=3), max_size=4), st.text('"\\:{[]}', max_size=5))
    def test_only_keys_of_the_same_object_are_compared(self, keys: list[str], text: str) -> None:
        members = ",".join(
            f"{json.dumps(key)} :[{{{json.dumps(text)}:0}}, {json.dumps(text)}]" for key in keys
        )
        raw = f"[{{{members}}}]".encode()
        if len(set(keys)) < len(keys):
            self.assertRaises(ApiError, loads, raw)
        else:
            self.assertEqual(loads(raw), [{key: [{text: 0}, text] for key in keys}])

    def test_brackets_in_strings_do_not_count_as_depth(self) -> None:
        text = "[" * (MAX_DEPTH + 1) + '\\"' + "{" * (MAX_DEPTH + 1)
        self.assertEqual(loads(json.dumps([text, text]).encode()), [text, text])

    def test_any_json_value_may_be_the_body(self) -> None:
        for raw, value in {
            b"1": 1,
            b'"a"': "a",
            b"null": None,
            b" [] ": [],
            b'{"a":{"a":1}}': {"a": {"a": 1}},
        }.items():
            self.assertEqual(loads(raw), value)

    def test_depth_is_limited(self) -> None:
        for opened, closed, levels in ((b"[", b"]", 1), (b'{"a":', b"}", 1), (b'[{"a":', b"}]", 2)):
            deepest = MAX_DEPTH // levels
            self.assertTrue(loads(opened * deepest + b"0" + closed * deepest))
            self.assertRaises(ApiError, loads, opened * (deepest + 1) + b"0" + closed * (deepest + 1))

    def test_very_long_numbers_are_refused(self) -> None:
        for raw in (b"1" * 1_000_000, b"[1" + b"0" * 1_000_000 + b".5]"):
            self.assertRaises(ApiError, loads, raw)
