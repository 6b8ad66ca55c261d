"""How a program is started: what, where, as whom."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen
from twisted.internet.utils import getProcessOutputAndValue

LAUNCHER = Path(__file__).with_name("launcher.py")


class ChildFailed(Exception):
    """A program of ours did not do what it was started for; the message has its last output."""


@frozen
class Account:
    """An operating system user that root turns into."""

    name: str
    uid: int
    gid: int


@frozen
class Command:
    """``environ`` is the whole environment, and is not shown: it may hold secrets."""

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str] = field(repr=False, factory=dict)
    account: Account | None = None
    parent_death_signal: int = signal.SIGTERM

    def launched(self, parent: int) -> list[str]:
        """The arguments with the launcher before them."""
        uid, gid = (self.account.uid, self.account.gid) if self.account else (-1, -1)
        options = [str(one) for one in (parent, int(self.parent_death_signal), uid, gid)]
        return [sys.executable, "-I", "-S", str(LAUNCHER), *options, *self.argv]


async def run(reactor: Any, command: Command) -> bytes:
    """Run a program to its end; its standard output. Raises ``ChildFailed``."""
    argv = command.launched(os.getpid())
    name = Path(command.argv[0]).name
    try:
        out, err, code = await getProcessOutputAndValue(
            argv[0], argv[1:], dict(command.environ), str(command.cwd), reactor
        )
    except Exception as fault:
        # getProcessOutputAndValue fails with a bare tuple when the program dies of a signal.
        raise ChildFailed(f"{name} was killed") from fault
    if code != 0:
        text = (err or out).decode("utf-8", "replace").strip()
        raise ChildFailed(f"{name} ended with exit code {code}:\n{text}")
    result: bytes = out
    return result
