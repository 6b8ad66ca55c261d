"""The errors of ``/storage/v1``: every code of ours as clients of the Supabase family know it.

There most refusals have the status 400, and the body says the one that is meant. What HTTP itself needs keeps its
status: conditions, ranges, methods, limits of rate, and what is the service's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from attrs import evolve, frozen

from project_service.errors import ApiError
from project_service.http.describe import STRING, Named, obj
from project_service.http.response import ErrorForm, Reply, error_reply
from project_service.storage.parsing import tus

_KEPT = {405, 412, 416, 429}


@frozen
class Said:
    """What clients are told: the status that is meant (None: that of ours), the words for it, and a message where
    ours is not what they look for."""

    status: int | None
    error: str
    code: str
    message: Callable[[ApiError], str] | None = None


def _says(text: str) -> Callable[[ApiError], str]:
    return lambda error: text


def _too_large(error: ApiError) -> str:
    """Without words about quotas and bodies of JSON, of which those clients know nothing."""
    of_object = not error.details and "server." not in error.message
    return "The object exceeded the maximum allowed size" if of_object else error.message


def _of_type(error: ApiError) -> str:
    sent = (error.details or {}).get("content_type")
    return error.message if sent is None else f"mime type {sent} is not supported"


_EXISTS = _says("The resource already exists")
_INVALID = Said(400, "InvalidRequest", "InvalidRequest")
_DENIED = Said(403, "Unauthorized", "AccessDenied")
_NO_KEY = _says(
    "This path needs a project key: in the header apikey or authorization, or as the parameter apikey."
)
_FAULT = Said(None, "Internal", "InternalError")
_TUS = Said(None, "TusError", "TusError")
_PICTURE = evolve(_INVALID, status=422)

# By our codes.
TABLE: Mapping[str, Said] = {
    "authentication_required": _DENIED,
    "bad_digest": Said(400, "InvalidChecksum", "InvalidChecksum"),
    "bad_request": _INVALID,
    "bucket_exists": Said(409, "Duplicate", "BucketAlreadyExists", _EXISTS),
    "bucket_in_use": Said(409, "ResourceReferenced", "ResourceReferenced"),
    "bucket_not_empty": Said(
        409, "ResourceNotEmpty", "ResourceNotEmpty", _says("The bucket you tried to delete is not empty")
    ),
    "bucket_not_found": Said(404, "Bucket not found", "NoSuchBucket", _says("Bucket not found")),
    "checksum_mismatch": _TUS,
    "database_unavailable": Said(503, "DatabaseTimeout", "DatabaseTimeout"),
    "headers_too_large": Said(431, "InvalidRequest", "InvalidRequest"),
    "image_invalid": _PICTURE,
    "image_too_large": _PICTURE,
    "image_type_unsupported": _PICTURE,
    "images_not_installed": Said(501, "FeatureNotEnabled", "FeatureNotEnabled"),
    "internal_error": _FAULT,
    "invalid_checksum": _TUS,
    "invalid_json": _INVALID,
    "invalid_key": Said(400, "InvalidKey", "InvalidKey"),
    "invalid_multipart": _INVALID,
    "invalid_query": _INVALID,
    "invalid_token": Said(403, "Unauthorized", "AccessDenied"),
    "invalid_upload_header": _TUS,
    "length_required": Said(400, "MissingContentLength", "MissingContentLength"),
    "link_not_found": Said(400, "InvalidSignature", "InvalidSignature"),
    "method_not_allowed": Said(405, "InvalidRequest", "InvalidRequest"),
    "not_allowed": evolve(_DENIED, message=_says("new row violates row-level security policy")),
    "not_found": Said(404, "not_found", "InvalidRequest"),
    "not_owner": _DENIED,
    "object_changed": Said(409, "ResourceLocked", "ResourceLocked"),
    "object_exists": Said(409, "Duplicate", "KeyAlreadyExists", _EXISTS),
    "object_in_use": Said(409, "ResourceReferenced", "ResourceReferenced"),
    "object_not_found": Said(404, "not_found", "NoSuchKey", _says("Object not found")),
    "offset_mismatch": _TUS,
    "overloaded": Said(503, "SlowDown", "SlowDown"),
    "payload_too_large": Said(413, "Payload too large", "EntityTooLarge", _too_large),
    "precondition_failed": Said(412, "InvalidRequest", "InvalidRequest"),
    "prefetch_refused": Said(503, "SlowDown", "SlowDown"),
    "project_key_invalid": Said(403, "Unauthorized", "AccessDenied"),
    "project_key_required": Said(400, "Error", "AccessDenied", _NO_KEY),
    "range_not_satisfiable": Said(416, "invalid_range", "InvalidRange"),
    "rate_limited": Said(429, "SlowDown", "SlowDown"),
    "refused_by_project": Said(None, "DatabaseError", "DatabaseError"),
    "request_timeout": Said(408, "InvalidRequest", "InvalidRequest"),
    "service_key_required": _DENIED,
    "session_revoked": Said(403, "Unauthorized", "session_not_found"),
    "shutting_down": Said(503, "SlowDown", "SlowDown"),
    "store_unavailable": Said(503, "S3Error", "S3Error"),
    "token_expired": Said(400, "ExpiredToken", "ExpiredToken"),
    "token_not_found": Said(400, "InvalidSignature", "InvalidSignature"),
    "token_used": Said(409, "Duplicate", "KeyAlreadyExists"),
    "tus_version_not_supported": _TUS,
    "unsupported_media_type": Said(415, "invalid_mime_type", "InvalidMimeType", _of_type),
    "upload_expired": Said(410, "NoSuchUpload", "NoSuchUpload"),
    "upload_locked": Said(423, "ResourceLocked", "ResourceLocked"),
    "upload_not_found": Said(404, "NoSuchUpload", "NoSuchUpload"),
    "uri_too_long": Said(414, "InvalidRequest", "InvalidRequest"),
    "validation_failed": _INVALID,
}


# Words that clients of tus look for.
_TO_TUS = {"offset_mismatch": "Upload-Offset conflict", "payload_too_large": "Maximum size exceeded"}


class StorageError(ApiError):
    """An error as it is sent. ``status`` is that of the response, ``stated`` the one in the body."""

    def __init__(self, ours: ApiError, kept: bool) -> None:
        # A code that the table does not know is a fault of ours, which a test would have found.
        said = TABLE.get(ours.code, _FAULT)
        self.stated = said.status or ours.status
        self.error = said.error
        real = kept or self.stated in _KEPT or self.stated >= HTTPStatus.INTERNAL_SERVER_ERROR
        status = self.stated if real else HTTPStatus.BAD_REQUEST.value
        message = ours.message if said.message is None else said.message(ours)
        if kept and ours.code in _TO_TUS:
            message = f"{_TO_TUS[ours.code]}: {ours.message}"
        headers = tuple(one for one in ours.headers if one[0] != "WWW-Authenticate")
        super().__init__(status, said.code, message, None, headers, counted=ours.counted)
        self.reason = ours.reason if status == ours.status else None

    def body(self) -> bytes:
        return orjson.dumps(
            {
                "statusCode": str(self.stated),
                "error": self.error,
                "code": self.code,
                "message": self.message,
            }
        )


def as_sent(error: ApiError) -> StorageError:
    return StorageError(error, kept=False)


def as_sent_to_tus(error: ApiError) -> StorageError:
    """Clients of tus go by the status."""
    return StorageError(error, kept=True)


def _tus_reply(error: ApiError) -> Reply:
    reply = error_reply(as_sent_to_tus(error))
    return evolve(reply, headers=(*reply.headers, *tus.OF_RESPONSES))


_ERROR = Named(
    "ClientStorageError",
    obj(
        ("statusCode", "error", "code", "message"),
        statusCode={
            "type": "string",
            "description": "The status that is meant; that of the response is 400.",
        },
        error=STRING,
        code=STRING,
        message={"type": "string", "description": "One sentence for a person; may change."},
    ),
)


def _schema(codes: Sequence[str]) -> Any:
    return {"allOf": [_ERROR, {"properties": {"code": {"enum": [*codes]}}}]}


FORM = ErrorForm(lambda error: error_reply(as_sent(error)), _schema, as_sent)
TUS_FORM = ErrorForm(_tus_reply, _schema, as_sent_to_tus)
