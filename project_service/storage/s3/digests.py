"""The digests of a payload, and what an ETag says about a payload. Pure.

Source: "Object", Amazon S3 API Reference: an ETag may or may not be the MD5 of the object's bytes.
"""

from __future__ import annotations

import base64
import re
from hashlib import md5, sha256

from attrs import frozen

from project_service.storage.s3.body import Payload
from project_service.storage.s3.errors import UNREADABLE, StoreUnreachable

# Above this, hashing takes long enough to be worth a thread.
INLINE_DIGEST_BYTES = 128 * 1024

# RFC 9110 section 8.8.3
_OPAQUE = re.compile(r"[\x21\x23-\x7e\x80-\xff]*")
_MD5 = re.compile(r"[0-9A-Fa-f]{32}", re.ASCII)


@frozen
class Digests:
    """``sha256`` is the signed payload hash; ``md5`` is what the store compares, and most stores' ETag."""

    sha256: str
    md5: bytes

    @classmethod
    def of(cls, payload: Payload) -> Digests:
        return cls(sha256(payload).hexdigest(), md5(payload, usedforsecurity=False).digest())

    @property
    def content_md5(self) -> str:
        return base64.b64encode(self.md5).decode("ascii")

    def may_have(self, etag: str) -> bool:
        """Whether a payload with these digests may have got this ETag from a store.

        An ETag that is not an MD5 says nothing (Google Cloud Storage with customer-managed keys); the store's own
        check of Content-MD5 has to do then. Alibaba's ETags are in capitals.
        """
        return etag != "" and (_MD5.fullmatch(etag) is None or etag.lower() == self.md5.hex())


def bare(etag: str) -> str:
    """An ETag without its quotes; a proxy in between may have made it a weak one.

    Raises ``StoreUnreachable`` where an HTTP header could not hold it: one that came in XML may have line breaks.
    """
    opaque = etag.strip().removeprefix("W/").strip('"')
    if not _OPAQUE.fullmatch(opaque):
        raise StoreUnreachable(UNREADABLE)
    return opaque
