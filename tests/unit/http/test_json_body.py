"""JSON bodies: what is refused as invalid or ambiguous, and bodies that are declared by a model."""

from __future__ import annotations

import json
import math

from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service import whole_numbers
from project_service.errors import ApiError, require_text, service_key_required, validation_failed
from project_service.http import json_body
from project_service.http.describe import JSON
from project_service.http.json_body import (
    FLAG,
    MAX_DEPTH,
    TEXT,
    Kind,
    body_of,
    member,
    or_null,
    strict_loads,
    whole,
)


class Json(TestCase):
    @given(st.binary())
    def test_any_bytes_are_parsed_or_refused(self, raw: bytes) -> None:
        try:
            strict_loads(raw)
        except ApiError as fault:
            self.assertEqual((fault.status, fault.code), (400, "invalid_json"))

    def test_duplicate_keys_are_refused_at_any_depth(self) -> None:
        for raw in (b'{"a":1,"a":1}', b'[{"b":{"a":1,"a":2}}]', b'{"a":1,"\\u0061":2}'):
            self.assertRaises(ApiError, strict_loads, raw)

    @given(st.lists(st.text('"\\:{[]},a', max_size=3), max_size=4), st.text('"\\:{[]}', max_size=5))
    def test_only_keys_of_the_same_object_are_compared(self, keys: list[str], text: str) -> None:
        members = ",".join(
            f"{json.dumps(key)} :[{{{json.dumps(text)}:0}}, {json.dumps(text)}]" for key in keys
        )
        raw = f"[{{{members}}}]".encode()
        if len(set(keys)) < len(keys):
            self.assertRaises(ApiError, strict_loads, raw)
        else:
            self.assertEqual(strict_loads(raw), [{key: [{text: 0}, text] for key in keys}])

    def test_brackets_in_strings_do_not_count_as_depth(self) -> None:
        text = "[" * (MAX_DEPTH + 1) + '\\"' + "{" * (MAX_DEPTH + 1)
        self.assertEqual(strict_loads(json.dumps([text, text]).encode()), [text, text])

    def test_any_json_value_may_be_the_body(self) -> None:
        for raw, value in {
            b"1": 1,
            b'"a"': "a",
            b"null": None,
            b" [] ": [],
            b'{"a":{"a":1}}': {"a": {"a": 1}},
        }.items():
            self.assertEqual(strict_loads(raw), value)

    def test_depth_is_limited(self) -> None:
        for opening, closing, levels in ((b"[", b"]", 1), (b'{"a":', b"}", 1), (b'[{"a":', b"}]", 2)):
            deepest = MAX_DEPTH // levels
            self.assertTrue(strict_loads(opening * deepest + b"0" + closing * deepest))
            self.assertRaises(
                ApiError, strict_loads, opening * (deepest + 1) + b"0" + closing * (deepest + 1)
            )

    def test_numbers_may_have_any_length(self) -> None:
        for raw, value in {
            b"1" * 1_000_000: whole_numbers.BEYOND,
            b"-1" + b"0" * 400: -(10**400),
            b"[1" + b"0" * 1_000_000 + b".5]": [math.inf],
            b"-1E400": -math.inf,
            b'[{"a":1e400},0.' + b"0" * 400 + b"1]": [{"a": math.inf}, 5e-324],
        }.items():
            self.assertEqual(strict_loads(raw), value)

    def test_no_number_becomes_whole_by_rounding(self) -> None:
        for raw, expected in {
            b"60.00000000000000000000000001": None,
            b"-60.00000000000000000000000001": None,
            b"59.99999999999999999999999999": None,
            b"1e-400": None,
            b"-1e-400": None,
            b"1e-999999999999999999999999999": None,
            b"6000000000000000000000000001e-26": None,
            b"0.000000000000000000000000000000e5": 0,
            b"6000000000000000000000000000e-26": 60,
            b"0.00000000000000000000000006e27": 60,
            b"60.0000000000000000000000000e0": 60,
            b"60.0e0": 60,
            b"6.0E+1": 60,
            b"-0.0": 0,
            b"0e-400": 0,
            b'["1e-400",60.0]': None,
        }.items():
            self.assertEqual(whole_numbers.from_json(strict_loads(raw)), expected, raw)

    def test_beside_a_long_number_the_rules_are_the_same(self) -> None:
        for raw in (
            b'{"a":1,"a":1e400}',
            b'[{"b":{"a":1,"\\u0061":2}},1e400]',
            b'["\\ud800",1e400]',
            b"[NaN,1e400]",
            b"[-Infinity,1e400]",
            b"[01,1e400]",
            b"[1e400,]",
            b'"\xff1e400"',
            b"\xef\xbb\xbf1e400",
        ):
            self.assertRaises(ApiError, strict_loads, raw)
            self.assertRaises(ApiError, strict_loads, raw.replace(b"1e400", b"1"))

    def test_many_values_are_refused(self) -> None:
        most = json_body.MAX_VALUES
        for few in (
            b"[" + b"1," * (most - 2) + b"1]",
            b'{"a":"' + b"[,:" * most + b'"}',
            b" " * 1_000_000 + b"1",
        ):
            strict_loads(few)
        for many in (
            b"[" + b"1," * most + b"1]",
            b"[" + b"[]," * most + b"1]",
            b'["' + b'","' * most + b'"]',
            b'"' * 500_000,
        ):
            fault = self.assertRaises(ApiError, strict_loads, many)
            self.assertEqual(
                (fault.code, fault.message), ("invalid_json", f"The body has more than {most} values.")
            )

    @given(
        st.recursive(st.just(1), lambda of: st.lists(of, max_size=40) | st.dictionaries(st.text("{}[]"), of))
    )
    def test_depth_is_counted(self, value: object) -> None:
        def depth(value: object) -> int:
            inner = [*value.values()] if isinstance(value, dict) else value
            return 1 + max(map(depth, inner), default=0) if isinstance(inner, list) else 0

        # Many lists, so that it is not only estimated.
        for wide in ([value, *([[]] * 50)], [value, *([[[1]]] * 50)]):
            self.assertEqual(json_body.depth_of(json.dumps(wide).encode()), depth(wide))

    def test_great_depth_is_named_as_the_reason(self) -> None:
        for levels in (MAX_DEPTH + 1, 1024, 100_000):
            fault = self.assertRaises(ApiError, strict_loads, b"[" * levels + b"]" * levels)
            self.assertIn("deeper", fault.message)


def _read_colour(name: str, value: object) -> int:
    if require_text(name, value) not in ("red", "blue"):
        raise validation_failed({name: "must be red or blue"})
    return ("red", "blue").index(str(value))


@frozen
class Thing:
    title: str = member(TEXT)
    source: str = member(TEXT, name="from")
    public: bool = member(FLAG, default=False, schema={"description": "For all to see."})
    size: int | None = member(or_null(whole(1, 100)), default=None)
    colour: int = member(Kind({"enum": ["red", "blue"]}, _read_colour), default=0)


class Models(TestCase):
    def faults_of(self, body: dict[str, object]) -> object:
        fault = self.assertRaises(ApiError, json_body.read, Thing, body)
        self.assertEqual((fault.status, fault.code), (422, "validation_failed"))
        return fault.details

    def test_the_message_has_the_first_three_reasons(self) -> None:
        for details, message in (
            ({"size": "is required"}, "A value is not allowed: size is required."),
            (
                dict.fromkeys("abcde", "is not known here"),
                "A value is not allowed: a is not known here; b is not known here; c is not known here; and 2 more.",
            ),
        ):
            self.assertEqual(validation_failed(details).message, message)

    def test_a_body_is_read_by_its_model(self) -> None:
        sent = {"title": "a", "from": "b", "public": True, "size": 60.0, "colour": "blue"}
        self.assertEqual(json_body.read(Thing, sent), Thing("a", "b", True, 60, 1))
        self.assertEqual(json_body.read(Thing, {"title": "", "from": "b", "size": None}), Thing("", "b"))

    def test_every_fault_is_named_by_its_member(self) -> None:
        self.assertEqual(
            self.faults_of({"from": None, "public": 1, "size": 0, "colour": "green", "other": 1}),
            {
                "other": "is not known here",
                "title": "is required",
                "from": "is required",
                "public": "must be true or false",
                "size": "must be a whole number from 1 to 100",
                "colour": "must be red or blue",
            },
        )
        for value in (True, 1.5, "60", 10**1000, math.inf):
            self.assertEqual(
                self.faults_of({"title": "a", "from": "b", "size": value}),
                {"size": "must be a whole number from 1 to 100"},
            )

    def test_a_hundred_members_are_named_at_most(self) -> None:
        details = self.faults_of({"from": "", **{f"x{number}": 1 for number in range(1000)}})
        unknown = {f"x{number}": "is not known here" for number in range(99)}
        self.assertEqual(details, {"title": "is required"} | unknown)

    def test_another_error_of_a_kind_is_raised_as_it_is(self) -> None:
        def read_secret(name: str, value: object) -> str:
            raise service_key_required()

        @frozen
        class Guarded:
            secret: str = member(Kind({}, read_secret))

        fault = self.assertRaises(ApiError, json_body.read, Guarded, {"secret": 1, "other": 1})
        self.assertEqual(fault.code, "service_key_required")

    def test_what_was_not_sent_can_be_told_from_null(self) -> None:
        self.assertEqual(
            json_body.read_members(Thing, {"size": None, "from": "b"}), {"size": None, "from": "b"}
        )
        self.assertEqual(json_body.read_members(Thing, {}), {})

    def test_the_schema_follows_from_the_model(self) -> None:
        self.assertEqual(
            body_of(Thing).content[JSON],
            {
                "type": "object",
                "required": ["title", "from"],
                "additionalProperties": False,
                "properties": {
                    "title": {"type": "string"},
                    "from": {"type": "string"},
                    "public": {"type": "boolean", "description": "For all to see."},
                    "size": {"type": ["integer", "null"], "minimum": 1, "maximum": 100},
                    "colour": {"enum": ["red", "blue"]},
                },
            },
        )
