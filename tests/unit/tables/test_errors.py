"""Errors of the database as responses: status by SQLSTATE, errors that SQL raises on purpose, and reasons for the
log."""

from __future__ import annotations

import json

import psycopg2
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connection import DatabaseGone
from project_service.http.response import error_reply
from project_service.tables.errors import from_postgres, from_sqlstate


class Failures(SynchronousTestCase):
    def test_statuses_follow_the_published_table(self) -> None:
        for code, status in (
            ("23505", 409),
            ("23503", 409),
            ("23001", 409),
            ("23P01", 409),
            ("42P01", 404),
            ("42883", 404),
            ("25006", 405),
            ("22P02", 400),
            ("53300", 503),
            ("40001", 500),
            ("P0001", 400),
            ("PT418", 418),
            ("PT200", 200),
            ("PT599", 599),
            ("PT199", 500),
            ("PT600", 500),
            ("PT4.8", 500),
            ("57014", 500),
        ):
            self.assertEqual(from_sqlstate(code, "m", None, None, True).status, status, code)

    def test_a_class_of_sqlstates_shares_one_status(self) -> None:
        for status, codes in {
            400: "01000 22012 23514 42703",
            403: "0L000 0P000 28P01",
            500: "09000 25P02 2D000 38000 39000 3B001 40P01 42P17 53400 54001 55P03 57000 58030 "
            "F0000 HV000 P0002 XX000",
            503: "08006 53000 57P01",
        }.items():
            for code in codes.split():
                self.assertEqual(from_sqlstate(code, "m", None, None, True).status, status, code)

    def test_some_statuses_also_depend_on_the_message(self) -> None:
        for code, message, status in (
            ("21000", "UPDATE requires a WHERE clause", 400),
            ("21000", "ON CONFLICT DO UPDATE command cannot affect row a second time", 500),
            ("42883", "function xmlagg(integer) does not exist", 406),
            ("42883", "function my_xmlagg(integer) does not exist", 404),
        ):
            self.assertEqual(from_sqlstate(code, message, None, None, True).status, status, message)

    def test_a_missing_privilege_is_401_for_anonymous_and_403_otherwise(self) -> None:
        self.assertEqual(from_sqlstate("42501", "m", None, None, True).status, 403)
        error = from_sqlstate("42501", "m", None, None, False)
        self.assertEqual(error.status, 401)
        self.assertIn(("WWW-Authenticate", "Bearer"), error.headers)

    def test_a_status_that_sql_chose_has_the_headers_it_requires(self) -> None:
        for code, header in (
            ("PT401", ("WWW-Authenticate", "Bearer")),
            ("PT429", ("Retry-After", "2")),
            ("PT503", ("Retry-After", "2")),
            ("57P01", ("Retry-After", "2")),
            ("53300", ("Retry-After", "2")),
        ):
            self.assertIn(header, from_sqlstate(code, "m", None, None, True).headers, code)
        for status, header in ((401, ("WWW-Authenticate", "Bearer")), (429, ("Retry-After", "2"))):
            detail = json.dumps({"status": status, "headers": {}})
            error = from_sqlstate("PGRST", '{"code": "7", "message": "no"}', detail, None, True)
            self.assertIn(header, error.headers)
        detail = json.dumps({"status": 503, "headers": {"retry-after": "60"}})
        error = from_sqlstate("PGRST", '{"code": "7", "message": "no"}', detail, None, True)
        self.assertEqual([value for name, value in error.headers if name.lower() == "retry-after"], ["60"])

    def test_a_role_that_does_not_exist_is_401(self) -> None:
        self.assertEqual(from_sqlstate("22023", 'role "x" does not exist', None, None, True).status, 401)
        self.assertEqual(from_sqlstate("22023", "invalid value", None, None, True).status, 400)

    def test_raise_sqlstate_pgrst_sets_body_status_and_headers(self) -> None:
        message = json.dumps({"code": "7", "message": "no", "hint": "try"})
        detail = json.dumps({"status": 418, "headers": {"X-Tea": "pot"}})
        error = from_sqlstate("PGRST", message, detail, None, True)
        self.assertEqual((error.status, error.code, error.hint), (418, "7", "try"))
        self.assertIn(("X-Tea", "pot"), error.headers)
        for status in ("418.0", "4.18e2"):
            detail = f'{{"status": {status}, "headers": {{}}}}'
            self.assertEqual(from_sqlstate("PGRST", message, detail, None, True).status, 418)
        detail = json.dumps({"status": 418, "headers": {"content-type": "application/problem+json"}})
        stated = error_reply(from_sqlstate("PGRST", message, detail, None, True)).headers
        types = [value for name, value in stated if name.lower() == "content-type"]
        self.assertEqual(types, ["application/problem+json"])

    def test_raise_can_set_the_reason_phrase(self) -> None:
        message, detail = json.dumps({"code": "7", "message": "no"}), {"status": 404, "headers": {}}
        for text in (None, "My Not Found"):
            stated = json.dumps({**detail, "status_text": text})
            self.assertEqual(from_sqlstate("PGRST", message, stated, None, True).reason, text)
        self.assertIsNone(from_sqlstate("PGRST", message, json.dumps(detail), None, True).reason)
        self.assertEqual(
            from_sqlstate("PT402", "Payment Required", None, None, True).reason, "Payment Required"
        )
        self.assertIsNone(from_sqlstate("P0001", "no", None, None, True).reason)

    def test_any_error_code_raised_by_sql_is_safe_in_a_header(self) -> None:
        for code, shown in (("7", "7"), ("a\r\nX: b, c", "aXbc"), ("\u00e9", ""), ("my-code.1", "my-code.1")):
            message = json.dumps({"code": code, "message": "no"})
            error = from_sqlstate("PGRST", message, '{"status": 409, "headers": {}}', None, True)
            self.assertEqual(json.loads(error.body())["code"], code)
            self.assertEqual(dict(error.headers)["Proxy-Status"], f"PostgREST; error={shown}")

    def test_raise_with_json_of_another_shape_is_pgrst121(self) -> None:
        good, shape = {"code": "7", "message": "no"}, {"status": 404, "headers": {}}
        for message, detail, which in (
            ({**good, "details": {"a": 1}}, shape, "MESSAGE"),
            ({**good, "hint": 5}, shape, "MESSAGE"),
            ({"message": "no"}, shape, "MESSAGE"),
            ([good], shape, "MESSAGE"),
            ("no", shape, "MESSAGE"),
            (good, [shape], "DETAIL"),
            (good, {**shape, "headers": [{"A": "b"}]}, "DETAIL"),
            (good, {**shape, "status_text": 5}, "DETAIL"),
            (good, {"status": 404}, "DETAIL"),
            (good, {"headers": {}}, "DETAIL"),
        ):
            error = from_sqlstate("PGRST", json.dumps(message), json.dumps(detail), None, True)
            self.assertEqual((error.status, error.code), (500, "PGRST121"))
            self.assertIn(f"Invalid JSON value for {which}", error.json_details)

    def test_raise_without_detail_is_pgrst121(self) -> None:
        error = from_sqlstate("PGRST", '{"code": "7", "message": "no"}', None, None, True)
        self.assertEqual((error.status, error.code), (500, "PGRST121"))
        self.assertEqual(error.json_details, "DETAIL is missing in the RAISE statement")

    @given(st.text(max_size=30), st.one_of(st.none(), st.text(max_size=30)))
    def test_any_malformed_raise_is_pgrst121(self, message: str, detail: str | None) -> None:
        self.assertEqual(from_sqlstate("PGRST", message, detail, None, True).code, "PGRST121")

    def test_terse_errors_have_only_code_and_message(self) -> None:
        error = from_sqlstate("22P02", "m", "d", "h", True)
        error.terse = True
        self.assertEqual(json.loads(error.body()), {"code": "22P02", "message": "m"})


class Reasons(SynchronousTestCase):
    """The reasons in the log for failures that are not the request's fault."""

    def test_lost_connections_and_full_servers_are_logged_with_a_reason(self) -> None:
        for fault, why in (
            (DatabaseGone("the database did not answer"), "the database did not answer"),
            (psycopg2.OperationalError("could not connect to 10.0.0.7"), "OperationalError"),
            (Refused("53100"), "no reason given (53100)"),
        ):
            error = from_postgres(fault, True)
            self.assertEqual((error.status, error.why), (503, why))

    def test_failures_inside_postgresql_are_logged_with_a_reason(self) -> None:
        for code in ("57014", "40001", "40P01", "42P17", "54001", "53400", "XX000", "HV000"):
            error = from_postgres(Refused(code), True)
            self.assertEqual((error.status, error.why), (500, f"no reason given ({code})"))

    def test_errors_that_the_applications_sql_raises_are_not_logged(self) -> None:
        for code in ("PT503", "PT500", "P0001", "P0002", "38000", "25006", "22P02", "PGRST"):
            self.assertIsNone(from_postgres(Refused(code), True).why, code)


class Refused(psycopg2.Error):
    def __init__(self, code: str) -> None:
        self.__setstate__({"pgcode": code})
