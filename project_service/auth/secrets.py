"""Opaque tokens: refresh tokens and one-time tokens. Only their SHA-256 is ever stored."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping

from attrs import field, frozen

from project_service import base64url

BYTES = 32
# What 32 bytes are in base64url without padding.
LENGTH = 43

Randomness = Callable[[int], bytes]


@frozen
class Opaque:
    """A token as its owner holds it, and the digest that is stored."""

    text: str = field(repr=False)
    digest: bytes = field(repr=False)


def fresh(randomness: Randomness) -> Opaque:
    """A token of 256 random bits."""
    return _from_bytes(randomness(BYTES))


def successor(text: str, salt: bytes) -> Opaque:
    """The token that follows ``text`` under ``salt``.

    It is derived, so that a client which asks twice with one token (a retry, two tabs) gets the same
    successor although only digests are stored. Without both the old token and the 256-bit salt it is as
    unpredictable as a random one; the salt is wiped once the reuse window is over.
    """
    return _from_bytes(hmac.digest(salt, text.encode("ascii"), "sha256"))


def latest(text: str, salts: Mapping[bytes, bytes]) -> Opaque:
    """The last of the tokens that follow ``text``; ``salts`` are by the digests of the tokens that they go with."""
    token = Opaque(text, hashlib.sha256(text.encode("ascii")).digest())
    while token.digest in salts:
        token = successor(token.text, salts[token.digest])
    return token


def digest(text: str) -> bytes | None:
    """The stored form of a presented token; None for what cannot be one."""
    if len(text) != LENGTH or not text.isascii():
        return None
    return hashlib.sha256(text.encode("ascii")).digest()


def _from_bytes(raw: bytes) -> Opaque:
    text = base64url.encode(raw)
    return Opaque(text=text, digest=hashlib.sha256(text.encode("ascii")).digest())
