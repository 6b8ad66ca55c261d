"""``/upload/resumable``: the resumable uploads of the domain, where bucket and key are in ``Upload-Metadata``.

At ``/upload/resumable/sign`` the same by the token of a signed address, which stands in ``x-signature``.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from attrs import evolve, frozen

from project_service import base64url
from project_service.errors import ApiError, validation_failed
from project_service.http.describe import Operation, Parameter, in_header, in_path
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Endpoint, endpoint
from project_service.storage import access, errors, keys
from project_service.storage.links import Links, UploadPass
from project_service.storage.parsing import tus
from project_service.storage.parsing.conditions import write_conditions
from project_service.storage.resumables import Resumables
from project_service.storage.routes.descriptions import BAD_KEY, NO_BUCKET
from project_service.storage.routes.resumables import ResumableRoutes, Target, version_of
from project_service.storage.values import ResumableUpload, Writer
from project_service.supabase.storage.common import TAG
from project_service.supabase.storage.objects import upsert_of

UPLOADS = "/upload/resumable"
UPLOAD = f"{UPLOADS}/<upload>"
SIGNED = f"{UPLOADS}/sign"
_UPLOAD = in_path("upload", "The upload's id, from its Location.")
_UPSERT = in_header("x-upsert", "true: the upload may replace an object.")
_SIGNATURE = in_header("x-signature", "The token that the signed address came with.")


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


def at_signed(declared: Endpoint) -> Endpoint:
    """``declared``, an endpoint of ``ClientUploads``, where ``BySignature`` decides: no key and no user is asked."""
    described = declared.described
    sent = tuple(one for one in described.parameters if one is not _UPSERT)
    refused = (*described.errors, errors.token_not_found(), errors.token_expired())
    if declared.method != "OPTIONS":
        described = evolve(described, parameters=(*sent, _SIGNATURE), errors=refused)
    return evolve(
        declared,
        url=declared.url.replace(UPLOADS, SIGNED),
        described=evolve(described, name=f"{described.name}Signed"),
        key="ignored",
        bearer="own",
    )


class Rights(Protocol):
    """On whose behalf a request begins an upload, or goes on with one."""

    async def target(self, request: Request, described: tus.Described, bucket: str, key: str) -> Target:
        """Where the new object ``key`` of ``bucket`` goes."""

    async def find(self, request: Request, bucket: str, version: UUID) -> tuple[ResumableUpload, Writer]:
        """The upload and its writer. Raises ``upload_not_found``."""


@frozen(eq=False)
class ByCaller:
    """With the rights of who sends it."""

    resumables: Resumables

    async def target(self, request: Request, described: tus.Described, bucket: str, key: str) -> Target:
        # Counters that are a second old would let a whole file come that does not fit into the quota.
        known = await self.resumables.buckets.fresh(bucket)
        writer = access.writer_by_policies(request.caller, known)
        return Target(known, key, writer, upsert_of(request), described)

    async def find(self, request: Request, bucket: str, version: UUID) -> tuple[ResumableUpload, Writer]:
        try:
            known = await self.resumables.buckets.get(bucket)
        except ApiError as refusal:
            if refusal.code != "bucket_not_found":
                raise
            raise errors.upload_not_found() from None
        writer = access.writer_by_policies(request.caller, known)
        return await self.resumables.find(bucket, version, writer), writer


@frozen(eq=False)
class BySignature:
    """With the rights of who made the signed address, for its object alone. The address is looked up for every
    request, so one that has expired or was revoked takes no further bytes."""

    resumables: Resumables
    links: Links

    async def target(self, request: Request, described: tus.Described, bucket: str, key: str) -> Target:
        by = await self._pass(request, bucket, key)
        known = await self.resumables.buckets.fresh(bucket)
        # Whether it may replace an object was decided when the address was made.
        conditions = by.narrowed(write_conditions(request.headers))
        return Target(known, key, by.writer, conditions, described)

    async def find(self, request: Request, bucket: str, version: UUID) -> tuple[ResumableUpload, Writer]:
        by = await self._pass(request, bucket)
        upload = await self.resumables.find(bucket, version, by.writer)
        if upload.key != by.fixed_key:
            raise errors.upload_not_found()
        return upload, by.writer

    async def _pass(self, request: Request, bucket: str, key: str | None = None) -> UploadPass:
        """What the token in the headers allows. Raises ``token_not_found`` also where it is for another object than
        ``key``."""
        token = request.headers.text(b"x-signature")
        if not token:
            raise validation_failed(
                {"x-signature": "is required: the token of a signed address for an upload"}
            )
        by = await self.links.for_upload(token)
        # A link of the user's own interface has terms, and is used up in the transaction of an upload in one request.
        of_clients = by.link.uses_left is None
        if not of_clients or by.link.bucket != bucket or key not in (None, by.fixed_key):
            raise errors.token_not_found()
        return by


@frozen(eq=False)
class ClientUploads(ResumableRoutes):
    rights: Rights

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
        key = keys.parse_new_key(described.key)
        to = await self.rights.target(request, described, described.bucket, key)
        return await self.begin_at(request, to)

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
        return await self.rights.find(request, name, version_of(text))
