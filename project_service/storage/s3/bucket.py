"""Operations on the store bucket as a whole: making it, listing it, and deleting from it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from attrs import frozen

from project_service.deferreds import all_of
from project_service.storage.s3.digests import Digests
from project_service.storage.s3.errors import NoSuchBucket, NoSuchObject, StoreError
from project_service.storage.s3.listing import (
    OpenMultipart,
    StoredPage,
    document,
    parse_failed_deletes,
    parse_multiparts,
    parse_objects,
)
from project_service.storage.s3.retrying import RetryingClient

# How many objects to delete at the same time in a store that takes one object a request.
DELETES_AT_ONCE = 16


@frozen(eq=False)
class WholeBucket:
    requests: RetryingClient

    async def delete(self, key: str) -> None:
        """Delete an object; one that is gone already is no error."""
        try:
            await self.requests.whole("DELETE", key)
        except NoSuchObject:
            return

    async def delete_many(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Delete up to 1,000 objects, in one request if the store can. Returns the keys that could not be deleted."""
        try:
            return await self._deleted_together(keys)
        except StoreError as refused:
            # Google Cloud Storage does not know the operation and answers 400.
            if not (refused.not_offered or refused.status == 400):
                raise
            return await self._deleted_one_by_one(keys)

    async def _deleted_together(self, keys: Sequence[str]) -> tuple[str, ...]:
        listed = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
        body = document("Delete", f"<Quiet>true</Quiet>{listed}")
        digests = Digests.of(body)
        headers = {"content-md5": digests.content_md5, "content-type": "application/xml"}
        answer = await self.requests.whole(
            "POST", "", query={"delete": ""}, headers=headers, body=body, digest=digests.sha256
        )
        return parse_failed_deletes(answer.body)

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
        answer = await self.requests.whole("GET", "", query=query)
        return parse_objects(answer.body)

    async def list_multiparts(self) -> tuple[OpenMultipart, ...]:
        """Every multipart upload that is neither complete nor aborted; none where the store cannot list them."""
        found: list[OpenMultipart] = []
        query = {"uploads": "", "max-uploads": "1000"}
        last: tuple[str, str] | None = None
        while True:
            try:
                answer = await self.requests.whole("GET", "", query=query)
            except StoreError as refused:
                if not refused.not_offered:
                    raise
                return ()
            page, markers = parse_multiparts(answer.body)
            found.extend(page)
            # Some stores ignore the markers and return the first page again.
            if markers is None or markers == last or not page:
                return tuple(found)
            last = markers
            query = {**query, "key-marker": markers[0], "upload-id-marker": markers[1]}

    async def ensure_bucket(self) -> None:
        """Create the store bucket unless it is there."""
        try:
            await self.requests.whole("HEAD", "")
        except NoSuchObject:
            await self._make_bucket()

    async def _make_bucket(self, body: bytes = b"") -> None:
        try:
            await self.requests.whole("PUT", "", body=body, digest=Digests.of(body).sha256)
        except StoreError as refused:
            # Only AWS insists on the region of its endpoint here; other stores may not know the document at all.
            if refused.code == "IllegalLocationConstraintException" and not body:
                region = escape(self.requests.sender.signer.region)
                place = f"<LocationConstraint>{region}</LocationConstraint>"
                await self._make_bucket(document("CreateBucketConfiguration", place))
            elif refused.code != "BucketAlreadyOwnedByYou":
                # (BucketAlreadyOwnedByYou means that another worker or host was faster.)
                raise
