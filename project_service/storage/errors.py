"""The codes that storage adds to the catalogue."""

from __future__ import annotations

from project_service import errors
from project_service.errors import ApiError
from project_service.storage.s3.errors import BrokenRead, CorruptTransfer, StoreError, StoreUnreachable

# Failures of the store, of which clients get ``store_unavailable``.
STORE_FAILURES = (StoreUnreachable, StoreError, CorruptTransfer, BrokenRead)


def store_unavailable() -> ApiError:
    message = "The object store cannot be reached at the moment."
    return ApiError(503, "store_unavailable", message, counted=True)


def bucket_not_found() -> ApiError:
    return ApiError(404, "bucket_not_found", "There is no such bucket.")


def bucket_exists() -> ApiError:
    return ApiError(409, "bucket_exists", "There is a bucket of that name already.")


def bucket_not_empty() -> ApiError:
    return ApiError(409, "bucket_not_empty", "The bucket still holds objects; force=true deletes them too.")


def bucket_in_use() -> ApiError:
    """A foreign key of the project's own tables forbids it."""
    return ApiError(
        409, "bucket_in_use", "Rows of other tables refer to this bucket, so it cannot be deleted."
    )


def object_not_found() -> ApiError:
    return ApiError(404, "object_not_found", "There is no object with that key.")


def object_in_use() -> ApiError:
    """A foreign key of the project's own tables forbids it."""
    return ApiError(409, "object_in_use", "Rows of other tables refer to this object, so it keeps its key.")


def object_changed() -> ApiError:
    """The object was replaced while its bytes were copied."""
    return ApiError(409, "object_changed", "The object was replaced while it was moved; try again.")


def invalid_key(why: str, name: str = "key") -> ApiError:
    """``name`` is the field or parameter that has the key."""
    what = "prefix" if name == "prefix" else "object key"
    return ApiError(422, "invalid_key", f"The {what} is not allowed: {why}.", {name: why})


def object_exists() -> ApiError:
    return ApiError(412, "object_exists", "There is an object with that key already.")


def precondition_failed() -> ApiError:
    message = (
        "The object does not match the conditions of the request "
        "(If-Match, If-None-Match, If-Unmodified-Since)."
    )
    return ApiError(412, "precondition_failed", message)


def not_owner() -> ApiError:
    message = "Another user has an object with this key, and only they may overwrite, move or delete it."
    return ApiError(403, "not_owner", message)


def not_allowed() -> ApiError:
    """Also where a policy failed, of which only the log speaks."""
    return ApiError(403, "not_allowed", "The policies of this bucket do not allow this.")


def payload_too_large_for_bucket() -> ApiError:
    """The quota ``max_bucket_bytes``; 413 has one code, so the details say which limit it was."""
    return ApiError(
        413,
        "payload_too_large",
        "The object does not fit into what is left of the bucket's quota (max_bucket_bytes); delete others first.",
        {"bucket": "max_bucket_bytes would be exceeded"},
    )


def request_timeout_of_upload() -> ApiError:
    return ApiError(408, "request_timeout", "The upload did not arrive in time and was given up.")


def unsupported_media_type_of_object(content_type: str, taker: str = "bucket") -> ApiError:
    return ApiError(
        415,
        "unsupported_media_type",
        f"The {taker} does not take this content type.",
        {"content_type": content_type},
    )


def range_not_satisfiable(size: int) -> ApiError:
    """RFC 9110 section 15.5.17."""
    return ApiError(
        416,
        "range_not_satisfiable",
        "The object has no such range of bytes.",
        headers=(("Content-Range", f"bytes */{size}"), ("Accept-Ranges", "bytes")),
    )


def bad_request_content_range() -> ApiError:
    """400 for a ``Content-Range`` in an upload (RFC 9110 section 14.5): a piece would replace the whole object."""
    return errors.bad_request("An object is uploaded whole; Content-Range is not supported.")


def bad_request_object_owner() -> ApiError:
    """400 for ``X-Object-Owner`` where no object is made."""
    message = "X-Object-Owner is for uploads and copies; PATCH of the object changes its owner."
    return errors.bad_request(message)


def length_required() -> ApiError:
    """RFC 9110 section 15.5.12."""
    return ApiError(411, "length_required", "An upload needs a body; an empty one needs Content-Length: 0.")


def bad_digest(header: str, why: str) -> ApiError:
    return ApiError(400, "bad_digest", f"The header {header} {why}.")


def invalid_multipart(why: str) -> ApiError:
    return ApiError(400, "invalid_multipart", f"The form cannot be read: {why}.")


def token_not_found() -> ApiError:
    return ApiError(404, "token_not_found", "There is no such link.")


def token_used() -> ApiError:
    return ApiError(410, "token_used", "This link has been used.")


def token_expired() -> ApiError:
    return ApiError(410, "token_expired", "This link has expired.")


def link_not_found() -> ApiError:
    return ApiError(404, "link_not_found", "There is no link with that id.")


def prefetch_refused() -> ApiError:
    """The browser sends the request again when the person follows the link."""
    message = "This link is for a limited number of downloads, so it is not prefetched."
    return ApiError(503, "prefetch_refused", message, headers=(errors.RETRY_AFTER,))


def images_not_installed() -> ApiError:
    message = "Pictures cannot be resized here: install project-service[images], or pyvips[binary]."
    return ApiError(501, "images_not_installed", message)


def image_type_unsupported() -> ApiError:
    message = (
        "Only objects with the content type of JPEG, PNG, WebP, GIF or AVIF can be resized or converted."
    )
    return ApiError(422, "image_type_unsupported", message)


def image_type_unsupported_animated() -> ApiError:
    message = "An animated AVIF cannot be resized or converted; GIF and WebP may be animated."
    return ApiError(422, "image_type_unsupported", message)


def image_invalid() -> ApiError:
    return ApiError(
        422, "image_invalid", "The object cannot be read as a picture: it is broken or cut short."
    )


def image_too_large() -> ApiError:
    message = "The picture has more bytes or pixels, or takes more memory or time, than is allowed here."
    return ApiError(422, "image_too_large", message)


# Resumable uploads.


def tus_version_not_supported(version: str) -> ApiError:
    message = f"The request must speak tus {version}, and say so in Tus-Resumable."
    return ApiError(412, "tus_version_not_supported", message, headers=(("Tus-Version", version),))


def invalid_upload_header(why: str) -> ApiError:
    return ApiError(400, "invalid_upload_header", f"The headers of the upload cannot be read: {why}.")


def upload_not_found() -> ApiError:
    """Also for an upload that the caller did not begin."""
    return ApiError(404, "upload_not_found", "There is no such upload.")


def upload_expired() -> ApiError:
    return ApiError(410, "upload_expired", "The upload was not finished in time, and has to begin again.")


def upload_expired_bytes_lost() -> ApiError:
    """To a client the same as ``upload_expired``: it begins again."""
    return ApiError(
        410, "upload_expired", "The store lost what it had received of the upload, which has to begin again."
    )


def offset_mismatch(offset: int) -> ApiError:
    message = f"The upload goes on at byte {offset}."
    return ApiError(409, "offset_mismatch", message, headers=(("Upload-Offset", str(offset)),))


def upload_locked() -> ApiError:
    """Of two requests for one upload at the same time one is refused."""
    message = "Another request is writing to this upload."
    return ApiError(423, "upload_locked", message, headers=(("Retry-After", "1"),))


def invalid_checksum(why: str) -> ApiError:
    return ApiError(400, "invalid_checksum", f"The header Upload-Checksum {why}.")


def checksum_mismatch() -> ApiError:
    """A status of tus alone."""
    message = "The bytes are not those that Upload-Checksum is of; they were thrown away."
    error = ApiError(460, "checksum_mismatch", message)
    error.reason = "Checksum Mismatch"
    return error


# The outcomes by which functions of the schema ``storage`` refuse a change. If several objects are refused, the first
# outcome in this order is reported.
_REFUSALS = {
    "bucket_not_found": bucket_not_found,
    "bucket_not_empty": bucket_not_empty,
    "object_not_found": object_not_found,
    "not_allowed": not_allowed,
    "not_owner": not_owner,
    "object_exists": object_exists,
    "precondition_failed": precondition_failed,
    "object_changed": object_changed,
    "bucket_full": payload_too_large_for_bucket,
    "upload_expired": request_timeout_of_upload,
    "token_not_found": token_not_found,
    "token_used": token_used,
}


def refused(*outcomes: str) -> ApiError:
    """The error for the outcomes of a change that the database refused. A refusal by ``access`` is made by the same
    function."""
    return _REFUSALS[min(outcomes, key=list(_REFUSALS).index)]()
