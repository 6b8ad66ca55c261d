"""A device with keys, and the browser before it (W3C Web Authentication), in memory: what ``navigator.credentials``
would give a page, as JSON. Tests may have it lie."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import uuid
from collections.abc import Mapping
from typing import Any

import cbor2
from attrs import define, field
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from project_service import base64url

PRESENT, VERIFIED, HAS_KEY = 0x01, 0x04, 0x40
AAGUID = uuid.UUID("00000000-0000-4000-8000-00000000a1d0")


@define
class Key:
    private: ec.EllipticCurvePrivateKey
    host: str
    user: bytes
    count: int = 0


@define
class Authenticator:
    """``flags`` say what the device says of its user; ``origin`` is the page's; ``step`` is by how much the counter
    goes up at each signature."""

    origin: str
    flags: int = PRESENT | VERIFIED
    step: int = 1
    keys: dict[bytes, Key] = field(factory=dict)

    def create(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A new key, by ``PublicKeyCredentialCreationOptionsJSON``."""
        known = {base64url.decode(one["id"]) for one in options.get("excludeCredentials", [])}
        assert not known & set(self.keys), "the device has one already"
        private, key_id = ec.generate_private_key(ec.SECP256R1()), os.urandom(32)
        host = options["rp"]["id"]
        self.keys[key_id] = key = Key(private, host, base64url.decode(options["user"]["id"]))
        numbers = private.public_key().public_numbers()
        # COSE (RFC 9053): an elliptic curve key on P-256 for ES256.
        public = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        attested = AAGUID.bytes + struct.pack(">H", len(key_id)) + key_id + cbor2.dumps(public)
        data = self._data(key, HAS_KEY) + attested
        response = {
            "clientDataJSON": self._client_data("webauthn.create", options["challenge"]),
            "attestationObject": base64url.encode(
                cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
            ),
            "transports": ["internal", "made-up"],
        }
        return self._credential(key_id, response)

    def sign(self, options: Mapping[str, Any], key_id: bytes | None = None) -> dict[str, Any]:
        """A signature, by ``PublicKeyCredentialRequestOptionsJSON``, by the key that is asked for."""
        asked = [base64url.decode(one["id"]) for one in options.get("allowCredentials", [])]
        key_id = key_id or next(one for one in reversed(self.keys) if not asked or one in asked)
        key = self.keys[key_id]
        key.count += self.step
        data, client = self._data(key), self._client_data("webauthn.get", options["challenge"])
        signed = data + hashlib.sha256(base64url.decode(client)).digest()
        response = {
            "clientDataJSON": client,
            "authenticatorData": base64url.encode(data),
            "signature": base64url.encode(key.private.sign(signed, ec.ECDSA(SHA256()))),
            "userHandle": base64url.encode(key.user),
        }
        return self._credential(key_id, response)

    def _data(self, key: Key, more: int = 0) -> bytes:
        return hashlib.sha256(key.host.encode()).digest() + struct.pack(">BI", self.flags | more, key.count)

    def _client_data(self, kind: str, challenge: str) -> str:
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return base64url.encode(json.dumps(said).encode())

    def _credential(self, key_id: bytes, response: Mapping[str, Any]) -> dict[str, Any]:
        text = base64url.encode(key_id)
        return {
            "id": text,
            "rawId": text,
            "type": "public-key",
            "response": dict(response),
            "clientExtensionResults": {},
            "authenticatorAttachment": "platform",
        }
