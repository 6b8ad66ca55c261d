"""Plans of calls: which overload is meant, where its arguments come from, and what errors suggest."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.errors import TableError
from project_service.tables.plan.call import CallPlan
from project_service.tables.values import (
    Argument,
    Routine,
)
from tests.unit.tables.planning import CACHE, as_json, planned, text

A, B = (Argument(name, "integer", "integer") for name in "ab")
JSON = Argument("", "json", "json")
HIDDEN = ("hidden", "things")


def routine(name: str, *arguments: Argument, schema: str = "api", **more: Any) -> Routine:
    return Routine(schema, name, arguments, volatility="s", **more)


MORE = (
    (
        routine("twice", A),
        routine("twice", evolve(A, type="text")),
        routine("twice", A, evolve(B, required=True)),
    ),
    (routine("now"),),
    (routine("both", JSON, B),),
    (routine("named", evolve(JSON, name="x")),),
    (routine("things", is_composite=True, is_set=True, returns=HIDDEN),),
    (routine("records", is_composite=True, is_set=True, columns=("k", "m", "n")),),
    (routine("lookup", schema="private"),),
)
WITH_MORE = evolve(CACHE, routines={**CACHE.routines, **{overloads[0].key: overloads for overloads in MORE}})
TEXT = {"media": "text/plain", "body": b"x"}
FORM = {"media": "application/x-www-form-urlencoded", "body": b"b=2&a=1&b=3"}


def called(method: str, name: str, *pairs: tuple[str, str], **more: Any) -> CallPlan:
    plan = planned(method, f"rpc/{name}", *pairs, cache=WITH_MORE, **more).compiled.plan
    assert isinstance(plan, CallPlan)
    return plan


class Given(SynchronousTestCase):
    def test_arguments_are_those_named_by_the_json_body(self) -> None:
        for body, names in (({"a": 1}, ["a"]), ({"b": 1, "a": 1}, ["a", "b"])):
            plan = called("POST", "add", body=as_json(body))
            self.assertEqual([argument.name for argument in plan.arguments], names)
            self.assertEqual((plan.values, plan.whole), ((), False))
            self.assertIsNotNone(plan.payload)

    def test_arguments_of_forms_and_queries_keep_all_values_of_a_name(self) -> None:
        query = (("b", "2"), ("a", "1"), ("b", "3"))
        for plan in (called("POST", "add", **FORM), called("GET", "add", *query)):
            given = [(argument.name, [one.text for one in values]) for argument, values in plan.values]
            self.assertEqual(given, [("a", ["1"]), ("b", ["2", "3"])])
            self.assertIsNone(plan.payload)

    def test_a_whole_body_goes_only_to_one_unnamed_argument_of_the_matching_type(self) -> None:
        self.assertTrue(called("POST", "whole", body=b'{"x": 1}').whole)
        self.assertTrue(called("POST", "whole_text", **TEXT).whole)
        asked: list[tuple[str, dict[str, Any]]] = [
            ("whole_text", {"body": b'{"x": 1}'}),
            ("whole", TEXT),
            ("both", {"body": b"{}"}),
            ("named", {"body": b'{"y": 1}'}),
            ("find", TEXT),
            # Nor is it dropped where a function takes nothing.
            ("now", TEXT),
        ]
        for name, more in asked:
            error = self.assertRaises(TableError, called, "POST", name, **more)
            self.assertEqual((error.status, error.code), (404, "PGRST202"), name)

    def test_overloads_that_differ_only_in_types_are_ambiguous(self) -> None:
        error = self.assertRaises(TableError, called, "GET", "twice", ("a", "1"))
        self.assertEqual((error.status, error.code), (300, "PGRST203"))
        self.assertTrue(error.message.endswith("api.twice(a => integer), api.twice(a => text)"))
        self.assertEqual(len(called("GET", "twice", ("a", "1"), ("b", "1")).routine.arguments), 2)


class Unknown(SynchronousTestCase):
    def test_an_unknown_function_error_says_which_arguments_were_searched_for(self) -> None:
        json, unnamed = {"body": b'{"b": 1, "z": 1}'}, "a single unnamed json/jsonb parameter"
        asked: list[tuple[str, list[tuple[str, str]], dict[str, Any], str, str]] = [
            ("GET", [], {}, " without parameters", " without parameters"),
            ("GET", [("z", "1")], {}, "(z)", " with parameter z"),
            ("GET", [("z", "1"), ("b", "1")], {}, "(b, z)", " with parameters b, z"),
            ("POST", [], json, "(b, z)", f" with parameters b, z or with {unnamed}"),
            ("POST", [], {"body": b'{"z": 1}'}, "(z)", f" with parameter z or with {unnamed}"),
            ("POST", [], {}, " without parameters", f" without parameters or with {unnamed}"),
            ("POST", [], FORM, "(a, b)", " with parameters a, b"),
            ("POST", [], TEXT, "", " with a single unnamed text parameter"),
        ]
        for method, pairs, more, message, details in asked:
            error = self.assertRaises(TableError, called, method, "now_", *pairs, **more)
            self.assertEqual(
                error.message, f"Could not find the function api.now_{message} in the schema cache"
            )
            expected = f"Searched for the function api.now_{details}, but no matches were found"
            self.assertEqual(error.json_details, f"{expected} in the schema cache.")

    def test_hints_suggest_only_similar_names_of_the_same_schema(self) -> None:
        for name, pairs, hint in (
            ("thing", [], "api.things"),
            ("lookups", [], None),
            ("nothing_like_it", [], None),
            ("add", [], None),
            ("add", [("aa", "1")], "api.add(a, b)"),
            ("named", [("yyy", "1")], None),
        ):
            error = self.assertRaises(TableError, called, "GET", name, *pairs)
            expected = f"Perhaps you meant to call the function {hint}" if hint else None
            self.assertEqual(error.hint, expected, (name, pairs))

    def test_no_hint_for_a_call_with_a_raw_body(self) -> None:
        self.assertIsNone(self.assertRaises(TableError, called, "POST", "thing", **TEXT).hint)
        self.assertIsNotNone(self.assertRaises(TableError, called, "POST", "thing", body=b"{}").hint)


class Unnamed(SynchronousTestCase):
    """An argument without a name is given by the whole body or by the empty name."""

    def test_the_empty_name_is_that_of_the_unnamed_argument(self) -> None:
        for name in ("whole", "whole_jsonb", "whole_text", "whole_xml", "whole_bytea"):
            plan = called("POST", name, body=b'{"": "x"}')
            self.assertEqual((len(plan.arguments), plan.whole), (1, False), name)
            for plan in (called("GET", name, ("", "x")), called("POST", name, **{**FORM, "body": b"=x"})):
                self.assertEqual([values[0].text for _, values in plan.values], ["x"], name)
        self.assertEqual(len(called("POST", "both", body=b'{"": 1, "b": 2}').arguments), 2)
        for method, asked in (("POST", {"body": b'{"": 1}'}), ("GET", {}), ("POST", {"body": b'{"b": 2}'})):
            error = self.assertRaises(TableError, called, method, "both", **asked)
            self.assertEqual(error.code, "PGRST202")

    def test_it_is_given_by_its_position(self) -> None:
        read = text(planned("GET", "rpc/whole_text", ("", "x")))
        self.assertIn('"api"."whole_text"($1::text)', read)
        posted = text(planned("POST", "rpc/both", body=b'[{"": 1, "b": 2}]', cache=WITH_MORE))
        self.assertIn('"api"."both"(pgrst_args."pgrst_unnamed", "b" := pgrst_args."b")', posted)
        self.assertIn("json_build_object('pgrst_unnamed', $2::json -> 0 -> '')", posted)

    def test_overloads_that_a_default_makes_ambiguous_are_listed(self) -> None:
        default = evolve(JSON, type="text", cast="text", required=False)
        cache = evolve(CACHE, routines={("api", "h"): (routine("h"), routine("h", default))})
        for method, body in (("GET", b""), ("POST", b""), ("POST", b"{}")):
            error = self.assertRaises(TableError, planned, method, "rpc/h", body=body, cache=cache)
            self.assertEqual((error.status, error.code), (300, "PGRST203"))
            self.assertIn("between: api.h(), api.h( => text)", error.message)
        planned("GET", "rpc/h", ("", "x"), cache=cache)

    def test_any_json_goes_to_the_function_that_takes_it_whole(self) -> None:
        optional = evolve(
            CACHE, routines={("api", "whole"): (routine("whole", evolve(JSON, required=False)),)}
        )
        for body in (
            b"[1]",
            b"[[]]",
            b'[{"a": 1}, {"b": 2}]',
            b'[{"a": 1}, 2]',
            b"[]",
            b"[{}]",
            b'"x"',
            b"null",
            b"1",
        ):
            for cache in (CACHE, optional):
                plan = planned("POST", "rpc/whole", body=body, cache=cache)
                assert isinstance(plan.compiled.plan, CallPlan)
                self.assertEqual((plan.compiled.plan.whole, plan.raw), (True, body), body)
        for path in ("rpc/add", "rpc/now", "rpc/whole_text", "works"):
            error = self.assertRaises(TableError, planned, "POST", path, body=b"[1]", cache=WITH_MORE)
            self.assertEqual((error.code, error.message), ("PGRST102", "All object keys must match"), path)


class Results(SynchronousTestCase):
    def test_a_scalar_result_is_read_as_rows_only_if_select_filter_or_order_needs_it(self) -> None:
        arguments = (("a", "1"), ("c", "x"))
        self.assertIsNone(called("GET", "add", *arguments, ("limit", "1")).read)
        self.assertIsNotNone(called("GET", "add", *arguments, ("select", "count()")).read)
        for asked in (("select", "x"), ("x", "eq.1"), ("order", "x")):
            error = self.assertRaises(TableError, called, "GET", "add", *arguments, asked)
            self.assertEqual((error.status, error.code), (400, "42703"), asked)

    def test_rows_of_unknown_columns_are_selected_whole(self) -> None:
        for name in ("things", "records"):
            plan = called("GET", name, ("select", "n"), ("m", "eq.1"), ("order", "k"))
            self.assertEqual((plan.everything, plan.returning), (True, ()), name)
            assert plan.read is not None
            self.assertEqual(len(plan.read.outputs), 1)

    def test_rows_of_known_columns_select_only_the_columns_used(self) -> None:
        pairs = (("q", "x"), ("select", "title"), ("order", "id"), ("or", "(age.gt.1,and(data.is.null))"))
        plan = called("GET", "find", *pairs)
        self.assertEqual((plan.everything, plan.returning), (False, ("title", "id", "age", "data")))
        statement = text(planned("GET", "rpc/find", *pairs))
        self.assertIn('"api"."age"(("find".*)::"api"."works") AS "age"', statement)
        self.assertNotIn('"author_id"', statement)


class Hints(SynchronousTestCase):
    def refused(self, name: str, *arguments: str) -> TableError:
        body = as_json(dict.fromkeys(arguments, 1))
        plan: TableError = self.assertRaises(TableError, planned, "POST", f"rpc/{name}", body=body)
        return plan

    def test_arguments_in_errors_are_sorted_by_name(self) -> None:
        plan = self.refused("add", "b", "a", "zzz")
        self.assertIn("api.add(a, b, zzz)", plan.message)
        self.assertIn("with parameters a, b, zzz or with", plan.json_details)

    def test_the_hint_for_arguments_is_the_overload_with_the_fewest_edits(self) -> None:
        for arguments, near in (
            (("b", "a", "something"), "add(a, b)"),
            (("c",), "add(a, c)"),
            (("a", "cc"), "add(a, c)"),
            (("wrong_one",), None),
            ((), None),
        ):
            hint = f"Perhaps you meant to call the function api.{near}" if near else None
            self.assertEqual(self.refused("add", *arguments).hint, hint, arguments)


class Calling(SynchronousTestCase):
    def test_overloads_are_chosen_by_argument_names(self) -> None:
        self.assertIn('"b" := ', text(planned("GET", "rpc/add", ("a", "1"), ("b", "2"))))
        self.assertIn('"c" := ', text(planned("GET", "rpc/add", ("a", "1"), ("c", "2"))))

    def test_a_json_body_is_passed_whole_to_an_unnamed_json_argument(self) -> None:
        plan = planned("POST", "rpc/whole", body=b'{"x": 1}')
        self.assertIn("::json", text(plan))

    def test_an_unknown_function_suggests_a_similar_name(self) -> None:
        error = self.assertRaises(TableError, planned, "GET", "rpc/fnd")
        self.assertEqual((error.status, error.hint), (404, "Perhaps you meant to call the function api.find"))
        error = self.assertRaises(TableError, planned, "GET", "rpc/add", ("a", "1"), ("d", "2"))
        self.assertIn("Searched for the function api.add with parameters a, d", error.json_details)

    def test_rows_of_a_function_are_filtered_like_a_tables(self) -> None:
        plan = text(planned("GET", "rpc/find", ("q", "x"), ("id", "gt.1"), ("select", "title,tags(label)")))
        self.assertIn('"works"."id" > ', plan)

    def test_testing_an_embedding_of_a_functions_rows_selects_no_such_column(self) -> None:
        select, tested = ("select", "title,tags()"), ("or", "(tags.not.is.null,id.eq.1)")
        plan = text(planned("GET", "rpc/find", ("q", "x"), select, tested))
        self.assertIn('"find"."id"', plan)
        self.assertNotIn('"find"."tags"', plan)
