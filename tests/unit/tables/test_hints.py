"""Hints for missing rights: which messages they are for, and what happens where the catalogs cannot be asked."""

from __future__ import annotations

from typing import Any, cast

import orjson
import psycopg2
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.connection import DatabaseGone
from project_service.lifecycle import start
from project_service.tables import errors
from project_service.tables.access import Identity
from project_service.tables.errors import TableError
from project_service.tables.reply.hints import Hints, body_hint, refused_by
from project_service.tables.request.request import RawRequest, RequestHeaders
from project_service.tables.values import TablesConfig
from tests.unit.tables.planning import CONFIG, as_json, planned

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=63)


class Messages(SynchronousTestCase):
    @given(NAMES)
    def test_the_name_is_read_whatever_it_is(self, name: str) -> None:
        for kind, words in {
            "relation": ("table", "view", "materialized view", "foreign table"),
            "sequence": ("sequence",),
            "function": ("function", "procedure", "aggregate"),
            "schema": ("schema",),
        }.items():
            for word in words:
                self.assertEqual(refused_by(f"permission denied for {word} {name}"), (kind, name))

    def test_policies_and_roles(self) -> None:
        for text in (
            'new row violates row-level security policy for table "a b"',
            'new row violates row-level security policy "p" for table "a b"',
            'new row violates row-level security policy (USING expression) for table "a b"',
            'target row violates row-level security policy "p" (USING expression) for table "a b"',
        ):
            self.assertEqual(refused_by(text), ("policy", "a b"))
        self.assertEqual(refused_by('permission denied to set role "x"'), ("role", "x"))

    def test_other_messages_are_left_alone(self) -> None:
        for text in (
            "",
            "must be owner of table x",
            "permission denied",
            "permission denied for language c",
            "no",
        ):
            self.assertIsNone(refused_by(text))


class Bodies(SynchronousTestCase):
    """JSON that is sent under the name of something else."""

    def hint(self, body: bytes, content_type: str, error: TableError) -> str | None:
        headers = RequestHeaders.of((("content-type", content_type),))
        return body_hint(error, RawRequest("POST", ("works",), headers=headers, body=body))

    def test_text_and_forms_that_are_json(self) -> None:
        as_text = errors.invalid_body("Content-Type not acceptable: text/plain;charset=UTF-8")
        as_form = errors.no_column('{"id": 1}', "works")
        form = "application/x-www-form-urlencoded"
        for body, content_type, error in (
            (b"{}", "text/plain;charset=UTF-8", as_text),
            (b'{"id": 1}', form, as_form),
            (b' [{"id": 1}]', f"{form}; charset=utf-8", as_form),
        ):
            self.assertIn("'Content-Type: application/json'", self.hint(body, content_type, error) or "")

    def test_other_mistakes(self) -> None:
        form = "application/x-www-form-urlencoded"
        for body, content_type, error in (
            (b"di=1", form, errors.no_column("di", "works")),
            (b'{"di": 1}', "application/json", errors.no_column("di", "works")),
            (b"{", "application/json", errors.invalid_body("Empty or invalid json")),
        ):
            self.assertIsNone(self.hint(body, content_type, error))


class Pool:
    """A pool that returns ``answer``, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def query(self, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
        self.asked.append(params)
        if isinstance(self.answer, Exception):
            raise self.answer
        return [] if self.answer is None else [(orjson.dumps(self.answer),)]


FOUND = {"role": "anon", "object": "api.works", "lacks": ["SELECT"], "partly": [], "other": False}


class Adding(SynchronousTestCase):
    def hint(
        self,
        pool: Pool,
        message: str = "permission denied for table works",
        config: TablesConfig = CONFIG,
        method: str = "GET",
        bearer: bool = False,
        **error: Any,
    ) -> str | None:
        given_headers = (("authorization", "Bearer x.y.z"),) if bearer else ()
        incoming = RawRequest(method, ("works",), headers=RequestHeaders.of(given_headers))
        fault = TableError(401, error.pop("code", "42501"), message, **error)
        body = {"body": as_json({"id": 1})} if method == "POST" else {}
        hints = Hints(config, cast(Any, pool))
        adding = hints.add(fault, incoming, planned(method, "works", **body), Identity("anon", "{}", False))  # type: ignore[arg-type]
        self.successResultOf(start(adding))
        return fault.hint

    def test_the_catalogs_are_asked_for_what_the_request_needs(self) -> None:
        pool = Pool(FOUND)
        self.assertIn("GRANT SELECT ON api.works TO anon;", self.hint(pool) or "")
        (asked,) = pool.asked
        self.assertEqual((asked["schema"], asked["name"], asked["needed"]), ("api", "works", ["SELECT"]))
        self.hint(pool, method="POST")
        self.assertEqual(pool.asked[1]["needed"], ["INSERT"])

    def test_a_token_without_a_role_is_not_called_missing(self) -> None:
        self.assertTrue((self.hint(Pool(FOUND)) or "").startswith("No user token came"))
        self.assertTrue((self.hint(Pool(FOUND), bearer=True) or "").startswith("The user token has no role"))

    def test_nothing_is_asked_where_nothing_would_be_shown(self) -> None:
        for more in (
            {"config": evolve(CONFIG, error_hints=False)},
            {"config": evolve(CONFIG, error_verbosity="minimal")},
            {"method": "HEAD"},
            {"code": "23505"},
            {"message": "not for you"},
        ):
            pool = Pool(FOUND)
            self.assertIsNone(self.hint(pool, **cast(Any, more)), more)
            self.assertEqual(pool.asked, [])
        self.assertEqual(self.hint(Pool(FOUND), hint="own"), "own")

    def test_a_database_that_cannot_be_asked_leaves_the_error_as_it_is(self) -> None:
        for failure in (errors.pool_timeout(), DatabaseGone("gone"), psycopg2.OperationalError("x")):
            self.assertIsNone(self.hint(Pool(failure)))

    def test_a_name_that_is_not_the_requests_is_not_looked_up(self) -> None:
        pool = Pool(FOUND)
        self.assertIn("does not name it", self.hint(pool, "permission denied for table hidden") or "")
        self.assertEqual(pool.asked, [])

    def test_where_the_role_has_the_right_something_else_lacks_it(self) -> None:
        for found in (None, {**FOUND, "lacks": []}):
            self.assertIn("does not name it", self.hint(Pool(found)) or "")

    def test_a_role_that_the_service_may_not_act_in(self) -> None:
        hint = self.hint(Pool(FOUND), 'permission denied to set role "a"b"') or ""
        self.assertIn('GRANT "a""b" TO the role that the service connects as.', hint)
