"""What is set for a request's transaction before its statement runs: the preamble."""

from __future__ import annotations

import json
import re
from typing import Any

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.access.identity import Identity
from project_service.tables.errors import TableError
from project_service.tables.execution.preamble import Preamble, preamble_of
from project_service.tables.incoming import Incoming, Sent
from project_service.tables.model import Routine
from project_service.tables.planning.planner import Planner
from project_service.tables.sql.settings import settings_of
from tests.unit.tables.planning import CACHE, CONFIG

_SET = re.compile(r"set_config\('((?:[^']|'')*)', (%s|'(?:[^']|'')*'), true\)")

_VALUE = re.compile(r"%s|'(?:[^']|'')*'")
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_LITERAL = re.compile(r"(E?)'((?:[^'\\]|''|\\\\|\\)*?)'(?!')")
# The connection's own settings, and their values.
_KEPT = ("standard_conforming_strings", "on", "idle_in_transaction_session_timeout", "60s")
_LEVEL = (("default_transaction_isolation", "repeatable read"),)


def _read(escapes: str, written: str) -> str:
    """The value of a literal, as psycopg2 and then PostgreSQL read it."""
    text = written.replace("%%", "%").replace("''", "'")
    return text.replace("\\\\", "\\") if escapes else text


class Preambles(SynchronousTestCase):
    def preamble(
        self,
        *headers: tuple[str, str],
        method: str = "GET",
        role: str = "reader",
        read_only: bool = True,
        routine: Routine | None = None,
        settings: tuple[tuple[str, str], ...] = (),
        **config: Any,
    ) -> Preamble:
        """``settings`` are the role's own."""
        incoming = Incoming(method, ("works",), (), Sent.of(headers))
        found = evolve(CONFIG, **config)
        head, _ = Planner(found).head(incoming)
        cache = evolve(CACHE, role_settings={"reader": settings})
        identity = Identity(role, '{"role": "reader"}', True)
        return preamble_of(found, cache, incoming, head, identity, read_only, routine)

    def set(self, *headers: tuple[str, str], **more: Any) -> list[tuple[str, str]]:
        found = _SET.findall(self.preamble(*headers, **more).sql.text)
        return [(name, value.strip("'")) for name, value in found]

    def test_the_preamble_sets_role_claims_request_and_limits(self) -> None:
        found = self.preamble(
            ("x-a", "1"), ("cookie", "c=2"), extra_search_path=("more",), statement_timeout="9ms"
        )
        self.assertTrue(found.sql.text.startswith("RESET ALL; SELECT "))
        self.assertEqual(found.values, ["/works"])
        self.assertEqual(
            [(name, value.strip("'")) for name, value in _SET.findall(found.sql.text)],
            [
                ("jit", "off"),
                ("statement_timeout", "9ms"),
                ("search_path", '"api", "more"'),
                ("role", "reader"),
                ("request.jwt.claims", '{"role": "reader"}'),
                ("request.method", "GET"),
                ("request.headers", '{"x-a":"1"}'),
                ("request.cookies", '{"c":"2"}'),
                ("transaction_read_only", "on"),
                ("request.path", "%s"),
            ],
        )

    def test_the_prepared_part_has_no_value_of_the_request(self) -> None:
        found = self.preamble(("x-a", "it's 1%"), pre_request="check", settings=_LEVEL).sql
        statement = found.settings.statement
        self.assertEqual(len(statement.parameters), len(_SET.findall(found.text)))
        self.assertEqual(
            statement.for_driver % tuple(_VALUE.findall(found.settings.arguments)),
            found.settings.text,
        )
        self.assertNotIn("x-a", statement.text)
        self.assertEqual(
            found.executed("EXECUTE s"), f"{found.first}EXECUTE s{found.settings.arguments}{found.last}"
        )
        self.assertEqual(found.text, found.first + found.settings.text + found.last)

    @given(st.lists(st.tuples(_TEXTS, _TEXTS), max_size=5))
    def test_settings_are_escaped_for_postgresql_and_psycopg2(self, pairs: list[tuple[str, str]]) -> None:
        """In PostgreSQL's literals, with a sign doubled that means something to psycopg2."""
        found = settings_of(pairs, ("request.path",))
        written = _LITERAL.findall(found.arguments)
        self.assertEqual([_read(*one) for one in written], [value for _, value in pairs])
        self.assertTrue(found.arguments.endswith("%s)"))
        again = [text for one in _LITERAL.findall(found.text) for text in [_read(*one)]]
        self.assertEqual(again[len(_KEPT) :], [text for pair in pairs for text in pair] + ["request.path"])
        self.assertEqual(found.statement.text.count("\0"), len(pairs) + 1)

    def test_request_headers_leave_out_project_keys(self) -> None:
        """Headers that came more than once are joined in one line, and cookies have a setting of their own."""
        found = dict(
            self.set(
                ("x-service-key", "psk_secret"),
                ("apikey", "psk_secret"),
                ("authorization", "Bearer t"),
                ("x-a", "1"),
                ("cookie", "a=1; b=x y; =c; d"),
                ("x-a", "2"),
                ("cookie", "e=f=g"),
            )
        )
        headers = {"authorization": "Bearer t", "x-a": "1, 2"}
        self.assertEqual(json.loads(found["request.headers"]), headers)
        cookies = {"a": "1", "b": "x y", "d": "", "e": "f=g"}
        self.assertEqual(json.loads(found["request.cookies"]), cookies)

    def test_the_repr_of_a_request_shows_no_secret(self) -> None:
        names = ("x-service-key", "authorization", "cookie", "x-mine")
        headers = [(name, "secret") for name in names]
        shown = repr(Incoming("POST", ("works",), (), Sent.of(headers), b"secret", presented_key="secret"))
        self.assertNotIn("secret", shown)
        self.assertIn("works", shown)

    def test_a_write_transaction_is_not_read_only(self) -> None:
        self.assertNotIn("transaction_read_only", dict(self.set(method="POST", read_only=False)))

    def test_settings_of_the_role_come_before_it_and_those_of_the_function_after(self) -> None:
        """The last value counts, and what only privileged users may set is set before the role is taken on."""
        routine = Routine("api", "slow", settings=(("statement_timeout", "3s"), ("work_mem", "1MB")))
        found = self.set(("prefer", "timezone=UTC"), routine=routine, settings=(("statement_timeout", "2s"),))
        names = [name for name, _ in found]
        timeouts = [value for name, value in found if name == "statement_timeout"]
        self.assertEqual(timeouts, ["0", "2s", "3s"])
        self.assertLess(found.index(("statement_timeout", "2s")), names.index("role"))
        self.assertNotIn("work_mem", names)
        self.assertEqual(dict(found)["timezone"], "UTC")

    def test_explain_runs_without_the_services_own_planner_settings(self) -> None:
        """EXPLAIN lists every setting that differs from PostgreSQL's default."""
        head, _ = Planner(CONFIG).head(Incoming("GET", ("works",)))
        identity = Identity("reader", "{}", True)
        for explains in (True, False):
            found = preamble_of(
                CONFIG, CACHE, Incoming("GET", ("works",)), head, identity, True, None, explains
            )
            self.assertIs("jit" in found.sql.text, not explains)

    def test_app_settings_are_set_with_their_prefix(self) -> None:
        self.assertEqual(
            dict(self.set(app_settings={"colour": "50% blue"}))["app.settings.colour"], "50%% blue"
        )

    def test_a_pre_request_function_is_called_last(self) -> None:
        for said, called in {"check": '"check"', "auth.check": '"auth"."check"'}.items():
            *_, last = self.preamble(pre_request=said).sql.text.split("; ")
            self.assertEqual(last, f"SELECT {called}()")
        self.assertEqual(self.preamble().sql.text.count("; "), 1)

    def test_the_isolation_level_is_set_first(self) -> None:
        shouted = (("default_transaction_isolation", "REPEATABLE Read"),)
        routine = Routine("api", "f", settings=_LEVEL)
        for more in ({"settings": _LEVEL}, {"settings": shouted}, {"routine": routine}):
            begins = "RESET ALL; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT "
            self.assertTrue(self.preamble(**more).sql.text.startswith(begins))
        no_level = (("default_transaction_isolation", "x; drop table works"),)
        self.assertNotIn("ISOLATION LEVEL", self.preamble(settings=no_level).sql.text)

    def test_plans_are_discarded_where_they_may_be_another_roles(self) -> None:
        incoming = Incoming("GET", ("works",))
        head, _ = Planner(CONFIG).head(incoming)
        cache = evolve(CACHE, role_settings={"reader": _LEVEL})
        begins = "RESET ALL; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; DISCARD PLANS; "
        asked = evolve(CONFIG, pre_request="check")
        for config, current, forgotten in (
            (CONFIG, cache, False),
            (CONFIG, evolve(cache, false_constants=("caller()",)), True),
            (CONFIG, evolve(cache, changes_role=True), False),
            (asked, evolve(cache, changes_role=True), True),
            (asked, cache, False),
            (CONFIG, evolve(cache, guarded_within=True), False),
            (evolve(CONFIG, prepare=False), evolve(cache, guarded_within=True), True),
        ):
            found = preamble_of(config, current, incoming, head, Identity("reader", "{}", True), True, None)
            for text in (found.sql.text, found.sql.executed("EXECUTE s")):
                self.assertEqual(text.startswith(begins), forgotten, text)
                self.assertEqual("DISCARD" in text, forgotten)

    def test_a_role_may_be_read_only_by_its_settings(self) -> None:
        for value, only_reads in {
            "on": True,
            "TRUE": True,
            "y": True,
            "1": True,
            "off": False,
            "f": False,
        }.items():
            settings = (("default_transaction_read_only", value),)
            found = self.set(settings=settings, read_only=False, method="POST")
            self.assertEqual(("transaction_read_only", "on") in found, only_reads, value)
        self.assertNotIn("transaction_read_only", dict(self.set(read_only=False, method="POST")))

    def test_long_headers_are_passed_like_short_ones(self) -> None:
        for long in ("x" * 5000, "y" * 5000):
            self.assertEqual(json.loads(dict(self.set(("x-a", long)))["request.headers"]), {"x-a": long})

    def test_preambles_with_long_values_are_not_cached(self) -> None:
        """That holds for headers and cookies alike: the cache is bounded in bytes."""
        for name in ("x-a", "cookie"):
            for length, kept in ((500, True), (5000, False)):
                one, two = (self.preamble((name, "a=" + "z" * length)).sql for _ in range(2))
                self.assertIs(one is two, kept, name)

    def test_a_role_with_a_nul_is_refused(self) -> None:
        error = self.assertRaises(TableError, self.preamble, role="rea\0der")
        self.assertEqual((error.status, error.code), (400, "22021"))
