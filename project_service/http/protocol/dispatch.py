"""What an HTTP channel hands its requests to."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IAddress

from project_service.errors import ApiError
from project_service.http.exchange import Exchange


class Dispatch(Protocol):
    """Implemented by ``edge.Edge``."""

    def begin(self, exchange: Exchange, peer: IAddress, secure: bool) -> None:
        """Start answering. May answer before it returns."""

    def refusal(self, error: ApiError, peer: IAddress, target: bytes) -> bytes:
        """The whole response to a request that could not be parsed; the connection closes after it.

        ``target`` is as much of the request's target as could be read.
        """

    def turned_away(self) -> bytes:
        """The whole response to a connection for which there is no room."""
