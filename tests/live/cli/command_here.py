"""``project-service`` in the test's own process: as ``command_line``, but without starting Python for each
command."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from click.testing import CliRunner
from twisted.internet import reactor as _reactor
from twisted.internet.threads import blockingCallFromThread, deferToThread

from project_service.cli import main
from project_service.cli.invocation import Invocation
from project_service.lifecycle import start
from tests.live.cli.command_line import Ended

reactor: Any = _reactor
Command = Callable[..., Ended]


def on_reactor(work: Any) -> None:
    """Run work on the reactor to its end, from a test that is ``beside_the_reactor``."""
    blockingCallFromThread(reactor, lambda: start(work))


def beside_the_reactor(test: Callable[..., None]) -> Any:
    """Runs a test in a thread, because commands block until their work on the reactor is done."""

    @pytest_twisted.ensureDeferred
    @wraps(test)
    async def wrapped(*arguments: Any, **named: Any) -> None:
        await deferToThread(test, *arguments, **named)

    return wrapped


def commands_of(monkeypatch: pytest.MonkeyPatch, *options: str | Path) -> Command:
    """A function that runs commands with these options on the running reactor."""
    monkeypatch.setattr(Invocation, "on_reactor", lambda _, work: on_reactor(work(reactor)))

    def run(*words: str, stdin: str = "") -> Ended:
        done = CliRunner().invoke(main, [*words, *map(str, options)], input=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ended(done.exit_code, done.stdout, done.stderr)

    return run


def failed(why: str) -> Ended:
    """How a command ends that has failed for this reason."""
    return Ended(1, "", f"project-service: {why}\n")
