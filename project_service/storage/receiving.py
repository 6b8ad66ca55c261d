"""Upload requests: what refuses one before its bytes come, the bytes from a body or a form, and the commit.

A dry run asks by the same checks whether an upload would be accepted.
"""

from __future__ import annotations

from attrs import evolve, frozen

from project_service.http.request import Request
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.links import UploadPass
from project_service.storage.parsing import parameters
from project_service.storage.parsing.details import details_of
from project_service.storage.parsing.digests import BodyDigests
from project_service.storage.parsing.form import (
    FIELDS,
    FIELDS_BY_LINK,
    FileStart,
    FormReader,
    Names,
    boundary_of,
)
from project_service.storage.upload import SizeLimit, Uploads
from project_service.storage.values import NO_DETAILS, Bucket, Conditions, Details, Live, Switched, Writer


@frozen
class Destination:
    """Where an upload goes, and on whose behalf; with ``link`` by that link, which narrows the bucket's rules.

    ``key`` is the object's, where a form does not choose it, and ``names`` are those of the form's fields, if they
    are not the usual ones."""

    bucket: Bucket
    writer: Writer
    conditions: Conditions
    link: UploadPass | None = None
    key: str | None = None
    names: Names | None = None

    def content_type(self, declared: str | None, key: str | None) -> str:
        """As ``parameters.chosen_type``, by the rules of bucket and link. A declared type such as ``undefined`` is
        none."""
        declared = keys.said(declared)
        chosen = parameters.chosen_type(self.bucket, declared, key)
        if self.link is not None and (declared or key is not None):
            self.link.check_type(chosen)
        return chosen

    @property
    def fixed_key(self) -> str | None:
        """The object's key, where the form does not choose it."""
        return self.key if self.link is None else self.link.fixed_key

    def key_of(self, chosen: str) -> str:
        """The object's key, given what the client chose. Raises ``invalid_key``."""
        return keys.parse_new_key(chosen) if self.link is None else self.link.key_of(chosen)


@frozen(eq=False)
class Receiver:
    """Every method raises what refuses an upload: ``payload_too_large``, ``unsupported_media_type``,
    ``validation_failed``, ``invalid_key``, and the refusals of ``errors.refused``."""

    buckets: Buckets
    uploads: Uploads
    live: Live

    async def check(
        self,
        to: Destination,
        key: str,
        declared: str | None,
        size: int,
        details: Details = NO_DETAILS,
        limit: SizeLimit | None = None,
    ) -> str:
        """Refuse an upload that the commit would refuse, as far as is known now; return its content type.

        ``size`` is the least size that it can have; ``limit`` that of its destination, if it is known.
        """
        (limit or self._limit(to)).check(size)
        content_type = to.content_type(declared, key)
        await self.uploads.check(to.bucket, key, to.writer, to.conditions, size, content_type, details)
        return content_type

    async def body(self, request: Request, to: Destination, key: str) -> Switched:
        """Upload the request's body as the object ``key``. Also raises what ``parameters.body_head`` raises, and
        ``bad_digest``."""
        body, head, limit = request.body, request.headers.derived(parameters.body_head), self._limit(to)
        details, digests = head.details, BodyDigests(head.expected) if head.expected else None
        content_type = await self.check(to, key, head.declared, body.length or 0, details, limit)
        async with await self.uploads.begin(to.bucket.name, limit, body.length) as upload:
            upload.describe(content_type, key)
            while chunk := await body.next_chunk():
                if digests is not None:
                    digests.update(chunk)
                await upload.write(chunk)
            if digests is not None:
                digests.check()
            await self._check_again(to, key, content_type, upload.size)
            await upload.store()
            digest = None if to.link is None else to.link.digest
            return await upload.commit(key, content_type, details, to.writer, to.conditions, digest)

    async def form(self, request: Request, to: Destination) -> tuple[Switched, str | None]:
        """Upload the file of the request's form; also the URL that the form wants to lead to. Also raises
        ``invalid_multipart``, and ``bad_digest``: digests in headers are of the whole form."""
        headers, body, writer = request.headers, request.body, to.writer
        parameters.refuse_partial(headers)
        limit, least = self._limit(to), max(0, (body.length or 0) - parameters.FORM_OVERHEAD_BYTES)
        limit.check(least)
        names = to.names or (FIELDS if to.link is None else FIELDS_BY_LINK)
        form = FormReader(boundary_of(headers.text(b"content-type")), names)
        fields, digests = parameters.FormFields(details_of(headers), to.fixed_key), BodyDigests.of(headers)
        await self._check_form(to, fields, least)
        async with await self.uploads.begin(to.bucket.name, limit, body.length) as upload:
            while chunk := await body.next_chunk():
                digests.update(chunk)
                for event in form.feed(chunk):
                    if isinstance(event, bytes):
                        await upload.write(event)
                        continue
                    if isinstance(event, FileStart):
                        fields.start_file(event)
                        upload.describe(to.content_type(fields.content_type, fields.key), fields.key)
                    elif event.name == "key":
                        fields.key = to.key_of(event.value)
                    else:
                        fields.add(event, writer, self.live.settings.redirect_urls)
                    await self._check_form(to, fields, least)
            form.finish()
            if fields.filename == "" and not upload.size:
                # What browsers send for <input type="file"> without a file (HTML Standard, "constructing the entry
                # list"). An empty file has a name.
                raise errors.invalid_multipart("no file was chosen")
            digests.check()
            if fields.key is None and not fields.filename:
                raise errors.invalid_key("there is no field key, and the file has no name")
            fields.key = key = fields.key or to.key_of(fields.filename or "")
            await self._check_form(to, fields, upload.size)
            content_type = to.content_type(fields.content_type, key)
            await self._check_again(to, key, content_type, upload.size)
            await upload.store()
            if fields.owner is not None:
                writer = evolve(writer, user_id=fields.owner)
            digest = None if to.link is None else to.link.digest
            switched = await upload.commit(key, content_type, fields.details, writer, to.conditions, digest)
        return switched, fields.redirect

    async def _check_form(self, to: Destination, fields: parameters.FormFields, size: int) -> None:
        """As ``check``, once, as soon as enough is known: policies judge the type of the file too."""
        judged = to.bucket.rules.policies and not to.writer.is_service
        if fields.checked or fields.key is None or (judged and not fields.has_file):
            return
        fields.checked = True
        content_type = to.content_type(fields.content_type, fields.key) if fields.has_file else ""
        await self.uploads.check(
            to.bucket, fields.key, to.writer, to.conditions, size, content_type, fields.details
        )

    async def _check_again(self, to: Destination, key: str, content_type: str, size: int) -> None:
        """Check the bucket's rules at the end of an upload. It may have taken days, so that they may have changed, or
        the bucket may have been replaced by another of its name."""
        bucket = await self.buckets.same(to.bucket)
        if bucket is to.bucket:
            return  # by its rules the upload has been checked, and they are less than a second old
        current = evolve(to, bucket=bucket)
        self._limit(current).check(size)
        current.content_type(content_type, key)

    def _limit(self, to: Destination) -> SizeLimit:
        by_link = None if to.link is None else to.link.terms.max_bytes
        return SizeLimit.of(to.bucket, self.live.settings.max_object_bytes, by_link)
