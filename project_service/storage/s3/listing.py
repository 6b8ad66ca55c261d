"""The store's list documents as values. Pure."""

from __future__ import annotations

from datetime import datetime
from xml.etree import ElementTree

from attrs import frozen

from project_service.storage.s3.errors import local_name, local_text


@frozen
class StoredObject:
    key: str
    size: int
    etag: str
    last_modified: datetime


@frozen
class StoredPage:
    """One page of ListObjectsV2; ``next_token`` is None on the last."""

    objects: tuple[StoredObject, ...]
    next_token: str | None


@frozen
class OpenMultipart:
    """A multipart upload that was neither completed nor aborted."""

    key: str
    upload_id: str


def parse_objects(body: bytes) -> StoredPage:
    root = ElementTree.fromstring(body)  # noqa: S314 (the store is ours)
    found = tuple(_stored_object(child) for child in root if local_name(child) == "Contents")
    truncated = local_text(root, "IsTruncated") == "true"
    return StoredPage(found, (local_text(root, "NextContinuationToken") or None) if truncated else None)


def _stored_object(element: ElementTree.Element) -> StoredObject:
    return StoredObject(
        local_text(element, "Key"),
        int(local_text(element, "Size") or 0),
        local_text(element, "ETag").strip('"'),
        datetime.fromisoformat(local_text(element, "LastModified")),
    )


def parse_multiparts(body: bytes) -> tuple[tuple[OpenMultipart, ...], tuple[str, str] | None]:
    """The uploads of one page, and the key and upload id markers of the next page or None."""
    root = ElementTree.fromstring(body)  # noqa: S314 (the store is ours)
    found = tuple(
        OpenMultipart(local_text(child, "Key"), local_text(child, "UploadId"))
        for child in root
        if local_name(child) == "Upload"
    )
    markers = (local_text(root, "NextKeyMarker"), local_text(root, "NextUploadIdMarker"))
    return found, markers if local_text(root, "IsTruncated") == "true" and markers[0] else None


def text_of(body: bytes, name: str) -> str:
    """The text of one child of the root, as of ``UploadId`` in an InitiateMultipartUploadResult."""
    return local_text(ElementTree.fromstring(body), name)  # noqa: S314 (the store is ours)


def parse_failed_deletes(body: bytes) -> tuple[str, ...]:
    """The keys that a DeleteObjects answer reports as not deleted."""
    root = ElementTree.fromstring(body)  # noqa: S314 (the store is ours)
    return tuple(local_text(child, "Key") for child in root if local_name(child) == "Error")
