"""Upload requests: what refuses one before its bytes come, the bytes from a body or a form, and the commit.

A dry run asks by the same checks whether an upload would be accepted.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from project_service.http.request import Request
from project_service.settings.model import Storage as StorageSettings
from project_service.storage import requests
from project_service.storage.buckets import Buckets
from project_service.storage.form import FileStart, FormReader, boundary_of
from project_service.storage.repository import Switched
from project_service.storage.upload import SizeLimit, Uploads
from project_service.storage.values import Bucket, Conditions, Writer


@frozen
class Destination:
    """Where an upload goes, and on whose behalf."""

    bucket: Bucket
    writer: Writer
    conditions: Conditions


@frozen(eq=False)
class Receiver:
    """``current_settings`` returns the settings as they are now.

    Every method raises what refuses an upload: ``payload_too_large``, ``content_type_not_allowed``,
    ``validation_failed``, ``invalid_key``, and the refusals of ``errors.refused``.
    """

    buckets: Buckets
    uploads: Uploads
    current_settings: Callable[[], StorageSettings]

    async def check(self, to: Destination, key: str, declared: str | None, size: int) -> str:
        """Refuse an upload that the commit would refuse, as far as is known now; return its content type.

        ``size`` is the least size that it can have.
        """
        self._limit(to.bucket).check(size)
        content_type = requests.chosen_type(to.bucket, declared, key)
        await self.uploads.check(to.bucket, key, to.writer, to.conditions, size)
        return content_type

    async def body(self, request: Request, to: Destination, key: str, declared: str | None) -> Switched:
        """Upload the request's body as the object ``key``. Also raises ``bad_digest``, ``length_required``."""
        headers, body = request.headers, request.body
        requests.refuse_partial(headers)
        requests.refuse_form(headers)
        requests.require_body(request)
        max_age = requests.parse_max_age(headers)
        digest = requests.ContentMD5.of(headers)
        content_type = await self.check(to, key, declared, requests.least_size(body.length))
        async with await self.uploads.begin(to.bucket.name, self._limit(to.bucket), body.length) as upload:
            upload.describe(content_type, key)
            while chunk := await body.next_chunk():
                digest.update(chunk)
                await upload.write(chunk)
            digest.check()
            await self._check_again(to.bucket, key, content_type, upload.size)
            await upload.store()
            return await upload.commit(key, content_type, max_age, to.writer, to.conditions)

    async def form(self, request: Request, to: Destination) -> Switched:
        """Upload the file of the request's form. Also raises ``invalid_multipart``."""
        headers, body = request.headers, request.body
        bucket, writer = to.bucket, to.writer
        requests.refuse_partial(headers)
        limit, least = self._limit(bucket), requests.least_size(body.length, requests.FORM_OVERHEAD_BYTES)
        limit.check(least)
        form = FormReader(boundary_of(headers.text(b"content-type")))
        fields = requests.FormFields(requests.parse_max_age(headers))
        async with await self.uploads.begin(bucket.name, limit, body.length) as upload:
            while chunk := await body.next_chunk():
                for event in form.feed(chunk):
                    if isinstance(event, bytes):
                        await upload.write(event)
                    elif isinstance(event, FileStart):
                        fields.filename, fields.content_type = event.filename, event.content_type
                        known_type = requests.chosen_type(bucket, event.content_type, fields.key)
                        upload.describe(known_type, fields.key)
                    else:
                        fields.add(event, writer)
                        if event.name == "key":
                            await self.uploads.check(bucket, event.value, writer, to.conditions, least)
            form.finish()
            key = fields.object_key()
            content_type = requests.chosen_type(bucket, fields.content_type, key)
            await self._check_again(bucket, key, content_type, upload.size)
            await upload.store()
            if fields.owner is not None:
                writer = evolve(writer, user_id=fields.owner)
            return await upload.commit(key, content_type, fields.max_age_seconds, writer, to.conditions)

    async def _check_again(self, bucket: Bucket, key: str, content_type: str, size: int) -> None:
        """Check the bucket's rules at the end of an upload. It may have taken days, so that they may have changed, or
        the bucket may have been replaced by another of its name."""
        current = await self.buckets.same(bucket)
        self._limit(current).check(size)
        requests.chosen_type(current, content_type, key)

    def _limit(self, bucket: Bucket) -> SizeLimit:
        """The greatest size that an object may have, as far as is known now: the commit has the last word on a
        quota."""
        limit, of_bucket = SizeLimit(self.current_settings().max_object_bytes), bucket.rules.max_object_bytes
        if of_bucket is not None and of_bucket < limit.max_bytes:
            limit = SizeLimit(of_bucket, setting="the bucket's max_object_bytes")
        if bucket.rules.max_bucket_bytes is None:
            return limit
        # The larger of the two, since in a bucket beyond its quota objects may still be replaced by smaller ones.
        quota = max(bucket.rules.max_bucket_bytes, bucket.total_bytes)
        return SizeLimit(quota, by_quota=True) if quota < limit.max_bytes else limit
