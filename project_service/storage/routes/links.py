"""Links: ``/storage/buckets/{bucket}/presign``, and the download and the upload by a link, which need no key and no
user token. Each endpoint has its description and the model of its body beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from attrs import frozen

from project_service.errors import ApiError, service_key_required, unsupported_media_type, validation_failed
from project_service.http import describe
from project_service.http.describe import (
    BOOLEAN,
    JSON,
    MOMENT,
    Answer,
    Named,
    Operation,
    Parameter,
    RequestBody,
    Schema,
    array,
    exactly,
    in_header,
    in_path,
    obj,
)
from project_service.http.json_body import FLAG, Kind, body_of, member, text, whole
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.routing import endpoint
from project_service.lifecycle import timestamp
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import Caching, for_link
from project_service.storage.download import Downloads, Terms
from project_service.storage.links import (
    LINK_HEADERS,
    MAX_EXPIRES_IN_SECONDS,
    MAX_USES,
    NO_REFERRER,
    Links,
    LinkUse,
    as_shown,
    upload_as_shown,
)
from project_service.storage.parsing import parameters
from project_service.storage.parsing.conditions import making_conditions
from project_service.storage.parsing.parameters import DEFAULT_PAGE_KEYS, MAX_PAGE_KEYS
from project_service.storage.receiving import Destination, Receiver
from project_service.storage.routes.common import created, readable, writable
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    BINARY,
    BUCKET,
    BYTES,
    DATABASE_AND_STORE,
    DETAIL_FIELDS,
    DETAIL_HEADERS,
    DOWNLOAD_NAME,
    DOWNLOAD_REFUSED,
    DOWNLOADED,
    IN_BUCKET,
    INLINE,
    KEY,
    KEYS,
    MAKE_IF,
    METADATA,
    NO_BUCKET,
    NO_OBJECT,
    PICTURE,
    PREFIX,
    READ_IF,
    READ_REFUSED,
    TAG,
    WRITE_REFUSED,
    json_answer,
)
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.values import (
    CONTENT_TYPES,
    MAX_OBJECT_BYTES,
    NEW_ONLY,
    UNCONDITIONAL,
    Link,
    Live,
    UploadTerms,
)

_LINK_METHOD: Schema = {"enum": ["GET", "PUT"]}
_SIGNED: Mapping[str, Schema] = {
    "id": {**describe.UUID, "description": "What lists and revokes the link."},
    "url": {"type": "string", "format": "uri"},
    "expires_at": MOMENT,
    "method": _LINK_METHOD,
}
_SIGNED_URL = Named("SignedUrl", exactly(**_SIGNED))
_SIGNED_URLS = Named("SignedUrls", exactly(links=array(exactly(key=KEY, **_SIGNED)), missing=array(KEY)))
_LINKS = Named(
    "LinkListing",
    exactly(
        links=array(
            Named(
                "Link",
                exactly(
                    id=describe.UUID,
                    method=_LINK_METHOD,
                    key={**KEY, "type": ["string", "null"]},
                    key_prefix={**PREFIX, "type": ["string", "null"]},
                    created_at=MOMENT,
                    created_by={**describe.UUID, "type": ["string", "null"]},
                    expires_at=MOMENT,
                    uses_left={"type": ["integer", "null"], "description": "null: any number."},
                    used_at={**MOMENT, "type": ["string", "null"]},
                    max_bytes={"type": ["integer", "null"]},
                    content_types=CONTENT_TYPES.schema,
                    overwrite=BOOLEAN,
                ),
            )
        ),
        next_token={
            "type": ["string", "null"],
            "description": "page_token of the next page; null on the last.",
        },
    ),
)
UPLOAD = "/storage/upload"

_TOKEN = Parameter("token", "The link's token.", {"type": "string", "minLength": 1}, required=True)
_LINK_REFUSED: tuple[ApiError, ...] = (
    errors.token_not_found(),
    errors.token_used(),
    errors.token_expired(),
)
_LINK_UPLOAD_REFUSED: tuple[ApiError, ...] = (
    *_LINK_REFUSED,
    errors.bad_request_content_range(),
    *WRITE_REFUSED,
    errors.payload_too_large_for_bucket(),
    errors.request_timeout_of_upload(),
    errors.unsupported_media_type_of_object("a type that the link does not take", "link"),
    validation_failed({}),
)


def _read_method(name: str, value: object) -> object:
    if value not in ("GET", "PUT"):
        raise validation_failed({name: "must be GET or PUT"})
    return value


def _read_types(name: str, value: object) -> Any:
    # None of any type could be uploaded by a link with an empty list.
    types = None if value == [] else CONTENT_TYPES.read(name, value)
    if types is None:
        raise validation_failed({name: "must be a list of media types, as image/png or image/*"})
    return types


_ONE_OF_THEM = "only one of key, keys and key_prefix can be there"


@frozen
class LinkRequest:
    method: str = member(
        Kind(_LINK_METHOD, _read_method),
        default="GET",
        schema={"default": "GET", "description": "GET: the link downloads; PUT: it takes one upload."},
    )
    key: str | None = member(text(KEY), default=None)
    keys: list[str] | None = member(
        KEYS, default=None, schema={"description": "In place of key: a link for each."}
    )
    key_prefix: str | None = member(
        text(PREFIX),
        default=None,
        schema={"description": "For PUT, in place of key: the uploader chooses the rest of it."},
    )
    max_bytes: int | None = member(whole(1, MAX_OBJECT_BYTES), default=None)
    content_types: tuple[str, ...] | None = member(
        Kind({**CONTENT_TYPES.schema, "type": "array", "minItems": 1}, _read_types), default=None
    )
    overwrite: bool = member(
        FLAG, default=False, schema={"description": "For PUT: it may replace an object.", "default": False}
    )
    expires_in_seconds: int | None = member(
        whole(1, MAX_EXPIRES_IN_SECONDS),
        default=None,
        schema={
            "description": "storage.default_expires_in_seconds by default, which is 3600 unless it was set."
        },
    )
    uses: int = member(
        whole(0, MAX_USES),
        default=1,
        schema={
            "default": 1,
            "description": "How many downloads it is good for; 0: any number until it expires.",
        },
    )

    def wanted(self) -> list[str]:
        """The keys, each once; for an upload by prefix the prefix. Raises ``invalid_key``, and ``validation_failed``
        for members that do not go together."""
        faults = dict.fromkeys(self._of_other_method(), f"is not for links of the method {self.method}")
        named = [name for name in ("key", "keys", "key_prefix") if getattr(self, name) is not None]
        faults |= dict.fromkeys(named[1:], _ONE_OF_THEM)
        if self.method == "GET" and "key" not in named and "keys" not in named:
            faults["key"] = "is required"
        if faults:
            raise validation_failed(faults)
        if self.by_prefix:
            prefix = keys.parse_prefix(self.key_prefix or "", "key_prefix")
            # A prefix that no key begins with would make a link that nothing can be uploaded by.
            keys.parse_new_key(f"{prefix}x", "key_prefix")
            return [prefix]
        parse = keys.parse_key if self.method == "GET" else keys.parse_new_key
        if self.keys is not None:
            return keys.parse_keys(self.keys, "keys", parse)
        return [parse(self.key or "", "key")]

    @property
    def by_prefix(self) -> bool:
        return self.key is None and self.keys is None

    def _of_other_method(self) -> list[str]:
        """The members that were sent and mean nothing for the method."""
        if self.method == "PUT":
            return ["uses"] if self.uses != 1 else []
        narrowing = ("key_prefix", "max_bytes", "content_types", "overwrite")
        return [name for name in narrowing if getattr(self, name) not in (None, False)]


@frozen(eq=False)
class SigningRoutes:
    """Making links, listing and revoking them."""

    buckets: Buckets
    rows: ObjectRows
    receiver: Receiver
    links: Links
    live: Live

    @endpoint(
        "POST",
        f"{BUCKET}/presign",
        Operation(
            "presign",
            TAG,
            "Make links that download an object, or take an upload, without any project key or user token",
            (
                Answer(
                    200,
                    "The link; for keys the links, and the keys without an object",
                    {JSON: {"oneOf": [_SIGNED_URL, _SIGNED_URLS]}},
                ),
            ),
            (IN_BUCKET, in_header("X-Object-Owner", "For PUT, as in an upload.")),
            body_of(LinkRequest),
            (
                *READ_REFUSED,
                NO_OBJECT,
                BAD_KEY,
                errors.not_owner(),
                errors.object_exists(),
                service_key_required(),
            ),
        ),
    )
    async def presign(self, request: Request) -> Reply:
        await readable(self.buckets, request)
        body = await request.read_json(LinkRequest)
        wanted = body.wanted()
        if body.method == "PUT":
            made = await self._upload_links(request, body, wanted)
        else:
            made = await self._download_links(request, body, wanted)
        path = "/storage/download" if body.method == "GET" else UPLOAD
        signed = [
            {
                "key": link.key,
                "id": str(link.id),
                "url": f"{request.base_url}{path}?token={token}",
                "expires_at": timestamp(link.expires_at),
                "method": link.method,
            }
            for token, link in made.items()
        ]
        if body.keys is not None:
            there = {link.key for link in made.values()}
            missing = [key for key in wanted if key not in there]
            return json_reply({"links": signed, "missing": missing}, headers=(NO_STORE,))
        del signed[0]["key"]
        return json_reply(signed[0], headers=(NO_STORE,))

    async def _download_links(
        self, request: Request, body: LinkRequest, wanted: list[str]
    ) -> dict[str, Link]:
        """Links to the objects that exist, by their tokens. Raises ``object_not_found`` for a single key without
        one."""
        # Again, because the body may have taken hours, and the bucket may have become private since.
        bucket, viewer = await readable(self.buckets, request)
        rows = await self.rows.find_many(bucket.name, wanted, viewer)
        there = [key for key in wanted if key in rows]
        if body.keys is None and not there:
            raise errors.object_not_found()
        return await self.links.make(
            bucket.name,
            there,
            self._lifetime(body),
            body.uses,
            created_by=request.caller.user_id,
            owner=None if viewer is None else viewer.owner,
            identity=None if viewer is None else viewer.identity,
        )

    async def _upload_links(self, request: Request, body: LinkRequest, wanted: list[str]) -> dict[str, Link]:
        """The links by their tokens: all, or none where one of the uploads would be refused now."""
        bucket, writer = await writable(self.buckets, request)
        if not body.by_prefix:
            conditions = UNCONDITIONAL if body.overwrite else NEW_ONLY
            await self.receiver.uploads.check_keys(bucket, wanted, writer, conditions)
        terms = UploadTerms(
            body.by_prefix, body.max_bytes, body.content_types, body.overwrite, writer.is_service
        )
        return await self.links.make(
            bucket.name,
            wanted,
            self._lifetime(body),
            created_by=request.caller.user_id,
            owner=writer.user_id,
            identity=writer.identity if bucket.rules.policies else None,
            upload=terms,
        )

    @endpoint(
        "GET",
        f"{BUCKET}/links",
        Operation(
            "listLinks",
            TAG,
            "The links that the caller made and that have not expired, the newest first; the service key sees all",
            (json_answer(200, "A page of links", _LINKS),),
            (
                IN_BUCKET,
                Parameter(
                    "limit",
                    "Links on a page.",
                    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_KEYS, "default": DEFAULT_PAGE_KEYS},
                ),
                Parameter("page_token", "next_token of the page before."),
            ),
            errors=(NO_BUCKET,),
        ),
        bearer="required",
    )
    async def list(self, request: Request) -> Reply:
        bucket = await self.buckets.get(request.path_args["bucket"])
        limit = parameters.page_limit(request, "limit")
        token = request.query_value("page_token")
        after = None if token is None else parameters.decode_link_token(token)
        found = await self.links.page(bucket.name, _creator(request), after, limit + 1)
        more = len(found) > limit
        return json_reply(
            {
                "links": [link.as_json() for link in found[:limit]],
                "next_token": parameters.encode_link_token(found[limit - 1]) if more else None,
            },
            headers=(NO_STORE,),
        )

    @endpoint(
        "DELETE",
        f"{BUCKET}/links/<link>",
        Operation(
            "revokeLink",
            TAG,
            "Revoke a link",
            (Answer(204, "It does not work any more."),),
            (IN_BUCKET, in_path("link", "Its id.", describe.UUID)),
            errors=(NO_BUCKET, errors.link_not_found()),
        ),
        bearer="required",
    )
    async def revoke(self, request: Request) -> Reply:
        bucket = await self.buckets.get(request.path_args["bucket"])
        await self.links.revoke(bucket.name, request.path_args["link"], _creator(request))
        return Reply(204)

    def _lifetime(self, body: LinkRequest) -> int:
        """In seconds."""
        if body.expires_in_seconds is None:
            return self.live.settings.default_expires_in_seconds
        return body.expires_in_seconds


@frozen(eq=False)
class LinkRoutes:
    """Downloads and uploads by links, of which errors have headers of their own."""

    downloads: Downloads
    links: Links
    receiver: Receiver

    @endpoint(
        "GET",
        "/storage/download",
        Operation(
            "downloadByLink",
            TAG,
            "Download the object of a link",
            DOWNLOADED,
            (_TOKEN, INLINE, DOWNLOAD_NAME, *PICTURE, *READ_IF),
            errors=(*_LINK_REFUSED, errors.prefetch_refused(), *DOWNLOAD_REFUSED),
            needs=DATABASE_AND_STORE,
        ),
        key="optional",
        bearer="own",
    )
    async def download(self, request: Request) -> Reply | StreamReply:
        try:
            use = await self.links.use(_token(request), request.headers)
            inline, filename = parameters.shown_as(request)
            caching = await self._caching(use)
            viewer = use.link.viewer
            terms = Terms(inline, caching, (NO_REFERRER,), use=use, viewer=viewer, filename=filename)
            return await self.downloads.answer(request, use.link.bucket, use.link.key, terms)
        except ApiError as refusal:
            raise as_shown(refusal, request.headers) from None

    @endpoint(
        "PUT",
        UPLOAD,
        Operation(
            "uploadRawByLink",
            TAG,
            "Upload an object by a link: the body is its bytes, Content-Type its type",
            (
                json_answer(201, "The metadata of a new object", METADATA),
                json_answer(200, "The metadata of an object that replaced another", METADATA),
            ),
            (
                _TOKEN,
                Parameter("key", "The rest of the object's key, if the link is for a prefix.", KEY),
                *MAKE_IF,
                in_header("Content-MD5", "Refused unless the body has this MD5."),
                *DETAIL_HEADERS,
            ),
            RequestBody(BYTES, required=False, summary="Any bytes; none need Content-Length: 0."),
            (*_LINK_UPLOAD_REFUSED, errors.bad_digest("Content-Digest", "why"), errors.length_required()),
            DATABASE_AND_STORE,
        ),
        key="optional",
        bearer="own",
    )
    async def upload_raw(self, request: Request) -> Reply:
        try:
            to = await self._destination(request)
            chosen = request.query_value("key")
            key = to.fixed_key if chosen is None else to.key_of(chosen)
            if key is None:
                raise validation_failed({"key": "is required, because the link is for a prefix"})
            switched = await self.receiver.body(request, to, key)
        except ApiError as refusal:
            raise await self._upload_refused(refusal, request) from None
        if switched.replaced is not None:
            return json_reply(switched.row.as_json(), headers=LINK_HEADERS)
        return created(request, switched.row, LINK_HEADERS)

    @endpoint(
        "POST",
        UPLOAD,
        Operation(
            "uploadFormByLink",
            TAG,
            "Upload an object by a link from an HTML form",
            (
                json_answer(201, "The object's metadata", METADATA),
                Answer(
                    303,
                    "The object was made, and the form leads on",
                    headers={"Location": "redirect, with bucket, key and etag of the object added."},
                ),
            ),
            (_TOKEN, *MAKE_IF, *DETAIL_HEADERS),
            RequestBody(
                {
                    "multipart/form-data": obj(
                        ("file",),
                        False,
                        file=BINARY,
                        key={
                            **KEY,
                            "description": "The rest of the key, if the link is for a prefix; else as is.",
                        },
                        **DETAIL_FIELDS,
                        redirect={
                            "type": "string",
                            "description": "Where to lead the browser: one of storage.redirect_urls.",
                        },
                    )
                },
                summary="These fields may come before or after the file; others are read past.",
            ),
            (
                *_LINK_UPLOAD_REFUSED,
                errors.invalid_multipart("why"),
                errors.bad_digest("Content-Digest", "why"),
                unsupported_media_type("multipart/form-data"),
            ),
            DATABASE_AND_STORE,
        ),
        key="optional",
        bearer="own",
    )
    async def upload_form(self, request: Request) -> Reply:
        try:
            switched, redirect = await self.receiver.form(request, await self._destination(request))
        except ApiError as refusal:
            raise await self._upload_refused(refusal, request) from None
        if redirect is not None:
            location = ("Location", parameters.redirected(redirect, switched.row))
            return Reply(303, (location, *LINK_HEADERS))
        return created(request, switched.row, LINK_HEADERS)

    async def _upload_refused(self, refusal: ApiError, request: Request) -> ApiError:
        """What to say of an upload by a link that was refused.

        The object that is in its way may be what another upload by the link has made since this one found the link
        unused. Then the link is the reason, as it is to an upload that finds that out at its end.
        """
        if refusal.code == "object_exists":
            try:
                await self.links.for_upload(_token(request))
            except ApiError as reason:
                refusal = reason
        return upload_as_shown(refusal, request.headers)

    async def _caching(self, use: LinkUse) -> Caching:
        """How caches may store what a link sends: for as long as the link works, if it is for any number of
        downloads; otherwise not at all."""
        if use.limited:
            return lambda *_: (NO_STORE,)
        bucket = await self.receiver.buckets.of_object(use.link.bucket)
        return partial(for_link, bucket.rules.cache_control, use.seconds_left)

    async def _destination(self, request: Request) -> Destination:
        upload = await self.links.for_upload(_token(request))
        bucket = await self.receiver.buckets.get(upload.link.bucket)
        conditions = upload.narrowed(making_conditions(request.headers))
        return Destination(bucket, upload.writer, conditions, upload)


def _creator(request: Request) -> UUID | None:
    """The user whose links alone the caller may see; None: all links."""
    return None if request.caller.is_service else request.caller.user_id


def _token(request: Request) -> str:
    token = request.query_value("token")
    if not token:
        raise validation_failed({"token": "is required"})
    return token
