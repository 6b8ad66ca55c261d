"""What is set for a request's transaction before its statement runs: the preamble."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.acting import Preamble, opening_of_shared, settings_text
from project_service.database.trust import Trust
from project_service.tables.access import Identity
from project_service.tables.errors import TableError
from project_service.tables.planner import Planned
from project_service.tables.request.headers import MediaType
from project_service.tables.request.request import RawRequest, RequestHeaders
from project_service.tables.run.transaction_settings import (
    preamble_of,
    preamble_of_head,
    session_of_shared,
    shared_settings,
)
from project_service.tables.values import SchemaCache
from tests.unit.tables.planning import CACHE, CONFIG, planned

_SET = re.compile(r"set_config\('((?:[^']|'')*)', (%s|'(?:[^']|'')*'), true\)")

_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_LITERAL = re.compile(r"(E?)'((?:[^'\\]|''|\\\\|\\)*?)'(?!')")
_LEVEL = (("default_transaction_isolation", "repeatable read"),)


def _read(escapes: str, written: str) -> str:
    """The value of a literal, as psycopg2 and then PostgreSQL read it."""
    text = written.replace("%%", "%").replace("''", "'")
    return text.replace("\\\\", "\\") if escapes else text


def asked(method: str = "GET", settings: tuple[tuple[str, str], ...] = (), prefer: str = "") -> Planned:
    """A read or a write of ``works``; with ``settings`` a call of a function that has them."""
    result = planned(method, "works", body=b'{"title": "a"}' if method == "POST" else b"", prefer=prefer)
    if not settings:
        return result
    routine = evolve(CACHE.routines["api", "find"][0], settings=settings)
    cache = evolve(CACHE, routines={("api", "find"): (routine,)})
    return planned("GET", "rpc/find", ("q", "x"), prefer=prefer, cache=cache)


class Preambles(SynchronousTestCase):
    def preamble(
        self,
        *headers: tuple[str, str],
        result: Planned | None = None,
        role: str = "reader",
        settings: tuple[tuple[str, str], ...] = (),
        cache: SchemaCache = CACHE,
        **config: Any,
    ) -> Preamble:
        """``settings`` are the role's own."""
        cache = evolve(cache, role_settings={"reader": settings})
        identity = Identity(role, '{"role": "reader"}', True)
        return preamble_of(
            evolve(CONFIG, **config), cache, RequestHeaders.of(headers), result or asked(), identity
        )

    def set(self, *headers: tuple[str, str], **more: Any) -> list[tuple[str, str]]:
        result = _SET.findall(self.preamble(*headers, **more).text())
        return [(name, value.strip("'")) for name, value in result]

    def test_the_preamble_sets_role_claims_request_and_limits(self) -> None:
        result = self.preamble(
            ("x-a", "1"), ("cookie", "c=2"), extra_search_path=("more",), statement_timeout="9ms"
        )
        expected = [
            ("jit", "off"),
            ("statement_timeout", "9ms"),
            ("search_path", '"api", "more"'),
            ("role", "reader"),
            ("request.jwt.claims", '{"role": "reader"}'),
            ("request.method", "GET"),
            ("request.headers", '{"x-a":"1"}'),
            ("request.cookies", '{"c":"2"}'),
            ("transaction_read_only", "on"),
        ]
        self.assertTrue(result.text().startswith("RESET ALL; SELECT "))
        self.assertEqual(
            [(name, value.strip("'")) for name, value in _SET.findall(result.text())],
            [*expected, ("request.path", "%s")],
        )
        self.assertEqual(list(result.pairs), expected)
        step = result.steps("/works")[-1]
        self.assertEqual(
            [None if value is None else value.decode() for value in step.values],
            [*(value for _, value in expected), "/works"],
        )

    def test_a_prepared_statement_has_no_value_of_the_request(self) -> None:
        """PostgreSQL shows its text to all roles."""
        result = self.preamble(("x-secret", "it's 1%"), pre_request="check", settings=_LEVEL)
        for shared in (False, True):
            (step,) = [one for one in result.steps("/secret", shared) if not one.once]
            self.assertNotIn("secret", step.text)
            self.assertEqual(step.text.count("$"), len(step.values))
            names = re.findall(r"set_config\('([^']*)', \$", step.text)
            self.assertEqual(len(names), len(step.values))
            self.assertEqual(dict(zip(names, step.values, strict=True))["request.path"], b"/secret")

    def test_steps_and_text_set_the_same_in_the_same_order(self) -> None:
        for trust in (Trust(), Trust(leaves=True, false_constants=("caller()",))):
            result = self.preamble(("x-a", "1"), pre_request="check", cache=evolve(CACHE, trust=trust))
            (prepared,) = [one for one in result.steps("/works") if not one.once]
            names = re.findall(r"set_config\('([^']*)', \$", prepared.text)
            self.assertEqual(names, [name for name, _ in _SET.findall(result.text())])
            called = [one.text for one in result.steps("/works") if one.once]
            self.assertEqual(called, ['SELECT "check"()'])

    def test_what_reads_have_in_common_is_not_set_again_where_they_share(self) -> None:
        """A request that differs in one of them sets it."""
        common = dict(shared_settings(CONFIG))

        def set_by(*headers: tuple[str, str], **more: Any) -> dict[str, bytes | None]:
            step = self.preamble(*headers, **more).steps("/works", shared=True)[-1]
            names = re.findall(r"set_config\('([^']*)', \$", step.text)
            return dict(zip(names, step.values, strict=True))

        own = {"role", "request.jwt.claims", "request.headers", "request.path"}
        self.assertEqual(set(set_by()), own)
        self.assertEqual(set(set_by(("cookie", "a=b"))), own | {"request.cookies"})
        head = asked("HEAD")
        self.assertEqual(set_by(result=head)["request.method"], b"HEAD")
        self.assertLessEqual({"jit", "search_path", "statement_timeout"}, common.keys())

    def test_where_reads_share_their_limit_is_that_of_all(self) -> None:
        """Whatever the role's own is: what takes longer is run again with that."""
        for settings in ((), (("statement_timeout", "2s"),)):
            step = self.preamble(settings=settings).steps("/works", shared=True)[-1]
            self.assertNotIn("'statement_timeout'", step.text)
            self.assertNotIn(b"2s", step.values)

    def test_the_opening_of_shared_connections_sets_what_is_left_out(self) -> None:
        config = evolve(CONFIG, app_settings={"colour": "it's %"}, statement_timeout="9ms")
        (opening,) = opening_of_shared(session_of_shared(config))
        made = dict(re.findall(r"set_config\('([^']*)', E?'((?:[^']|'')*)', false\)", opening.text))
        self.assertEqual(made.pop("default_transaction_read_only"), "on")
        self.assertEqual(made["app.settings.colour"], "it''s %", "it is not text for psycopg2")
        for name, value in shared_settings(config):
            if name not in ("transaction_read_only", "statement_timeout"):
                self.assertEqual(made.pop(name).replace("''", "'"), value)
        self.assertEqual(made, {})
        self.assertTrue(opening.once and not opening.values)

    def test_which_requests_need_a_connection_of_their_own(self) -> None:
        self.assertFalse(self.preamble().alone)
        for plain in ((("work_mem", "1MB"),), (("timezone", "UTC"),)):
            self.assertFalse(self.preamble(settings=plain).alone)
        self.assertFalse(self.preamble(cache=evolve(CACHE, trust=Trust(has_constants=True))).alone)
        for more in (
            {"settings": (("statement_timeout", "49ms"),), "statement_timeout": "1s"},
            {"statement_timeout": "49ms"},
            {"settings": _LEVEL},
            {"settings": (("statement_timeout", "2min"),), "statement_timeout": "1s"},
            {"pre_request": "check"},
            {"cache": evolve(CACHE, trust=Trust(guarded=True))},
            {"cache": evolve(CACHE, trust=Trust(false_constants=("caller()",)))},
            {"cache": evolve(CACHE, trust=Trust(leaves=True))},
            {"cache": evolve(CACHE, trust=Trust(closes=True))},
            {"cache": evolve(CACHE, trust=Trust(has_constants=True)), "settings": (("TimeZone", "UTC"),)},
        ):
            self.assertTrue(self.preamble(**more).alone, more)

    def test_preambles_are_kept_with_the_headers_that_they_follow_from(self) -> None:
        sent, identity = RequestHeaders.of((("x-a", "1"),)), Identity("reader", "{}", True)

        def made(result: Planned, who: Identity = identity, cache: SchemaCache = CACHE) -> Preamble:
            return preamble_of(CONFIG, cache, sent, result, who)

        one = made(asked())
        self.assertIs(made(asked()), one)
        newer = evolve(CACHE, version=CACHE.version + 1)
        others = [
            made(asked("HEAD")),
            made(asked("POST")),
            made(asked(prefer="timezone=UTC")),
            made(asked(settings=(("statement_timeout", "3s"),))),
            made(asked(), Identity("other", "{}", True)),
            made(asked(), Identity("reader", '{"sub": "2"}', True)),
            made(asked(), Identity("reader", "{}", False)),
            made(asked(), cache=newer),
        ]
        for other in others:
            self.assertIsNot(other, one)
        for number in range(100):
            made(asked(), Identity(f"role {number}", "{}", True))
        self.assertLess(len(sent.preambles), 20)
        self.assertEqual(made(asked()), one)

    def test_what_has_no_statement_of_its_own_has_the_preamble_of_a_read(self) -> None:
        identity = Identity("reader", "{}", True)
        head = asked().request.head
        self.assertEqual(
            preamble_of_head(CONFIG, CACHE, RequestHeaders.of(()), head, identity),
            preamble_of(CONFIG, CACHE, RequestHeaders.of(()), asked(), identity),
        )

    @example([("%%", "%%")])
    @given(st.lists(st.tuples(_TEXTS, _TEXTS), max_size=5))
    def test_settings_are_escaped_for_postgresql_and_psycopg2(self, pairs: list[tuple[str, str]]) -> None:
        """In PostgreSQL's literals, with a sign doubled that means something to psycopg2."""
        again = [_read(*one) for one in _LITERAL.findall(settings_text(pairs))]
        self.assertEqual(again, [text for pair in pairs for text in pair])

    def test_request_headers_leave_out_project_keys(self) -> None:
        """Headers that came more than once are joined in one line, and cookies have a setting of their own."""
        result = dict(
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
        self.assertEqual(json.loads(result["request.headers"]), headers)
        cookies = {"a": "1", "b": "x y", "d": "", "e": "f=g"}
        self.assertEqual(json.loads(result["request.cookies"]), cookies)

    def test_the_repr_of_a_request_shows_no_secret(self) -> None:
        names = ("x-service-key", "authorization", "cookie", "x-mine")
        headers = [(name, "secret") for name in names]
        sent = RequestHeaders.of([*headers, ("authorization", "Bearer secret")], "secret")
        shown = repr(RawRequest("POST", ("works",), headers=sent, body=b"secret")) + repr(
            preamble_of(CONFIG, CACHE, sent, asked(), Identity("reader", "{}", True)).shared
        )
        self.assertNotIn("secret", shown)
        self.assertIn("works", shown)

    def test_a_write_transaction_is_not_read_only(self) -> None:
        self.assertNotIn("transaction_read_only", dict(self.set(result=asked("POST"))))

    def test_settings_of_the_role_come_before_it_and_those_of_the_function_after(self) -> None:
        """The last value counts, and what only privileged users may set is set before the role is taken on."""
        of_routine = (("statement_timeout", "3s"), ("work_mem", "1MB"))
        own = (("statement_timeout", "2s"),)
        self.assertEqual(dict(self.set(settings=own))["statement_timeout"], "2s")
        result = self.set(result=asked(settings=of_routine, prefer="timezone=UTC"), settings=own)
        names = [name for name, _ in result]
        self.assertEqual(dict(result)["statement_timeout"], "3s")
        self.assertLess(names.index("statement_timeout"), names.index("role"))
        self.assertNotIn("work_mem", names)
        self.assertEqual(dict(result)["timezone"], "UTC")

    def test_explain_runs_without_the_services_own_planner_settings(self) -> None:
        """EXPLAIN lists every setting that differs from PostgreSQL's default."""
        result = asked()
        rendering = evolve(result.compiled.rendering, explain=MediaType("application/vnd.pgrst.plan+json"))
        explained = evolve(result, compiled=evolve(result.compiled, rendering=rendering))
        for one, sets in ((result, True), (explained, False)):
            self.assertIs("jit" in dict(self.set(result=one)), sets)

    def test_app_settings_are_set_with_their_prefix(self) -> None:
        self.assertEqual(
            dict(self.set(app_settings={"colour": "50% blue"}))["app.settings.colour"], "50%% blue"
        )

    def test_a_pre_request_function_is_called_last(self) -> None:
        for stated, called in {"check": '"check"', "auth.check": '"auth"."check"'}.items():
            *_, last = self.preamble(pre_request=stated).text().split("; ")
            self.assertEqual(last, f"SELECT {called}()")
        self.assertEqual(self.preamble().text().count("; "), 1)

    def test_the_isolation_level_is_set_first(self) -> None:
        shouted = (("default_transaction_isolation", "REPEATABLE Read"),)
        for more in ({"settings": _LEVEL}, {"settings": shouted}, {"result": asked(settings=_LEVEL)}):
            begins = "RESET ALL; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT "
            self.assertTrue(self.preamble(**more).text().startswith(begins))
        no_level = (("default_transaction_isolation", "x; drop table works"),)
        self.assertNotIn("ISOLATION LEVEL", self.preamble(settings=no_level).text())

    def test_plans_are_discarded_where_they_may_be_another_callers(self) -> None:
        begins = "RESET ALL; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; DISCARD PLANS; "
        for more, trust, forgotten in (
            ({}, Trust(), False),
            ({}, Trust(false_constants=("caller()",)), True),
            ({}, Trust(sets_role=True), False),
            ({"pre_request": "check"}, Trust(sets_role=True), True),
            ({"pre_request": "check"}, Trust(), False),
            ({}, Trust(guarded=True), False),
            ({"prepare": False}, Trust(guarded=True), True),
        ):
            result = self.preamble(
                settings=_LEVEL, cache=evolve(CACHE, trust=trust), **cast(dict[str, Any], more)
            )
            self.assertEqual(result.text().startswith(begins), forgotten, result.text())
            self.assertEqual("DISCARD" in result.text(), forgotten)

    def test_whose_plans_are_used(self) -> None:
        """Those of the role, where they may hold what it alone may call. And those of requests for which values are
        written in the same way, where they may hold such values."""

        def plans(trust: Trust, role: str = "reader", timezone: str = "UTC") -> object:
            cache = evolve(CACHE, trust=trust)
            return self.preamble(role=role, cache=cache, settings=(("TimeZone", timezone),)).plans

        for trust, by_role, by_form in (
            (Trust(), False, False),
            (Trust(guarded=True), True, False),
            (Trust(has_constants=True), False, True),
        ):
            self.assertEqual(plans(trust), plans(trust))
            role = "reader" if not by_role else "other"
            self.assertEqual(plans(trust) != plans(trust, role=role), by_role)
            self.assertEqual(plans(trust) != plans(trust, timezone="Asia/Tokyo"), by_form)

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
            result = self.set(settings=settings, result=asked("POST"))
            self.assertEqual(("transaction_read_only", "on") in result, only_reads, value)
        self.assertNotIn("transaction_read_only", dict(self.set(result=asked("POST"))))

    def test_long_headers_are_passed_like_short_ones(self) -> None:
        for long in ("x" * 5000, "y" * 5000):
            self.assertEqual(json.loads(dict(self.set(("x-a", long)))["request.headers"]), {"x-a": long})

    def test_a_role_with_a_nul_is_refused(self) -> None:
        error = self.assertRaises(TableError, self.preamble, role="rea\0der")
        self.assertEqual((error.status, error.code), (400, "22021"))
