"""Installs the distributions of a release into new environments and tries them, on this machine or in a container
that has nothing but Python and pip: ``python3 -m releasing.trying VERSION DIST``."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from threading import Timer

from releasing.building import Unfit, run

# The extras that the service runs with.
RUNNING = "embedded,images,tracing"
# The environments of the wheel.
WHEELS = ("minimal", "embedded")
READY_SECONDS = 120
_READY = re.compile(r"ready on http://\S+")


def try_all(version: str, dist: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Make the environments ``WHEELS`` and one of the source distribution in ``folder``. Raises ``Unfit`` if one
    cannot be made, or if what was installed does not work.

    The distributions are found by their version, so that no bill has the path of a file in it.
    """
    for name, what, binary in (
        ("minimal", f"project-service=={version}", "--only-binary"),
        ("embedded", f"project-service[{RUNNING}]=={version}", "--only-binary"),
        ("source", f"project-service=={version}", "--no-binary"),
    ):
        say(f"Installing {what} from {'a wheel' if binary == '--only-binary' else 'its source'}")
        venv.create(folder / name, with_pip=False)
        python = folder / name / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        run([*pip, "--find-links", str(dist), binary, "project-service", what], folder)
        use(python, folder / name)
        if name == "embedded":
            serve(python, folder / name)


def use(python: Path, folder: Path) -> None:
    """Have an installed package print its settings and its help."""
    if "[server]" not in run([str(python.with_name("project-service")), "config"], folder):
        raise Unfit(f"{python.parent}/project-service config prints no settings")
    if "--data-dir" not in run([str(python.with_name("twistd")), "project-service", "--help"], folder):
        raise Unfit(f"{python.parent}/twistd does not know project-service")


def serve(python: Path, folder: Path) -> None:
    """Have it start with an embedded database and store, get ready and end."""
    listen = ["--listen", "tcp:0:interface=127.0.0.1", "--data-dir", str(folder / "var")]
    argv = [str(python.with_name("twistd")), "--nodaemon", "--pidfile=", "project-service", *listen]
    service = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert service.stdout is not None
    late = Timer(READY_SECONDS, service.kill)
    late.start()
    printed = []
    try:
        for line in service.stdout:
            printed.append(line)
            if _READY.search(line):
                service.send_signal(signal.SIGTERM)
    finally:
        late.cancel()
        service.kill()
    if service.wait() != 0 or not _READY.search("".join(printed)):
        raise Unfit(f"the service did not start, get ready and stop:\n{''.join(printed)}")


def main() -> int:
    version, dist = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        try:
            try_all(version, Path(dist), Path(folder), lambda line: print(line, flush=True))
        except Unfit as fault:
            print(fault, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
