"""A child process that does not exist: it records signals and ends when a test says so."""

from __future__ import annotations

from twisted.internet.error import ProcessExitedAlready
from twisted.python.failure import Failure

from project_service.embedded.supervised import Child

NOBODYS_PID = 2**22 + 1


class FakeProcess:
    """A fake process that records signals and ends when a test says so."""

    def __init__(self, protocol: Child) -> None:
        self.pid = NOBODYS_PID
        self.protocol = protocol
        self.signals: list[int] = []
        self.ended = False

    def closeStdin(self) -> None:
        pass

    def loseConnection(self) -> None:
        pass

    def signalProcess(self, number: int) -> None:
        if self.ended:
            raise ProcessExitedAlready
        self.signals.append(number)

    def say(self, text: str) -> None:
        self.protocol.childDataReceived(2, text.encode())

    def end(self, reason: Exception) -> None:
        self.ended = True
        self.protocol.processExited(Failure(reason))
        self.protocol.processEnded(Failure(reason))
