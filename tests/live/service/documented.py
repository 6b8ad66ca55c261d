"""The commands and files of a page of the documentation, run as they stand there.

In a page of ``docs/howto`` or ``docs/tutorials``

* a block with a ``:caption:`` is a file of that name;
* the blocks of ``sh`` are run by one shell, one after the other, in the folder with the files and with ``var``;
* a block of ``text`` after one of them is what it prints, in which ``…`` stands for anything;
* a block of ``console`` starts a service, with settings in the environment, which a block of ``sh`` may export. The
  files are there by then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import frozen

from tests.live.daemon import ROOT, Daemon
from tests.live.programs import PATH, program

BLOCK = re.compile(
    r"^\.\. code-block:: (\w+)\n(?:   :caption: (\S+)\n|   :\w+:.*\n)*\n((?:   .*\n|\n)+)", re.M
)
SETTING = re.compile(r"(PROJECT_SERVICE__\w+)=(?:'([^']*)'|(\S+))")
NEXT = "==== next block"
# ``project-service check`` opens the port of the settings for a moment, and the default one is the same for all tests
# that run at the same time.
OF_ANY_PORT = {"PROJECT_SERVICE__SERVER__LISTEN": '["tcp:0:interface=127.0.0.1"]'}
# What the commands of pages use and a machine may lack.
PROGRAMS = ("curl", "nginx", "psql")


@frozen
class Block:
    language: str
    file: str
    text: str


def blocks(page: str, **replaced: str) -> list[Block]:
    """The code blocks of a page below ``docs``, with some texts replaced, which must be there: addresses, keys."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    return [
        Block(language, file, textwrap.dedent(block).strip("\n") + "\n")
        for language, file, block in BLOCK.findall(text)
    ]


def named(page: str, name: str) -> str:
    """The code block with this ``:name:`` of a page below ``docs``."""
    block = rf"^( *)\.\. code-block:: \w+\n\1   :name: {re.escape(name)}\n\n((?:\1   .*\n|\n)+)"
    found = re.search(block, (ROOT / "docs" / page).read_text("utf-8"), re.M)
    assert found is not None, f"{page} has no block {name}"
    return textwrap.dedent(found[2]).strip("\n") + "\n"


def environment(page: str) -> dict[str, str]:
    """The settings with which the page starts its service."""
    consoles = "".join(
        block.text for block in blocks(page) if block.language in {"console", "sh"} and not block.file
    )
    return {name: quoted or plain for name, quoted, plain in SETTING.findall(consoles)}


def write_files(folder: Path, found: list[Block]) -> None:
    for block in found:
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, "utf-8")


def shell(folder: Path, script: str) -> str:
    """What a script prints in ``folder``. Fails if one of its commands does. Skips the test if it uses one of
    ``PROGRAMS`` that is not installed."""
    for name in PROGRAMS:
        if re.search(rf"\b{name} ", script):
            program(name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{PATH}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, **OF_ANY_PORT},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,  # its output says more than a status
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(
    folder: Path, page: str, replaced: Mapping[str, str] | None = None, before: str = "howto/index.rst"
) -> None:
    """Writes the files of a page and runs its commands, after those of ``before``. What they print must be what the
    page says they print."""
    found = blocks(page, **(replaced or {}))
    write_files(folder, found)
    commands = [at for at, block in enumerate(found) if block.language == "sh" and not block.file]
    assert commands, f"{page} has no commands"
    earlier = blocks(before) if before else []
    first = "".join(block.text for block in earlier if block.language == "sh")
    script = [first, *(found[at].text for at in commands)]
    _, *printed = shell(folder, f"\necho '{NEXT}'\n".join(script)).split(f"{NEXT}\n")
    for at, output in zip(commands, printed, strict=True):
        after = found[at + 1] if at + 1 < len(found) else None
        if after is not None and after.language == "text" and not after.file:
            assert_prints(output, after.text, found[at].text)


def assert_prints(output: str, expected: str, command: str) -> None:
    pattern = ".*".join(re.escape(piece) for piece in expected.strip().split("…"))
    # Not seen in a page: blanks before the end of a line, and whether the last line has an end.
    shown = re.sub(r" +$", "", output.strip(), flags=re.MULTILINE)
    assert re.fullmatch(pattern, shown, re.DOTALL), f"{command}\nprinted\n{output}\nnot\n{expected}"


def service(folder: Path, page: str, replaced: Mapping[str, str] | None = None) -> Daemon:
    """The service that a page starts, with its data in ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(page).items():
            for old, new in (replaced or {}).items():
                value = value.replace(old, new)  # noqa: PLW2901
            patch.setenv(name, value)
        write_files(folder, blocks(page, **(replaced or {})))
        return Daemon(folder / "var")
