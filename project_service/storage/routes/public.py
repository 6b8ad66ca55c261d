"""``/storage/public``: objects as pages of the web, for anybody and without any key, where their bucket allows it."""

from __future__ import annotations

from functools import partial

from attrs import frozen

from project_service.http.describe import BOOLEAN, Operation, Parameter
from project_service.http.request import Request
from project_service.http.response import Reply, StreamReply
from project_service.http.routing import endpoint
from project_service.storage import access, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import for_everybody
from project_service.storage.download import Downloads, Terms
from project_service.storage.parsing import parameters
from project_service.storage.presentation import ANY_ORIGIN
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    DATABASE_AND_STORE,
    DOWNLOAD_NAME,
    DOWNLOAD_REFUSED,
    DOWNLOADED,
    IN_BUCKET,
    KEY_IN_PATH,
    PICTURE,
    READ_IF,
    TAG,
)
from project_service.storage.values import Live

PAGE = "/storage/public/<bucket>/<path:key>"
_INLINE = Parameter(
    "inline",
    "true: shown in the browser, in a sandbox; false: saved. By default images, audio, video and PDF are shown.",
    BOOLEAN,
)


@frozen(eq=False)
class PublicRoutes:
    """Their policy says that pages of every origin may read the responses, whatever ``server.cors_origins`` says.

    An Authorization header is ignored: a proxy in front may have one of its own.
    """

    buckets: Buckets
    downloads: Downloads
    live: Live

    @endpoint(
        "GET",
        PAGE,
        Operation(
            "downloadPublic",
            TAG,
            "Show an object of a bucket with anonymous_reads",
            DOWNLOADED,
            (IN_BUCKET, KEY_IN_PATH, _INLINE, DOWNLOAD_NAME, *PICTURE, *READ_IF),
            errors=(BAD_KEY, *DOWNLOAD_REFUSED),
            needs=DATABASE_AND_STORE,
        ),
        key="optional",
        bearer="own",
    )
    async def show(self, request: Request) -> Reply | StreamReply:
        key = keys.parse_key(request.path_args["key"])
        bucket = await self.buckets.of_object(request.path_args["bucket"])
        viewer = access.check_anonymous_read(bucket)
        inline, filename = parameters.shown_as(request, None)
        # Downloads add this header themselves where CORS allows every origin.
        headers = () if request.any_origin else (ANY_ORIGIN,)
        max_age = self.live.settings.public_max_age_seconds
        caching = partial(for_everybody, bucket.rules.cache_control, max_age)
        terms = Terms(inline, caching, headers, viewer=viewer, filename=filename)
        return await self.downloads.answer(request, bucket.name, key, terms)
