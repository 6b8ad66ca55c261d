"""Status and headers of replies, by request and outcome, and what SQL sets of them."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.response import Reply
from project_service.tables.errors import TableError, from_sqlstate
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.write import WritePlan
from project_service.tables.planner import Planned, constant_headers, deprecated_names
from project_service.tables.reply.outcome import Outcome
from project_service.tables.reply.response import (
    LONGEST_CONTENT_LOCATION,
    MAX_ROWS,
    check_outcome,
    content_range,
    head_of_stream,
    headers_from_sql,
    location,
    reply_to,
    status_from_sql,
    status_of_range,
)
from project_service.tables.request.query import parse_query
from project_service.tables.request.syntax import Field, Filter
from project_service.tables.values import TablesConfig
from tests.unit.tables.planning import CONFIG, planned

ROW = b'{"id": 1, "title": "a", "author_id": 1, "editor_id": 1, "data": {}}'
EVERYTHING = (
    "resolution=merge-duplicates, missing=default, return=representation, count=exact, tx=rollback, "
    "handling=strict, timezone=UTC, max-affected=9"
)
ALWAYS = "handling=strict, timezone=UTC"


def asked(
    method: str,
    path: str = "works",
    *pairs: tuple[str, str],
    prefer: str = "",
    config: TablesConfig = CONFIG,
) -> Planned:
    body = ROW if method in ("POST", "PUT", "PATCH") and not path.startswith("rpc") else b""
    pairs = (("id", "eq.1"), *pairs) if method == "PUT" else pairs
    return planned(method, path, *pairs, prefer=prefer, body=body, config=config)


def replied(result: Planned, outcome: Outcome) -> Reply:
    return reply_to(result.request, result.compiled, outcome, "/r/works")


def header(reply: Reply, name: str) -> str | None:
    return dict(reply.headers).get(name)


class Readings(SynchronousTestCase):
    def test_content_range_and_206(self) -> None:
        for offset, rows, total, status, expected in (
            (0, 3, None, 200, "0-2/*"),
            (0, 0, 0, 200, "*/0"),
            (0, 3, 3, 200, "0-2/3"),
            (5, 3, 10, 206, "5-7/10"),
            (10, 0, 10, 206, "*/10"),
        ):
            result = asked("GET", "works", ("offset", str(offset)))
            reply = replied(result, Outcome(rows=rows, total=total))
            self.assertEqual((reply.status, header(reply, "Content-Range")), (status, expected))

    def test_content_range_of_a_stream_needs_the_total(self) -> None:
        for pairs, total, expected in (
            ((), None, None),
            ((), 9, "0-8/9"),
            ((("offset", "2"),), 9, "2-8/9"),
            ((("offset", "2"), ("limit", "3")), 9, "2-4/9"),
            ((("offset", "2"), ("limit", "30")), 9, "2-8/9"),
            ((("offset", "9"),), 9, "*/9"),
        ):
            result = asked("GET", "works", *pairs)
            args = result.request, result.compiled, Outcome(rows=500, total=total, body=b"x")
            reply = head_of_stream(*args, "/r/works")
            self.assertEqual((header(reply, "Content-Range"), reply.body), (expected, b""), pairs)
            self.assertEqual(header(reply, "Content-Type"), "application/json; charset=utf-8")

    def test_max_rows_is_named_where_it_may_have_cut_the_response(self) -> None:
        few = evolve(CONFIG, max_rows=5)
        for pairs, rows, total, expected in (
            ((), 5, None, "5"),
            ((), 4, None, None),
            ((("limit", "9"),), 5, None, "5"),
            ((("limit", "5"),), 5, None, None),
            ((), 5, 5, None),
            ((), 5, 6, "5"),
            ((("offset", "2"),), 5, 7, None),
        ):
            result = asked("GET", "works", *pairs, config=few)
            reply = replied(result, Outcome(rows=rows, total=total))
            self.assertEqual(header(reply, MAX_ROWS), expected, (pairs, rows, total))
        self.assertIsNone(
            header(
                replied(asked("POST", prefer="return=representation", config=few), Outcome(rows=5)), MAX_ROWS
            )
        )
        self.assertIsNone(header(replied(asked("GET"), Outcome(rows=1000)), MAX_ROWS))
        streamed = asked("GET", config=few)
        for total, expected in ((None, "5"), (5, None), (6, "5")):
            reply = head_of_stream(
                evolve(streamed.request, range=streamed.request.range.capped(5)),
                streamed.compiled,
                Outcome(rows=3, total=total),
                "/r/works",
            )
            self.assertEqual(header(reply, MAX_ROWS), expected, total)

    def test_content_location_is_the_canonical_url_of_a_read(self) -> None:
        """It has the parameters sorted by name, and is left out if it would be longer than a header may be."""
        pairs = (("title", "eq.a b/é"), ("id", "gt.1"), ("order", "id"))
        self.assertEqual(
            header(replied(asked("GET", "works", *pairs), Outcome()), "Content-Location"),
            "/r/works?id=gt.1&order=id&title=eq.a%20b%2F%C3%A9",
        )
        self.assertEqual(header(replied(asked("GET"), Outcome()), "Content-Location"), "/r/works")
        longest = "x" * (LONGEST_CONTENT_LOCATION - len("/r/works?title=eq."))
        for more, there in (("", True), ("x", False)):
            reply = replied(asked("GET", "works", ("title", f"eq.{longest}{more}")), Outcome())
            self.assertIs(header(reply, "Content-Location") is not None, there)
        called = asked("GET", "rpc/find", ("q", "x"))
        self.assertIsNone(header(replied(called, Outcome()), "Content-Location"))
        streamed = head_of_stream(called.request, called.compiled, Outcome(), "/r/rpc/find")
        self.assertIsNone(header(streamed, "Content-Location"))
        self.assertIsNone(header(replied(asked("DELETE"), Outcome()), "Content-Location"))


class Profiles(SynchronousTestCase):
    """The header Content-Profile."""

    def test_content_profile_is_sent_if_the_request_named_a_schema(self) -> None:
        for result in (asked("GET"), asked("POST"), asked("GET", "rpc/find", ("q", "x"))):
            self.assertIsNone(header(replied(result, Outcome()), "Content-Profile"))
            head = evolve(result.request.head, profiled=True, schema="api ü")
            compiled = evolve(result.compiled, headers=constant_headers(head, result.compiled))
            named = evolve(result, request=evolve(result.request, head=head), compiled=compiled)
            as_sent = header(replied(named, Outcome()), "Content-Profile")
            assert as_sent is not None
            self.assertEqual(as_sent.encode("latin-1").decode(), "api ü")


class Writes(SynchronousTestCase):
    def test_status_body_and_media_type_of_writes(self) -> None:
        shown, merge = "return=representation", "resolution=merge-duplicates"
        for method, prefer, rows, updated, status in (
            ("POST", "", 1, 0, 201),
            ("POST", shown, 1, 0, 201),
            ("POST", merge, 2, 1, 201),
            ("POST", merge, 2, 2, 200),
            ("POST", merge, 0, 0, 200),
            ("POST", merge, 0, 1, 200),
            ("POST", "resolution=ignore-duplicates", 0, 0, 201),
            ("PUT", "", 1, 0, 204),
            ("PUT", "return=headers-only", 1, 0, 204),
            ("PUT", shown, 1, 0, 201),
            ("PUT", shown, 1, 1, 200),
            ("PATCH", "", 1, 0, 204),
            ("PATCH", shown, 1, 0, 200),
            ("DELETE", "", 1, 0, 204),
            ("DELETE", shown, 1, 0, 200),
        ):
            reply = replied(asked(method, prefer=prefer), Outcome(rows=rows, updated=updated, body=b"[1]"))
            self.assertEqual(reply.status, status, (method, prefer, rows, updated))
            there = (b"[1]", "application/json; charset=utf-8") if shown in prefer else (b"", None)
            self.assertEqual((reply.body, header(reply, "Content-Type")), there, (method, prefer))

    def test_content_range_of_writes_says_how_many_rows_were_written(self) -> None:
        for method, prefer, rows, expected in (
            ("POST", "", 2, "*/*"),
            ("POST", "count=exact", 2, "*/2"),
            ("DELETE", "count=estimated", 2, "*/2"),
            ("DELETE", "count=planned", 2, "*/*"),
            ("PATCH", "", 2, "0-1/*"),
            ("PATCH", "count=exact", 2, "0-1/2"),
            ("PATCH", "count=exact", 0, "*/0"),
            ("PUT", "count=exact", 1, None),
        ):
            reply = replied(asked(method, prefer=prefer), Outcome(rows=rows))
            self.assertEqual(header(reply, "Content-Range"), expected, (method, prefer))

    def test_location_names_the_inserted_row(self) -> None:
        result = asked("POST", prefer="return=headers-only")
        self.assertEqual(
            header(replied(result, Outcome(rows=1, location=("7",))), "Location"), "/r/works?id=eq.7"
        )
        self.assertIsNone(header(replied(result, Outcome(rows=1)), "Location"))


class Calls(SynchronousTestCase):
    def test_a_scalar_result_has_no_range(self) -> None:
        for path, pairs, expected in (
            ("rpc/find", (("q", "x"), ("offset", "5")), "5-5/*"),
            ("rpc/add", (("a", "1"), ("offset", "5")), "0-0/*"),
        ):
            reply = replied(asked("GET", path, *pairs), Outcome(rows=1, body=b"1"))
            self.assertEqual((reply.status, header(reply, "Content-Range")), (200, expected))

    def test_a_void_function_is_204_without_content(self) -> None:
        result = asked("POST", "rpc/whole")
        plan = result.compiled.plan
        assert isinstance(plan, CallPlan)
        nothing = evolve(plan, routine=evolve(plan.routine, is_void=True))
        compiled = evolve(result.compiled, plan=nothing)
        compiled = evolve(compiled, headers=constant_headers(result.request.head, compiled))
        reply = replied(evolve(result, compiled=compiled), Outcome(rows=1, body=b"null"))
        self.assertEqual((reply.status, reply.body, header(reply, "Content-Type")), (204, b"", None))


class Applied(SynchronousTestCase):
    def test_preference_applied_names_only_preferences_the_method_knows(self) -> None:
        for method, path, expected in (
            ("GET", "works", f"count=exact, {ALWAYS}"),
            ("HEAD", "works", f"count=exact, {ALWAYS}"),
            (
                "POST",
                "works",
                f"resolution=merge-duplicates, missing=default, return=representation, count=exact, {ALWAYS}",
            ),
            ("PUT", "works", f"return=representation, count=exact, {ALWAYS}"),
            (
                "PATCH",
                "works",
                f"missing=default, return=representation, count=exact, {ALWAYS}, max-affected=9",
            ),
            ("DELETE", "works", f"return=representation, count=exact, {ALWAYS}, max-affected=9"),
            ("GET", "rpc/find", f"count=exact, {ALWAYS}, max-affected=9"),
        ):
            pairs = (("q", "x"),) if path == "rpc/find" else ()
            prefer = EVERYTHING if method in ("GET", "HEAD") else EVERYTHING.replace("tx=rollback, ", "")
            result = asked(method, path, *pairs, prefer=prefer)
            self.assertEqual(header(replied(result, Outcome(rows=1)), "Preference-Applied"), expected)

    def test_preference_applied_names_tx_only_if_the_configuration_allows_it(self) -> None:
        for method in ("GET", "POST", "PATCH", "DELETE", "PUT"):
            overridden = evolve(CONFIG, tx_end="commit-allow-override")
            for config, expected in ((overridden, "tx=rollback"), (CONFIG, None)):
                result = asked(method, prefer="tx=rollback", config=config)
                reply = replied(result, Outcome(rows=1))
                self.assertEqual(header(reply, "Preference-Applied"), expected, method)

    def test_preference_applied_names_no_resolution_without_a_primary_key(self) -> None:
        result = asked("POST", prefer="resolution=merge-duplicates")
        plan = result.compiled.plan
        assert isinstance(plan, WritePlan)
        compiled = evolve(result.compiled, plan=evolve(plan, merges=None))
        compiled = evolve(compiled, headers=constant_headers(result.request.head, compiled))
        self.assertIsNone(
            header(replied(evolve(result, compiled=compiled), Outcome(rows=1)), "Preference-Applied")
        )


class SetBySql(SynchronousTestCase):
    """What SQL sets of the response, and warnings."""

    def test_status_and_headers_set_by_sql_win(self) -> None:
        headers = b'[{"content-type": "text/x"}, {"X-A": "1"}, {"X-A": "2"}]'
        outcome = Outcome(rows=1, headers=headers, status=b"418")
        for result in (
            asked("GET"),
            asked("POST", prefer="return=representation"),
            asked("POST", "rpc/whole"),
        ):
            reply = replied(result, outcome)
            types = [value for name, value in reply.headers if name.lower() == "content-type"]
            self.assertEqual((reply.status, types), (418, ["text/x"]))
            self.assertEqual([value for name, value in reply.headers if name == "X-A"], ["1", "2"])
            self.assertIn("Content-Range", dict(reply.headers))

    def test_filtering_by_a_name_instead_of_its_alias_is_answered_with_a_warning(self) -> None:
        name, warning = deprecated_names((("works", 'a"\\b\n'), ("tags", "t")))
        self.assertEqual((name, warning.partition(' "')[0]), ("Warning", "299 PostgRESTv16"))
        self.assertIn("Update `works` to `ab`, `tags` to `t` in query string", warning)


class Checked(SynchronousTestCase):
    """Outcomes that must not be committed."""

    def code(self, result: Planned, rows: int) -> str | None:
        try:
            check_outcome(result.request, result.compiled, Outcome(rows=rows))
        except TableError as fault:
            return fault.code
        return None

    def test_max_affected_with_handling_strict(self) -> None:
        strict = "handling=strict, max-affected=2"
        for method, path, prefer, rows, expected in (
            ("PATCH", "works", strict, 2, None),
            ("PATCH", "works", strict, 3, "PGRST124"),
            ("DELETE", "works", strict, 3, "PGRST124"),
            ("DELETE", "works", "max-affected=2", 3, None),
            ("POST", "works", strict, 3, None),
            ("GET", "works", strict, 3, None),
            ("GET", "rpc/find", strict, 3, "PGRST124"),
        ):
            pairs = (("q", "x"),) if path == "rpc/find" else ()
            result = asked(method, path, *pairs, prefer=prefer)
            self.assertEqual(self.code(result, rows), expected, (method, path, prefer))

    def test_put_must_write_exactly_one_row(self) -> None:
        for rows, expected in ((0, "PGRST115"), (1, None), (2, "PGRST115")):
            self.assertEqual(self.code(asked("PUT"), rows), expected)

    def test_a_singular_object_must_be_exactly_one_row(self) -> None:
        for method, path, pairs, several in (
            ("GET", "works", (), "PGRST116"),
            ("DELETE", "works", (), "PGRST116"),
            ("GET", "rpc/find", (("q", "x"),), "PGRST116"),
            # A scalar result counts as one object whatever it is.
            ("GET", "rpc/add", (("a", "1"),), None),
        ):
            result = asked(method, path, *pairs)
            rendering = evolve(result.compiled.rendering, form="object")
            result = evolve(result, compiled=evolve(result.compiled, rendering=rendering))
            codes = [self.code(result, rows) for rows in (0, 1, 2)]
            self.assertEqual(codes, [several, None, several], (method, path))


class FromSql(SynchronousTestCase):
    def test_headers_set_by_sql(self) -> None:
        self.assertEqual(
            headers_from_sql(Outcome(headers=b'[{"A": "1"}, {"A": "2"}]')), (("A", "1"), ("A", "2"))
        )
        for bad in (
            b"x",
            b"{}",
            b'["a"]',
            b'[{"a": 1}]',
            b'[{"a": "1", "b": "2"}]',
            b'[{"a": "x\\r\\nB: y"}]',
        ):
            self.assertRaises(TableError, headers_from_sql, Outcome(headers=bad))

    def test_sql_cannot_set_framing_headers(self) -> None:
        for name in ("Content-Length", "transfer-encoding", "CONNECTION", "Upgrade", "Trailer", "Keep-Alive"):
            stated = json.dumps([{name: "5"}, {"X-Tea": "pot"}]).encode()
            self.assertEqual(headers_from_sql(Outcome(headers=stated)), (("X-Tea", "pot"),))
            detail = json.dumps({"status": 418, "headers": {name: "5", "X-Tea": "pot"}})
            error = from_sqlstate("PGRST", '{"code": "7", "message": "no"}', detail, None, True)
            self.assertIn(("X-Tea", "pot"), error.headers)
            self.assertNotIn(name, dict(error.headers))

    def test_invalid_headers_and_statuses_of_sql_are_refused(self) -> None:
        for headers in (
            {"a b": "c"},
            {"": "c"},
            {"a": "b\r\nc: d"},
            {"a\n": "b"},
            {"a": "b\n"},
        ):
            self.assertRaises(TableError, headers_from_sql, Outcome(headers=json.dumps([headers]).encode()))
            self.assertEqual(self.raised({"status": 418, "headers": headers}), "PGRST121")
        for status in (99999, -1, True, 100, 199, 600, "418", 418.5):
            self.assertEqual(self.raised({"status": status, "headers": {}}), "PGRST121")

    def raised(self, detail: object) -> str:
        message = '{"code": "7", "message": "no"}'
        return from_sqlstate("PGRST", message, json.dumps(detail), None, True).code

    def test_statuses_set_by_sql(self) -> None:
        for good in (200, 418, 599):
            self.assertEqual(status_from_sql(Outcome(status=str(good).encode())), good)
        for bad in (b"bad", b"99", b"199", b"600", b"1000", b"", b"9" * 5000):
            self.assertRaises(TableError, status_from_sql, Outcome(status=bad))

    def test_content_range_without_rows_and_with_a_total(self) -> None:
        self.assertEqual(content_range(0, 0, None), "*/*")
        self.assertEqual(content_range(5, 3, 10), "5-7/10")

    def test_status_of_a_range(self) -> None:
        self.assertEqual(status_of_range(0, 3, None), 200)
        self.assertEqual(status_of_range(0, 3, 3), 200)
        self.assertEqual(status_of_range(0, 3, 4), 206)
        error = self.assertRaises(TableError, status_of_range, 5, 0, 4)
        self.assertIn(("Content-Range", "*/4"), error.headers)

    def test_location_is_the_url_that_reads_the_row(self) -> None:
        self.assertEqual(location("/r/t", ("a b", "c"), ("x&y", None)), "/r/t?a%20b=eq.x%26y&c=is.null")

    def test_location_quotes_column_names_as_filters_need_it(self) -> None:
        names = ("order", "a.b", 'x"y', "c->d", "and", "plain-name")
        _, _, query = location("/r/t", names, ("1",) * len(names)).partition("?")
        read = parse_query(parse_qsl(query))
        fields = [result.field for _, result in read.filters if isinstance(result, Filter)]
        self.assertEqual(fields, [Field(name) for name in names])
        self.assertIn("&plain-name=eq.1", query)
