"""ID tokens: a valid one is taken, and one that breaks any rule is refused."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from typing import Any, cast

import jwt
from attrs import evolve
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from twisted.trial.unittest import TestCase

from project_service import base64url
from project_service.auth.id_tokens import (
    LEEWAY_SECONDS,
    TENANT,
    Expected,
    IdTokenFault,
    UnknownKey,
    issuer_of,
    usable_keys,
    verified,
)

NOW = 1_795_230_245.0
ISSUER = "https://id.example.com"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
OKP = ed25519.Ed25519PrivateKey.generate()
OTHER = ec.generate_private_key(ec.SECP256R1())
JWKS: list[dict[str, Any]] = [
    {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "alg": "RS256", "use": "sig"},
    {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
    {**OKPAlgorithm.to_jwk(OKP.public_key(), as_dict=True), "kid": "okp"},
]
KEYS = {"keys": JWKS}
CLAIMS = {"iss": ISSUER, "aud": "web", "sub": "1", "iat": NOW - 10, "exp": NOW + 600, "nonce": "n"}
EXPECTED = Expected((ISSUER,), ("web", "ios"), NOW, "n", nonce_as_sent=True)
TENANT_ID = "5e9e2f4c-0b5e-4c6b-9a63-2f7f1d1c0a11"


def token(*, key: Any = EC, alg: str = "ES256", kid: str | None = "ec", **claims: Any) -> str:
    """Signed, with these claims besides the usual ones; None removes one."""
    full = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(full, key, alg, {} if kid is None else {"kid": kid})


class IdTokens(TestCase):
    def refused(self, text: str, expected: Expected = EXPECTED, keys: Any = KEYS) -> str:
        with self.assertRaises(IdTokenFault) as caught:
            verified(text, keys, expected)
        self.assertNotIn("hush", str(caught.exception))
        return str(caught.exception)

    def test_a_token_of_each_kind_of_key_is_taken(self) -> None:
        for key, alg, kid in ((RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (OKP, "EdDSA", "okp")):
            self.assertEqual(verified(token(key=key, alg=alg, kid=kid), KEYS, EXPECTED)["sub"], "1")

    def test_a_token_for_another_application_is_refused(self) -> None:
        for aud in ("other", "", ["other"], [], None, 1, ["other", 1], {"web": 1}):
            self.assertEqual(self.refused(token(aud=aud)), "it is for another application", aud)
        for aud in ("ios", ["web"]):
            verified(token(aud=aud), KEYS, EXPECTED)

    def test_a_token_that_was_issued_to_another_application_is_refused(self) -> None:
        for claims in (
            {"azp": "other"},
            {"azp": 1},
            {"aud": ["web", "other"]},
            {"aud": ["web"], "azp": "other"},
        ):
            self.assertEqual(self.refused(token(**claims)), "it was issued to another application", claims)
        verified(token(azp="ios"), KEYS, EXPECTED)
        verified(token(aud=["web", "other"], azp="web"), KEYS, EXPECTED)

    def test_a_token_of_another_issuer_is_refused(self) -> None:
        for iss in ("https://evil.example.com", f"{ISSUER}/", ISSUER.upper(), "", None, 1, [ISSUER]):
            # The library that signs insists on a text.
            text = self.unchecked({**CLAIMS, "iss": iss})
            self.assertEqual(self.refused(text), "it is of another issuer", iss)

    def test_a_token_with_another_nonce_is_refused(self) -> None:
        for nonce in ("m", "", None, 1, ["n"], hashlib.sha256(b"n").hexdigest()):
            self.assertEqual(self.refused(token(nonce=nonce)), "its nonce is another one", nonce)
        for given_nonce in ("", None):
            self.refused(token(nonce=""), evolve(EXPECTED, nonce=given_nonce))
            self.refused(token(nonce=None), evolve(EXPECTED, nonce=given_nonce))

    def test_a_token_that_an_app_brings_has_the_nonce_plain_or_hashed_or_none_has_one(self) -> None:
        brought = evolve(EXPECTED, nonce_as_sent=False)
        for nonce in ("n", hashlib.sha256(b"n").hexdigest()):
            verified(token(nonce=nonce), KEYS, brought)
        verified(token(nonce=None), KEYS, evolve(brought, nonce=None))
        self.assertEqual(self.refused(token(nonce="m"), brought), "its nonce is another one")
        self.assertEqual(self.refused(token(nonce=None), brought), "its nonce is another one")
        self.assertIn("so the nonce is needed", self.refused(token(), evolve(brought, nonce=None)))
        self.refused(token(nonce=""), evolve(brought, nonce=""))

    def test_a_token_that_has_expired_is_refused(self) -> None:
        self.assertEqual(self.refused(token(exp=NOW - LEEWAY_SECONDS)), "it has expired")
        verified(token(exp=NOW - LEEWAY_SECONDS + 1), KEYS, EXPECTED)
        for exp in (None, "9999999999", True, [1]):
            self.assertEqual(self.refused(self.unchecked({**CLAIMS, "exp": exp})), "it has no exp", exp)

    def test_a_token_of_the_future_is_refused(self) -> None:
        for name in ("iat", "nbf"):
            self.assertEqual(
                self.refused(token(**cast(Any, {name: NOW + LEEWAY_SECONDS + 1}))), "it is not valid yet"
            )
            verified(token(**cast(Any, {name: NOW + LEEWAY_SECONDS})), KEYS, EXPECTED)
        self.assertEqual(self.refused(self.unchecked({**CLAIMS, "iat": None})), "it has no iat")

    def test_a_token_without_a_subject_is_refused(self) -> None:
        for sub in (None, "", 1):
            self.assertEqual(self.refused(self.unchecked({**CLAIMS, "sub": sub})), "it has no sub", sub)

    def test_a_token_with_alg_none_is_refused(self) -> None:
        unsigned = jwt.encode(CLAIMS, None, "none", {"kid": "ec"})  # type: ignore[arg-type]
        for text in (unsigned, unsigned + "xxxx"):
            self.assertEqual(self.refused(text), "its algorithm is not allowed")
        self.assertEqual(self.refused(token().rpartition(".")[0] + "."), "its signature is wrong")

    def test_a_token_signed_with_the_public_key_as_a_shared_secret_is_refused(self) -> None:
        pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for secret in (pem, json.dumps(JWKS[0]).encode(), JWKS[0]["n"].encode()):
            for alg in ("HS256", "HS512"):
                text = self.hmac_signed(secret, alg)
                self.assertEqual(self.refused(text), "its algorithm is not allowed")

    def test_an_algorithm_that_does_not_go_with_the_key_is_refused(self) -> None:
        for alg in ("RS512", "PS256"):
            # The key is for RS256 alone.
            self.refused(token(key=RSA, alg=alg, kid="rsa"))
        self.refused(token(kid="rsa"))

    def test_a_token_by_an_unknown_key_is_refused_as_such(self) -> None:
        for text in (token(kid="new"), token(key=OTHER, kid="new"), token(kid="")):
            with self.assertRaises(UnknownKey):
                verified(text, KEYS, EXPECTED)
        sets: list[dict[str, Any]] = [
            {},
            {"keys": []},
            {"keys": None},
            {"keys": [1, "x"]},
            {"keys": {"ec": 1}},
        ]
        for keys in sets:
            with self.assertRaises(UnknownKey):
                verified(token(), keys, EXPECTED)

    def test_a_token_without_a_kid_is_taken_only_if_one_key_can_be_meant(self) -> None:
        verified(token(kid=None), KEYS, EXPECTED)
        two = {"keys": [*JWKS, {**JWKS[1], "kid": "ec2"}]}
        with self.assertRaises(UnknownKey):
            verified(token(kid=None), two, EXPECTED)

    def test_a_token_with_a_wrong_signature_is_refused(self) -> None:
        self.assertEqual(self.refused(token(key=OTHER)), "its signature is wrong")
        head, body, signature = token().split(".")
        forged = base64url.encode(json.dumps({**CLAIMS, "sub": "2"}).encode())
        self.assertEqual(self.refused(f"{head}.{forged}.{signature}"), "its signature is wrong")
        self.assertNotEqual(body, forged)

    def test_a_key_for_encryption_or_a_short_one_signs_nothing(self) -> None:
        with self.assertRaises(UnknownKey):
            verified(token(), {"keys": [{**JWKS[1], "use": "enc"}]}, EXPECTED)
        short = rsa.generate_private_key(65537, 1024)
        jwk = {**RSAAlgorithm.to_jwk(short.public_key(), as_dict=True), "kid": "s"}
        self.refused(token(key=short, alg="RS256", kid="s"), keys={"keys": [jwk]})

    def test_a_token_of_another_access_token_is_refused(self) -> None:
        digest = hashlib.sha256(b"hush").digest()
        bound = evolve(EXPECTED, access_token="hush")
        verified(token(at_hash=base64url.encode(digest[:16])), KEYS, bound)
        verified(token(), KEYS, bound)
        for at_hash in (base64url.encode(digest), "x", "", 1):
            self.assertEqual(
                self.refused(token(at_hash=at_hash), bound), "it belongs to another access token"
            )

    def test_an_issuer_for_many_tenants_is_that_of_the_tokens_tenant(self) -> None:
        expected = evolve(EXPECTED, issuers=(f"https://login.example.com/{TENANT}/v2.0",))
        mine = f"https://login.example.com/{TENANT_ID}/v2.0"
        verified(token(iss=mine, tid=TENANT_ID), KEYS, expected)
        for claims in (
            {"iss": mine},
            {"iss": mine, "tid": TENANT_ID.replace("5", "6")},
            {"iss": f"https://login.example.com/{TENANT}/v2.0", "tid": TENANT},
            {"iss": "https://login.example.com/x/../v2.0", "tid": "x/.."},
            {"iss": "https://login.example.com//v2.0", "tid": ""},
            {"iss": "https://login.example.com//v2.0"},
        ):
            self.assertEqual(self.refused(token(**claims), expected), "it is of another issuer", claims)

    def test_a_key_of_one_tenant_signs_for_that_alone(self) -> None:
        expected = evolve(EXPECTED, issuers=(f"https://login.example.com/{TENANT}/v2.0",))
        mine = f"https://login.example.com/{TENANT_ID}/v2.0"
        text = token(iss=mine, tid=TENANT_ID)
        for issuer in (mine, f"https://login.example.com/{TENANT}/v2.0"):
            verified(text, {"keys": [{**JWKS[1], "issuer": issuer}]}, expected)
        other = {**JWKS[1], "issuer": "https://login.example.com/another/v2.0"}
        self.assertEqual(
            self.refused(text, expected, {"keys": [other]}), "it is signed by a key of another issuer"
        )

    def test_how_many_keys_could_sign_is_known(self) -> None:
        self.assertEqual(usable_keys(KEYS), 3)
        self.assertEqual(usable_keys({"keys": [{"kty": "oct", "k": "x"}, {"kty": []}, 1, {}]}), 0)

    def test_the_issuer_that_a_token_names_can_be_seen(self) -> None:
        self.assertEqual(issuer_of(token(key=OTHER)), ISSUER)
        self.assertIsNone(issuer_of("x"))

    @given(st.text() | st.text(alphabet="eyJ.-_0aA", min_size=3) | st.binary().map(repr))
    def test_any_text_is_refused(self, text: str) -> None:
        self.refused(text)
        issuer_of(text)

    @given(
        st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists), st.data()
    )
    def test_a_token_with_any_claim_gives_its_claims_or_is_refused(
        self, value: Any, data: st.DataObject
    ) -> None:
        name = data.draw(
            st.sampled_from(["iss", "aud", "azp", "exp", "iat", "nbf", "sub", "nonce", "at_hash", "tid"])
        )
        with contextlib.suppress(IdTokenFault):
            verified(self.unchecked({**CLAIMS, name: value}), KEYS, evolve(EXPECTED, access_token="a"))

    def unchecked(self, claims: dict[str, Any]) -> str:
        """Signed, whatever it says: PyJWT would refuse to make some tokens."""
        return jwt.PyJWS().encode(json.dumps(claims).encode(), EC, "ES256", {"kid": "ec"})

    def hmac_signed(self, secret: bytes, alg: str) -> str:
        parts = [base64url.encode(json.dumps(one).encode()) for one in ({"alg": alg, "kid": "rsa"}, CLAIMS)]
        signature = hmac.digest(secret, ".".join(parts).encode(), f"sha{alg[2:]}")
        return ".".join([*parts, base64url.encode(signature)])
