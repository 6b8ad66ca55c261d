"""``/storage/buckets/{bucket}/...`` and ``/storage/download``."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from functools import partial
from hashlib import md5
from typing import Any
from uuid import UUID

from attrs import define, evolve, field, frozen
from orjson import Fragment
from twisted.logger import Logger

from project_service.errors import (
    ApiError,
    Headers,
    authentication_required,
    store_unavailable,
    validation_failed,
)
from project_service.http.caller import Caller
from project_service.http.head import HeaderView
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.routing import Handler, Router
from project_service.lifecycle import timestamp
from project_service.settings.model import Storage as StorageSettings
from project_service.storage import conditions, described, errors, keys, requests
from project_service.storage.buckets import Buckets, bucket_name_errors, parse_rules
from project_service.storage.download import NO_SNIFFING, Downloads, Terms
from project_service.storage.errors import STORE_FAILURES
from project_service.storage.form import Field, FileStart, FormReader, boundary_of
from project_service.storage.links import LINK_HEADERS, NO_REFERRER, Links, as_shown
from project_service.storage.objects import Objects
from project_service.storage.repository import ObjectRows
from project_service.storage.s3.errors import kind_of
from project_service.storage.upload import SizeLimit, Uploads
from project_service.storage.values import Bucket, BucketRules, ObjectRow, Writer

# What uploads, as a form or as raw bytes, say of the object that they are to become. Pure.


# How much of a form's Content-Length may be something else than its file.
FORM_OVERHEAD_BYTES = 256 * 1024


def least_size(length: int | None, overhead: int = 0) -> int:
    """The least size that the object can have, given the request's Content-Length; 0 where that is not known."""
    return 0 if length is None else max(0, length - overhead)


def chosen_type(bucket: Bucket, declared: str | None, key: str | None) -> str:
    """The declared media type, else one guessed from the key.

    Raises ``validation_failed`` where the declared one cannot be read, and ``content_type_not_allowed`` where the
    bucket does not take it. Without a key (it may come after the file) a guess is not checked yet.
    """
    stated = keys.parse_content_type(declared) if declared else None
    chosen = stated or keys.guess_content_type(key or "")
    known = stated is not None or key is not None
    if known and not keys.allowed(chosen, bucket.rules.allowed_content_types):
        raise errors.content_type_not_allowed(keys.essence(chosen))
    return chosen


@define
class ContentMD5:
    """Checks a body against its ``Content-MD5`` (RFC 1864, as in S3), if it has one. Raises ``bad_digest``."""

    _stated: bytes | None
    _seen: Any = field(factory=partial(md5, usedforsecurity=False), init=False)

    @classmethod
    def of(cls, headers: HeaderView) -> ContentMD5:
        header = headers.first.get(b"content-md5")
        if header is None:
            return cls(None)
        try:
            digest = b64decode(header, validate=True)
        except ValueError:
            digest = b""
        if len(digest) != md5(usedforsecurity=False).digest_size:
            raise errors.bad_digest("is not the base64 of an MD5")
        return cls(digest)

    def update(self, data: bytes) -> None:
        if self._stated is not None:
            self._seen.update(data)

    def check(self) -> None:
        if self._stated not in (None, self._seen.digest()):
            raise errors.bad_digest("is not that of the body")


@define
class FormFields:
    """What a form says beside the bytes of its file. Its fields may come before or after the file.

    ``key`` and ``max_age_seconds`` are those fields, as far as they have come.
    """

    max_age_seconds: int | None
    key: str | None = None
    owner: UUID | None = None
    filename: str | None = None
    content_type: str | None = None

    def take(self, sent: Field, writer: Writer) -> None:
        """Raises ``invalid_key``, ``service_key_required``, ``validation_failed``."""
        if sent.name == "key":
            self.key = keys.parse_key(sent.value)
        elif sent.name == "owner":
            self.owner = requests.parse_owner(sent.value, writer)
        else:
            self.max_age_seconds = requests.parse_max_age(sent.value)

    def object_key(self) -> str:
        """The field ``key``, else the file's name; to be asked at the end of the form."""
        if self.key is not None:
            return self.key
        if not self.filename:
            raise errors.invalid_key("there is no field key, and the file has no name")
        return keys.parse_key(self.filename)


# Wraps the handlers of storage: turns failures of the store into errors, and completes the headers of refusals.


_log = Logger()

# Unless it is told otherwise, a cache may keep a 404 (RFC 9110 section 15.1), and so hide an object that is uploaded
# a moment later. And a browser must not guess the type of a refusal either.
_OF_REFUSALS = (NO_STORE, NO_SNIFFING)


def translated(handler: Handler, headers: Headers = ()) -> Handler:
    """``handler``, with failures of the store turned into ``store_unavailable`` and their kind logged.

    Errors get ``headers`` and those that all refusals of storage have.
    """

    async def handling(request: Request) -> Reply | StreamReply:
        # No variable outlives its clause here: an error that is kept by a call in its own traceback waits for the
        # garbage collector, with all that the request holds.
        try:
            try:
                return await handler(request)
            except STORE_FAILURES as failure:
                kind, request_id = kind_of(failure), request.request_id
                _log.warn("The store failed: {kind} id={request_id}", kind=kind, request_id=request_id)
                raise store_unavailable() from None
        except ApiError as refusal:
            refusal.headers = (*refusal.headers, *_OF_REFUSALS, *headers)
            raise

    return handling


# Who may do what to a bucket's objects. Pure.


def check_read(caller: Caller, bucket: Bucket) -> None:
    """Listing, downloading and presigning: anyone with a project key where the bucket is public."""
    if not bucket.public and not caller.signed_in:
        raise authentication_required()


def writer_of(caller: Caller) -> Writer:
    """Writing always needs a signed-in end user or the service key; raises ``authentication_required``."""
    if not caller.signed_in:
        raise authentication_required()
    user_id = None if caller.user is None else UUID(caller.user.sub)
    return Writer(user_id, caller.is_service)


# ``/admin/buckets``: buckets by the service key.


BUCKETS = "/admin/buckets"
MANAGED_BUCKET = f"{BUCKETS}/<bucket>"


@frozen(eq=False)
class BucketRoutes:
    buckets: Buckets
    objects: Objects

    def mount(self, router: Router) -> None:
        for url, method, said, handler in (
            (BUCKETS, "POST", described.CREATE_BUCKET, self.create),
            (BUCKETS, "GET", described.LIST_BUCKETS, self.list),
            (MANAGED_BUCKET, "GET", described.SHOW_BUCKET, self.show),
            (MANAGED_BUCKET, "PATCH", described.CHANGE_BUCKET, self.change),
            (MANAGED_BUCKET, "DELETE", described.DELETE_BUCKET, self.delete),
            (f"{MANAGED_BUCKET}/objects", "DELETE", described.DELETE_PREFIX, self.delete_prefix),
        ):
            router.route(url, said, methods=(method,), key="service")(translated(handler))

    async def create(self, request: Request) -> Reply:
        body = await request.json_object()
        name = body.pop("name", None)
        rules = parse_rules(body, bucket_name_errors(name))
        bucket = await self.buckets.create(name, BucketRules(**rules))
        return _answered(bucket.as_json(), 201, request.location(f"{BUCKETS}/{bucket.name}"))

    async def list(self, request: Request) -> Reply:
        return _answered({"buckets": [bucket.as_json() for bucket in await self.buckets.all()]})

    async def show(self, request: Request) -> Reply:
        return _answered((await self.buckets.fresh(request.path_args["bucket"])).as_json())

    async def change(self, request: Request) -> Reply:
        changes = parse_rules(await request.json_object())
        return _answered((await self.buckets.change(request.path_args["bucket"], changes)).as_json())

    async def delete(self, request: Request) -> Reply:
        objects = self.objects if requests.flag(request, "force") else None
        await self.buckets.delete(request.path_args["bucket"], objects)
        return Reply(204)

    async def delete_prefix(self, request: Request) -> Reply:
        """A prefix must be given; the empty one means everything."""
        prefix = request.query_value("prefix")
        if prefix is None:
            raise validation_failed({"prefix": "is required"})
        bucket = await self.buckets.fresh(request.path_args["bucket"])
        count = await self.objects.delete_prefix(bucket, keys.parse_prefix(prefix))
        return _answered({"deleted": count})


def _answered(value: object, status: int = 200, *more: tuple[str, str]) -> Reply:
    """By the service key alone, which a cache does not know for a credential."""
    return json_reply(value, status, (NO_STORE, *more))


BUCKET = "/storage/buckets/<bucket>"
OBJECT = f"{BUCKET}/objects/<path:key>"
# Cache-Control of objects and listings of a private bucket.
NOT_SHARED = ("Cache-Control", "private, no-store")


@frozen(eq=False)
class StorageRoutes:
    """``current_settings`` returns the present settings."""

    buckets: Buckets
    rows: ObjectRows
    objects: Objects
    uploads: Uploads
    downloads: Downloads
    links: Links
    current_settings: Callable[[], StorageSettings]

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

    async def list(self, request: Request) -> Reply:
        bucket = await self._readable(request)
        prefix = keys.parse_prefix(request.query_value("prefix") or "")
        recursive = requests.flag(request, "recursive")
        limit = requests.max_keys(request)
        token = request.query_value("page_token")
        after = None if token is None else requests.decode_page_token(token, prefix, recursive)
        page = await self.rows.page(bucket.name, prefix, after, limit, recursive)
        return json_reply(
            {
                "objects": Fragment(page.objects),
                "folders": Fragment(page.folders),
                "prefix": prefix,
                "is_truncated": page.last is not None,
                "next_token": None
                if page.last is None
                else requests.encode_page_token(page.last, prefix, recursive),
            },
            # Without this header a cache may keep the listing, some do for a day, and show it without any key.
            headers=(NO_STORE if bucket.public else NOT_SHARED,),
        )

    async def upload_form(self, request: Request) -> Reply:
        bucket, writer = await self._writable(request)
        headers, body = request.headers, request.body
        stated = conditions.for_write(headers)
        requests.refuse_partial(headers)
        limit, least = self._limit(bucket), least_size(body.length, FORM_OVERHEAD_BYTES)
        limit.check(least)
        form = FormReader(boundary_of(headers.text(b"content-type")))
        fields = FormFields(requests.max_age_stated(headers))
        async with await self.uploads.begin(bucket.name, limit, body.length) as upload:
            while chunk := await body.next_chunk():
                for event in form.feed(chunk):
                    if isinstance(event, bytes):
                        await upload.write(event)
                    elif isinstance(event, FileStart):
                        fields.filename, fields.content_type = event.filename, event.content_type
                        known_type = chosen_type(bucket, event.content_type, fields.key)
                        upload.describe(known_type, fields.key)
                    else:
                        fields.take(event, writer)
                        if event.name == "key":
                            await self.objects.check_write(bucket, event.value, writer, stated)
                            await self.objects.check_room(bucket, event.value, least)
            form.finish()
            key = fields.object_key()
            content_type = chosen_type(bucket, fields.content_type, key)
            await self._check_again(bucket, key, content_type, upload.size)
            await upload.store()
            if fields.owner is not None:
                writer = evolve(writer, user_id=fields.owner)
            switched = await upload.commit(key, content_type, fields.max_age_seconds, writer, stated)
        return _created(request, bucket, switched.row)

    async def upload_raw(self, request: Request) -> Reply:
        key = keys.parse_key(request.path_args["key"])
        bucket, writer = await self._writable(request)
        headers, body = request.headers, request.body
        stated = conditions.for_write(headers)
        requests.refuse_partial(headers)
        requests.refuse_form(headers)
        requests.require_body(request)
        limit, least = self._limit(bucket), least_size(body.length)
        limit.check(least)
        max_age = requests.max_age_stated(headers)
        declared = keys.of_body(headers.text(b"content-type"))
        content_type = chosen_type(bucket, declared, key)
        digest = ContentMD5.of(headers)
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
        return _created(request, bucket, switched.row)

    async def download(self, request: Request) -> Reply | StreamReply:
        bucket = await self._readable(request)
        key = keys.parse_key(request.path_args["key"])
        inline = requests.flag(request, "inline")
        if bucket.public:
            terms = Terms(inline, public_max_age_seconds=self.current_settings().public_max_age_seconds)
        else:
            terms = Terms(inline, (NOT_SHARED,))
        return await self.downloads.answer(request, bucket.name, key, terms)

    async def delete(self, request: Request) -> Reply:
        key = keys.parse_key(request.path_args["key"])
        bucket, writer = await self._changeable(request)
        stated = conditions.for_write(request.headers)
        if not await self.objects.delete(bucket, [key], writer, stated):
            raise errors.object_not_found()
        return Reply(204)

    async def change(self, request: Request) -> Reply:
        key = keys.parse_key(request.path_args["key"])
        bucket, writer = await self._changeable(request)
        stated = conditions.for_write(request.headers)
        changes = requests.changes(await request.json_object(), writer)
        row = await self.objects.change(bucket, key, changes, stated)
        return json_reply(row.as_details(), headers=(NO_STORE,))

    async def presign(self, request: Request) -> Reply:
        await self._readable(request)
        default = self.current_settings().default_expires_in_seconds
        key, seconds, uses = requests.presign(await request.json_object(), default)
        # Again, because the body may have taken hours, and the bucket may have become private since.
        bucket = await self._readable(request)
        if await self.rows.find(bucket.name, key) is None:
            raise errors.object_not_found()
        token, expires_at = await self.links.make(bucket.name, key, seconds, uses)
        url = f"{request.base_url}/storage/download?token={token}"
        signed = {"url": url, "expires_at": timestamp(expires_at), "method": "GET"}
        return json_reply(signed, headers=(NO_STORE,))

    async def download_link(self, request: Request) -> Reply | StreamReply:
        try:
            token = request.query_value("token")
            if not token:
                raise validation_failed({"token": "is required"})
            use = await self.links.use(token, request.headers)
            terms = Terms(requests.flag(request, "inline"), LINK_HEADERS, use=use)
            return await self.downloads.answer(request, use.link.bucket, use.link.key, terms)
        except ApiError as refusal:
            raise as_shown(refusal, request.headers) from None

    async def copy(self, request: Request) -> Reply:
        bucket, writer = await self._writable(request)
        source, target = requests.source_and_target(await request.json_object())
        stated = conditions.for_write(request.headers)
        switched = await self.objects.copy(bucket, source, target, writer, stated)
        return _created(request, bucket, switched.row)

    async def move(self, request: Request) -> Reply:
        bucket, writer = await self._changeable(request)
        source, target = requests.source_and_target(await request.json_object())
        stated = conditions.for_write(request.headers)
        switched = await self.objects.move(bucket, source, target, writer, stated)
        return json_reply(switched.row.as_json())

    async def bulk_delete(self, request: Request) -> Reply:
        bucket, writer = await self._changeable(request)
        wanted = requests.bulk_keys(await request.json_object())
        deleted = await self.objects.delete(bucket, wanted, writer)
        gone = [key for key in wanted if key in deleted]
        return json_reply({"deleted": gone, "missing": [key for key in wanted if key not in deleted]})

    async def _readable(self, request: Request) -> Bucket:
        bucket = await self.buckets.get(request.path_args["bucket"])
        check_read(request.caller, bucket)
        return bucket

    async def _writable(self, request: Request) -> tuple[Bucket, Writer]:
        """The bucket and who writes, decided by the headers alone: the body has not been asked for yet."""
        writer = requests.owner_stated(request.headers, writer_of(request.caller))
        return await self.buckets.get(request.path_args["bucket"]), writer

    async def _changeable(self, request: Request) -> tuple[Bucket, Writer]:
        """As ``_writable``, for a request that makes no object and so takes no owner in a header."""
        writable = await self._writable(request)
        requests.refuse_owner(request.headers)
        return writable

    async def _check_again(self, bucket: Bucket, key: str, content_type: str, size: int) -> None:
        """Check the bucket's rules at the end of an upload. It may take days, and meanwhile they may have changed, or
        the bucket may have been replaced by another of its name."""
        current = await self.buckets.same(bucket)
        self._limit(current).check(size)
        chosen_type(current, content_type, key)

    def _limit(self, bucket: Bucket) -> SizeLimit:
        """The greatest size that an object may have, as far as is known now: the switch has the last word on a
        quota."""
        own = self.current_settings().max_object_bytes
        if bucket.rules.max_object_bytes is not None:
            own = min(own, bucket.rules.max_object_bytes)
        if bucket.rules.max_bucket_bytes is None:
            return SizeLimit(own)
        # The larger of the two, since in a bucket beyond its quota objects may still be replaced by smaller ones.
        quota = max(bucket.rules.max_bucket_bytes, bucket.total_bytes)
        return SizeLimit(min(own, quota), by_quota=quota < own)


def _created(request: Request, bucket: Bucket, row: ObjectRow) -> Reply:
    location = request.location(f"/storage/buckets/{bucket.name}/objects/{row.key}")
    return json_reply(row.as_json(), 201, (location,))
