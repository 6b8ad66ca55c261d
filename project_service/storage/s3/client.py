"""The client of one store bucket, with the operations that the service needs, for any S3-compatible store.

Source: Amazon S3 API Reference. Every method raises ``StoreUnreachable`` when the store gives no usable response and
``StoreError`` when it refuses; ``NoSuchObject`` where that is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from xml.sax.saxutils import escape

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.ssl import Certificate, trustRootFromCertificates
from twisted.internet.threads import deferToThreadPool
from twisted.web.client import URI, BrowserLikePolicyForHTTPS

from project_service.lifecycle import all_of
from project_service.settings.model import Store
from project_service.storage.s3.connection import (
    ByteSink,
    ConnectionPool,
    ObjectStream,
    Payload,
    Pipe,
    StoreResponse,
)
from project_service.storage.s3.errors import (
    NO_SIZE,
    BrokenRead,
    CorruptTransfer,
    NoSuchBucket,
    NoSuchObject,
    StoreError,
    StoreUnreachable,
)
from project_service.storage.s3.requests import RetryingClient, Sender
from project_service.storage.s3.signing import INLINE_DIGEST_BYTES, Address, Digests, Signer, bare
from project_service.storage.s3.xml import (
    SMALL_BYTES,
    OpenMultipart,
    StoredPage,
    StoredStat,
    document,
    parse_failed_deletes,
    parse_multiparts,
    parse_objects,
    text_of,
)

# How many objects to delete at the same time in a store that takes one object a request.
DELETES_AT_ONCE = 16
_ENCRYPTION = "x-amz-server-side-encryption"
# How the names of headers begin that are an object's metadata.
METADATA = b"x-amz-meta-"


@frozen(eq=False)
class S3Stream:
    """An ``ObjectStream`` whose head has arrived."""

    length: int
    _response: StoreResponse
    _clock: IReactorTime
    _idle_seconds: float

    def buffered(self) -> bytes | None:
        # Those of small objects come together with the head.
        body = self._response.buffered()
        return body if body is not None and len(body) == self.length else None

    async def pipe_to(self, sink: ByteSink) -> None:
        await Pipe(self._response, sink, self.length, self._clock, self._idle_seconds).finished

    def close(self) -> None:
        self._response.close()


T = TypeVar("T")


@frozen(eq=False)
class S3Store:
    """``in_thread`` runs a function off the reactor's thread."""

    requests: RetryingClient
    in_thread: Callable[..., Any]

    def close(self) -> Deferred[None]:
        """Close the idle connections; fires when they are closed."""
        return self.requests.sender.pool.close()

    def sign_as(self, settings: Store) -> None:
        """Sign with the key pair of ``settings`` from now on."""
        self.requests.sender.signer = Signer.of(settings)

    async def _read(self, parse: Callable[[bytes], T], document: bytes) -> T:
        """What ``parse`` returns; it reads a long document in a thread."""
        if len(document) <= SMALL_BYTES:
            return parse(document)
        result: T = await self.in_thread(parse, document)
        return result

    def put(
        self,
        key: str,
        payload: Payload,
        content_type: str,
        metadata: Mapping[str, str],
        sha256: str | None = None,
    ) -> Coroutine[Any, Any, str]:
        """Store a whole object; its ETag. ``sha256`` is the payload's, in hexadecimal, where it is known. Raises
        ``CorruptTransfer``."""
        return self._sent(key, None, payload, _described(content_type, metadata), sha256)

    async def start_multipart(self, key: str, content_type: str, metadata: Mapping[str, str]) -> str:
        """Begin a multipart upload; its upload id."""
        headers = _described(content_type, metadata)
        response = await self.requests.send("POST", key, query={"uploads": ""}, headers=headers)
        return text_of(response.body, "UploadId")

    async def put_part(self, key: str, upload_id: str, number: int, payload: Payload) -> str:
        """Send part ``number`` (from 1); its ETag. Raises ``CorruptTransfer``."""
        query = {"partNumber": str(number), "uploadId": upload_id}
        return await self._sent(key, query, payload, {})

    async def complete_multipart(self, key: str, upload_id: str, etags: Sequence[str]) -> str:
        """Make one object of the parts; its ETag. Completing again what is complete is no error."""
        part_elements = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = document("CompleteMultipartUpload", part_elements)
        query = {"uploadId": upload_id}
        try:
            response = await self.requests.send(
                "POST", key, query=query, body=body, digest=Digests.of(body).sha256
            )
        except NoSuchObject:
            # An earlier try may have succeeded, with only its response lost.
            return (await self.stat(key)).etag
        return bare(text_of(response.body, "ETag"))

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Drop a multipart upload and its parts; one that is gone already is no error."""
        try:
            await self.requests.send("DELETE", key, query={"uploadId": upload_id})
        except NoSuchObject:
            return

    async def open(self, key: str, first: int, length: int, whole: int) -> ObjectStream:
        """Open ``length`` bytes from position ``first`` of an object of ``whole`` bytes. They stay at the store until
        they are piped.

        Raises ``NoSuchObject``, and ``BrokenRead`` where the store has another number of bytes.
        """
        headers = {} if length == whole else {"range": f"bytes={first}-{first + length - 1}"}
        response = await self.requests.send("GET", key, headers=headers, streamed=True)
        if response.code != (206 if headers else 200) or response.length not in (length, None):
            response.close()
            raise BrokenRead("the store has another number of bytes")
        return S3Stream(length, response, self.requests.clock, self.requests.idle_seconds)

    async def stat(self, key: str) -> StoredStat:
        """What the store knows of an object. Raises ``StoreUnreachable`` if the response has no size."""
        response = await self.requests.send("HEAD", key)
        size = response.header("content-length")
        if not size.isdecimal():
            raise StoreUnreachable(NO_SIZE)
        names = sorted(name.decode("latin-1") for name in response.headers if name.startswith(METADATA))
        return StoredStat(
            int(size),
            bare(response.header("etag")),
            response.header("content-type"),
            response.header("content-encoding"),
            response.header("cache-control"),
            response.header("content-language"),
            tuple((name[len(METADATA) :], response.header(name)) for name in names),
        )

    async def copy(self, source: str, target: str) -> str:
        """Copy inside the store, without the bytes passing through here; the ETag of the copy."""
        response = await self.requests.send("PUT", target, headers=self._copy_source(source))
        return bare(text_of(response.body, "ETag"))

    async def copy_part(
        self, source: str, target: str, upload_id: str, number: int, first: int, last: int
    ) -> str:
        """Make the bytes from ``first`` to ``last`` of ``source`` part ``number`` of an upload; the part's ETag."""
        response = await self.requests.send(
            "PUT",
            target,
            query={"partNumber": str(number), "uploadId": upload_id},
            headers={**self._copy_source(source), "x-amz-copy-source-range": f"bytes={first}-{last}"},
        )
        return bare(text_of(response.body, "ETag"))

    def _copy_source(self, source: str) -> dict[str, str]:
        return {"x-amz-copy-source": f"/{self.requests.sender.address.bucket}/{source}"}

    async def _sent(
        self,
        key: str,
        query: Mapping[str, str] | None,
        payload: Payload,
        headers: Mapping[str, str],
        sha256: str | None = None,
    ) -> str:
        digests: Digests
        if len(payload) <= INLINE_DIGEST_BYTES:
            digests = Digests.of(payload, sha256)
        else:
            digests = await self.in_thread(Digests.of, payload, sha256)
        response = await self.requests.send(
            "PUT",
            key,
            query=query,
            headers={**headers, "content-md5": digests.content_md5},
            body=payload,
            digest=digests.sha256,
        )
        etag = bare(response.header("etag"))
        # Where the store encrypts with a key of its own, an ETag may look like an MD5 and not be one.
        if not digests.may_have(etag) and response.header(_ENCRYPTION) in ("", "AES256"):
            raise CorruptTransfer(f"the store's checksum of {key} differs from ours")
        return etag

    # The store bucket as a whole.

    async def delete(self, key: str) -> None:
        """Delete an object; one that is gone already is no error."""
        try:
            await self.requests.send("DELETE", key)
        except NoSuchObject:
            return

    async def delete_many(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Delete up to 1,000 objects, in one request if the store can. Returns the keys that could not be deleted."""
        try:
            return await self._deleted_together(keys)
        except StoreError as refused:
            # Google Cloud Storage did not know the operation for years, and responded with 400.
            if not (refused.not_offered or refused.status == 400):
                raise
            return await self._deleted_one_by_one(keys)

    async def _deleted_together(self, keys: Sequence[str]) -> tuple[str, ...]:
        listed = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
        body = document("Delete", f"<Quiet>true</Quiet>{listed}")
        digests = Digests.of(body)
        headers = {"content-md5": digests.content_md5, "content-type": "application/xml"}
        response = await self.requests.send(
            "POST", "", query={"delete": ""}, headers=headers, body=body, digest=digests.sha256
        )
        return await self._read(parse_failed_deletes, response.body)

    async def _deleted_one_by_one(self, keys: Sequence[str]) -> tuple[str, ...]:
        failed: list[str] = []

        async def deleted(key: str) -> None:
            try:
                await self.delete(key)
            except NoSuchBucket:
                raise
            except StoreError:
                failed.append(key)

        for first in range(0, len(keys), DELETES_AT_ONCE):
            await all_of(deleted(key) for key in keys[first : first + DELETES_AT_ONCE])
        return tuple(failed)

    async def list(self, prefix: str = "", token: str | None = None, limit: int = 1000) -> StoredPage:
        """One page of the objects under ``prefix``, in key order."""
        # encoding-type, because a key may have control characters, which XML cannot hold.
        query = {"list-type": "2", "max-keys": str(limit), "prefix": prefix, "encoding-type": "url"}
        if token is not None:
            query["continuation-token"] = token
        response = await self.requests.send("GET", "", query=query)
        return await self._read(parse_objects, response.body)

    async def list_multiparts(self) -> tuple[OpenMultipart, ...]:
        """Every multipart upload that is neither complete nor aborted; none where the store cannot list them."""
        uploads: list[OpenMultipart] = []
        query = {"uploads": "", "max-uploads": "1000"}
        last: tuple[str, str] | None = None
        while True:
            try:
                response = await self.requests.send("GET", "", query=query)
            except StoreError as refused:
                if not refused.not_offered:
                    raise
                return ()
            page, markers = await self._read(parse_multiparts, response.body)
            uploads.extend(page)
            # Some stores ignore the markers and return the first page again.
            if markers is None or markers == last or not page:
                return tuple(uploads)
            last = markers
            query = {**query, "key-marker": markers[0], "upload-id-marker": markers[1]}

    async def ensure_bucket(self) -> None:
        """Create the store bucket unless it is there."""
        try:
            await self.requests.send("HEAD", "")
        except NoSuchObject:
            await self._make_bucket()

    async def _make_bucket(self, body: bytes = b"") -> None:
        try:
            await self.requests.send("PUT", "", body=body, digest=Digests.of(body).sha256)
        except StoreError as refused:
            # Only AWS insists on the region of its endpoint here; other stores may not know the document at all.
            if refused.code == "IllegalLocationConstraintException" and not body:
                region = escape(self.requests.sender.signer.region)
                constraint = f"<LocationConstraint>{region}</LocationConstraint>"
                await self._make_bucket(document("CreateBucketConfiguration", constraint))
            elif refused.code != "BucketAlreadyOwnedByYou":
                # (BucketAlreadyOwnedByYou means that another worker or host was faster.)
                raise


def _described(content_type: str, metadata: Mapping[str, str]) -> dict[str, str]:
    headers = {"content-type": content_type}
    for name, value in metadata.items():
        headers[f"x-amz-meta-{name}"] = value
    return headers


def store_endpoint(
    reactor: Any, address: Address, connect_timeout: float, ca_pem: bytes | None = None
) -> IStreamClientEndpoint:
    """Where the store listens.

    https verifies certificate and name with pyOpenSSL, by ``ca_pem`` alone where given.
    """
    uri = URI.fromBytes(address.origin.encode("ascii"))
    endpoint: Any = HostnameEndpoint(reactor, uri.host, uri.port, connect_timeout)
    if uri.scheme == b"https":
        policy = BrowserLikePolicyForHTTPS(_trust_root(ca_pem) if ca_pem else None)
        endpoint = wrapClientTLS(policy.creatorForNetloc(uri.host, uri.port), endpoint)
    store: IStreamClientEndpoint = endpoint
    return store


def _trust_root(ca_pem: bytes) -> Any:
    end = b"-----END CERTIFICATE-----"
    blocks = [block + end for block in ca_pem.split(end)[:-1]]
    return trustRootFromCertificates([Certificate.loadPEM(block) for block in blocks])


def connect_store(
    reactor: Any,
    settings: Store,
    sender: Callable[..., Sender] = Sender,
    client: Callable[..., RetryingClient] = RetryingClient,
) -> S3Store:
    """The client of the store that the settings name. Opens nothing yet. Large digests are computed in the reactor's
    thread pool. ``sender`` and ``client`` are made in place of the classes of these names."""
    ca_pem = None if settings.ca_file is None else Path(settings.ca_file).read_bytes()
    address = Address(settings.endpoint_url or "", settings.bucket, settings.addressing_style)
    endpoint = store_endpoint(reactor, address, settings.connect_timeout_seconds, ca_pem)
    pool = ConnectionPool(reactor, endpoint, settings.max_connections)
    requests = client(
        sender(pool, reactor, address, Signer.of(settings), partial(datetime.now, UTC)),
        reactor,
        settings.idle_timeout_seconds,
        settings.connect_timeout_seconds,
    )
    return S3Store(requests, partial(deferToThreadPool, reactor, reactor.getThreadPool()))
