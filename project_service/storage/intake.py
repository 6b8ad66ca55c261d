"""Takes an upload's body in, as a form or as raw bytes, and feeds it to a ``PartStream``."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable
from hashlib import md5
from uuid import UUID

from project_service.http.body import Body
from project_service.http.headers import HeaderView
from project_service.storage import content_types, errors, keys, requests
from project_service.storage.form import Event, FileStart, FormReader, boundary_of
from project_service.storage.model import Bucket, Writer
from project_service.storage.objects import Fill, Received
from project_service.storage.upload import PartStream

# How much of a form's Content-Length may be something else than its file.
FORM_OVERHEAD_BYTES = 256 * 1024

CheckKey = Callable[[str], Awaitable[None]]


def least_size(length: int | None, overhead: int = 0) -> int:
    """The least size that the object can have, given the request's Content-Length; 0 where that is not known."""
    return 0 if length is None else max(0, length - overhead)


def chosen_type(bucket: Bucket, declared: str | None, key: str | None) -> str:
    """The declared media type, else one guessed from the key.

    Raises ``validation_failed`` where the declared one cannot be read, and ``content_type_not_allowed`` where the
    bucket does not take it. Without a key (it may come after the file) a guess is not checked yet.
    """
    stated = content_types.parse(declared) if declared else None
    chosen = stated or content_types.guess(key or "")
    known = stated is not None or key is not None
    if known and not content_types.allowed(chosen, bucket.rules.allowed_content_types):
        raise errors.content_type_not_allowed(content_types.essence(chosen))
    return chosen


def raw_fill(body: Body, bucket: Bucket, key: str, headers: HeaderView) -> Fill:
    """A ``Fill`` for a body that is the object itself. ``Content-MD5`` is checked (RFC 1864, as in S3)."""
    declared, digest = headers.text(b"content-type"), headers.text(b"content-md5")
    max_age = requests.max_age_stated(headers)
    content_type = chosen_type(bucket, content_types.of_body(declared), key)
    wanted = None if digest is None else _md5_of(digest)

    async def fill(parts: PartStream) -> Received:
        parts.describe(content_type, key)
        seen = md5(usedforsecurity=False)
        while chunk := await body.next_chunk():
            if wanted is not None:
                seen.update(chunk)
            await parts.write(chunk)
        if wanted not in (None, seen.digest()):
            raise errors.bad_digest("is not that of the body")
        return Received(key, content_type, max_age)

    return fill


def _md5_of(header: str) -> bytes:
    try:
        digest = b64decode(header, validate=True)
    except ValueError:
        digest = b""
    if len(digest) != md5(usedforsecurity=False).digest_size:
        raise errors.bad_digest("is not the base64 of an MD5")
    return digest


class FormIntake:
    """Reads one form; its fields may come before or after the file."""

    def __init__(
        self, body: Body, headers: HeaderView, bucket: Bucket, writer: Writer, check_key: CheckKey
    ) -> None:
        self._body = body
        self._reader = FormReader(boundary_of(headers.text(b"content-type")))
        self._bucket = bucket
        self._writer = writer
        self._check_key = check_key
        self._max_age = requests.max_age_stated(headers)
        self._owner: UUID | None = None
        self._key: str | None = None
        self._filename: str | None = None
        self._declared: str | None = None

    async def fill(self, parts: PartStream) -> Received:
        while chunk := await self._body.next_chunk():
            for event in self._reader.feed(chunk):
                await self._take(event, parts)
        self._reader.finish()
        key = self._key if self._key is not None else self._named_by_file()
        content_type = chosen_type(self._bucket, self._declared, key)
        return Received(key, content_type, self._max_age, self._owner)

    def _named_by_file(self) -> str:
        if not self._filename:
            raise errors.invalid_key("there is no field key, and the file has no name")
        return keys.parse_key(self._filename)

    async def _take(self, event: Event, parts: PartStream) -> None:
        if isinstance(event, bytes):
            await parts.write(event)
        elif isinstance(event, FileStart):
            self._begin(event, parts)
        elif event.name == "key":
            self._key = keys.parse_key(event.value)
            await self._check_key(self._key)
        elif event.name == "owner":
            self._owner = requests.parse_owner(event.value, self._writer)
        else:
            self._max_age = requests.parse_max_age(event.value)

    def _begin(self, start: FileStart, parts: PartStream) -> None:
        self._filename = start.filename
        self._declared = start.content_type
        parts.describe(chosen_type(self._bucket, self._declared, self._key), self._key)
