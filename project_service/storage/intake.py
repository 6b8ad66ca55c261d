"""What uploads, as a form or as raw bytes, say of the object that they are to become. Pure."""

from __future__ import annotations

from base64 import b64decode
from functools import partial
from hashlib import md5
from typing import Any
from uuid import UUID

from attrs import define, field

from project_service.http.headers import HeaderView
from project_service.storage import content_types, errors, keys, requests
from project_service.storage.form import Field
from project_service.storage.model import Bucket, Writer

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
    stated = content_types.parse(declared) if declared else None
    chosen = stated or content_types.guess(key or "")
    known = stated is not None or key is not None
    if known and not content_types.allowed(chosen, bucket.rules.allowed_content_types):
        raise errors.content_type_not_allowed(content_types.essence(chosen))
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
