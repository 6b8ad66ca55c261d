"""``/storage/buckets/{bucket}/...`` and ``/storage/download``."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen
from orjson import Fragment

from project_service.clocks import timestamp
from project_service.errors import ApiError, validation_failed
from project_service.http.inbound import Inbound
from project_service.http.outbound import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.router import Router
from project_service.settings.model import Storage as StorageSettings
from project_service.storage import (
    access,
    conditions,
    content_types,
    described,
    errors,
    intake,
    keys,
    page_token,
    requests,
)
from project_service.storage.buckets import Buckets
from project_service.storage.download import Downloads, Terms
from project_service.storage.failures import translated
from project_service.storage.form import FileStart, FormReader, boundary_of
from project_service.storage.links import LINK_HEADERS, NO_REFERRER, Links, as_shown
from project_service.storage.model import Bucket, ObjectRow, Writer
from project_service.storage.objects import Objects
from project_service.storage.ports import ObjectRows
from project_service.storage.upload import SizeLimit, Uploads

BUCKET = "/storage/buckets/<bucket>"
OBJECT = f"{BUCKET}/objects/<path:key>"
# Cache-Control of objects and listings of a private bucket.
NOT_SHARED = ("Cache-Control", "private, no-store")


@frozen(eq=False)
class StorageRoutes:
    """``in_force`` returns the present settings."""

    buckets: Buckets
    rows: ObjectRows
    objects: Objects
    uploads: Uploads
    downloads: Downloads
    links: Links
    in_force: Callable[[], StorageSettings]

    def mount(self, router: Router) -> None:
        """Declare every endpoint."""
        objects = f"{BUCKET}/objects"
        router.route(objects, described.LIST, methods=("GET",))(translated(self.list))
        for url, method, said, writing in (
            (objects, "POST", described.UPLOAD_FORM, self.upload_form),
            (OBJECT, "PUT", described.UPLOAD_RAW, self.upload_raw),
            (OBJECT, "DELETE", described.DELETE, self.delete),
            (f"{BUCKET}/copy", "POST", described.COPY, self.copy),
            (f"{BUCKET}/move", "POST", described.MOVE, self.move),
            (f"{BUCKET}/delete", "POST", described.BULK_DELETE, self.bulk_delete),
        ):
            router.route(url, said, methods=(method,), bearer="required")(translated(writing))
        router.route(OBJECT, described.DOWNLOAD, methods=("GET",))(translated(self.download))
        router.route(OBJECT, described.CHANGE, methods=("PATCH",), key="service")(translated(self.change))
        router.route(f"{BUCKET}/presign", described.PRESIGN, methods=("POST",))(translated(self.presign))
        router.route(
            "/storage/download", described.DOWNLOAD_LINK, methods=("GET",), key="optional", bearer="own"
        )(translated(self.download_link, (NO_REFERRER,)))

    async def list(self, inbound: Inbound) -> Reply:
        bucket = await self._readable(inbound)
        prefix = keys.parse_prefix(inbound.query_value("prefix") or "")
        recursive = requests.flag(inbound, "recursive")
        limit = requests.max_keys(inbound)
        token = inbound.query_value("page_token")
        after = None if token is None else page_token.decode(token, prefix, recursive)
        page = await self.rows.page(bucket.name, prefix, after, limit, recursive)
        return json_reply(
            {
                "objects": Fragment(page.objects),
                "folders": Fragment(page.folders),
                "prefix": prefix,
                "is_truncated": page.last is not None,
                "next_token": None if page.last is None else page_token.encode(page.last, prefix, recursive),
            },
            # Without this header a cache may keep the listing, some do for a day, and show it without any key.
            headers=(NO_STORE if bucket.public else NOT_SHARED,),
        )

    async def upload_form(self, inbound: Inbound) -> Reply:
        bucket, writer = await self._writable(inbound)
        headers, body = inbound.headers, inbound.body
        stated = conditions.for_write(headers)
        requests.refuse_partial(headers)
        limit, least = self._limit(bucket), intake.least_size(body.length, intake.FORM_OVERHEAD_BYTES)
        limit.check(least)
        form = FormReader(boundary_of(headers.text(b"content-type")))
        fields = intake.FormFields(requests.max_age_stated(headers))
        async with await self.uploads.begin(bucket.name, limit, body.length) as upload:
            while chunk := await body.next_chunk():
                for event in form.feed(chunk):
                    if isinstance(event, bytes):
                        await upload.write(event)
                    elif isinstance(event, FileStart):
                        fields.filename, fields.content_type = event.filename, event.content_type
                        known_type = intake.chosen_type(bucket, event.content_type, fields.key)
                        upload.describe(known_type, fields.key)
                    else:
                        fields.take(event, writer)
                        if event.name == "key":
                            await self.objects.check_write(bucket, event.value, writer, stated)
                            await self.objects.check_room(bucket, event.value, least)
            form.finish()
            key = fields.object_key()
            content_type = intake.chosen_type(bucket, fields.content_type, key)
            await self._check_again(bucket, key, content_type, upload.size)
            await upload.store()
            if fields.owner is not None:
                writer = evolve(writer, user_id=fields.owner)
            switched = await upload.commit(key, content_type, fields.max_age_seconds, writer, stated)
        return _created(inbound, bucket, switched.row)

    async def upload_raw(self, inbound: Inbound) -> Reply:
        key = keys.parse_key(inbound.path_args["key"])
        bucket, writer = await self._writable(inbound)
        headers, body = inbound.headers, inbound.body
        stated = conditions.for_write(headers)
        requests.refuse_partial(headers)
        requests.refuse_form(headers)
        requests.require_body(inbound)
        limit, least = self._limit(bucket), intake.least_size(body.length)
        limit.check(least)
        max_age = requests.max_age_stated(headers)
        declared = content_types.of_body(headers.text(b"content-type"))
        content_type = intake.chosen_type(bucket, declared, key)
        digest = intake.ContentMD5.of(headers)
        await self.objects.check_write(bucket, key, writer, stated)
        await self.objects.check_room(bucket, key, least)
        async with await self.uploads.begin(bucket.name, limit, body.length) as upload:
            upload.describe(content_type, key)
            while chunk := await body.next_chunk():
                digest.update(chunk)
                await upload.write(chunk)
            digest.check()
            await self._check_again(bucket, key, content_type, upload.size)
            await upload.store()
            switched = await upload.commit(key, content_type, max_age, writer, stated)
        if switched.replaced is not None:
            return json_reply(switched.row.as_json())
        return _created(inbound, bucket, switched.row)

    async def download(self, inbound: Inbound) -> Reply | StreamReply:
        bucket = await self._readable(inbound)
        key = keys.parse_key(inbound.path_args["key"])
        inline = requests.flag(inbound, "inline")
        if bucket.public:
            terms = Terms(inline, public_max_age_seconds=self.in_force().public_max_age_seconds)
        else:
            terms = Terms(inline, (NOT_SHARED,))
        return await self.downloads.answer(inbound, bucket.name, key, terms)

    async def delete(self, inbound: Inbound) -> Reply:
        key = keys.parse_key(inbound.path_args["key"])
        bucket, writer = await self._writable(inbound)
        stated = conditions.for_write(inbound.headers)
        if not await self.objects.delete(bucket, [key], writer, stated):
            raise errors.object_not_found()
        return Reply(204)

    async def change(self, inbound: Inbound) -> Reply:
        key = keys.parse_key(inbound.path_args["key"])
        bucket, writer = await self._writable(inbound)
        stated = conditions.for_write(inbound.headers)
        changes = requests.changes(await inbound.json_object(), writer)
        row = await self.objects.change(bucket, key, changes, stated)
        return json_reply(row.as_details(), headers=(NO_STORE,))

    async def presign(self, inbound: Inbound) -> Reply:
        await self._readable(inbound)
        default = self.in_force().default_expires_in_seconds
        key, seconds, uses = requests.presign(await inbound.json_object(), default)
        # Again, because the body may have taken hours, and the bucket may have become private since.
        bucket = await self._readable(inbound)
        if await self.rows.find(bucket.name, key) is None:
            raise errors.object_not_found()
        token, expires_at = await self.links.make(bucket.name, key, seconds, uses)
        url = f"{inbound.base_url}/storage/download?token={token}"
        signed = {"url": url, "expires_at": timestamp(expires_at), "method": "GET"}
        return json_reply(signed, headers=(NO_STORE,))

    async def download_link(self, inbound: Inbound) -> Reply | StreamReply:
        try:
            token = inbound.query_value("token")
            if not token:
                raise validation_failed({"token": "is required"})
            use = await self.links.use(token, inbound.headers)
            terms = Terms(requests.flag(inbound, "inline"), LINK_HEADERS, use=use)
            return await self.downloads.answer(inbound, use.link.bucket, use.link.key, terms)
        except ApiError as refusal:
            raise as_shown(refusal, inbound.headers) from None

    async def copy(self, inbound: Inbound) -> Reply:
        bucket, writer = await self._writable(inbound)
        source, target = requests.source_and_target(await inbound.json_object())
        stated = conditions.for_write(inbound.headers)
        switched = await self.objects.copy(bucket, source, target, writer, stated)
        return _created(inbound, bucket, switched.row)

    async def move(self, inbound: Inbound) -> Reply:
        bucket, writer = await self._writable(inbound)
        source, target = requests.source_and_target(await inbound.json_object())
        stated = conditions.for_write(inbound.headers)
        switched = await self.objects.move(bucket, source, target, writer, stated)
        return json_reply(switched.row.as_json())

    async def bulk_delete(self, inbound: Inbound) -> Reply:
        bucket, writer = await self._writable(inbound)
        wanted = requests.bulk_keys(await inbound.json_object())
        deleted = await self.objects.delete(bucket, wanted, writer)
        gone = [key for key in wanted if key in deleted]
        return json_reply({"deleted": gone, "missing": [key for key in wanted if key not in deleted]})

    async def _readable(self, inbound: Inbound) -> Bucket:
        bucket = await self.buckets.get(inbound.path_args["bucket"])
        access.check_read(inbound.caller, bucket)
        return bucket

    async def _writable(self, inbound: Inbound) -> tuple[Bucket, Writer]:
        """The bucket and who writes, decided by the headers alone: the body has not been asked for yet."""
        writer = requests.owner_stated(inbound.headers, access.writer_of(inbound.caller))
        return await self.buckets.get(inbound.path_args["bucket"]), writer

    async def _check_again(self, bucket: Bucket, key: str, content_type: str, size: int) -> None:
        """Check the bucket's rules at the end of an upload. It may take days, and meanwhile they may have changed, or
        the bucket may have been replaced by another of its name."""
        current = await self.buckets.same(bucket)
        self._limit(current).check(size)
        intake.chosen_type(current, content_type, key)

    def _limit(self, bucket: Bucket) -> SizeLimit:
        """The greatest size that an object may have, as far as is known now: the switch has the last word on a
        quota."""
        own = self.in_force().max_object_bytes
        if bucket.rules.max_object_bytes is not None:
            own = min(own, bucket.rules.max_object_bytes)
        if bucket.rules.max_bucket_bytes is None:
            return SizeLimit(own)
        # The larger of the two, since in a bucket beyond its quota objects may still be replaced by smaller ones.
        quota = max(bucket.rules.max_bucket_bytes, bucket.total_bytes)
        return SizeLimit(min(own, quota), by_quota=quota < own)


def _created(inbound: Inbound, bucket: Bucket, row: ObjectRow) -> Reply:
    location = inbound.location(f"/storage/buckets/{bucket.name}/objects/{row.key}")
    return json_reply(row.as_json(), 201, (location,))
