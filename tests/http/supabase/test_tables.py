"""``/rest/v1``, behind the real edge: which database answers, where a key may be, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from twisted.trial.unittest import TestCase

from project_service.http.routing import Router
from project_service.supabase.tables import ClientTables
from project_service.tables.api import TableRoutes
from tests.captured_log import logged_until_the_end
from tests.fakes.common import ANON_KEY, SERVICE_KEY, App
from tests.http.tables.test_paths import Asked

USER = "a.users.token"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def key(of: str) -> dict[str, str]:
    return {"apikey": of}


class ClientPaths(TestCase):
    def setUp(self) -> None:
        self.main: Any = Asked()
        self.other: Any = Asked()
        self.app = self.app_of(("dev", "main"))

    def app_of(self, database: tuple[str, str] | None) -> App:
        routes = TableRoutes({("dev", "main"): self.main, ("dev", "other"): self.other})
        router = Router()
        routes.mount(router)
        ClientTables(routes, database).mount(router)
        return App(router)

    def asked(self, path: str, headers: dict[str, str], of: Any = None) -> Any:
        response = self.app.request("GET", path, headers)
        self.assertEqual(response.status, 200, response.body)
        return (of or self.main).calls[-1]

    def refused(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        before = len(self.main.calls)
        response = self.app.request("GET", path, headers)
        self.assertEqual(len(self.main.calls), before)
        return response.status, json.loads(response.body)["code"]

    def test_the_client_database_answers_at_the_root_of_the_service(self) -> None:
        for path, segments in (("", ()), ("/", ()), ("/books", ("books",)), ("/rpc/a%2Fb", ("rpc", "a/b"))):
            self.assertEqual(self.asked(f"/rest/v1{path}", key(ANON_KEY)).segments, segments)

    def test_every_database_answers_below_its_own_url(self) -> None:
        asked = self.asked("/dev/db/other/rest/v1/books?id=eq.1", key(ANON_KEY), self.other)
        self.assertEqual((asked.segments, asked.pairs), (("books",), (("id", "eq.1"),)))
        self.assertEqual(self.asked("/dev/db/other/rest/v1/", key(ANON_KEY), self.other).segments, ())
        # That path itself is a relation with this name.
        self.assertEqual(self.asked("/dev/db/other/rest/v1", key(ANON_KEY), self.other).segments, ("v1",))
        self.assertEqual(self.refused("/dev/db/none/rest/v1/books", key(ANON_KEY)), (404, "PGRST125"))

    def test_without_a_client_database_the_setting_is_named(self) -> None:
        self.app = self.app_of(None)
        response = self.app.request("GET", "/rest/v1/books", key(ANON_KEY))
        body = json.loads(response.body)
        self.assertEqual((response.status, body["code"]), (404, "PGRST125"))
        self.assertIn("server.client_database", body["hint"])

    def test_a_key_may_be_in_any_of_three_places(self) -> None:
        for where, query in (
            (key(ANON_KEY), ""),
            ({"X-Service-Key": ANON_KEY}, ""),
            (bearer(ANON_KEY), ""),
            ({}, f"&apikey={ANON_KEY}"),
            ({**key(ANON_KEY), **bearer(ANON_KEY)}, f"&apikey={ANON_KEY}"),
        ):
            asked = self.asked(f"/rest/v1/books?id=eq.1{query}", where)
            self.assertEqual(asked.pairs, (("id", "eq.1"),))
            self.assertEqual((asked.headers.bearer, asked.is_service), (None, False))

    def test_a_key_as_bearer_is_no_header_that_sql_could_read(self) -> None:
        for where, query in ((bearer(SERVICE_KEY), ""), (bearer(SERVICE_KEY), f"?apikey={SERVICE_KEY}")):
            asked = self.asked(f"/rest/v1/books{query}", where)
            self.assertTrue(asked.is_service)
            self.assertNotIn(SERVICE_KEY, asked.headers.as_json)

    def test_a_token_stands_beside_a_key_wherever_that_is(self) -> None:
        for where, query in ((key(ANON_KEY), ""), ({}, f"?apikey={ANON_KEY}")):
            self.assertEqual(
                self.asked(f"/rest/v1/books{query}", {**where, **bearer(USER)}).headers.bearer, USER
            )

    def test_beside_the_service_key_a_token_decides_who_calls(self) -> None:
        """As those servers have it: otherwise code that moves here would lose row-level security silently."""
        for where, query in ((key(SERVICE_KEY), ""), ({}, f"?apikey={SERVICE_KEY}")):
            asked = self.asked(f"/rest/v1/books{query}", {**where, **bearer(USER)})
            self.assertEqual((asked.is_service, asked.headers.bearer), (False, USER))
            self.assertTrue(self.asked(f"/rest/v1/books{query}", {**where, **bearer(SERVICE_KEY)}).is_service)
            self.assertTrue(self.asked(f"/rest/v1/books{query}", where).is_service)
        # At the database's own path the service key is that of an operator, whatever stands beside it.
        own = self.asked("/dev/db/main/rest/books", {**key(SERVICE_KEY), **bearer(USER)})
        self.assertTrue(own.is_service)

    def test_a_key_is_needed_and_a_token_alone_is_none(self) -> None:
        self.assertEqual(self.refused("/rest/v1/books", {})[0], 401)
        self.assertEqual(self.refused("/rest/v1/books", bearer(USER))[0], 401)
        self.assertEqual(self.refused("/rest/v1/books", {"Authorization": "Basic YTpi"})[0], 401)
        self.assertEqual(self.refused("/rest/v1/books?apikey=wrong", {})[0], 401)

    def test_keys_that_differ_are_refused(self) -> None:
        for where, query in (
            (key(ANON_KEY), f"?apikey={SERVICE_KEY}"),
            ({"X-Service-Key": ANON_KEY, **key(SERVICE_KEY)}, ""),
        ):
            self.assertEqual(self.refused(f"/rest/v1/books{query}", where)[0], 401)
        twice = f"/rest/v1/books?apikey={ANON_KEY}&apikey={SERVICE_KEY}"
        self.assertEqual(self.refused(twice, {})[0], 400)

    def test_the_own_path_takes_a_key_from_its_headers_alone(self) -> None:
        for where, query in ((bearer(ANON_KEY), ""), ({}, f"?apikey={ANON_KEY}")):
            self.assertEqual(self.refused(f"/dev/db/main/rest/books{query}", where)[0], 401)
        asked = self.asked("/dev/db/main/rest/books?apikey=eq.1", key(ANON_KEY))
        self.assertEqual(asked.pairs, (("apikey", "eq.1"),))

    def test_a_connection_whose_key_was_in_the_query_is_not_trusted_without_it(self) -> None:
        client = self.app.connect()
        for query, status in ((f"?apikey={SERVICE_KEY}", 200), ("", 401), (f"?apikey={ANON_KEY}", 200)):
            response = client.request("GET", f"/rest/v1/books{query}", {})
            self.assertEqual(response.status, status)
        self.assertEqual([asked.is_service for asked in self.main.calls], [True, False])

    def test_keys_are_not_in_the_log(self) -> None:
        log = logged_until_the_end(self)
        for where, query in (
            (bearer(SERVICE_KEY), ""),
            ({}, f"?apikey={SERVICE_KEY}"),
            ({}, "?apikey=wrong-key"),
        ):
            self.app.request("GET", f"/rest/v1/books{query}", where)
        self.assertIn("/rest/v1/books", str(log))
        for secret in (SERVICE_KEY, "wrong-key", quote(SERVICE_KEY)):
            self.assertNotIn(secret, str(log))
