"""Running a program to its end: its output, its failures, and that nothing survives a cancellation."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as _reactor
from twisted.internet.defer import CancelledError

from project_service.embedded import seaweed
from project_service.embedded.assemble import Embedded
from project_service.embedded.leftovers import identify
from project_service.embedded.seaweed import load_ports
from project_service.embedded.supervised import ChildFailed, Command, run_command
from project_service.lifecycle import start
from tests.live.waiting import until

reactor: Any = _reactor


def shell(text: str, directory: Path) -> Command:
    return Command(("/bin/sh", "-c", text), directory, {"GREETING": "hello"})


@pytest_twisted.ensureDeferred
async def test_output_working_directory_and_environment_of_a_program(tmp_path: Path) -> None:
    script = "(echo $GREETING; pwd; echo ${PATH_INFO:-none}) > output"
    await run_command(reactor, shell(script, tmp_path))
    assert (tmp_path / "output").read_text() == f"hello\n{tmp_path}\nnone\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("/bin/sh", "-c", "echo out; echo why >&2; exit 3"), "sh ended with exit code 3:\nout\nwhy"),
        (("/bin/sh", "-c", "echo out; exit 3"), "sh ended with exit code 3:\nout"),
        (("/bin/sh", "-c", "kill -9 $$"), "sh ended with signal SIGKILL:"),
        (("/no/such/program",), "ended with exit code 1:\n/no/such/program cannot be run: No such file"),
    ],
    ids=["output-and-errors", "output", "killed", "missing"],
)
@pytest_twisted.ensureDeferred
async def test_the_error_describes_how_a_program_failed(
    argv: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ChildFailed) as failed:
        await run_command(reactor, Command(argv, tmp_path))
    assert words in str(failed.value)


@pytest_twisted.ensureDeferred
async def test_a_cancelled_program_and_all_it_started_are_gone(tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    running = start(
        run_command(
            reactor, shell(f"sleep 60 & echo $$ $! > {noted}.new; mv {noted}.new {noted}; wait", tmp_path)
        )
    )
    await until(noted.exists)
    pids = [int(pid) for pid in noted.read_text().split()]
    assert all(identify(pid) for pid in pids)
    running.cancel()
    with pytest.raises(CancelledError):
        await running
    await until(lambda: not any(identify(pid) for pid in pids))


@pytest_twisted.ensureDeferred
async def test_a_port_taken_after_it_was_checked_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded, free = Embedded(reactor, tmp_path / "var", database=False), seaweed.is_free
    with socket.socket() as other:

        def taken_after_the_look(port: int) -> bool:
            is_free = free(port)
            if is_free and not other.getsockname()[1]:
                other.bind(("127.0.0.1", port))
                other.listen()
            return is_free

        monkeypatch.setattr(seaweed, "is_free", taken_after_the_look)
        try:
            running = await embedded.start()
            assert running.store is not None
            gone = other.getsockname()[1]
            assert gone not in load_ports(embedded.data_dir).values()
        finally:
            await embedded.stop()


@pytest_twisted.ensureDeferred
async def test_a_directory_name_with_a_comma_is_not_taken_for_two(tmp_path: Path) -> None:
    embedded = Embedded(reactor, tmp_path / "one, two", database=False)
    try:
        await embedded.start()
        assert not (tmp_path / "one").exists()
    finally:
        await embedded.stop()
