"""Which tables a prepared statement locks before it takes its snapshot, so that DDL cannot change them in between."""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from project_service.tables.model import Relation, SchemaCache
from project_service.tables.planning.compile import Compiled
from tests.unit.tables.planning import CACHE, as_json, planned

WORKS, TAGS, BETWEEN = (CACHE.relations["api", name] for name in ("works", "tags", "works_tags"))
WRITER = "authors!works_author_fkey"
TAGGED = (("select", "id,tags(label)"),)
FIND = (("q", "x"),)


def with_relations(*changed: Relation) -> SchemaCache:
    return evolve(CACHE, relations={**CACHE.relations, **{found.key: found for found in changed}})


def with_function(is_sql: bool) -> SchemaCache:
    (found,) = CACHE.routines["api", "find"]
    return evolve(CACHE, routines={found.key: (evolve(found, is_sql=is_sql),)})


def nothing_of(name: str) -> str:
    return f'SELECT FROM "api"."{name}" WHERE false'


def compiled(path: str, *pairs: tuple[str, str], cache: SchemaCache = CACHE) -> Compiled:
    return planned("GET", path, *pairs, cache=cache).compiled


class Locks(SynchronousTestCase):
    def test_the_tables_named_by_the_statement_are_locked_and_no_others(self) -> None:
        """The caller may lack privileges for others."""
        unread = ("select", f"id,{WRITER}()")
        for pairs, names in (
            ((), "works"),
            (TAGGED, "works works_tags tags"),
            ((("select", f"{WRITER}(name,works!works_editor_fkey(id))"),), "works authors"),
            ((unread,), "works"),
            ((unread, ("order", "authors(name)")), "works authors"),
            ((unread, ("authors", "is.null")), "works authors"),
            ((("select", f"id,{WRITER}!inner()"),), "works authors"),
        ):
            found = compiled("works", *pairs).locks.text
            self.assertEqual(found, " UNION ALL ".join(map(nothing_of, names.split())), pairs)

    def test_a_view_is_locked_by_planning_a_query_of_it(self) -> None:
        self.assertEqual(compiled("recent").locks.text, '(SELECT FROM "api"."recent" LIMIT 0)')

    def test_if_more_is_read_than_is_named_the_whole_statement_is_planned(self) -> None:
        unknown = evolve(CACHE, relations={found.key: found for found in (WORKS, TAGS)})
        for cache, path, pairs in (
            (with_relations(evolve(WORKS, expands=True)), "works", ()),
            (with_relations(evolve(TAGS, expands=True)), "works", TAGGED),
            (with_relations(evolve(BETWEEN, expands=True)), "works", TAGGED),
            (unknown, "works", TAGGED),
            (CACHE, "rpc/find", FIND),
        ):
            found = compiled(path, *pairs, cache=cache)
            statement = found.statement.sql
            self.assertEqual(
                found.locks.text, f"SELECT * FROM ({statement.text}) AS pgrst_planned LIMIT 0", path
            )
            self.assertEqual(found.locks.parameters, statement.parameters)

    def test_a_function_that_is_not_inlined_takes_its_own_locks(self) -> None:
        cache = with_function(is_sql=False)
        for pairs, expected in (
            (FIND, ""),
            ((*FIND, ("select", f"id,{WRITER}(name)")), nothing_of("authors")),
        ):
            self.assertEqual(compiled("rpc/find", *pairs, cache=cache).locks.text, expected)

    def test_writes_need_no_locks_before(self) -> None:
        for method in ("POST", "PATCH", "DELETE"):
            found = planned(method, "works", ("id", "eq.1"), body=as_json({"title": "a"}))
            self.assertEqual(found.compiled.locks.text, "", method)
