"""Limits: a role's or function's own ``statement_timeout``, the size of statements, ``max-affected`` and
``max_rows``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.database.acting import Actor, Preamble, extra_seconds
from project_service.database.pipeline import Statements
from project_service.http.admission import Slot
from project_service.lifecycle import start
from project_service.tables.access import Identity
from project_service.tables.errors import TableError
from project_service.tables.plan.call import CallPlan
from project_service.tables.plan.read import MAX_EMBEDDED
from project_service.tables.planner import Planned
from project_service.tables.reply.outcome import Outcome
from project_service.tables.request.request import RequestHeaders
from project_service.tables.run.execution import Executor
from project_service.tables.run.transaction_settings import preamble_of
from project_service.tables.sql.fragment import MAX_CHARACTERS, Sql, joined
from project_service.tables.values import TablesConfig
from tests.unit.tables.planning import CACHE, CONFIG, planned, preamble, text, waited

LIMITED = evolve(CONFIG, statement_timeout="30000ms")


def told(own: str | None) -> Preamble:
    settings = {"reader": (("statement_timeout", own),)} if own is not None else {}
    identity, cache = Identity("reader", "{}", True), evolve(CACHE, role_settings=settings)
    return preamble_of(LIMITED, cache, RequestHeaders.of(()), planned("GET", "works"), identity)


class Driver:
    """A session that records how long its queries may take."""

    def __init__(self) -> None:
        self.extra_seconds: float | None = 0.0
        self.role = ""
        self.statements = Statements()
        self.plans_of: object = None
        self.pooled = False
        self.own = ""
        self.seen: list[float | None] = []

    async def query(self, sql: str, params: object = None) -> list[tuple[Any, ...]]:
        self.seen.append(self.extra_seconds)
        return [(None, 1, b"[]", None, None, 2)]

    async def use(self, used: Callable[[Driver], Awaitable[Outcome]]) -> Outcome:
        return await used(self)


class Limits(SynchronousTestCase):
    """If a role or function may take longer than ``statement_timeout``, the request is given that much longer too."""

    def test_durations_are_read_as_postgresql_reads_them(self) -> None:
        for own, expected in {
            "7s": 0.0,
            "30000": 0.0,
            "31000": 1.0,
            " 1.5 min ": 60.0,
            "1h": 3570.0,
            "1d": 86370.0,
            "60000000us": 30.0,
            "0": None,
            "0s": None,
            "nonsense": 0.0,
        }.items():
            self.assertEqual(extra_seconds("30000ms", own), expected, own)

    def test_a_roles_own_timeout_extends_the_wait_only_if_it_is_longer(self) -> None:
        found = [told(own).extra_seconds for own in (None, "7s", "2min", "0")]
        self.assertEqual(found, [0.0, 0.0, 90.0, None])

    def test_the_extra_time_is_given_to_the_connection(self) -> None:
        driver = Driver()
        executor = Executor(LIMITED, Actor(cast(Any, driver)))
        asked = executor.execute(planned("GET", "works"), preamble(extra_seconds=90.0), "/works", Slot())
        self.successResultOf(start(waited(asked)))
        self.assertEqual(driver.seen, [90.0])

    def test_a_functions_hoisted_settings_hold_for_the_whole_transaction(self) -> None:
        own = (("statement_timeout", "2min"), ("work_mem", "1MB"))
        call = planned("GET", "rpc/find", ("q", "x"))
        assert isinstance(call.compiled.plan, CallPlan)
        plan = evolve(call.compiled.plan, routine=evolve(call.compiled.plan.routine, settings=own))
        call = evolve(call, compiled=evolve(call.compiled, plan=plan))
        identity = Identity("anon", "{}", False)
        for hoisted, expected in (
            (TablesConfig().hoisted_tx_settings, ("2min", None)),
            (("work_mem",), ("30s", "1MB")),
        ):
            config = evolve(CONFIG, hoisted_tx_settings=hoisted, statement_timeout="30s")
            pairs = dict(preamble_of(config, CACHE, RequestHeaders.of(()), call, identity).pairs)
            self.assertEqual((pairs["statement_timeout"], pairs.get("work_mem")), expected)

    def test_a_statement_that_grows_far_beyond_its_request_is_refused(self) -> None:
        """Each term of the order repeats the subquery for the related row, with all its conditions."""
        conditions = [("authors.id", f"gt.{number}") for number in range(300)]

        def ordered(terms: int) -> Planned:
            order = ",".join(["authors(name)"] * terms)
            return planned(
                "GET", "works", ("select", "*,authors!works_author_fkey()"), ("order", order), *conditions
            )

        self.assertLess(len(ordered(3).compiled.statement.sql.text), MAX_CHARACTERS)
        fault = self.assertRaises(TableError, ordered, 200)
        self.assertEqual((fault.status, fault.code), (400, "54001"))

    def test_a_fragment_that_is_too_long_is_refused_before_it_is_joined(self) -> None:
        """Memory would not suffice to join a thousand of them first."""
        longest = Sql("x" * MAX_CHARACTERS)
        fault = self.assertRaises(TableError, lambda: longest + "x")
        self.assertEqual((fault.status, fault.code), (400, "54001"))
        self.assertRaises(TableError, joined, [longest, longest])

    def test_the_number_of_embeddings_is_limited(self) -> None:
        """PostgreSQL's planner is slow beyond that."""

        def embedded(number: int) -> Planned:
            return planned("GET", "works", ("select", ",".join(f"a{one}:tags(id)" for one in range(number))))

        embedded(MAX_EMBEDDED)
        fault = self.assertRaises(TableError, embedded, MAX_EMBEDDED + 1)
        self.assertEqual((fault.status, fault.code), (400, "54001"))

    def test_statements_grow_linearly_with_the_depth_of_embeddings(self) -> None:
        """If each level repeated the one below, a statement with 20 levels would be endless."""

        def length(levels: int, step: str, back: str, *pairs: tuple[str, str]) -> int:
            steps = ([step, back] * levels)[:levels]
            select = "id" + "".join(f",{one}(id" for one in steps) + ")" * levels
            names = [one.partition("!")[0] for one in steps]
            every = [
                (".".join([*names[:at], of]), asked) for at in range(0, levels, 2) for of, asked in pairs
            ]
            return len(text(planned("GET", "works", ("select", select), *every, prefer="count=exact")))

        often = ("or", "(tags.is.null,tags.not.is.null,tags.is.null)")
        for asked in (
            ("tags", "works", often),
            ("tags!inner", "works!inner", ("tags", "not.is.null")),
            (
                "works_author_fkey!inner",
                "works!works_author_fkey!inner",
                ("order", "works_author_fkey(name)"),
            ),
        ):
            four, eight, twelve = (length(levels, *asked) for levels in (4, 8, 12))
            self.assertLess(twelve - eight, 2 * (eight - four), asked)


class Affected(SynchronousTestCase):
    def test_strict_max_affected_is_refused_for_scalar_functions(self) -> None:
        """A limit that is to be kept to strictly; otherwise there is none."""
        add, find = (("a", "1"),), (("q", "x"),)
        for prefer in ("handling=strict, max-affected=1", "max-affected=1"):
            planned("GET", "rpc/find", *find, prefer=prefer)
        planned("GET", "rpc/add", *add, prefer="max-affected=1")
        asked = "handling=strict, max-affected=1"
        error = self.assertRaises(TableError, planned, "GET", "rpc/add", *add, prefer=asked)
        self.assertEqual((error.status, error.code), (400, "PGRST128"))


class Rows(SynchronousTestCase):
    """``max_rows`` limits only where there may be several rows, because a LIMIT keeps PostgreSQL from using some
    indexes."""

    config = evolve(CONFIG, max_rows=100)

    def limits(self, *pairs: tuple[str, str], prefer: str = "") -> int:
        return text(planned("GET", "works", *pairs, prefer=prefer, config=self.config)).count("LIMIT")

    def test_max_rows_limits_to_many_but_not_to_one_embeddings(self) -> None:
        self.assertEqual(
            self.limits(), self.limits(("select", "*,author:authors!works_author_fkey!inner(*)"))
        )
        self.assertEqual(self.limits() + 1, self.limits(("select", "*,tags(*)")))
        asked = ("select", "*,author:authors!works_author_fkey(*)"), ("author.limit", "0")
        self.assertEqual(self.limits() + 1, self.limits(*asked))

    def test_an_inner_embedding_is_counted_without_the_limit(self) -> None:
        select = ("select", "*,tags!inner(*)")
        for asked, more in (((), 0), ((("tags.limit", "3"),), 0), ((("tags.offset", "2"),), 1)):
            counted = self.limits(select, *asked, prefer="count=exact") - self.limits(select, *asked)
            self.assertEqual(counted, more, asked)
        nothing = ("tags.limit", "0")
        self.assertEqual(self.limits(select, nothing, prefer="count=exact"), self.limits(select, nothing) + 1)
