"""What can go wrong at the store, in our terms. No message holds the store's XML, address or credentials."""

from __future__ import annotations

from xml.etree import ElementTree

from OpenSSL import SSL

from project_service.errors import Away
from project_service.network import tls_errors


class StoreError(Exception):
    """The store answered with a refusal. ``code`` is its S3 error code, or the HTTP status where it gave none.

    ``region`` is the region that the store says the bucket is in, or "".
    """

    def __init__(self, status: int, code: str, region: str = "") -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.region = region

    def __str__(self) -> str:
        where = f"; the region is {self.region}" if self.region else ""
        return f"{self.code} (HTTP {self.status}){where}"

    @property
    def not_offered(self) -> bool:
        """Whether the store does not have this operation at all."""
        return self.status in {405, 501}


class NoSuchObject(StoreError):
    """There is nothing under that key, or no such multipart upload."""


class NoSuchBucket(StoreError):
    """The whole store bucket is not there: nothing is known of any object."""


class StoreUnreachable(Away):
    """No usable answer within the time allowed: refused, reset, silent, or 5xx after every retry."""


class CorruptTransfer(Exception):
    """The store's checksum of what it received differs from ours."""


class BrokenAnswer(Exception):
    """No answer came, or only a part, or something that is no answer. The connection cannot be used any more."""


class BrokenRead(Exception):
    """The store stopped in the middle of an object."""


class ReaderLeft(Exception):
    """The client that read an object left before its end."""


UNTRUSTED = "untrusted certificate"
NO_TLS = "no TLS"
UNREADABLE = "an answer that cannot be read"
NO_SIZE = "no size of an object"
NO_NEXT_PAGE = "a list that does not say where it goes on"
SAME_PAGE = "a list that repeats a page"


def kind_of(problem: BaseException | None) -> str:
    """What went wrong, in a word for the log: the text of a failure may hold an address."""
    if isinstance(problem, BrokenAnswer) and problem.args:
        return str(problem)
    if isinstance(problem, SSL.Error):
        return UNTRUSTED if tls_errors.untrusted(problem) else NO_TLS
    return str(getattr(problem, "code", None) or type(problem).__name__)


ABSENT = {"NoSuchKey", "NoSuchUpload", "NotFound", "404"}
_BUSY = {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"}
# 5xx that trying again does not change: not implemented, not this version of HTTP, storage full.
_FINAL = {501, 505, 507}
# The bytes were damaged on their way. They are still here, so they can be sent again.
_GARBLED = {"BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody"}


def error_text(body: bytes, name: str = "Code") -> str:
    """One text of an S3 error document, or "" where there is none."""
    try:
        # The store is ours, and expat refuses entity bombs since 2.4.1.
        root = ElementTree.fromstring(body.lstrip())  # noqa: S314
    except ElementTree.ParseError:
        return ""
    return local_text(root, name) if local_name(root) == "Error" else ""


def refusal(status: int, body: bytes, region: str = "") -> StoreError:
    """The error for an answer that is no success. ``region`` is what its header says."""
    code = error_text(body) or str(status)
    if code == "NoSuchBucket":
        return NoSuchBucket(status, code)
    kind = NoSuchObject if status == 404 or code in ABSENT else StoreError
    return kind(status, code, region or error_text(body, "Region"))


def worth_retrying(status: int, code: str) -> bool:
    """Whether the failure may pass. That is so for failures of the server, and of a proxy in front of it (408,
    520)."""
    return status in {408, 429} or (status >= 500 and status not in _FINAL) or code in _BUSY | _GARBLED


def local_name(element: ElementTree.Element) -> str:
    """An element's name without its namespace, which not every store sends."""
    return element.tag.rpartition("}")[2]


def local_text(element: ElementTree.Element, name: str) -> str:
    """The text of the first child of that name, or ""."""
    for child in element:
        if local_name(child) == name:
            return child.text or ""
    return ""
