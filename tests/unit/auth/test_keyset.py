"""JWK Sets: which keys sign, verify and are published, and the file they are kept in."""

from __future__ import annotations

import json
import stat

from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from jwt.utils import base64url_encode
from twisted.trial.unittest import TestCase

from project_service.auth import tokens
from project_service.auth.tokens import KeySet, KeySetError
from tests.temporary import temporary_directory

KEYS = {name: tokens.rotated(None, name) for name in tokens.ALGORITHMS}


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
        tokens.replace_keys(path, tokens.rotated(path.read_bytes(), "EdDSA", keep=0))
        signing = tokens.load_keys(path).signing
        assert signing.algorithm == "EdDSA"
        self.assertRaises(KeySetError, tokens.replace_keys, path, "{}")
        assert tokens.load_keys(path).signing.kid == signing.kid
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [one.name for one in path.parent.iterdir()] == [path.name]

    def test_a_missing_file_is_named_with_the_command_that_makes_it(self) -> None:
        path = temporary_directory(self) / "jwt-keys.json"
        said = str(self.assertRaises(KeySetError, tokens.load_keys, path))
        assert said == f"{path}: there is none (`project-service jwt-keys create` makes it)"
