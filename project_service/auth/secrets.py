"""Opaque tokens: refresh tokens and one-time tokens. Only their SHA-256 digests are stored."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping

from attrs import field, frozen

from project_service import base64url

BYTES = 32
# The length of 32 bytes in base64url without padding.
LENGTH = 43

Randomness = Callable[[int], bytes]


@frozen
class Opaque:
    """A token as its owner has it, and the digest that is stored."""

    text: str = field(repr=False)
    digest: bytes = field(repr=False)


def fresh(randomness: Randomness) -> Opaque:
    """A token of 256 random bits."""
    return _opaque(base64url.encode(randomness(BYTES)))


def successor(text: str, salt: bytes) -> Opaque:
    """The token that follows the token ``text``, derived from it with ``salt``.

    Because it is derived, a client that uses a token twice (a retry, two tabs) gets the same successor, although only
    digests are stored. To anybody who does not have both the old token and the 256-bit salt it is as unpredictable as
    a random one; and the salt is deleted when the old token is good for nothing any more.
    """
    return _opaque(base64url.encode(hmac.digest(salt, text.encode("ascii"), "sha256")))


def latest(text: str, salts: Mapping[bytes, bytes]) -> Opaque:
    """The last of the tokens that follow the token ``text``. ``salts`` has each salt by the digest of the token that
    it was used with."""
    token = _opaque(text)
    while token.digest in salts:
        token = successor(token.text, salts[token.digest])
    return token


def digest(text: str) -> bytes | None:
    """The digest of a token that a client has sent; None for a text that cannot be a token."""
    if len(text) != LENGTH or not text.isascii():
        return None
    return _opaque(text).digest


def _opaque(text: str) -> Opaque:
    return Opaque(text, hashlib.sha256(text.encode("ascii")).digest())
