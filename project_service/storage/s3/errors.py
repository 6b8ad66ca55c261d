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


# What went wrong, in words for people. The text of an exception is not used: it may hold a secret.
UNTRUSTED = "the certificate is not trusted, or has expired"
NO_TLS = "the server does not speak TLS"
UNREADABLE = "the response is not one of S3"
NO_SIZE = "it does not report the size of an object"
NO_NEXT_PAGE = "its list does not say where the next page begins"
SAME_PAGE = "its list repeats a page"
NO_ANSWER = "it did not answer in time"
FELL_SILENT = "it fell silent in the middle of an answer"

_BY_CLASS = {
    "ConnectionRefusedError": "no server listens there",
    "DNSLookupError": "unknown host",
    "CancelledError": "timed out",
    "TimeoutError": "timed out",
    "TCPTimedOutError": "timed out",
    "ConnectionLost": "it closed the connection",
    "ConnectionDone": "it closed the connection",
    "VerificationError": "the certificate is for another name",
}
EXPLANATIONS = frozenset(
    {
        *_BY_CLASS.values(),
        UNTRUSTED,
        NO_TLS,
        UNREADABLE,
        NO_SIZE,
        NO_NEXT_PAGE,
        SAME_PAGE,
        NO_ANSWER,
        FELL_SILENT,
    }
)


def kind_of(problem: BaseException | None) -> str:
    """What went wrong, in a few words for the log: one of ``EXPLANATIONS``, else the store's error code, else the
    name of the exception."""
    if isinstance(problem, SSL.Error):
        return UNTRUSTED if certificates.untrusted(problem) else NO_TLS
    if isinstance(problem, StoreUnreachable) and str(problem) in EXPLANATIONS:
        return str(problem)
    if isinstance(problem, BrokenResponse) and problem.args:
        return str(problem)
    name = type(problem).__name__
    return str(getattr(problem, "code", None) or _BY_CLASS.get(name, name))
