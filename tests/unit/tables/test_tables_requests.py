"""What is asked for, by method, path and headers, before the query is read."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.parse.media import parse_accept
from project_service.tables.parse.ranges import parse_range
from project_service.tables.parse.request import Head, parse_head
from project_service.tables.syntax import Range
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
            found = head("GET", *segments)
            self.assertEqual((found.kind, found.name), expected)

    def test_other_paths_are_not_there(self) -> None:
        for segments in (("rpc", ""), ("works", "1"), ("rpc", "find", "1"), ("", "works")):
            error = self.assertRaises(TableError, head, "GET", *segments)
            self.assertEqual((error.status, error.code), (404, "PGRST125"), segments)

    def test_a_name_that_no_relation_can_have_is_that_of_none(self) -> None:
        error = self.assertRaises(TableError, planned, "GET", "wo\0rks")
        self.assertEqual((error.status, error.code), (404, "PGRST205"))

    def test_what_a_relation_takes_a_function_or_the_root_may_not(self) -> None:
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

    def test_only_a_function_that_is_read_takes_its_arguments_from_the_query(self) -> None:
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
    def test_both_ends_are_among_the_rows(self) -> None:
        for header, expected in (
            ("0-0", Range(0, 1)),
            (" 2-6 ", Range(2, 5)),
            ("3-", Range(3)),
            ("-3", Range()),
            ("rows=0-1", Range()),
            (None, Range()),
        ):
            self.assertEqual(parse_range(header), expected, header)

    def test_only_what_is_read_with_get_is_cut(self) -> None:
        asked = (("range", "1-2"),)
        self.assertEqual(head("GET", "works", headers=asked).range, Range(1, 2))
        for method in ("HEAD", "POST", "PATCH", "DELETE"):
            self.assertEqual(head(method, "works", headers=asked).range, Range(), method)


class Accepted(SynchronousTestCase):
    def test_a_weight_that_is_none_is_the_full_one(self) -> None:
        found = parse_accept("text/csv;q=0.9, text/xml;q=high, application/json;q=1")
        self.assertEqual([one.name for one in found], ["text/xml", "application/json", "text/csv"])
