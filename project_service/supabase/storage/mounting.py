"""The routes at ``/storage/v1``, and below the URL of every database."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from attrs import evolve, frozen

from project_service.errors import Headers, not_found
from project_service.http.describe import Operation, in_path
from project_service.http.request import Request
from project_service.http.response import Reply
from project_service.http.routing import Endpoint, Handler, Policy, Router
from project_service.storage.assemble import ADMISSION, Storage
from project_service.storage.links import NO_REFERRER
from project_service.storage.reading import described
from project_service.storage.routes.common import translated
from project_service.storage.routes.resumables import with_tus
from project_service.supabase import storage_errors
from project_service.supabase.databases import OF_DATABASE, of_known
from project_service.supabase.storage.buckets import BucketRoutes
from project_service.supabase.storage.common import TAG
from project_service.supabase.storage.listing import ListingRoutes
from project_service.supabase.storage.objects import ObjectRoutes, PublicRoutes
from project_service.supabase.storage.pictures import PictureRoutes, PublicPictureRoutes
from project_service.supabase.storage.resumables import ByCaller, BySignature, ClientUploads, at_signed
from project_service.supabase.storage.signatures import Signatures
from project_service.supabase.storage.signed import SignedRoutes, SigningRoutes

BASE = "/storage/v1"
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


@frozen(eq=False)
class ClientStorage:
    """``databases`` are the stages and names of those whose URLs have these paths."""

    storage: Storage
    databases: Collection[tuple[str, str]]
    signatures: Signatures

    def mount(self, router: Router) -> None:
        self._mount(router, BASE, lambda handler: handler)
        self._mount(router, OF_DATABASE + BASE, partial(of_known, self.databases))

    def _mount(self, router: Router, base: str, placed: Callable[[Handler], Handler]) -> None:
        def part_of(policy: Policy) -> Router:
            return router.of_part(evolve(policy, documented=base == BASE))

        def moved(declared: Endpoint) -> Endpoint:
            return evolve(declared, url=base + declared.url, described=_renamed(declared.described))

        def place(declared: Endpoint) -> Endpoint:
            return described(moved(declared))

        def wrap(handler: Handler, headers: Headers = ()) -> Handler:
            return placed(acknowledged(translated(handler, headers)))

        storage, form = self.storage, storage_errors.FORM
        acknowledged = storage.downloads.reading.acknowledged
        part = part_of(Policy(admission=ADMISSION, error_form=form, key_anywhere=True))
        buckets, rows = storage.buckets, storage.rows.objects
        downloads, live = storage.downloads, storage.live
        part.mount(BucketRoutes(buckets, storage.objects, storage.links.now), wrap=wrap, place=place)
        # They only read, also by POST.
        part.mount(ListingRoutes(buckets, rows), wrap=lambda one: placed(translated(one)), place=moved)
        objects = ObjectRoutes(buckets, rows, storage.objects, storage.receiver, downloads, live)
        part.mount(objects, wrap=wrap, place=place)
        part.mount(PictureRoutes(objects), wrap=wrap, place=place)
        part.mount(
            SigningRoutes(buckets, rows, storage.receiver, downloads, storage.links, self.signatures),
            wrap=wrap,
            place=place,
        )
        opened = part_of(Policy(admission=ADMISSION, error_form=form))
        opened.mount(
            SignedRoutes(buckets, storage.receiver, downloads, storage.links, self.signatures),
            wrap=partial(wrap, headers=(NO_REFERRER,)),
            place=place,
        )
        resumable = part_of(
            Policy(admission=ADMISSION, error_form=storage_errors.TUS_FORM, key_anywhere=True)
        )

        def with_known_database(handler: Handler) -> Handler:
            return placed(acknowledged(with_tus(handler)))

        uploads = storage.resumables
        resumable.mount(ClientUploads(uploads, ByCaller(uploads)), wrap=with_known_database, place=place)
        signed = ClientUploads(uploads, BySignature(uploads, storage.links))
        resumable.mount(signed, wrap=with_known_database, place=lambda one: place(at_signed(one)))
        pages = part_of(Policy(admission=ADMISSION, error_form=form, any_origin=True))
        public = PublicRoutes(buckets, rows, downloads, live)
        pages.mount(public, wrap=wrap, place=place)
        pages.mount(PublicPictureRoutes(public), wrap=wrap, place=place)
        # Everything else: protocols that are not spoken here, and paths that nobody knows.
        other = part_of(Policy(error_form=form))
        other.route(
            f"{base}/<path:below>",
            *(_renamed(_unknown_path(method)) for method in _METHODS),
            methods=_METHODS,
            key="ignored",
            bearer="own",
        )(_unknown)


def _renamed(operation: Operation) -> Operation:
    return evolve(operation, name=f"client{operation.name[0].upper()}{operation.name[1:]}")


def _unknown_path(method: str) -> Operation:
    return Operation(
        f"{method.title()}UnknownPath",
        TAG,
        "Refused: there are no vectors, no Iceberg catalogues, no CDN and no S3 protocol here",
        (),
        (in_path("below", "Any path."),),
        errors=(not_found(),),
        needs=(),
        methods=(method,),
    )


async def _unknown(request: Request) -> Reply:
    raise not_found()
