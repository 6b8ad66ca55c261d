"""JWK Sets and their file; access tokens: what a valid one has, how verification caches them, and that forged ones
are rejected."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import math
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jwt
from attrs import evolve
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm
from jwt.utils import base64url_encode
from twisted.trial.unittest import TestCase

from project_service import errors
from project_service.auth import tokens
from project_service.auth.tokens import (
    LEEWAY_SECONDS,
    MAX_TOKEN_CHARACTERS,
    Issuer,
    KeySet,
    KeySetError,
    Verifier,
    signed_in_at,
)
from project_service.auth.values import APP_METADATA_MAX_BYTES, SignIn, User, check_app_metadata, moment
from project_service.errors import ApiError
from project_service.http.caller import Claims
from tests.temporary import temporary_directory

NOW = 1_795_230_245.678
USER = User("7b7a6a5c-0000-4000-8000-000000000001", "ada@example.test", moment(NOW))
SESSION = "7b7a6a5c-0000-4000-8000-0000000000aa"
KEYS = {name: tokens.rotated(None, name) for name in tokens.ALGORITHMS}


class Revoked:
    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.known = True

    def is_revoked(self, session_id: str) -> bool:
        if not self.known:
            raise errors.database_unavailable()
        return session_id in self.sessions


def issuer(algorithm: str = "ES256") -> Issuer:
    return Issuer(KeySet.parse(KEYS[algorithm]), "https://api.example.test", 3600)


def encoded(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Base(TestCase):
    def setUp(self) -> None:
        self.now = NOW
        self.revoked = Revoked()
        self.issuer = issuer()
        self.verifier = Verifier(self.issuer, self.revoked.is_revoked, lambda: self.now)
        self.good = self.issuer.mint(USER, SESSION, NOW, "token-1").text

    def signed(self, claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
        key = self.issuer.keys.signing
        return jwt.encode(claims, key.private, key.algorithm, {"kid": key.kid, **(header or {})})

    def claims(self, **changes: Any) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(self.good, options={"verify_signature": False})
        claims |= changes
        return {name: value for name, value in claims.items() if value is not None}

    def refused(self, token: str, code: str = "invalid_token") -> None:
        fault = self.assertRaises(ApiError, self.verifier.verify, token)
        assert (fault.status, fault.code) == (401, code), token
        assert dict(fault.headers)["WWW-Authenticate"].startswith('Bearer error="invalid_token"')


class Good(Base):
    def test_the_claims_are_those_of_the_specification(self) -> None:
        for algorithm in tokens.ALGORITHMS:
            made = issuer(algorithm).mint(USER, SESSION, NOW, "token-1")
            assert jwt.get_unverified_header(made.text)["alg"] == algorithm
            assert jwt.decode(made.text, options={"verify_signature": False}) == {
                "iss": "https://api.example.test",
                "sub": USER.id,
                "aud": "authenticated",
                "role": "authenticated",
                "email": "ada@example.test",
                "sid": SESSION,
                "iat": int(NOW),
                "exp": int(NOW) + 3600,
                "jti": "token-1",
                "session_id": SESSION,
                "aal": "aal1",
                "amr": [{"method": "password", "timestamp": int(NOW)}],
                "phone": "",
                "is_anonymous": False,
                "app_metadata": {"provider": "email", "providers": ["email"]},
                "user_metadata": {},
            }
            assert made.expires_at == int(NOW) + 3600

    def read(self, user: User, began: SignIn | None = None, algorithm: str = "ES256") -> Any:
        text = issuer(algorithm).mint(user, SESSION, NOW, "token-1", began).text
        assert len(text) <= 4096
        return jwt.decode(text, options={"verify_signature": False})

    def test_it_says_how_and_when_the_session_began(self) -> None:
        claims = self.read(USER, SignIn(moment(NOW - 1000), "otp"))
        assert claims["amr"] == [{"method": "otp", "timestamp": int(NOW) - 1000}]

    def test_metadata_is_in_a_token_as_long_as_that_has_at_most_4_kib(self) -> None:
        for algorithm in tokens.ALGORITHMS:
            user = evolve(USER, metadata={"a": "x" * 1500}, app_metadata={"role": "admin"})
            claims = self.read(user, algorithm=algorithm)
            assert claims["user_metadata"] == user.metadata
            claims = self.read(evolve(user, metadata={"a": "x" * 4000}), algorithm=algorithm)
            assert "user_metadata" not in claims and claims["app_metadata"] == {"role": "admin"}
            claims = self.read(evolve(user, app_metadata={"a": "x" * 4000}), algorithm=algorithm)
            assert "user_metadata" not in claims and "app_metadata" not in claims

    def test_what_operators_may_write_is_always_in_a_token(self) -> None:
        largest = {"a": "x" * (APP_METADATA_MAX_BYTES - len('{"a":""}'))}
        address = "a" * 64 + "@" + ".".join(["b" * 60] * 3) + ".test"
        user = evolve(USER, email=address, app_metadata=check_app_metadata("x", largest), metadata=largest)
        for algorithm in tokens.ALGORITHMS:
            assert self.read(user, algorithm=algorithm)["app_metadata"] == largest

    def test_numbers_that_json_cannot_write_become_null(self) -> None:
        assert self.read(evolve(USER, metadata={"a": [float("inf"), 1.5]}))["user_metadata"] == {
            "a": [None, 1.5]
        }

    def test_when_a_caller_signed_in_is_the_latest_of_the_proofs(self) -> None:
        def at(amr: Any) -> float:
            return signed_in_at(Claims("", "", "", "", 0, {"amr": amr}))

        assert at([{"method": "password", "timestamp": 5}, {"method": "totp", "timestamp": 7}]) == 7
        silent: list[Any] = [None, [], {}, "password", [{}], ["password"]]
        for nothing in (*silent, [{"timestamp": "5"}], [{"timestamp": 1e999}]):
            assert at(nothing) == -math.inf

    def test_a_minted_token_verifies(self) -> None:
        for algorithm in tokens.ALGORITHMS:
            verifier = Verifier(issuer(algorithm), self.revoked.is_revoked, lambda: NOW)
            token = issuer(algorithm).mint(USER, SESSION, NOW, "token-1").text
            claims = verifier.verify(token)
            assert (claims.sub, claims.email, claims.role) == (USER.id, USER.email, "authenticated")
            assert (claims.sid, claims.exp, claims.raw["jti"]) == (SESSION, int(NOW) + 3600, "token-1")

    def test_a_token_expires_after_the_leeway_whether_cached_or_not(self) -> None:
        for known in (True, False):
            verifier = Verifier(self.issuer, self.revoked.is_revoked, lambda: self.now)
            self.now = NOW
            if known:
                verifier.verify(self.good)
            self.now = int(NOW) + 3600 + 29.999
            verifier.verify(self.good)
            self.now = int(NOW) + 3600 + 30
            assert self.assertRaises(ApiError, verifier.verify, self.good).code == "invalid_token"

    def count_decoding(self) -> list[str]:
        """The tokens whose signatures are verified from now on."""
        calls: list[str] = []
        real = jwt.decode

        def counted(token: str, *rest: Any, **more: Any) -> Any:
            calls.append(token)
            return real(token, *rest, **more)

        self.patch(jwt, "decode", counted)
        return calls

    def test_a_signature_is_verified_once(self) -> None:
        calls = self.count_decoding()
        for _ in range(5):
            self.verifier.verify(self.good)
        assert calls == [self.good]

    def test_an_ended_session_is_refused_at_once_though_its_token_is_cached(self) -> None:
        self.verifier.verify(self.good)
        self.revoked.sessions.add(SESSION)
        self.refused(self.good, "session_revoked")

    def test_if_revocations_are_unknown_every_token_is_refused(self) -> None:
        self.verifier.verify(self.good)
        self.revoked.known = False
        assert self.assertRaises(ApiError, self.verifier.verify, self.good).code == "database_unavailable"

    def test_times_count_though_a_token_is_cached(self) -> None:
        """The clock may be set back, and a token that was seen after its end is not valid before its beginning."""
        for seen_at in (NOW, NOW + 10**6):
            verifier = Verifier(self.issuer, self.revoked.is_revoked, lambda: self.now)
            self.now = float(seen_at)
            with contextlib.suppress(ApiError):
                verifier.verify(self.good)
            self.now = NOW - 3600.0
            assert self.assertRaises(ApiError, verifier.verify, self.good).code == "invalid_token"
            self.now = NOW
            verifier.verify(self.good)

    def test_the_least_recently_used_token_is_evicted_first(self) -> None:
        verifier = Verifier(self.issuer, self.revoked.is_revoked, lambda: self.now, capacity=2)
        first, second, third = [self.issuer.mint(USER, SESSION, NOW, str(n)).text for n in range(3)]
        calls = self.count_decoding()
        for token in (first, second, first, third, first, third, second):
            verifier.verify(token)
        assert calls == [first, second, third, second]

    def test_replaced_keys_count_at_once(self) -> None:
        self.verifier.verify(self.good)
        rotated = KeySet.parse(tokens.rotated(KEYS["ES256"], "EdDSA"))
        self.verifier.replace(evolve(self.issuer, keys=rotated))
        self.verifier.verify(self.good)
        self.verifier.verify(self.verifier.issuer.mint(USER, SESSION, NOW, "t").text)
        self.verifier.replace(evolve(self.issuer, keys=KeySet.parse(KEYS["EdDSA"])))
        self.refused(self.good)

    def test_a_clock_difference_of_half_a_minute_is_accepted(self) -> None:
        """The service's own clock counts, wherever the machine's stands."""
        self.verifier.verify(self.signed(self.claims(nbf=int(NOW))))
        later = int(NOW) + 10**9
        self.now = float(later)
        self.verifier.verify(self.signed(self.claims(iat=later, nbf=later, exp=later)))
        self.now = float(int(NOW))
        for claim in ("iat", "nbf"):
            self.verifier.verify(self.signed(self.claims(**{claim: int(NOW) + 30})))
            self.refused(self.signed(self.claims(**{claim: int(NOW) + 31})))


class Forged(Base):
    def test_alg_none(self) -> None:
        for alg in ("none", "None", "NONE", "nOnE", "", None):
            for kid in (self.issuer.keys.signing.kid, None):
                header = {"alg": alg, "typ": "JWT", "kid": kid}
                self.refused(f"{encoded(header)}.{encoded(self.claims())}.")

    def test_hmac_with_the_public_key_as_secret(self) -> None:
        for algorithm in ("ES256", "RS256", "EdDSA"):
            self.issuer = issuer(algorithm)
            self.verifier = Verifier(self.issuer, self.revoked.is_revoked, lambda: NOW)
            key = self.issuer.keys.signing
            public = [
                key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
                key.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
                json.dumps(dict(key.public_jwk or {})).encode(),
            ]
            for secret in public:
                head = f"{encoded({'alg': 'HS256', 'kid': key.kid})}.{encoded(self.claims())}"
                self.refused(f"{head}.{encoded(hmac.digest(secret, head.encode(), hashlib.sha256))}")

    def test_another_algorithm_of_the_same_key_type(self) -> None:
        self.issuer = issuer("RS256")
        self.verifier = Verifier(self.issuer, self.revoked.is_revoked, lambda: NOW)
        key = self.issuer.keys.signing
        for algorithm in ("RS512", "PS256"):
            self.refused(jwt.encode(self.claims(), key.private, algorithm, {"kid": key.kid}))

    def test_a_strangers_key_under_our_kid(self) -> None:
        stranger = KeySet.parse(tokens.rotated(None, "ES256")).signing
        self.refused(
            jwt.encode(self.claims(), stranger.private, "ES256", {"kid": self.issuer.keys.signing.kid})
        )

    def test_an_unknown_or_missing_kid(self) -> None:
        for kid in ("another", "../../etc/passwd", "' or 1=1 --", "", "https://evil.example.test/jwks.json"):
            self.refused(self.signed(self.claims(), {"kid": kid}))
        key = self.issuer.keys.signing
        self.refused(jwt.encode(self.claims(), key.private, key.algorithm))

    def test_keys_that_a_token_brings_along(self) -> None:
        stranger = KeySet.parse(tokens.rotated(None, "ES256")).signing
        header = {"kid": self.issuer.keys.signing.kid, "jwk": dict(stranger.public_jwk or {})}
        self.refused(jwt.encode(self.claims(), stranger.private, "ES256", header))
        header |= {"jku": "https://evil.example.test/jwks.json", "x5u": "https://evil.example.test/"}
        self.refused(jwt.encode(self.claims(), stranger.private, "ES256", header))

    def test_a_crit_header(self) -> None:
        self.refused(self.signed(self.claims(), {"crit": ["exp"]}))

    def test_an_altered_payload(self) -> None:
        head, _, signature = self.good.split(".")
        for changes in ({"role": "service_role"}, {"sub": "somebody-else"}, {"exp": int(NOW) + 10**6}):
            self.refused(f"{head}.{encoded(self.claims(**changes))}.{signature}")

    def test_wrong_or_missing_claims(self) -> None:
        wrong: tuple[dict[str, Any], ...] = (
            {"exp": None},
            {"iss": None},
            {"aud": None},
            {"sub": None},
            {"sid": None},
            {"iat": None},
            {"role": None},
            {"email": None},
            {"iss": "https://other.example.test"},
            {"aud": "anon"},
            {"aud": ["authenticated", "other"]},
            {"exp": int(NOW) - LEEWAY_SECONDS - 1},
            {"exp": "9999999999"},
            {"exp": True},
            {"exp": float("inf")},
            {"exp": 10**400},
            {"iat": -(10**400)},
            {"exp": float("-inf")},
            {"exp": float("nan")},
            {"nbf": float("-inf")},
            {"iat": float("-inf")},
            {"exp": ["9999999999"]},
            {"iat": True},
            {"exp": {}},
            {"iat": int(NOW) + LEEWAY_SECONDS + 2},
            {"nbf": int(NOW) + LEEWAY_SECONDS + 2},
            {"sub": 7},
            {"sub": "ada"},
            {"sid": [SESSION]},
            {"sid": "x"},
            {"role": {}},
        )
        for changes in wrong:
            self.refused(self.signed(self.claims(**changes)))

    def test_text_that_is_no_token(self) -> None:
        for text in (
            "",
            ".",
            "..",
            "a.b.c",
            "x" * 43,
            self.good + "x",
            self.good[:-2],
            self.good + ".",
            " " + self.good,
            self.good.replace(".", ".."),
            "é" * 20,
            "\ud800",
            f"{encoded([])}.{encoded({})}.",
            f"{encoded(b'[' * 5000)}.{encoded({})}.x",
            f"{encoded({'alg': 'ES256', 'kid': {}})}.{encoded({})}.x",
            "x" * (MAX_TOKEN_CHARACTERS + 1),
        ):
            self.refused(text)
        self.refused(self.signed(self.claims(email="x" * MAX_TOKEN_CHARACTERS)))

    @settings(max_examples=200, deadline=None)
    @given(st.integers(0, 1000), st.characters(codec="ascii"))
    def test_one_changed_character_is_refused(self, place: int, character: str) -> None:
        self.setUp()
        at = place % len(self.good)
        changed = self.good[:at] + character + self.good[at + 1 :]
        if changed != self.good:
            self.refused(changed)

    def test_a_changed_last_character_is_refused_though_it_has_unused_bits(self) -> None:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_="
        for letter in letters.replace(self.good[-1], ""):
            self.refused(self.good[:-1] + letter)

    @settings(max_examples=100, deadline=None)
    @given(st.text(max_size=200))
    def test_anything_else_is_refused(self, text: str) -> None:
        self.setUp()
        self.refused(text)


class Keys(TestCase):
    def test_rotation_puts_a_new_key_first_and_keeps_the_newest_old_ones(self) -> None:
        text = tokens.rotated(None, "ES256")
        kids = [KeySet.parse(text).signing.kid]
        for _ in range(4):
            text = tokens.rotated(text, "ES256", keep=2)
            kids.insert(0, KeySet.parse(text).signing.kid)
        assert [key.kid for key in KeySet.parse(text).keys] == kids[:3]
        assert len(KeySet.parse(tokens.rotated(text, "HS256", keep=0)).keys) == 1

    def test_an_announced_key_is_published_before_it_signs(self) -> None:
        text = tokens.rotated(tokens.rotated(None, "ES256"), "ES256")
        old, oldest = (key.kid for key in KeySet.parse(text).keys)
        text = tokens.announced(text, "EdDSA", keep=1)
        keys = KeySet.parse(text).keys
        assert (keys[0].kid, keys[1].algorithm, keys[2].kid) == (old, "EdDSA", oldest)
        assert len(KeySet.parse(text).published()["keys"]) == 3
        text = tokens.promoted(text, keys[1].kid, keep=1)
        assert [key.kid for key in KeySet.parse(text).keys] == [keys[1].kid, old]
        self.assertRaises(KeySetError, tokens.promoted, text, oldest)

    def test_only_public_keys_are_published(self) -> None:
        text = tokens.rotated(None, "HS256")
        for algorithm in ("EdDSA", "RS256", "ES256"):
            text = tokens.rotated(text, algorithm, keep=3)
        published = KeySet.parse(text).published()["keys"]
        assert [key["alg"] for key in published] == ["ES256", "RS256", "EdDSA"]
        for key in published:
            assert set(key) <= {"kty", "crv", "x", "y", "n", "e", "alg", "use", "kid"}
            assert key["use"] == "sig"

    def test_a_kid_is_the_thumbprint_of_rfc_7638(self) -> None:
        jwk = {
            "kty": "RSA",
            "n": "".join(
                (
                    "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJE",
                    "CPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2Q",
                    "vzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6",
                    "WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
                )
            ),
            "e": "AQAB",
            "alg": "RS256",
        }
        good = json.loads(KEYS["ES256"])["keys"][0]
        parsed = KeySet.parse(json.dumps({"keys": [good, jwk]}))
        assert parsed.keys[1].kid == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"

    def test_a_generated_keys_kid_is_its_thumbprint(self) -> None:
        for algorithm in ("ES256", "RS256", "EdDSA"):
            jwk = json.loads(KEYS[algorithm])["keys"][0]
            kid = jwk.pop("kid")
            assert KeySet.parse(json.dumps({"keys": [jwk]})).signing.kid == kid

    def test_repr_shows_no_secret(self) -> None:
        jwk = {"kty": "oct", "k": base64url_encode(b"x" * 32).decode(), "alg": "HS256"}
        assert "xxxx" not in repr(KeySet.parse(json.dumps({"keys": [jwk]})))

    def test_a_shared_secret_without_a_kid_gets_one_that_reveals_nothing(self) -> None:
        for letter in (b"x", b"y"):
            jwk = {"kty": "oct", "k": base64url_encode(letter * 32).decode(), "alg": "HS256"}
            assert KeySet.parse(json.dumps({"keys": [jwk]})).signing.kid == "shared"

    def test_an_unusable_set_says_why_and_shows_no_key(self) -> None:
        good = json.loads(KEYS["ES256"])["keys"][0]
        public = {name: value for name, value in good.items() if name != "d"}
        weak = {"kty": "oct", "k": base64url_encode(b"x" * 31).decode(), "alg": "HS256"}
        weak_rsa = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 2040), as_dict=True) | {"alg": "RS256"}
        for value, why in (
            ("{", "not JSON"),
            ("[]", "JWK Set"),
            ('{"keys": []}', "JWK Set"),
            ('{"keys": [7]}', "JWK Set"),
            ('{"keys": 7}', "JWK Set"),
            (json.dumps({"keys": [public]}), "no private part"),
            (json.dumps({"keys": [good, good]}), "same kid"),
            (json.dumps({"keys": [weak]}), "32 bytes"),
            (json.dumps({"keys": [weak_rsa]}), "2048 bits"),
            (json.dumps({"keys": [{**good, "alg": "HS256"}]}), "key 1"),
            (json.dumps({"keys": [{**good, "alg": "none"}]}), "key 1"),
            (
                json.dumps(
                    {"keys": [{"kty": "oct", "k": base64url_encode(b"x" * 64).decode(), "alg": "HS512"}]}
                ),
                "key 1",
            ),
            (json.dumps({"keys": [{**good, "kid": 7}]}), "kid is not a string"),
            (json.dumps({"keys": [{**good, "x": "AAAA"}]}), "not a usable JWK"),
        ):
            fault = self.assertRaises(KeySetError, KeySet.parse, value)
            assert why in str(fault), (value, str(fault))
            assert good["d"] not in str(fault)

    def test_the_key_file_is_private_and_written_atomically(self) -> None:
        """Only its owner may read it, an existing file is not overwritten, and no temporary file is left."""
        path = temporary_directory(self) / "jwt-keys.json"
        first = tokens.load_or_create_keys(path, "ES256")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert tokens.load_or_create_keys(path, "ES256").signing.kid == first.signing.kid
        assert tokens.create_keys(path, "EdDSA") is False
        assert tokens.load_keys(path).signing.kid == first.signing.kid
        (changed,) = tokens.change_keys(path, "EdDSA", keep=0).keys
        signing = tokens.load_keys(path).signing
        assert (signing.algorithm, signing.kid) == ("EdDSA", changed.kid)
        self.assertRaises(KeySetError, tokens.change_keys, path, "EdDSA", kid="of no key")
        assert tokens.load_keys(path).signing.kid == signing.kid
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [one.name for one in path.parent.iterdir()] == [path.name]

    def test_of_changes_at_once_none_is_lost(self) -> None:
        """Each thread opens the file for itself, as processes do."""
        path = temporary_directory(self) / "jwt-keys.json"
        first = tokens.load_or_create_keys(path, "ES256").signing
        with ThreadPoolExecutor(8) as threads:
            made = list(
                threads.map(lambda _: tokens.change_keys(path, "ES256", 100, announce=True), range(40))
            )
        keys = tokens.load_keys(path).keys
        assert sorted(len(one.keys) for one in made) == [*range(2, 42)]
        assert keys[0].kid == first.kid and len({one.kid for one in keys}) == 41

    def test_a_missing_file_is_named_with_the_command_that_makes_it(self) -> None:
        path = temporary_directory(self) / "jwt-keys.json"
        message = str(self.assertRaises(KeySetError, tokens.load_keys, path))
        assert message == f"{path}: there is none (`project-service jwt-keys create` makes it)"
