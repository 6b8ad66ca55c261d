"""How long a session waits for the server to answer."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime


class Answering(Protocol):
    """What waits for answers. Each may take the sum of both times; without a limit if one of them is None."""

    answer_seconds: float | None
    extra_seconds: float | None

    @property
    def awaiting_since(self) -> float | None:
        """When the oldest message was sent that is not answered yet; None where there is none."""

    def gone_silent(self) -> None:
        """Called when no answer came in that time."""


class AnswerTimeout:
    """Notices that an answer does not come.

    One delayed call serves many messages: one for each would cost as much as sending it. So nothing is done when an
    answer arrives, and the delayed call finds out by itself whether the last message is answered.

    The session is an argument, not kept: the two would otherwise wait for the garbage collector.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._call: IDelayedCall | None = None

    def start(self, session: Answering) -> None:
        """A message of ``session`` has just been sent."""
        allowed = _allowed(session)
        if allowed is None:
            return
        if self._call is None:
            self._call = self._clock.callLater(allowed, self._look, session)
        elif self._call.getTime() > self._clock.seconds() + allowed:
            self._call.reset(allowed)  # it was longer before

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _look(self, session: Answering) -> None:
        self._call = None
        allowed, since = _allowed(session), session.awaiting_since
        if allowed is None or since is None:
            return
        left = since + allowed - self._clock.seconds()
        if left > 0:
            self._call = self._clock.callLater(left, self._look, session)
        else:
            session.gone_silent()


def _allowed(session: Answering) -> float | None:
    if session.answer_seconds is None or session.extra_seconds is None:
        return None
    return session.answer_seconds + session.extra_seconds
