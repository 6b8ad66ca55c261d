"""AWS Signature Version 4 for one request, wrapped around botocore. Pure: the time is an argument.

Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import md5, sha256
from operator import attrgetter
from typing import Any
from urllib.parse import quote, urlsplit

from attrs import Factory, field, frozen
from botocore.auth import SIGNED_HEADERS_BLACKLIST, S3SigV4Auth
from botocore.credentials import Credentials

from project_service.settings.model import Store
from project_service.storage.s3.connection import Payload
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
    md5: str
    # As the header of that name has it.
    content_md5: str

    @classmethod
    def of(cls, payload: Payload, known_sha256: str | None = None) -> Digests:
        """With ``known_sha256`` that one is not computed."""
        sum_ = md5(payload, usedforsecurity=False)
        content_md5 = base64.b64encode(sum_.digest()).decode("ascii")
        return cls(known_sha256 or sha256(payload).hexdigest(), sum_.hexdigest(), content_md5)

    def may_have(self, etag: str) -> bool:
        """Whether a payload with these digests may have this ETag.

        It may or may not be an MD5 ("Object", Amazon S3 API Reference). One that is not says nothing (Google Cloud
        Storage with customer-managed keys); the store's own check of Content-MD5 has to suffice then. Alibaba's ETags
        are in capitals.
        """
        return etag != "" and (_MD5.fullmatch(etag) is None or etag.lower() == self.md5)


def bare(etag: str) -> str:
    """An ETag without its quotes; a proxy in between may have made it a weak one.

    Raises ``StoreUnreachable`` where an HTTP header could not hold it: one that came in XML may have line breaks.
    """
    opaque = etag.strip().removeprefix("W/").strip('"')
    if not _OPAQUE.fullmatch(opaque):
        raise StoreUnreachable(UNREADABLE)
    return opaque


EMPTY_SHA256 = sha256(b"").hexdigest()

_UNSIGNED = frozenset(SIGNED_HEADERS_BLACKLIST)
# Turns "2026-11-21T10:00:00" into SigV4's form. strftime would take three times as long.
_PLAIN = str.maketrans("", "", "-:")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@frozen
class Address:
    """Where the objects of one store bucket are. ``addressing_style`` is "path" or "virtual".

    ``origin`` is scheme and authority; ``host`` is the value of the Host header.
    """

    endpoint_url: str
    bucket: str
    addressing_style: str = "path"
    origin: str = field(init=False, default=Factory(lambda self: self._origin(), takes_self=True))
    host: str = field(init=False, default=Factory(lambda self: _host_of(self.origin), takes_self=True))
    _root: str = field(init=False, default=Factory(lambda self: self._path(), takes_self=True))

    def url(self, key: str = "", query: Mapping[str, str] | None = None) -> str:
        """The exact URL that is signed and sent, with the query in the order that is signed."""
        root = f"{self._root}/" if key or self.addressing_style == "virtual" else self._root
        # S3 leaves RFC 3986's unreserved characters and, in a path, the slash unescaped; so does quote().
        url = root + quote(key)
        return f"{url}?{_encoded(query)}" if query else url

    def _origin(self) -> str:
        scheme, _, rest = self.endpoint_url.partition("://")
        host = rest.partition("/")[0]
        return (
            f"{scheme}://{self.bucket}.{host}" if self.addressing_style == "virtual" else f"{scheme}://{host}"
        )

    def _path(self) -> str:
        base = self.endpoint_url.rstrip("/").partition("://")[2].partition("/")[2]
        steps = [base] if base else []
        steps += [] if self.addressing_style == "virtual" else [self.bucket]
        return "/".join([self.origin, *steps])


def _host_of(origin: str) -> str:
    split_url = urlsplit(origin)
    host = split_url.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = split_url.port
    return host if port in (None, _DEFAULT_PORTS.get(split_url.scheme)) else f"{host}:{port}"


def _encoded(query: Mapping[str, str]) -> str:
    pairs = [(quote(name, safe=""), quote(value, safe="")) for name, value in query.items()]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


class _Request:
    """A request, as far as botocore's signer looks at one."""

    params = None

    def __init__(self, method: str, url: str, headers: Mapping[str, str], stamp: str, digest: str) -> None:
        self.method = method
        self.url = url
        self.headers = {"X-Amz-Content-SHA256": digest}
        self.context = {"timestamp": stamp}
        self.signed: dict[str, str] = {}
        for name, value in headers.items():
            if (lower := name.lower()) not in _UNSIGNED:
                self.signed[lower] = value
        self.signed["x-amz-date"] = stamp
        self.signed["x-amz-content-sha256"] = digest
        if "host" not in self.signed:
            self.signed["host"] = _host_of(url)


class _Auth(S3SigV4Auth):
    """botocore's signer, but it derives the signing key (from secret, day, region and service) only once a day, and
    takes headers from a plain dictionary. (botocore's own class is email's, and slow.)"""

    def __init__(self, credentials: Credentials, region: str) -> None:
        super().__init__(credentials, "s3", region)
        self._scope = (region, "s3", "aws4_request")
        self._day = ""
        self._key = b""

    def signature(self, string_to_sign: str, request: Any) -> str:
        day = request.context["timestamp"][:8]
        if day != self._day:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for message in (day, *self._scope):
                key = hmac.digest(key, message.encode(), "sha256")
            self._day, self._key = day, key
        return hmac.digest(self._key, string_to_sign.encode(), "sha256").hex()

    def canonical_headers(self, headers_to_sign: Any) -> str:
        lines = []
        for name, value in sorted(headers_to_sign.items()):
            lines.append(f"{name}:{' '.join(value.split())}")
        return "\n".join(lines)

    headers_to_sign = staticmethod(attrgetter("signed"))  # type: ignore[assignment]  # a dictionary does as well


@frozen
class Signer:
    """Signs for one key pair and region. Neither appears in a representation.

    Temporary credentials are a pair with a ``session_token``.
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"
    session_token: str = field(default="", repr=False)
    _auth: _Auth = field(
        init=False,
        repr=False,
        eq=False,
        default=Factory(
            lambda self: _Auth(Credentials(self.access_key_id, self.secret_access_key), self.region),
            takes_self=True,
        ),
    )

    @classmethod
    def of(cls, settings: Store) -> Signer:
        """The signer for the key pair and the region of the settings."""
        secrets = settings.secret_access_key, settings.session_token
        secret, token = ("" if one is None else one.reveal() for one in secrets)
        return cls(settings.access_key_id or "", secret, settings.region, token)

    def headers(
        self, method: str, url: str, headers: Mapping[str, str], payload_sha256: str, now: datetime
    ) -> dict[str, str]:
        """``headers`` with the date, the payload's digest and the signature over all of them.

        ``S3SigV4Auth`` signs the path as it is. Its ``add_auth`` would read the clock itself and, over plain
        http, hash the body again, so its public steps are taken one by one.
        """
        if self.session_token:
            headers = {**headers, "X-Amz-Security-Token": self.session_token}
        stamp = now.astimezone(UTC).isoformat(timespec="seconds")[:19].translate(_PLAIN) + "Z"
        request: Any = _Request(method, url, headers, stamp, payload_sha256)
        auth = self._auth
        signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        names = auth.signed_headers(auth.headers_to_sign(request))
        credential = f"Credential={auth.scope(request)}"
        authorization = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        return {
            **headers,
            "X-Amz-Date": stamp,
            "X-Amz-Content-SHA256": payload_sha256,
            "Authorization": authorization,
        }
