"""What method, path and headers ask for, before the query is read."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables import endpoints
from project_service.tables.errors import TableError
from project_service.tables.request.headers import ARRAY, OBJECT, parse_accept, parse_media, parse_preferences
from project_service.tables.request.query import parse_range
from project_service.tables.request.request import Head, parse_head
from project_service.tables.request.syntax import Range
from tests.unit.tables.planning import planned


def head(method: str, *segments: str, headers: tuple[tuple[str, str], ...] = ()) -> Head:
    return parse_head(method, segments, headers, ("api",))


class Targets(SynchronousTestCase):
    def test_a_path_is_the_root_a_relation_or_a_function(self) -> None:
        for segments, expected in (
            ((), ("root", "")),
            (("",), ("root", "")),
            (("works",), ("relation", "works")),
            (("rpc",), ("relation", "rpc")),
            (("rpc", "find"), ("routine", "find")),
        ):
            parsed = head("GET", *segments)
            self.assertEqual((parsed.kind, parsed.name), expected)

    def test_other_paths_are_404(self) -> None:
        for segments in (("rpc", ""), ("works", "1"), ("rpc", "find", "1"), ("", "works")):
            error = self.assertRaises(TableError, head, "GET", *segments)
            self.assertEqual((error.status, error.code), (404, "PGRST125"), segments)

    def test_a_relation_name_with_a_nul_is_404(self) -> None:
        error = self.assertRaises(TableError, planned, "GET", "wo\0rks")
        self.assertEqual((error.status, error.code), (404, "PGRST205"))

    def test_methods_a_function_or_the_root_does_not_have_are_405(self) -> None:
        for method in ("PUT", "PATCH", "DELETE"):
            error = self.assertRaises(TableError, head, method, "rpc", "find")
            self.assertEqual((error.status, error.code), (405, "PGRST101"), method)
            self.assertEqual(dict(error.headers)["Allow"], "OPTIONS,GET,HEAD,POST")
        for method, segments, allow in (
            ("POST", (), "OPTIONS,GET,HEAD"),
            ("TRACE", ("rpc", "find"), "OPTIONS,GET,HEAD,POST"),
        ):
            error = self.assertRaises(TableError, head, method, *segments)
            self.assertEqual((error.status, error.code), (405, "PGRST117"), method)
            self.assertEqual(dict(error.headers)["Allow"], allow)

    def test_only_get_and_head_of_a_function_take_arguments_from_the_query(self) -> None:
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "works", {}),
            ("POST", "rpc/find", {"body": b'{"q": "x"}'}),
        ]
        for method, path, more in asked:
            error = self.assertRaises(TableError, planned, method, path, ("q", "x"), **more)
            self.assertEqual((error.status, error.code), (400, "PGRST100"), path)
        for method in ("GET", "HEAD"):
            planned(method, "rpc/find", ("q", "x"))


class RangeHeader(SynchronousTestCase):
    def test_the_range_header_includes_both_ends(self) -> None:
        for header, expected in (
            ("0-0", Range(0, 1)),
            (" 2-6 ", Range(2, 5)),
            ("3-", Range(3)),
            ("-3", Range()),
            ("rows=0-1", Range()),
            (None, Range()),
        ):
            self.assertEqual(parse_range(header), expected, header)

    def test_the_range_header_counts_for_get_only(self) -> None:
        asked = (("range", "1-2"),)
        self.assertEqual(head("GET", "works", headers=asked).range, Range(1, 2))
        for method in ("HEAD", "POST", "PATCH", "DELETE"):
            self.assertEqual(head(method, "works", headers=asked).range, Range(), method)


class Accepted(SynchronousTestCase):
    def test_an_invalid_weight_in_accept_counts_as_1(self) -> None:
        parsed = parse_accept("text/csv;q=0.9, text/xml;q=high, application/json;level=0;Q=1, ,*/*; q=0.1")
        self.assertEqual([one.name for one in parsed], ["application/json", "text/xml", "text/csv", "*/*"])

    def test_an_empty_accept_is_anything(self) -> None:
        for header in ("", " ", ",", " , ,"):
            self.assertEqual([one.name for one in parse_accept(header)], ["*/*"])

    def test_nulls_are_stripped_only_of_vendored_types(self) -> None:
        for text, name, stripped in (
            ("application/vnd.pgrst.array+json;nulls=stripped", ARRAY, True),
            ("application/vnd.pgrst.object;nulls=stripped", OBJECT, True),
            ("application/vnd.pgrst.object", OBJECT, False),
            ("application/vnd.pgrst.object;nulls=kept", OBJECT, False),
            ("application/vnd.pgrst.array", "application/json", False),
            ("application/json;nulls=stripped", "application/json", False),
            ("text/csv;nulls=stripped", "text/csv", False),
        ):
            parsed = parse_media(text)
            self.assertEqual((parsed.name, parsed.nulls_stripped), (name, stripped), text)

    def test_the_plan_media_type_defaults_to_text_and_to_json_rows(self) -> None:
        for text, name in (("plan", "plan+text"), ("plan+text", "plan+text"), ("plan+json", "plan+json")):
            parsed = parse_media(f"application/vnd.pgrst.{text}")
            self.assertEqual((parsed.name, parsed.plan_options), (f"application/vnd.pgrst.{name}", ()))
            expected = f'application/vnd.pgrst.{name}; for="application/json"; charset=utf-8'
            self.assertEqual(parsed.content_type, expected)


class Preferred(SynchronousTestCase):
    def test_unknown_preferences_are_refused_only_with_handling_strict(self) -> None:
        for word in (
            "timezone=",
            "timezone",
            "return=all",
            "max-affected=-1",
            "max-affected=x",
            "max-affected=\u00b2",
            "max-rows=1",
            "wait=10",
        ):
            error = self.assertRaises(TableError, parse_preferences, [f"handling=strict, {word}"])
            self.assertEqual((error.status, error.code), (400, "PGRST122"), word)
            self.assertEqual(parse_preferences([word]).values, ())
        most = f"max-affected={10**18 - 1}"
        parsed = parse_preferences([f" handling=strict,, {most} ,timezone=UTC", "count=exact, count=planned"])
        self.assertEqual(parsed.max_affected, 10**18 - 1)
        for digits in (str(2**63), "9" * 400, "9" * 9000):
            found_most = parse_preferences([f"handling=strict, max-affected={digits}"])
            self.assertGreaterEqual(found_most.max_affected or 0, 2**63)
            self.assertEqual(
                found_most.applied(["max-affected"]), (("Preference-Applied", f"max-affected={digits}"),)
            )
        self.assertEqual(parse_preferences([f"handling=strict, max-affected={'0' * 9000}7"]).max_affected, 7)
        self.assertEqual(parse_preferences(["handling=strict, max-affected=0"]).max_affected, 0)
        self.assertEqual((parsed.get("timezone"), parsed.get("count")), ("UTC", "exact"))
        self.assertIsNone(parse_preferences(["handling=strict"]).max_affected)

    def test_preference_applied_names_only_what_was_applied(self) -> None:
        names = ("count", "handling", "max-affected", "return")
        for asked, expected in (
            ("count=exact, tx=commit", "count=exact"),
            ("max-affected=1, count=exact", "count=exact"),
            (
                "max-affected=1, count=exact, handling=strict",
                "count=exact, handling=strict, max-affected=1",
            ),
        ):
            applied = parse_preferences([asked]).applied(names)
            self.assertEqual(applied, (("Preference-Applied", expected),))
        for asked in ("", "tx=commit", "max-affected=1"):
            self.assertEqual(parse_preferences([asked]).applied(names), ())


class Schemas(SynchronousTestCase):
    def head(self, method: str, *headers: tuple[str, str], schemas: tuple[str, ...] = ("a", "b")) -> object:
        parsed = parse_head(method, ("books",), headers, schemas)
        return parsed.schema, parsed.profiled

    def test_reads_use_accept_profile_and_writes_content_profile(self) -> None:
        both = (("accept-profile", "a"), ("content-profile", "b"))
        for method in ("GET", "HEAD", "OPTIONS"):
            self.assertEqual(self.head(method, *both), ("a", True), method)
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            self.assertEqual(self.head(method, *both), ("b", True), method)

    def test_the_openapi_description_names_the_profile_header_that_is_read(self) -> None:
        asking = (
            *(endpoints.READ, endpoints.CALL, endpoints.ROOT),
            *(endpoints.RELATION_OPTIONS, endpoints.ROUTINE_OPTIONS, endpoints.ROOT_OPTIONS),
        )
        for one in (*endpoints.AT_ROOT, *endpoints.BELOW):
            profiles = [parsed for parsed in one.parameters if parsed.name.endswith("-Profile")]
            expected = endpoints.READS if one in asking else endpoints.WRITES
            self.assertEqual(profiles, [expected], one.name)

    def test_a_single_schema_is_reported_only_if_the_request_named_it(self) -> None:
        self.assertEqual(self.head("GET", schemas=("a",)), ("a", False))
        self.assertEqual(self.head("GET", ("accept-profile", "a"), schemas=("a",)), ("a", True))
        refused = self.assertRaises(TableError, self.head, "GET", ("accept-profile", "b"), schemas=("a",))
        self.assertEqual(refused.code, "PGRST106")
