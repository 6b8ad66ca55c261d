"""base64url without padding (RFC 4648 section 5; RFC 7515 appendix C): how keys, tokens and cursors are written."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """The bytes that ``text`` stands for; padding is optional.

    Raises ``ValueError`` for characters outside the alphabet and for a length that no number of bytes gives.
    """
    if "+" in text or "/" in text:
        raise ValueError("base64 of the other alphabet")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
