"""The client's end of a connection: the same whichever parser reads what comes from there."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IAddress

from project_service.sockets import socket_progress


class FarEnd:
    """Of a channel, which is given its ``transport``."""

    transport: Any
    _peer: IAddress | None = None

    def who(self) -> IAddress:
        """To be asked once bytes have come: only then a PROXY header has said who it is."""
        if self._peer is None:
            self._peer = self.transport.getPeer()
        return self._peer

    def abort(self) -> None:
        self.transport.abortConnection()

    def progress(self) -> object:
        """As ``wire.Connection.progress``."""
        return socket_progress(self.transport)
