"""AWS Signature Version 4 for one request, wrapped around botocore. Pure: the time is an argument.

Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote

from attrs import field, frozen
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

EMPTY_SHA256 = sha256(b"").hexdigest()

# What S3 leaves unescaped in a path: RFC 3986's unreserved characters and the slash.
_PATH_SAFE = "-_.~/"
_QUERY_SAFE = "-_.~"


@frozen
class Address:
    """Where objects of one store bucket are: ``addressing_style`` is "path" or "virtual"."""

    endpoint_url: str
    bucket: str
    addressing_style: str = "path"

    def url(self, key: str = "", query: Mapping[str, str] | None = None) -> str:
        """The exact URL that is signed and sent; the query is in the order in which it is signed."""
        scheme, _, rest = self.endpoint_url.rstrip("/").partition("://")
        if self.addressing_style == "virtual":
            host, slash, base = rest.partition("/")
            root = f"{scheme}://{self.bucket}.{host}{slash}{base}/"
        else:
            root = f"{scheme}://{rest}/{self.bucket}"
            root = f"{root}/" if key else root
        url = root + quote(key, safe=_PATH_SAFE)
        return f"{url}?{_encoded(query)}" if query else url


def _encoded(query: Mapping[str, str]) -> str:
    pairs = [(quote(name, safe=_QUERY_SAFE), quote(value, safe=_QUERY_SAFE)) for name, value in query.items()]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


@frozen
class Signer:
    """Signs for one key pair and region. The secret appears in no representation."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"

    def headers(
        self, method: str, url: str, headers: Mapping[str, str], payload_sha256: str, now: datetime
    ) -> dict[str, str]:
        """``headers`` with the date, the payload's digest and the signature over all of them.

        ``S3SigV4Auth`` signs the path as it is. Its ``add_auth`` would read the clock itself and, over plain
        http, hash the body again, so its public steps are taken one by one.
        """
        auth = S3SigV4Auth(  # type: ignore[no-untyped-call, unused-ignore]
            Credentials(self.access_key_id, self.secret_access_key), "s3", self.region
        )
        stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        request = AWSRequest(method=method, url=url, headers=dict(headers))
        request.headers["X-Amz-Date"] = stamp
        request.headers["X-Amz-Content-SHA256"] = payload_sha256
        request.context["timestamp"] = stamp
        signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        signed = auth.signed_headers(auth.headers_to_sign(request))
        credential = f"Credential={auth.scope(request)}"
        authorization = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={signed}, Signature={signature}"
        return {
            **headers,
            "X-Amz-Date": stamp,
            "X-Amz-Content-SHA256": payload_sha256,
            "Authorization": authorization,
        }
