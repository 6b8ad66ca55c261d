"""``/render/image``: pictures in other sizes and formats, by the names that those clients have for them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from attrs import evolve, frozen

from project_service.errors import validation_failed
from project_service.http.describe import Operation, Parameter, Schema
from project_service.http.request import Request
from project_service.http.response import Reply, StreamReply
from project_service.http.routing import endpoint
from project_service.settings.model import Images
from project_service.storage import keys
from project_service.storage.pictures import images
from project_service.storage.pictures.images import Wanted
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    DATABASE_AND_STORE,
    DOWNLOAD_NAME,
    DOWNLOAD_REFUSED,
    DOWNLOADED,
    READ_IF,
    READ_REFUSED,
)
from project_service.supabase.storage.common import IN_OBJECT, TAG, fetchable
from project_service.supabase.storage.objects import ObjectRoutes, PublicRoutes

_PATH = "<bucket>/<path:key>"
# Theirs fits into the box and pads nothing.
_FITS = {"cover": "cover", "contain": "inside"}
_SIDE: Schema = {"type": "integer", "minimum": 1}
_PICTURE = (
    Parameter("width", "In pixels.", _SIDE),
    Parameter("height", "In pixels.", _SIDE),
    Parameter("resize", "cover crops, contain fits into the box.", {"enum": [*_FITS], "default": "cover"}),
    Parameter("format", "origin: its own; by default the smallest that Accept names.", {"type": "string"}),
    Parameter("quality", "From 1 to 100.", {"type": "integer", "minimum": 1, "maximum": images.MAX_QUALITY}),
)
NAMES = tuple(one.name for one in _PICTURE)


def query_of(sent: Mapping[str, str | None]) -> str:
    """The parameters of theirs as those of ours. Raises ``validation_failed`` for a ``resize`` that is not offered;
    the others ``images.wanted`` checks."""
    resize = sent.get("resize") or "cover"
    if resize not in _FITS:
        raise validation_failed({"resize": f"must be {' or '.join(_FITS)}; a picture is not stretched here"})
    ours = {name: sent.get(name) for name in ("width", "height", "quality")}
    if ours["width"] is not None or ours["height"] is not None:
        ours["fit"] = _FITS[resize]
    if sent.get("format") != "origin":
        ours["format"] = sent.get("format") or "auto"
    return urlencode({name: value for name, value in ours.items() if value is not None})


def wanted(query: str, settings: Images) -> Wanted | None:
    """As ``images.wanted``, of what ``query_of`` made. Clients in Node send pictures as text by default, so that keys
    count too; and whoever shows icons in a size need not know which of them are SVG."""
    read = images.wanted(query.encode(), settings)
    return None if read is None else evolve(read, by_key=True, vectors_whole=True)


def of_request(request: Request, settings: Images) -> Wanted | None:
    return wanted(query_of({name: request.query_value(name) for name in NAMES}), settings)


def described(name: str, summary: str, *parameters: Parameter) -> Operation:
    return Operation(
        name,
        TAG,
        summary,
        DOWNLOADED,
        (*IN_OBJECT, *parameters, *READ_IF, DOWNLOAD_NAME),
        errors=(*READ_REFUSED, BAD_KEY, *DOWNLOAD_REFUSED),
        needs=DATABASE_AND_STORE,
    )


@frozen(eq=False)
class PictureRoutes:
    objects: ObjectRoutes

    @endpoint(
        "GET",
        f"/render/image/authenticated/{_PATH}",
        described("render", "A picture in another size or format", *_PICTURE),
    )
    async def show(self, request: Request) -> Reply | StreamReply:
        objects = self.objects
        bucket, viewer = await fetchable(objects.buckets, request)
        key = keys.parse_key(request.path_args["key"])
        picture = of_request(request, objects.downloads.renditions.settings)
        terms = objects.terms(request, bucket, viewer)
        return await objects.downloads.send(request, bucket.name, key, terms, picture)


@frozen(eq=False)
class PublicPictureRoutes:
    """As ``PublicRoutes``."""

    public: PublicRoutes

    @endpoint(
        "GET",
        f"/render/image/public/{_PATH}",
        described("renderPublic", "A picture of a public bucket in another size or format", *_PICTURE),
        key="ignored",
        bearer="own",
    )
    async def show(self, request: Request) -> Reply | StreamReply:
        public = self.public
        key = keys.parse_key(request.path_args["key"])
        bucket, viewer = await public.readable(request)
        picture = of_request(request, public.downloads.renditions.settings)
        terms = public.terms(request, bucket, viewer)
        return await public.downloads.send(request, bucket.name, key, terms, picture)
