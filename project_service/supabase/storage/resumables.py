"""``/upload/resumable``: the resumable uploads of the domain, where bucket and key are in ``Upload-Metadata``."""

from __future__ import annotations

from attrs import evolve, frozen

from project_service import base64url
from project_service.errors import ApiError, validation_failed
from project_service.http.describe import Operation, Parameter, in_header, in_path
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Endpoint, endpoint
from project_service.storage import access, errors, keys
from project_service.storage.parsing import tus
from project_service.storage.routes.descriptions import BAD_KEY, NO_BUCKET
from project_service.storage.routes.resumables import ResumableRoutes, Target, version_of
from project_service.storage.values import ResumableUpload, Writer
from project_service.supabase.storage.common import TAG
from project_service.supabase.storage.objects import upsert_of

UPLOADS = "/upload/resumable"
UPLOAD = f"{UPLOADS}/<upload>"
_UPLOAD = in_path("upload", "The upload's id, from its Location.")
_UPSERT = in_header("x-upsert", "true: the upload may replace an object.")


def _like(handler: object, *parameters: Parameter) -> Operation:
    """The operation of ``handler`` at these paths."""
    declared: Endpoint = handler.endpoint  # type: ignore[attr-defined]
    described = declared.described
    others = tuple(
        one for one in described.parameters if one.location == "header" and one.name != "X-Object-Owner"
    )
    kept = tuple(one for one in others if one.name.lower() != "x-upsert")
    return evolve(
        described,
        tag=TAG,
        parameters=(*parameters, *kept),
        errors=(*described.errors, NO_BUCKET, BAD_KEY, validation_failed({})),
    )


@frozen(eq=False)
class ClientUploads(ResumableRoutes):
    @endpoint("OPTIONS", UPLOADS, _like(ResumableRoutes.discover), key="ignored", bearer="own", or_slash=True)
    async def discover(self, request: Request) -> Reply:
        return await super().discover(request)

    @endpoint(
        "OPTIONS",
        UPLOAD,
        _like(ResumableRoutes.discover_one, _UPLOAD),
        key="ignored",
        bearer="own",
        or_slash=True,
    )
    async def discover_one(self, request: Request) -> Reply:
        return await super().discover(request)

    @endpoint("POST", UPLOADS, _like(ResumableRoutes.begin, _UPSERT), or_slash=True)
    async def begin(self, request: Request) -> Reply:
        headers = request.headers
        tus.check_version(headers)
        described = tus.Described.of(headers)
        if described.bucket is None:
            raise validation_failed({"bucketName": "is required in Upload-Metadata"})
        if not described.key:
            raise errors.invalid_key("there is no objectName in Upload-Metadata")
        # Counters that are a second old would let a whole file come that does not fit into the quota.
        bucket = await self.resumables.buckets.fresh(described.bucket)
        writer = access.writer_by_policies(request.caller, bucket)
        key = keys.parse_new_key(described.key)
        return await self.begin_at(request, Target(bucket, key, writer, upsert_of(request), described))

    @endpoint("GET", UPLOAD, _like(ResumableRoutes.status, _UPLOAD), or_slash=True)
    async def status(self, request: Request) -> Reply:
        return await super().status(request)

    @endpoint("PATCH", UPLOAD, _like(ResumableRoutes.append, _UPLOAD), or_slash=True)
    async def append(self, request: Request) -> Reply:
        return await super().append(request)

    @endpoint("DELETE", UPLOAD, _like(ResumableRoutes.terminate, _UPLOAD), or_slash=True)
    async def terminate(self, request: Request) -> Reply:
        return await super().terminate(request)

    @endpoint("POST", UPLOAD, _like(ResumableRoutes.override, _UPLOAD), or_slash=True)
    async def override(self, request: Request) -> Reply:
        return await super().override(request)

    def path_of(self, request: Request, upload: ResumableUpload) -> str:
        """Below the path that was asked, whichever base it has."""
        name = base64url.encode(f"{upload.version}/{upload.bucket}".encode())
        return f"{request.raw_path.decode('latin-1').rstrip('/')}/{name}"

    async def find(self, request: Request) -> tuple[ResumableUpload, Writer]:
        try:
            text, _, name = base64url.decode(request.path_args["upload"]).decode().partition("/")
        except ValueError:
            raise errors.upload_not_found() from None
        version = version_of(text)
        try:
            bucket = await self.resumables.buckets.get(name)
        except ApiError as refusal:
            if refusal.code != "bucket_not_found":
                raise
            raise errors.upload_not_found() from None
        writer = access.writer_by_policies(request.caller, bucket)
        return await self.resumables.find(bucket.name, version, writer), writer
