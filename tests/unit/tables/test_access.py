"""Authentication: which key verifies a token, what is wrong with one, and the role that a request acts in."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
from attrs import frozen
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from project_service import base64url
from project_service.errors import ApiError, invalid_token, invalid_token_expired, session_revoked
from project_service.http.caller import Claims
from project_service.role_claim import parse_role_claim
from project_service.settings.model import Secret, Settings, Stage, StageDatabase
from project_service.tables.access import Identities, Identity, OwnTokens, from_base64, parse_keys
from project_service.tables.assemble import Tables, assemble
from project_service.tables.errors import TableError
from project_service.tables.request.request import RequestHeaders
from project_service.tables.values import TablesConfig

NOW = 1_000_000.0
SECRET = "a secret of more than thirty-two bytes"
OTHER = "another secret of more than thirty-two bytes"
UNREADABLE = ("JWT cryptographic operation failed", None)
NONE_FITS = ("No suitable key or wrong key type", "No suitable key was found to decode the JWT")
NONE_VERIFIES = ("No suitable key or wrong key type", "None of the keys was able to decode the JWT")


def jwk(secret: str, **more: str) -> dict[str, str]:
    return {"kty": "oct", "k": base64url.encode(secret.encode()), **more}


def jwks(*keys: object) -> str:
    return json.dumps({"keys": keys})


def signed(claims: dict[str, Any], secret: str = SECRET, **headers: Any) -> str:
    return jwt.encode(claims, secret, algorithm="HS256", headers=headers)


def with_header(header: object) -> str:
    return ".".join((base64url.encode(json.dumps(header).encode()), *signed({}).split(".")[1:]))


class Keys(SynchronousTestCase):
    def refused(self, token: str, *keys: object) -> tuple[str, Any]:
        tokens = OwnTokens(
            parse_keys(None if keys else SECRET, jwks(*keys) if keys else None), None, lambda: NOW
        )
        error = self.assertRaises(TableError, tokens.claims, token)
        self.assertEqual((error.status, error.code), (401, "PGRST301"))
        stated = f'Bearer error="invalid_token", error_description="{error.message}"'
        self.assertEqual(dict(error.headers)["WWW-Authenticate"], stated)
        return error.message, error.json_details

    def accepted(self, token: str, *keys: object) -> None:
        OwnTokens(parse_keys(None, jwks(*keys)), None, lambda: NOW).claims(token)

    def test_a_kid_selects_its_key_and_no_other(self) -> None:
        first, second = jwk(SECRET, kid="1"), jwk(OTHER, kid="2")
        self.accepted(signed({}, SECRET, kid="1"), first, second)
        self.accepted(signed({}, OTHER), first, second)
        self.assertEqual(self.refused(signed({}, SECRET, kid="2"), first, second), NONE_VERIFIES)
        self.assertEqual(self.refused(signed({}, SECRET, kid="3"), first, second), NONE_FITS)
        self.assertEqual(self.refused(signed({}, SECRET, kid="1"), jwk(SECRET)), NONE_FITS)
        self.assertEqual(self.refused(signed({}, SECRET, kid="1")), NONE_FITS)

    def test_crit_headers_are_refused(self) -> None:
        for names in (["exp"], ["b64"], []):
            self.assertEqual(self.refused(signed({}, crit=names)), UNREADABLE)

    def test_a_key_that_does_not_fit_is_distinguished_from_one_that_does_not_verify(self) -> None:
        self.assertEqual(self.refused(signed({}, OTHER)), NONE_VERIFIES)
        self.assertEqual(self.refused(with_header({"alg": "RS256"})), NONE_FITS)
        self.assertEqual(self.refused(signed({}), jwk(SECRET, alg="HS512")), NONE_FITS)

    def test_unsigned_and_unreadable_tokens_are_refused(self) -> None:
        unsigned = (
            "Wrong or unsupported encoding algorithm",
            "JWT is unsecured but expected 'alg' was not 'none'",
        )
        self.assertEqual(self.refused(with_header({"alg": "none"})), unsigned)
        self.assertEqual(self.refused(with_header({"alg": "none"}).rsplit(".", 1)[0] + "."), unsigned)
        for header in ({"alg": "XY9"}, {"alg": None}, {"alg": ["HS256"]}, {}, ["HS256"], "HS256"):
            self.assertEqual(self.refused(with_header(header)), UNREADABLE)
        head, body, signature = signed({}).split(".")
        for broken in (f"{head}.!.{signature}", f"{head}.{body}.!", f"!.{body}.{signature}", ".."):
            self.assertEqual(self.refused(broken), UNREADABLE)

    def test_claims_with_nan_or_infinity_are_refused(self) -> None:
        tokens = OwnTokens(parse_keys(SECRET, None), None, lambda: NOW)
        for never in ("nan", "inf"):
            error = self.assertRaises(TableError, tokens.claims, signed({"exp": float(never)}))
            self.assertEqual((error.code, error.message), ("PGRST303", "Parsing claims failed"))

    def test_keys_for_encryption_verify_nothing(self) -> None:
        self.assertEqual(self.refused(signed({}), jwk(SECRET, use="enc")), NONE_FITS)
        self.accepted(signed({}), jwk(OTHER, use="enc"), jwk(SECRET, use="sig"))

    def test_an_elliptic_curve_key_verifies_only_its_own_curve(self) -> None:
        private = generate_private_key(SECP256R1())
        public = {**json.loads(ECAlgorithm.to_jwk(private.public_key())), "kid": "e"}
        self.accepted(jwt.encode({}, private, algorithm="ES256", headers={"kid": "e"}), public)
        for_other = jwt.encode({}, generate_private_key(SECP256R1()), algorithm="ES256")
        self.assertEqual(self.refused(for_other, public), NONE_VERIFIES)
        for algorithm in ("ES384", "ES512"):
            self.assertEqual(self.refused(with_header({"alg": algorithm}), public)[0], NONE_FITS[0])

    def test_a_private_jwk_verifies_as_its_public_one(self) -> None:
        private = rsa.generate_private_key(65537, 2048)
        self.accepted(jwt.encode({}, private, algorithm="RS256"), json.loads(RSAAlgorithm.to_jwk(private)))

    def test_an_invalid_jwk_fails_the_start(self) -> None:
        for item in ("x", 5, {}, {"kty": "?"}, {"kty": "RSA", "n": "x"}):
            self.assertRaises(ValueError, parse_keys, None, jwks(item))

    def test_public_keys_and_broken_jwks_are_never_used_as_a_secret(self) -> None:
        broken = (json.dumps([jwk(SECRET)]), jwks(jwk(SECRET))[:-1], json.dumps({"keys": jwk(SECRET)}))
        for text in broken:
            self.assertRaises(ValueError, parse_keys, text, None)
        for text in (*broken, "garbage", "[]", "5"):
            self.assertRaises(ValueError, parse_keys, None, text)
        for text in ("-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n", "ssh-ed25519 AAAA me"):
            self.assertRaises(ValueError, parse_keys, text, None)
        self.assertEqual(parse_keys(None, jwks()), ())
        self.assertEqual(len(parse_keys("{a passphrase, [whatever] it is}", None)), 1)

    def test_an_empty_jwk_set_does_not_fall_back_to_the_services_tokens(self) -> None:
        for keys, own in ((None, False), (jwks(), True), (jwks(jwk(SECRET, use="enc")), True)):
            tables = assembled(jwks=keys)
            self.assertIs(tables.routes.services["dev", "main"].identities.own is not None, own)

    def test_a_configuration_fault_is_reported_without_the_secret(self) -> None:
        for settings, fault in (
            ({"jwks": json.dumps([jwk(SECRET)])}, "jwks is neither a JWK nor a JWK Set"),
            ({"jwt_secret": Secret("no base64!"), "jwt_secret_is_base64": True}, "jwt_secret is not base64"),
            ({"role_claim": "$.a["}, "not a path to a claim: '$.a['"),
        ):
            raised = self.assertRaises(ValueError, assembled, **settings)
            self.assertEqual(str(raised), f"stages.dev.databases.main: {fault}")


def assembled(**given: Any) -> Tables:
    database = StageDatabase(dsn=Secret("postgresql://x@127.0.0.1:1/x"), **given)
    settings = Settings(stages={"dev": Stage(databases={"main": database})})
    return assemble(MemoryReactorClock(), settings, Refusing(invalid_token()), lambda: NOW)


@frozen
class Refusing:
    """The service's own verifier."""

    fault: ApiError

    def verify(self, token: str) -> Claims:
        raise self.fault


class ServiceTokens(SynchronousTestCase):
    def test_faults_of_the_services_tokens_have_postgrests_codes(self) -> None:
        config = TablesConfig()
        for fault, code, message in (
            (invalid_token(), "PGRST301", "The access token is not valid."),
            (invalid_token_expired(), "PGRST303", "JWT expired"),
            (session_revoked(), "session_revoked", session_revoked().message),
        ):
            result = Identities(config, parse_role_claim(config.role_claim), None, Refusing(fault))
            error = self.assertRaises(
                ApiError, result.identify, RequestHeaders.of((("authorization", "Bearer t"),)), False
            )
            self.assertEqual((error.status, error.code, error.message), (401, code, message))
            stated = f'Bearer error="invalid_token", error_description="{message}"'
            self.assertEqual(dict(error.headers)["WWW-Authenticate"], stated)


class NoKeys(SynchronousTestCase):
    def test_without_any_key_every_token_is_refused(self) -> None:
        config = TablesConfig()
        result = Identities(config, parse_role_claim(config.role_claim), None, None)
        self.assertEqual(result.identify(RequestHeaders.of(()), False).role, "anon")
        error = self.assertRaises(
            ApiError, result.identify, RequestHeaders.of((("authorization", "Bearer t"),)), False
        )
        self.assertEqual((error.status, error.code), (500, "PGRST300"))


class ClaimedRoles(SynchronousTestCase):
    def identify(self, claims: dict[str, Any], **settings: Any) -> Identity:
        config = TablesConfig(**{"anon_role": "web_anon", **settings})
        tokens = OwnTokens(parse_keys(SECRET, None), None, lambda: NOW)
        result = Identities(config, parse_role_claim(config.role_claim), tokens, None)
        return result.identify(RequestHeaders.of((("authorization", f"Bearer {signed(claims)}"),)), False)

    def test_the_anonymous_role_in_a_token_is_not_authenticated(self) -> None:
        for claims, authenticated in (({"role": "author"}, True), ({"role": "web_anon"}, False), ({}, False)):
            self.assertIs(self.identify(claims).authenticated, authenticated)
        self.assertTrue(self.identify({"role": "author"}, anon_role=None).authenticated)

    def test_without_an_anonymous_role_a_token_needs_a_role(self) -> None:
        for nobody in (None, ""):
            error = self.assertRaises(TableError, self.identify, {}, anon_role=nobody)
            self.assertEqual((error.status, error.code), (401, "PGRST302"))
            self.assertEqual(dict(error.headers)["WWW-Authenticate"], "Bearer")

    def test_claims_passed_to_sql_have_the_role_of_the_role_claim(self) -> None:
        claims = {"role": "provider's own", "app": {"role": "author"}}
        result = self.identify(claims, role_claim=".app.role")
        self.assertEqual(result.role, "author")
        self.assertEqual(json.loads(result.claims), {**claims, "role": "author"})
        absent = self.identify({"role": "author"}, role_claim=".app.role")
        self.assertEqual((absent.role, json.loads(absent.claims)["role"]), ("web_anon", "web_anon"))

    def test_the_role_none_is_refused(self) -> None:
        for claims, more in (({"role": "none"}, {}), ({"app": "none"}, {"role_claim": ".app"})):
            error = self.assertRaises(TableError, self.identify, claims, **more)
            self.assertEqual((error.status, error.code), (401, "22023"))
        self.assertEqual(self.identify({"role": "None"}).role, "None")

    def test_an_identity_tells_whether_a_token_names_its_role(self) -> None:
        for claims, claimed in (({"role": "author"}, True), ({"role": "authenticated"}, False), ({}, False)):
            self.assertEqual(self.identify(claims).claimed, claimed, claims)

    def test_a_role_that_is_no_string_is_used_as_its_json(self) -> None:
        for role, acts_as in (
            (5, "5"),
            (True, "true"),
            (["é"], '["é"]'),
            ({}, "{}"),
            (None, "web_anon"),
        ):
            self.assertEqual(self.identify({"role": role}).role, acts_as)


class Base64(SynchronousTestCase):
    def test_a_base64_secret_may_use_either_alphabet_with_or_without_padding(self) -> None:
        secret = bytes(range(200, 255))
        token = jwt.encode({"role": "a"}, secret, algorithm="HS256")
        for text in (
            base64.b64encode(secret).decode(),
            base64url.encode(secret),
            f" {base64url.encode(secret)}\n",
        ):
            tokens = OwnTokens(parse_keys(from_base64(text), None), None, lambda: NOW)
            self.assertEqual(tokens.claims(token), {"role": "a"})

    def test_invalid_base64_is_refused(self) -> None:
        for text in ("no base64!", "a", "é"):
            with self.assertRaises(ValueError):
                from_base64(text)


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

    def test_a_valid_token_is_verified_once_unless_it_is_very_long(self) -> None:
        for characters, cached in ((10, True), (9000, False)):
            token = signed({"role": "author", "note": "x" * characters})
            self.assertIs(self.tokens.claims(token) is self.tokens.claims(token), cached)

    def test_exp_nbf_and_iat_allow_30_seconds_of_clock_difference(self) -> None:
        for name, best, step in (("exp", NOW - 30, -1), ("nbf", NOW + 30, 1), ("iat", NOW + 30, 1)):
            self.tokens.claims(signed({name: best}))
            self.assertEqual(self.refused(signed({name: best + step}))[0], "PGRST303", name)
            self.assertEqual(self.refused(signed({name: "soon"}))[0], "PGRST303", name)

    def test_a_time_that_is_no_finite_number_is_refused(self) -> None:
        for name in ("exp", "nbf", "iat"):
            for value in ("1e999", "-1e999", "1" + "0" * 400, "-1" + "0" * 400, "true", '"1"', "[1]", "{}"):
                token = jwt.PyJWS().encode(f'{{"{name}":{value}}}'.encode(), SECRET, "HS256")
                message = f"The JWT '{name}' claim must be a number"
                self.assertEqual(self.refused(token), ("PGRST303", message), value)
            for value in ("NaN", "Infinity", "1" + "0" * 5000):
                token = jwt.PyJWS().encode(f'{{"{name}":{value}}}'.encode(), SECRET, "HS256")
                self.assertEqual(self.refused(token), ("PGRST303", "Parsing claims failed"), value)

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
        result = self.identities()
        self.assertEqual(result.identify(sent(key="k"), False).role, "anon")
        self.assertEqual(result.identify(sent("Bearer t", key="k"), False).role, "authenticated")
        self.assertEqual(result.identify(sent(key="k"), True).role, "service_role")
        self.assertEqual(result.identify(sent("Bearer k", key="k"), False).role, "anon")
        self.assertEqual(result.identify(sent("Basic abc", key="k"), False).role, "anon")

    def test_claims_passed_to_sql_always_have_the_role(self) -> None:
        result = self.identities()
        self.assertEqual(json.loads(result.identify(sent(), False).claims), {"role": "anon"})
        self.assertEqual(
            json.loads(result.identify(sent("Bearer t"), True).claims)["role"],
            "service_role",
        )

    def test_the_service_key_has_no_max_rows_unless_its_role_is_named(self) -> None:
        for by_role, expected in (({}, (7, 7, 0)), ({"anon": 2, "service_role": 9}, (2, 7, 9))):
            result = self.identities(max_rows=7, max_rows_by_role=by_role)
            asking = ((sent(), False), (sent("Bearer t"), False), (sent(), True))
            self.assertEqual(tuple(result.identify(*one).max_rows for one in asking), expected)
        result = self.identities(max_rows=7, service_role="admin")
        self.assertEqual(result.identify(sent(), True).max_rows, 0)

    def test_configured_roles_replace_the_default_ones(self) -> None:
        result = self.identities(anon_role="web", authenticated_role="member")
        self.assertEqual(result.identify(sent(), False).role, "web")
        member = result.identify(sent("Bearer t"), False)
        self.assertEqual(member.role, "member")
        # SQL sees the role that the token names.
        self.assertEqual(json.loads(member.claims)["role"], "authenticated")

    def test_claims_may_have_integers_beyond_64_bits_but_no_lone_surrogates(self) -> None:
        def claims(raw: dict[str, Any]) -> str:
            return self.identities(raw).identify(sent("Bearer t", key="k"), False).claims

        self.assertEqual(json.loads(claims({"n": 2**70}))["n"], 2**70)
        for bad in ({"s": "\ud800"}, {"\ud800": 1}, {"n": 2**70, "s": "\ud800"}):
            error = self.assertRaises(TableError, claims, bad)
            self.assertEqual((error.status, error.code), (401, "PGRST301"))

    def test_an_empty_bearer_token_is_refused(self) -> None:
        self.assertRaises(TableError, self.identities().identify, sent("Bearer "), False)
