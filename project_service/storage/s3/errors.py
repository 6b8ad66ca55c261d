"""What can go wrong at the store, in the service's terms. No message holds the store's XML, address or secrets."""

from __future__ import annotations

from OpenSSL import SSL

from project_service import certificates
from project_service.errors import Away


class StoreError(Exception):
    """The store refused. ``code`` is its S3 error code, or the HTTP status if it gave none.

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
    """No usable response within the time allowed: refused, reset, silent, or 5xx after every retry."""


class CorruptTransfer(Exception):
    """The store's checksum of what it received differs from ours."""


class BrokenResponse(Exception):
    """No response came, or only a part, or something else. The connection cannot be used any more."""


class BrokenRead(Exception):
    """The store stopped in the middle of an object."""


class ReaderLeft(Exception):
    """The client that read an object left before its end."""


UNTRUSTED = "untrusted certificate"
NO_TLS = "no TLS"
UNREADABLE = "an unreadable response"
NO_SIZE = "no size of an object"
NO_NEXT_PAGE = "a listing without its continuation token"
SAME_PAGE = "a list that repeats a page"


def kind_of(problem: BaseException | None) -> str:
    """What went wrong, in a word for the log: the text of a failure may hold an address."""
    if isinstance(problem, BrokenResponse) and problem.args:
        return str(problem)
    if isinstance(problem, SSL.Error):
        return UNTRUSTED if certificates.untrusted(problem) else NO_TLS
    return str(getattr(problem, "code", None) or type(problem).__name__)
