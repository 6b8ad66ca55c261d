"""The walk of docs/operating/three-hosts.rst, rehearsed on one machine as the page says: every command as it stands
there, in the order of the page, what each prints, and what its clients notice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import randbelow
from time import monotonic

from project_service.embedded import postgres
from project_service.embedded.postgres import USER
from project_service.embedded.seaweed import program_file
from tests.live.daemon import ROOT
from tests.live.programs import PATH, program
from tests.live.service.documented import assert_prints

PAGE = ROOT / "docs" / "operating" / "three-hosts.rst"
_PART = re.compile(
    r"^(?P<heading>\S.*)\n-+$|"
    r"^\.\. code-block:: (?P<language>\w+)\n(?:   :caption: (?P<file>\S+)\n)?\n(?P<text>(?:   .*\n|\n)+)",
    re.M,
)
_NEXT = "==== block"
# What clients may be told in each section, besides that all is well.
_REFUSED = {"A host is lost": {"000", "502", "503"}, "The primary is lost": {"000", "503", "504"}}
_ANSWER = re.compile(r"^ *(\d+) (put|get) (\d{3})$", re.M)


def walk(directory: Path) -> None:
    """Raises ``AssertionError`` where a command fails, prints something else, or a client fails where none should."""
    for name in ("haproxy", "socat"):
        program(name)
    if os.geteuid() != 0:
        print("only root can run PostgreSQL as another user; nothing was done")
        return
    script, sections, expected = _script()
    net = f"127.{1 + randbelow(254)}.{randbelow(256)}"
    script = script.replace("127.0.1.", f"{net}.")
    environ = {
        **os.environ,
        "PATH": PATH,
        "PYTHONPATH": str(ROOT),
        "BASE": str(directory / "machines"),
        "PGBIN": str(postgres.program_directory()),
        "PGAS": USER,
        "BIN": str(Path(sys.executable).parent),
        "WEED": str(program_file()),
    }
    directory.chmod(0o755)
    since = monotonic()
    try:
        _judge(_run(script, environ), sections, expected)
    finally:
        _end(directory)
    print(f"the walk took {monotonic() - since:.0f} s")


def _run(script: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environ,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _judge(done: subprocess.CompletedProcess[str], sections: list[str], expected: list[str]) -> None:
    printed = done.stdout.split(f"{_NEXT}\n")[1:]
    assert done.returncode == 0, f"{sections[len(printed) - 1]}: {printed[-1]}"
    for section, output, text in zip(sections, printed, expected, strict=True):
        if text:
            assert_prints(output, text, section)
        for count, kind, status in _ANSWER.findall(output):
            print(f"  {section}: {kind} {status} {count}")
            well = {"put": "201", "get": "200"}[kind]
            assert status == well or status in _REFUSED.get(section, set()), f"{section}: {output}"


def _end(directory: Path) -> None:
    """Kills what runs, unless the page has done so."""
    for file in directory.glob("machines/*/run/*.pid"):
        with suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


def _script() -> tuple[str, list[str], list[str]]:
    """The commands with a line before each block, the section of each block, and what it should print."""
    script: list[str] = []
    sections: list[str] = []
    expected: list[str] = []
    heading = ""
    for found in _PART.finditer(PAGE.read_text("utf-8")):
        if found["heading"]:
            heading = found["heading"]
        elif found["language"] == "text":
            expected[-1] = re.sub(r"^   ", "", found["text"], flags=re.M).strip("\n")
        elif found["file"] != "units.sh":
            script.append(f"echo '{_NEXT}'\n" + re.sub(r"^   ", "", found["text"], flags=re.M))
            sections.append(heading)
            expected.append("")
    return "\n".join(script), sections, expected
