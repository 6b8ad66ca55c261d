"""``/object/sign``: addresses that open an object until they expire; ``/object/upload/sign``: those that take one.

The first are signatures, and nothing is stored of them; the others are links of the domain, which asks its rules and
policies again when the upload comes.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

from attrs import frozen

from project_service import whole_numbers
from project_service.errors import ApiError, validation_failed
from project_service.http.describe import STRING, Named, Operation, Parameter, array, in_header, obj
from project_service.http.json_body import Kind, member
from project_service.http.request import Request
from project_service.http.response import NO_STORE, Reply, StreamReply, json_reply
from project_service.http.routing import endpoint
from project_service.storage import errors, keys
from project_service.storage.buckets import Buckets
from project_service.storage.cache_control import for_link
from project_service.storage.download import Downloads, Terms
from project_service.storage.links import LINK_HEADERS, NO_REFERRER, Links
from project_service.storage.parsing import parameters
from project_service.storage.parsing.conditions import write_conditions
from project_service.storage.parsing.form import FIELDS_OF_CLIENTS
from project_service.storage.receiving import Destination, Receiver
from project_service.storage.routes.descriptions import (
    BAD_KEY,
    DATABASE_AND_STORE,
    DOWNLOAD_NAME,
    DOWNLOAD_REFUSED,
    DOWNLOADED,
    NO_OBJECT,
    READ_IF,
    READ_REFUSED,
    WRITE_REFUSED,
)
from project_service.storage.rows.objects import ObjectRows
from project_service.storage.values import UploadTerms, Viewer
from project_service.supabase.storage import pictures
from project_service.supabase.storage.common import (
    IN_BUCKET,
    IN_OBJECT,
    PATHS,
    TAG,
    UPLOADED,
    body_of,
    ok,
    read_body,
    readable,
    uploaded,
    writable,
)
from project_service.supabase.storage.objects import UPLOAD_BODY, UPLOAD_REFUSED, receive, upsert_of
from project_service.supabase.storage.signatures import Scope, Signatures, Signed

_PATH = "<bucket>/<path:key>"
SIGN, SIGN_UPLOAD = "/object/sign", "/object/upload/sign"
RENDER = "/render/image/sign"
# As long as on the hosted service of theirs.
UPLOAD_SECONDS = 7200
MAX_SECONDS = 10**9
_NOT_THERE = "Either the object does not exist or you do not have access to it"


def _read_seconds(name: str, value: object) -> int:
    """Also digits as text, which some clients send."""
    number = whole_numbers.from_digits(value) if isinstance(value, str) else whole_numbers.from_json(value)
    if number is None or not 1 <= number <= MAX_SECONDS:
        raise validation_failed({name: f"must be a whole number of seconds from 1 to {MAX_SECONDS}"})
    return number


def _read_transform(name: str, value: object) -> str:
    """The parameters of a picture as the query of ours; "" for none."""
    if value is None or value == {}:
        return ""
    if not isinstance(value, dict):
        raise validation_failed({name: "must be an object"})
    sent = {key: value.get(key) for key in pictures.NAMES}
    plain = {key: one if isinstance(one, str) else str(one) for key, one in sent.items() if one is not None}
    return pictures.query_of(plain)


_SECONDS = Kind({"type": ["integer", "string"], "minimum": 1, "maximum": MAX_SECONDS}, _read_seconds)
_TRANSFORM = Kind(
    {"type": ["object", "null"], "description": "As the parameters of /render."}, _read_transform
)


@frozen
class ToSign:
    seconds: int = member(_SECONDS, name="expiresIn")
    transform: str = member(_TRANSFORM, default="")


@frozen
class SeveralToSign:
    seconds: int = member(_SECONDS, name="expiresIn")
    paths: list[str] = member(PATHS)


_ADDRESS = {"type": "string", "description": "Below the base of these paths, with the token."}
_SIGNED = Named("ClientSignedUrl", obj(("signedURL",), False, signedURL=_ADDRESS))
_SEVERAL = array(
    obj(
        ("error", "path", "signedURL"),
        False,
        error={"type": ["string", "null"]},
        path=STRING,
        signedURL={**_ADDRESS, "type": ["string", "null"]},
    )
)
_TOKEN = Parameter("token", "What the address came with.", {"type": "string", "minLength": 1}, required=True)
_TOKEN_REFUSED: tuple[ApiError, ...] = (errors.token_not_found(), errors.token_expired())


@frozen(eq=False)
class SigningRoutes:
    """Making addresses, which takes a project key."""

    buckets: Buckets
    rows: ObjectRows
    receiver: Receiver
    downloads: Downloads
    links: Links
    signatures: Signatures

    @endpoint(
        "POST",
        f"{SIGN}/{_PATH}",
        Operation(
            "sign",
            TAG,
            "Make an address that downloads an object, any number of times until it expires",
            ok("The address", _SIGNED),
            IN_OBJECT,
            body_of(ToSign),
            (*READ_REFUSED, BAD_KEY, NO_OBJECT),
        ),
    )
    async def sign(self, request: Request) -> Reply:
        bucket, viewer = await readable(self.buckets, request)
        key = keys.parse_key(request.path_args["key"])
        body = await read_body(request, ToSign)
        if body.transform:
            pictures.wanted(body.transform, self.downloads.renditions.settings)  # raises
        if await self.rows.find(bucket.name, key, viewer) is None:
            raise errors.object_not_found()
        address = self._address(bucket.name, key, body.seconds, viewer, body.transform)
        return json_reply({"signedURL": address}, headers=(NO_STORE,))

    @endpoint(
        "POST",
        f"{SIGN}/<bucket>",
        Operation(
            "signSeveral",
            TAG,
            "Make addresses that download objects",
            ok("For each path the address, or an error", _SEVERAL),
            (IN_BUCKET,),
            body_of(SeveralToSign),
            READ_REFUSED,
        ),
    )
    async def sign_several(self, request: Request) -> Reply:
        bucket, viewer = await readable(self.buckets, request)
        body = await read_body(request, SeveralToSign)
        possible = [path for path in dict.fromkeys(body.paths) if "\0" not in path]
        there = await self.rows.find_many(bucket.name, possible, viewer)
        signed = [
            {"error": None, "path": path, "signedURL": self._address(bucket.name, path, body.seconds, viewer)}
            if path in there
            else {"error": _NOT_THERE, "path": path, "signedURL": None}
            for path in body.paths
        ]
        return json_reply(signed, headers=(NO_STORE,))

    def _address(
        self, bucket: str, key: str, seconds: int, viewer: Viewer | None, transform: str = ""
    ) -> str:
        """Not percent-encoded: clients do that themselves."""
        scope: Scope = "render" if transform else "download"
        owner: UUID | None = None if viewer is None else viewer.owner
        signed = Signed(bucket, key, scope, self.signatures.expiry(seconds), owner, transform)
        return f"{RENDER if transform else SIGN}/{bucket}/{key}?token={self.signatures.sign(signed)}"

    @endpoint(
        "POST",
        f"{SIGN_UPLOAD}/{_PATH}",
        Operation(
            "signUpload",
            TAG,
            "Make an address that takes an upload within two hours",
            ok("The address", obj(("url", "token"), False, url=_ADDRESS, token=STRING)),
            (*IN_OBJECT, in_header("x-upsert", "true: the upload may replace an object.")),
            errors=(*WRITE_REFUSED, errors.payload_too_large_for_bucket()),
        ),
    )
    async def sign_upload(self, request: Request) -> Reply:
        key = keys.parse_new_key(request.path_args["key"])
        bucket, writer = await writable(self.buckets, request)
        conditions = upsert_of(request)
        await self.receiver.uploads.check(bucket, key, writer, conditions, 0, keys.guess_content_type(key))
        upsert = conditions.if_none_match is None
        made = await self.links.make(
            bucket.name,
            [key],
            UPLOAD_SECONDS,
            0,
            created_by=request.caller.user_id,
            owner=writer.user_id,
            identity=writer.identity if bucket.rules.policies else None,
            upload=UploadTerms(overwrite=upsert, as_service=writer.is_service),
        )
        (token,) = made
        url = f"{SIGN_UPLOAD}/{bucket.name}/{key}?token={token}"
        return json_reply({"url": url, "token": token}, headers=(NO_STORE,))


@frozen(eq=False)
class SignedRoutes:
    """What a token opens, and nothing else is looked at: no key, and no token of a user."""

    buckets: Buckets
    receiver: Receiver
    downloads: Downloads
    links: Links
    signatures: Signatures

    @endpoint(
        "GET",
        f"{SIGN}/{_PATH}",
        Operation(
            "downloadSigned",
            TAG,
            "Download an object by a signed address",
            DOWNLOADED,
            (*IN_OBJECT, _TOKEN, *READ_IF, DOWNLOAD_NAME),
            errors=(*_TOKEN_REFUSED, BAD_KEY, *DOWNLOAD_REFUSED),
            needs=DATABASE_AND_STORE,
        ),
        key="ignored",
        bearer="own",
    )
    async def download(self, request: Request) -> Reply | StreamReply:
        return await self._opened(request, "download")

    @endpoint(
        "GET",
        f"{RENDER}/{_PATH}",
        Operation(
            "renderSigned",
            TAG,
            "A picture by a signed address, in the size and format that this was made for",
            DOWNLOADED,
            (*IN_OBJECT, _TOKEN, *READ_IF, DOWNLOAD_NAME),
            errors=(*_TOKEN_REFUSED, BAD_KEY, *DOWNLOAD_REFUSED),
            needs=DATABASE_AND_STORE,
        ),
        key="ignored",
        bearer="own",
    )
    async def render(self, request: Request) -> Reply | StreamReply:
        return await self._opened(request, "render")

    async def _opened(self, request: Request, scope: Scope) -> Reply | StreamReply:
        name, key = request.path_args["bucket"], keys.parse_key(request.path_args["key"])
        signed = self.signatures.read(_token(request), scope, name, key)
        bucket = await self.buckets.of_object(name)
        picture = pictures.wanted(signed.query, self.downloads.renditions.settings) if signed.query else None
        inline, filename = parameters.shown_as(request, None)
        caching = partial(for_link, bucket.rules.cache_control, self.signatures.seconds_left(signed))
        viewer = None if signed.owner is None else Viewer(signed.owner)
        terms = Terms(inline, caching, (NO_REFERRER,), viewer=viewer, filename=filename, unquoted=True)
        return await self.downloads.send(request, bucket.name, key, terms, picture)

    @endpoint(
        "PUT",
        f"{SIGN_UPLOAD}/{_PATH}",
        Operation(
            "uploadSigned",
            TAG,
            "Upload an object by a signed address",
            ok("Where it is", UPLOADED),
            (*IN_OBJECT, _TOKEN),
            UPLOAD_BODY,
            (*_TOKEN_REFUSED, errors.token_used(), *UPLOAD_REFUSED),
            DATABASE_AND_STORE,
        ),
        key="ignored",
        bearer="own",
    )
    async def upload(self, request: Request) -> Reply:
        key = keys.parse_new_key(request.path_args["key"])
        by = await self.links.for_upload(_token(request))
        if (by.link.bucket, by.fixed_key) != (request.path_args["bucket"], key):
            raise errors.token_not_found()
        bucket = await self.buckets.get(by.link.bucket)
        # Whether it may replace an object was decided when the address was made.
        conditions = by.narrowed(write_conditions(request.headers))
        to = Destination(bucket, by.writer, conditions, by, names=FIELDS_OF_CLIENTS)
        switched = await receive(self.receiver, request, to, key)
        return json_reply(uploaded(switched.row), headers=LINK_HEADERS)


def _token(request: Request) -> str:
    token = request.query_value("token")
    if not token:
        raise validation_failed({"token": "is required"})
    return token
