"""``/storage/buckets/{bucket}/resumable``: resumable uploads by tus 1.0.0, for any client of the protocol.

Every path may end with a slash, as those of other servers of tus do.
"""

from __future__ import annotations

from uuid import UUID

from attrs import evolve, frozen

from project_service.errors import (
    ApiError,
    Headers,
    method_not_allowed,
    payload_too_large,
    service_key_required,
    unsupported_media_type,
    validation_failed,
)
from project_service.http.describe import (
    COUNT,
    MOMENT,
    STRING,
    Answer,
    Named,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    exactly,
    in_header,
    in_path,
)
from project_service.http.head import HeaderView
from project_service.http.request import Request
from project_service.http.response import ENVELOPE, NO_STORE, ErrorForm, Reply, error_reply, json_reply
from project_service.http.routing import Handler, endpoint
from project_service.lifecycle import timestamp
from project_service.storage import access, cache_control, errors, keys
from project_service.storage.parsing import digests, parameters, tus
from project_service.storage.parsing.conditions import making_conditions, with_upsert
from project_service.storage.parsing.details import details_of, with_field
from project_service.storage.parsing.digests import BodyDigests
from project_service.storage.resumables import NewUpload, Piece, Resumables
from project_service.storage.routes.common import translated
from project_service.storage.routes.descriptions import (
    BUCKET,
    DATABASE_AND_STORE,
    DETAIL_HEADERS,
    IN_BUCKET,
    KEY,
    MAKE_IF,
    METADATA,
    TAG,
    WRITE_REFUSED,
    json_answer,
)
from project_service.storage.values import Bucket, Conditions, ResumableUpload, Writer

UPLOADS = f"{BUCKET}/resumable"
UPLOAD = f"{UPLOADS}/<upload>"
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST")

_IN_UPLOADS = (IN_BUCKET, in_path("upload", "The upload's id, from its Location."))
_VERSION = in_header("Tus-Resumable", f"{tus.VERSION}: the version of tus that the client speaks.")
_LENGTH = in_header("Upload-Length", "The size of the file in bytes.")
_CHECKSUM = in_header(
    "Upload-Checksum", f"{', '.join(tus.ALGORITHMS)}, and the digest of the body in base64."
)
_DIGESTS = (
    in_header("Content-Digest", "The SHA-256 or SHA-512 of the body (RFC 9530)."),
    in_header("Repr-Digest", "The SHA-256 of the whole file (RFC 9530)."),
)
_BYTES: Schema = {"type": "string", "format": "binary", "contentMediaType": tus.CONTENT_TYPE}
_BODY = RequestBody({tus.CONTENT_TYPE: _BYTES}, required=False, summary="The next bytes of the file.")
_OFFSET = "How many bytes the service has; the client goes on from there."
_OF_OBJECT = {
    "ETag": "That of the object, once it is one.",
    "Content-Location": "The path of the object, once it is one.",
}
_OF_UPLOAD = {"Upload-Offset": _OFFSET, "Upload-Expires": "By when the upload has to go on.", **_OF_OBJECT}
_OF_STATUS = {
    "Upload-Length": "The size of the file, if it is known.",
    "Upload-Defer-Length": "1 as long as it is not.",
    "Upload-Metadata": "As the POST had it.",
    **_OF_UPLOAD,
}
_OF_DISCOVERY = {
    "Tus-Version": "The versions of tus that the service speaks.",
    "Tus-Extension": "The extensions of tus that it has.",
    "Tus-Max-Size": "The greatest size of a file.",
    "Tus-Checksum-Algorithm": "What Upload-Checksum may name.",
}
_STATUS = Named(
    "ResumableUpload",
    exactly(
        key=KEY,
        content_type=STRING,
        offset=COUNT,
        length={"type": ["integer", "null"], "minimum": 0, "description": "null as long as it is not known."},
        expires_at=MOMENT,
        object={"anyOf": [METADATA, {"type": "null"}], "description": "null until it is one."},
    ),
)

_NO_VERSION = errors.tus_version_not_supported(tus.VERSION)
_NOT_THERE = (errors.upload_not_found(), errors.upload_expired(), errors.upload_locked(), _NO_VERSION)
_BAD_HEADER = errors.invalid_upload_header("why")
# What the switch refuses, when the last byte is there.
_SWITCH_REFUSED = (
    *WRITE_REFUSED,
    errors.payload_too_large_for_bucket(),
    errors.unsupported_media_type_of_object("a type that the bucket does not take"),
)
_PIECE_REFUSED = (
    _BAD_HEADER,
    payload_too_large(0),
    errors.request_timeout_of_upload(),
    errors.invalid_checksum("why"),
    errors.checksum_mismatch(),
    errors.bad_digest("Content-Digest", "why"),
    *_SWITCH_REFUSED,
)


def _error_reply(error: ApiError) -> Reply:
    reply = error_reply(error)
    return evolve(reply, headers=(*reply.headers, *tus.OF_RESPONSES))


# The protocol asks for its headers on every response.
ERROR_FORM = ErrorForm(_error_reply, ENVELOPE.schema)


def with_tus(handler: Handler) -> Handler:
    """``handler`` as ``common.translated`` wraps it, with the headers that the protocol asks for on its replies."""
    inner = translated(handler)

    async def handling(request: Request) -> Reply:
        reply = await inner(request)
        assert isinstance(reply, Reply)
        return evolve(reply, headers=(*reply.headers, *tus.OF_RESPONSES))

    return handling


@frozen
class Target:
    """Where a new upload goes, and what its ``Upload-Metadata`` says."""

    bucket: Bucket
    key: str
    writer: Writer
    conditions: Conditions
    described: tus.Described


@frozen(eq=False)
class ResumableRoutes:
    resumables: Resumables

    @endpoint(
        "OPTIONS",
        UPLOADS,
        Operation(
            "discoverUploads",
            TAG,
            "What the service can do of tus",
            (Answer(204, "In the headers", headers=_OF_DISCOVERY),),
            (IN_BUCKET,),
            needs=(),
        ),
        key="optional",
        bearer="own",
        or_slash=True,
    )
    async def discover(self, request: Request) -> Reply:
        return Reply(204, tus.options(self.resumables.live.settings.max_object_bytes))

    @endpoint(
        "OPTIONS",
        UPLOAD,
        Operation(
            "discoverUpload",
            TAG,
            "What the service can do of tus",
            (Answer(204, "In the headers", headers=_OF_DISCOVERY),),
            _IN_UPLOADS,
            needs=(),
        ),
        key="optional",
        bearer="own",
        or_slash=True,
    )
    async def discover_one(self, request: Request) -> Reply:
        return await self.discover(request)

    @endpoint(
        "POST",
        UPLOADS,
        Operation(
            "beginUpload",
            TAG,
            "Begin a resumable upload (tus)",
            (
                Answer(
                    201,
                    "The upload has begun, and has what the body brought of it",
                    headers={"Location": "The path of the upload.", **_OF_UPLOAD},
                ),
            ),
            (
                IN_BUCKET,
                Parameter("key", "The object's key, where Upload-Metadata names none.", KEY),
                _VERSION,
                _LENGTH,
                in_header("Upload-Defer-Length", "1: the size will be said later."),
                in_header(
                    "Upload-Metadata", "key (or filename), filetype and others, with values in base64."
                ),
                _CHECKSUM,
                *_DIGESTS,
                *MAKE_IF,
                in_header("X-Object-Owner", "By the service key alone: to whom the object is to belong."),
                *(one for one in DETAIL_HEADERS if not one.name.endswith("-Digest")),
            ),
            _BODY,
            (
                _NO_VERSION,
                method_not_allowed(("OPTIONS", "POST")),
                service_key_required(),
                validation_failed({}),
                errors.upload_locked(),
                *_PIECE_REFUSED,
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
        or_slash=True,
    )
    async def begin(self, request: Request) -> Reply:
        headers, resumables = request.headers, self.resumables
        method = headers.text(b"x-http-method-override")
        if method == "OPTIONS":
            return await self.discover(request)
        if method not in (None, "POST"):
            raise method_not_allowed(("OPTIONS", "POST"))
        tus.check_version(headers)
        writer = access.writer_of(request.caller, headers.text(b"x-object-owner"))
        # Counters that are a second old would let a whole file come that does not fit into the quota.
        bucket = await resumables.buckets.named().fresh(request.path_args["bucket"])
        described, conditions = tus.Described.of(headers), making_conditions(headers)
        if described.upsert is not None:
            conditions = with_upsert(conditions, described.upsert)
        if described.bucket not in (None, bucket.name):
            raise validation_failed({"bucketName": "is not the bucket of this path"})
        named = described.key or request.query_value("key")
        if not named:
            raise errors.invalid_key(
                "there is no key or filename in Upload-Metadata, and no key in the query"
            )
        key = keys.parse_new_key(named)
        return await self.begin_at(request, Target(bucket, key, writer, conditions, described))

    async def begin_at(self, request: Request, to: Target) -> Reply:
        """Begin the upload, with the bytes that the body has of it."""
        headers, resumables, described = request.headers, self.resumables, to.described
        length, checks = tus.length_of_new(headers), _checks(headers)
        details = details_of(headers)
        if described.max_age is not None:
            age = cache_control.max_age(described.max_age, "cacheControl")
            details = evolve(details, max_age_seconds=age, cache_control=None)
        if described.metadata is not None:
            details = with_field(details, "metadata", described.metadata)
        content_type = parameters.chosen_type(to.bucket, described.content_type, to.key)
        sha256 = digests.whole_sha256(headers)
        new = NewUpload(to.key, content_type, length, to.conditions, details, described.text, sha256)
        has_bytes = length == 0 or (tus.has_bytes(headers) and request.body.length != 0)
        if not has_bytes and (digest := BodyDigests.of_content(headers)) is not None:
            digest.check()  # it is of some
        upload = await resumables.begin(to.bucket, new, to.writer)
        location = request.location(self.path_of(request, upload))
        if has_bytes:
            upload = await resumables.append(upload, request, Piece(0, None, checks), to.writer)
        return Reply(201, (location, *_progress(request, upload)))

    def path_of(self, request: Request, upload: ResumableUpload) -> str:
        """Where the upload goes on, given the request that began it."""
        return f"/storage/buckets/{upload.bucket}/resumable/{upload.version}"

    @endpoint(
        "GET",
        UPLOAD,
        Operation(
            "uploadStatus",
            TAG,
            "How far a resumable upload is: HEAD by tus, GET as JSON",
            (evolve(json_answer(200, "How far it is", _STATUS), headers=_OF_STATUS),),
            (*_IN_UPLOADS, _VERSION),
            errors=(*_NOT_THERE, *_SWITCH_REFUSED),
            needs=DATABASE_AND_STORE,
        ),
        bearer="required",
        or_slash=True,
    )
    async def status(self, request: Request) -> Reply:
        if request.method != "GET":
            tus.check_version(request.headers)
        upload, writer = await self.find(request)
        upload = await self.resumables.current(upload, request, writer)
        length = ("Upload-Defer-Length", "1")
        if upload.length is not None:
            length = ("Upload-Length", str(upload.length))
        metadata: Headers = (("Upload-Metadata", upload.metadata),) if upload.metadata else ()
        return json_reply(_shown(upload), headers=(NO_STORE, length, *metadata, *_progress(request, upload)))

    @endpoint(
        "PATCH",
        UPLOAD,
        Operation(
            "continueUpload",
            TAG,
            "Send the next bytes of a resumable upload; the last ones make the object",
            (Answer(204, "The service has them", headers=_OF_UPLOAD),),
            (*_IN_UPLOADS, _VERSION, in_header("Upload-Offset", _OFFSET), _LENGTH, _CHECKSUM, *_DIGESTS),
            _BODY,
            (
                *_NOT_THERE,
                errors.offset_mismatch(0),
                unsupported_media_type(tus.CONTENT_TYPE),
                *_PIECE_REFUSED,
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
        or_slash=True,
    )
    async def append(self, request: Request) -> Reply:
        headers = request.headers
        tus.check_version(headers)
        if not tus.has_bytes(headers):
            raise unsupported_media_type(f"the next bytes of the upload, sent as {tus.CONTENT_TYPE}")
        piece = Piece(
            tus.offset(headers), tus.length(headers), _checks(headers), digests.whole_sha256(headers)
        )
        upload, writer = await self.find(request)
        upload = await self.resumables.append(upload, request, piece, writer)
        return Reply(204, _progress(request, upload))

    @endpoint(
        "DELETE",
        UPLOAD,
        Operation(
            "terminateUpload",
            TAG,
            "Give a resumable upload up, and delete what was received of it; an object that it has become stays",
            (Answer(204, "It is gone."),),
            (*_IN_UPLOADS, _VERSION),
            errors=_NOT_THERE,
            needs=DATABASE_AND_STORE,
        ),
        bearer="required",
        or_slash=True,
    )
    async def terminate(self, request: Request) -> Reply:
        tus.check_version(request.headers)
        upload, _ = await self.find(request)
        await self.resumables.terminate(upload, request)
        return Reply(204)

    @endpoint(
        "POST",
        UPLOAD,
        Operation(
            "overrideMethod",
            TAG,
            "PATCH, HEAD or DELETE of a resumable upload, for clients that can only POST",
            (
                Answer(200, "As HEAD", headers=_OF_STATUS),
                Answer(204, "As PATCH or DELETE", headers=_OF_UPLOAD),
            ),
            (*_IN_UPLOADS, in_header("X-HTTP-Method-Override", "PATCH, HEAD or DELETE."), _VERSION),
            _BODY,
            (
                *_NOT_THERE,
                method_not_allowed(_METHODS),
                errors.offset_mismatch(0),
                unsupported_media_type(tus.CONTENT_TYPE),
                *_PIECE_REFUSED,
            ),
            DATABASE_AND_STORE,
        ),
        bearer="required",
        or_slash=True,
    )
    async def override(self, request: Request) -> Reply:
        method = request.headers.text(b"x-http-method-override")
        if method == "PATCH":
            return await self.append(request)
        if method == "DELETE":
            return await self.terminate(request)
        if method == "HEAD":
            return evolve(await self.status(request), body=b"")
        raise method_not_allowed(tuple(one for one in _METHODS if one != "POST"))

    async def find(self, request: Request) -> tuple[ResumableUpload, Writer]:
        """The upload of the path, and the caller as its writer."""
        writer = access.writer_of(request.caller)
        version = version_of(request.path_args["upload"])
        return await self.resumables.find(request.path_args["bucket"], version, writer), writer


def version_of(text: str) -> UUID:
    """The id in the path of an upload. Raises ``upload_not_found``."""
    try:
        version = UUID(text)
    except ValueError:
        raise errors.upload_not_found() from None
    if str(version) != text:
        raise errors.upload_not_found()
    return version


def _checks(headers: HeaderView) -> tuple[tus.Checksum | BodyDigests, ...]:
    """What the bytes in the body are compared with."""
    given = (tus.Checksum.of(headers), BodyDigests.of_content(headers))
    return tuple(one for one in given if one is not None)


def _progress(request: Request, upload: ResumableUpload) -> Headers:
    offset = ("Upload-Offset", str(upload.received))
    if upload.committed_at is None:
        return (offset, tus.expires(upload.expires_at))
    _, path = request.location(f"/storage/buckets/{upload.bucket}/objects/{upload.key}")
    return (offset, ("ETag", f'"{upload.etag}"'), ("Content-Location", path))


def _shown(upload: ResumableUpload) -> dict[str, object]:
    made = upload.committed_at
    made_object = (
        None
        if made is None
        else {
            "key": upload.key,
            "size": upload.length,
            "content_type": upload.content_type,
            "last_modified": timestamp(made),
            "etag": upload.etag,
        }
    )
    return {
        "key": upload.key,
        "content_type": upload.content_type,
        "offset": upload.received,
        "length": upload.length,
        "expires_at": timestamp(upload.expires_at),
        "object": made_object,
    }
