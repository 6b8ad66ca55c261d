"""base64url without padding (RFC 4648 section 5; RFC 7515 appendix C): how keys, tokens and cursors are written."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Raises ``ValueError`` where there is another character or a letter too many; with padding it is read too."""
    if "+" in text or "/" in text:
        raise ValueError("base64 of the other alphabet")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
