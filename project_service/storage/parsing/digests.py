"""Digests in headers (RFC 9530, Digest Fields; RFC 1864 for ``Content-MD5``, as in S3).

Those of a body that is uploaded are checked; that of an object is sent where it is wanted.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import md5, sha256, sha512
from typing import Any

from attrs import frozen

from project_service.http.head import HeaderView
from project_service.storage import errors

# The algorithms that RFC 9530 calls active; others in a field are ignored (section 2).
_ALGORITHMS: dict[str, Callable[[], Any]] = {"sha-256": sha256, "sha-512": sha512}
_FIELDS = ("Content-Digest", "Repr-Digest")
# A dictionary of byte sequences (RFC 9651, 3.2 and 3.3.5), without parameters, of which there are none.
_NAME = r"[a-z*][a-z0-9_.*-]*"
_MEMBER = re.compile(rf"({_NAME})=:([A-Za-z0-9+/=]*):")
_BETWEEN = re.compile(r"[ \t]*,[ \t]*")
# A dictionary of integers: preferences from 0, not acceptable, to 10 (section 4).
_WANTED = re.compile(r"sha-256=0*(?:[1-9]|10)")


@frozen
class Expected:
    """A digest in the header ``field``, and what computes it."""

    field: str
    digest: bytes
    algorithm: Callable[[], Any]


def expected_digests(headers: HeaderView) -> tuple[Expected, ...]:
    """What the body must have by its headers. Raises ``bad_digest``."""
    expected = [*_content_md5(headers)]
    for field in _FIELDS:
        expected += _digests_in(headers, field)
    return tuple(expected)


class BodyDigests:
    """Checks a body against the digests that are ``expected`` of it. Raises ``bad_digest``."""

    def __init__(self, expected: Sequence[Expected]) -> None:
        self._running = [(one, one.algorithm()) for one in expected]

    @classmethod
    def of(cls, headers: HeaderView) -> BodyDigests:
        """Of those that the body's ``headers`` name, if any."""
        return cls(expected_digests(headers))

    @classmethod
    def of_content(cls, headers: HeaderView) -> BodyDigests | None:
        """As ``of``, without the digest of a representation of which the body is a part; None if there are none."""
        expected = (*_content_md5(headers), *_digests_in(headers, "Content-Digest"))
        return cls(expected) if expected else None

    def update(self, data: bytes) -> None:
        for _, actual in self._running:
            actual.update(data)

    def check(self) -> None:
        for one, actual in self._running:
            if one.digest != actual.digest():
                raise errors.bad_digest(one.field, "is not that of the body")


def _content_md5(headers: HeaderView) -> list[Expected]:
    header = headers.first.get(b"content-md5")
    if header is None:
        return []
    return [_expected("Content-MD5", header.decode("latin-1"), partial(md5, usedforsecurity=False))]


def whole_sha256(headers: HeaderView) -> str | None:
    """The SHA-256 in ``Repr-Digest``, in hexadecimal; None if the request has none. Raises ``bad_digest`` also where
    there is a SHA-512 alone, which nobody computes of what comes in several requests."""
    digests = {one.algorithm().name: one.digest for one in _digests_in(headers, "Repr-Digest")}
    if digests and "sha256" not in digests:
        raise errors.bad_digest("Repr-Digest", "must have a sha-256 for a resumable upload")
    return digests["sha256"].hex() if digests else None


def _digests_in(headers: HeaderView, field: str) -> list[Expected]:
    values = headers.all(field.lower().encode())
    return _members(field, b", ".join(values).decode("latin-1")) if values else []


def _members(field: str, text: str) -> list[Expected]:
    members = [_MEMBER.fullmatch(one) for one in _BETWEEN.split(text.strip(" \t"))]
    pairs = [(one[1], one[2]) for one in members if one is not None]
    if len(pairs) < len(members):
        raise errors.bad_digest(field, "is not a list of digests, as sha-256=:base64:")
    # Of several members with one name the last counts (RFC 9651 section 4.2.2).
    return [
        _expected(field, encoded, _ALGORITHMS[name])
        for name, encoded in dict(pairs).items()
        if name in _ALGORITHMS
    ]


def _expected(field: str, encoded: str, algorithm: Callable[[], Any]) -> Expected:
    try:
        digest = b64decode(encoded, validate=True)
    except ValueError:
        digest = b""
    size = algorithm().digest_size
    if len(digest) != size:
        raise errors.bad_digest(field, f"is not the base64 of {size} bytes")
    return Expected(field, digest, algorithm)


def wants_sha256(headers: HeaderView) -> bool:
    """Whether ``Want-Repr-Digest`` asks for a SHA-256. One that cannot be read asks for nothing."""
    text = b",".join(headers.all(b"want-repr-digest")).decode("latin-1")
    return any(_WANTED.fullmatch(one) for one in _BETWEEN.split(text.strip(" \t")))


def repr_digest(sha256_hex: str) -> tuple[str, str]:
    """The header of a representation with that SHA-256."""
    return "Repr-Digest", f"sha-256=:{b64encode(bytes.fromhex(sha256_hex)).decode()}:"
