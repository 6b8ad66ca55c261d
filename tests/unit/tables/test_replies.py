"""Tokens and roles of the table API, and status and headers that SQL sets for the response."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qsl

import jwt
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from project_service.http.caller import Claims
from project_service.role_claim import parse_role_claim
from project_service.tables.access import Identities, OwnTokens, parse_keys
from project_service.tables.errors import TableError, from_sqlstate
from project_service.tables.outcome import Outcome
from project_service.tables.request.query import parse_query
from project_service.tables.request.request import RequestHeaders
from project_service.tables.request.syntax import Field, Filter
from project_service.tables.response import (
    content_range,
    headers_from_sql,
    location,
    status_from_sql,
    status_of_range,
)
from project_service.tables.values import TablesConfig

NOW = 1_000_000.0
SECRET = "a secret of more than thirty-two bytes"


def signed(claims: dict[str, Any], secret: str = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, secret, algorithm=algorithm)


class Tokens(SynchronousTestCase):
    def setUp(self) -> None:
        self.tokens = OwnTokens(parse_keys(SECRET, None), None, lambda: NOW)

    def refused(self, token: str) -> tuple[str, str]:
        error = self.assertRaises(TableError, self.tokens.claims, token)
        self.assertEqual(error.status, 401)
        self.assertTrue(any(name == "WWW-Authenticate" for name, _ in error.headers))
        return error.code, error.message

    def test_a_token_is_verified_once_for_requests_with_the_same_headers(self) -> None:
        identities = Identities(TablesConfig(), parse_role_claim(".role"), self.tokens, None)
        sent = RequestHeaders.of((("authorization", f"Bearer {signed({'role': 'author', 'exp': NOW + 1})}"),))
        identity = identities.identify(sent, False)
        self.assertEqual(identity.role, "author")
        self.assertIs(identities.identify(sent, False), identity)

    def test_exp_nbf_and_iat_allow_30_seconds_of_clock_difference(self) -> None:
        for name, best, step in (("exp", NOW - 30, -1), ("nbf", NOW + 30, 1), ("iat", NOW + 30, 1)):
            self.tokens.claims(signed({name: best}))
            self.assertEqual(self.refused(signed({name: best + step}))[0], "PGRST303", name)
            self.assertEqual(self.refused(signed({name: "soon"}))[0], "PGRST303", name)

    def test_a_cached_token_still_expires(self) -> None:
        clock = [NOW]
        tokens = OwnTokens(parse_keys(SECRET, None), None, lambda: clock[0])
        identities = Identities(TablesConfig(), parse_role_claim(".role"), tokens, None)
        sent = RequestHeaders.of((("authorization", f"Bearer {signed({'exp': NOW + 1})}"),))
        identities.identify(sent, False)
        clock[0] += 100
        self.assertRaises(TableError, identities.identify, sent, False)

    def test_each_fault_of_a_token_has_postgrests_code_and_message(self) -> None:
        self.assertEqual(self.refused("a.b"), ("PGRST301", "Expected 3 parts in JWT; got 2"))
        self.assertEqual(self.refused("x.y.z"), ("PGRST301", "JWT cryptographic operation failed"))
        other = signed({}, "another secret of more than thirty-two bytes")
        self.assertEqual(self.refused(other), ("PGRST301", "No suitable key or wrong key type"))
        self.assertEqual(self.refused(signed({"exp": NOW - 31})), ("PGRST303", "JWT expired"))
        self.assertEqual(self.refused(signed({"nbf": NOW + 31})), ("PGRST303", "JWT not yet valid"))
        self.assertEqual(self.refused(signed({"iat": NOW + 31})), ("PGRST303", "JWT issued at future"))
        self.assertEqual(self.refused(signed({"exp": True}))[0], "PGRST303")
        for payload in (b"[1]", b"no JSON"):
            other = jwt.PyJWS().encode(payload, SECRET, "HS256")
            self.assertEqual(self.refused(other), ("PGRST303", "Parsing claims failed"))
        for audience in (5, ["me", 5], {"me": 1}):
            message = "The JWT 'aud' claim must be a string or an array of strings"
            self.assertEqual(self.refused(signed({"aud": audience})), ("PGRST303", message))

    def test_an_unsigned_token_is_refused(self) -> None:
        head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        body = base64.urlsafe_b64encode(b'{"role":"author"}').rstrip(b"=").decode()
        unsigned = f"{head}.{body}."
        self.assertEqual(self.refused(unsigned)[0], "PGRST301")

    def test_the_audience_must_match_if_the_token_has_one(self) -> None:
        tokens = OwnTokens(parse_keys(SECRET, None), "me", lambda: NOW)
        tokens.claims(signed({"aud": ["you", "me"]}))
        tokens.claims(signed({}))
        tokens.claims(signed({"aud": None}))
        tokens.claims(signed({"aud": []}))
        error = self.assertRaises(TableError, tokens.claims, signed({"aud": "you"}))
        self.assertEqual(error.message, "JWT not in audience")

    @given(st.text(max_size=40))
    def test_any_other_text_is_refused_as_a_token(self, token: str) -> None:
        self.assertRaises(TableError, self.tokens.claims, token)


@frozen
class Service:
    """The service's own verifier: every token is a user's, with the claims ``raw``."""

    raw: dict[str, Any]

    def verify(self, token: str) -> Claims:
        return Claims("u", "u@example.test", "authenticated", "s", 0, self.raw)


def sent(*authorization: str, key: str | None = None) -> RequestHeaders:
    return RequestHeaders.of([("authorization", value) for value in authorization], key)


class Roles(SynchronousTestCase):
    def identities(self, raw: dict[str, Any] | None = None, **more: Any) -> Identities:
        config = TablesConfig(**more)
        verifier = Service({"sub": "u", "role": "authenticated", **(raw or {})})
        return Identities(config, parse_role_claim(config.role_claim), None, verifier)

    def test_which_role_a_request_runs_as(self) -> None:
        found = self.identities()
        self.assertEqual(found.identify(sent(key="k"), False).role, "anon")
        self.assertEqual(found.identify(sent("Bearer t", key="k"), False).role, "authenticated")
        self.assertEqual(found.identify(sent(key="k"), True).role, "service_role")
        self.assertEqual(found.identify(sent("Bearer k", key="k"), False).role, "anon")
        self.assertEqual(found.identify(sent("Basic abc", key="k"), False).role, "anon")

    def test_claims_passed_to_sql_always_have_the_role(self) -> None:
        found = self.identities()
        self.assertEqual(json.loads(found.identify(sent(), False).claims), {"role": "anon"})
        self.assertEqual(
            json.loads(found.identify(sent("Bearer t"), True).claims)["role"],
            "service_role",
        )

    def test_configured_roles_replace_the_default_ones(self) -> None:
        found = self.identities(anon_role="web", authenticated_role="member")
        self.assertEqual(found.identify(sent(), False).role, "web")
        member = found.identify(sent("Bearer t"), False)
        self.assertEqual(member.role, "member")
        # SQL sees the role that the token names.
        self.assertEqual(json.loads(member.claims)["role"], "authenticated")

    def test_claims_may_have_integers_beyond_64_bits_but_no_lone_surrogates(self) -> None:
        def told(raw: dict[str, Any]) -> str:
            return self.identities(raw).identify(sent("Bearer t", key="k"), False).claims

        self.assertEqual(json.loads(told({"n": 2**70}))["n"], 2**70)
        for bad in ({"s": "\ud800"}, {"\ud800": 1}, {"n": 2**70, "s": "\ud800"}):
            error = self.assertRaises(TableError, told, bad)
            self.assertEqual((error.status, error.code), (401, "PGRST301"))

    def test_an_empty_bearer_token_is_refused(self) -> None:
        self.assertRaises(TableError, self.identities().identify, sent("Bearer "), False)

    def test_the_role_may_be_anywhere_in_the_claims(self) -> None:
        claims = {"app": {"the roles": ["user_a", "admin"]}}
        self.assertEqual(parse_role_claim('.app."the roles"[1]').of(claims), "admin")
        self.assertEqual(parse_role_claim('.app."the roles"[?(@ ^== "user")]').of(claims), "user_a")
        self.assertIsNone(parse_role_claim(".app.nothing[3]").of(claims))
        self.assertEqual(parse_role_claim("$.app['the roles'][0]").of(claims), "user_a")
        self.assertEqual(parse_role_claim('$.app["the roles"][?@ == "admin"]').of(claims), "admin")
        self.assertEqual(parse_role_claim("$.app['the roles'][?search(@, '^ad')]").of(claims), "admin")
        self.assertEqual(parse_role_claim("$.app['the roles'][?match(@, 'ad.*')]").of(claims), "admin")
        for path, role in (("[-1]", "admin"), ("[1:]", "admin"), ("[*]", "user_a"), ("[0][4:]", None)):
            self.assertEqual(parse_role_claim(f"$.app['the roles']{path}").of(claims), role)
        # Only PostgREST's older path syntax slices strings.
        self.assertEqual(parse_role_claim('.app."the roles"[0][4:]').of(claims), "_a")
        for path in ("[7]", "[-7]", "[2:]", "[0][9:2]", "[?match(@, 'ad')]"):
            self.assertIsNone(parse_role_claim(f"$.app['the roles']{path}").of(claims))
        for path in ("$.app[0]", "$.app[0:]", "$.n[0]", "$.n[0:]", "$.n[*]"):
            self.assertIsNone(parse_role_claim(path).of({**claims, "n": 5}), path)
        for bad in ("role", "$.roles[?search(@, '(')]", ".a["):
            self.assertRaises(ValueError, parse_role_claim, bad)


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
            said = json.dumps([{name: "5"}, {"X-Tea": "pot"}]).encode()
            self.assertEqual(headers_from_sql(Outcome(headers=said)), (("X-Tea", "pot"),))
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
        fields = [found.field for _, found in read.filters if isinstance(found, Filter)]
        self.assertEqual(fields, [Field(name) for name in names])
        self.assertIn("&plain-name=eq.1", query)
