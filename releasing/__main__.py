"""``python -m releasing 0.2.0``: everything that belongs to a release, from the last commit of the branch that is
checked out. Nothing of the repository changes unless all of it succeeds; then the branch has two commits more, the
release and the version after it, and the release's tag. Publishing is left to who runs it: the last lines say how.

1. The version is written, and the news fragments become its entry of the changelog.
2. The wheel and the source distribution are built twice, in different folders; both times they are the same bytes.
3. ``twine check --strict`` looks at them.
4. Each is installed into a new environment from the package registry, the wheel without extras and with those that
   the service runs with, the source distribution without (``trying``). ``project-service config`` and ``twistd``
   work there, and with an embedded database and store the service starts, is ready, and ends when it is told to.
   The same is done in a new container of another Python.
5. ``dist/`` gets the bill of materials of both environments (CycloneDX), the licences of all that is in them, what
   it was built with, and the SHA-256 of every file.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

from releasing.bill import bill_of, licences, table
from releasing.building import Unfit, builders, built, digests, run
from releasing.trying import WHEELS, try_all

VERSION_FILE = Path("project_service", "__init__.py")
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.M)


def checked_version(text: str, present: str) -> Version:
    """The version to release. Raises ``Unfit`` unless it is a final one, three numbers, and after ``present``."""
    try:
        version = Version(text)
    except InvalidVersion:
        version = None
    if version is None or str(version) != text or len(version.release) != 3 or version.is_prerelease:
        raise Unfit(f"{text} is not a version like 1.2.3")
    if version <= Version(present):
        raise Unfit(f"{text} does not come after {present}, the version of the last commit")
    return version


def version_after(version: Version) -> str:
    """What the branch says it is until the next release."""
    return f"{version.major}.{version.minor + 1}.0.dev0"


def written(folder: Path, version: str) -> None:
    """Write the version down, in the one file that has it."""
    file = folder / VERSION_FILE
    file.write_text(_VERSION.sub(f'__version__ = "{version}"', file.read_text("utf-8")), "utf-8")


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


@contextmanager
def branch_at_head(repository: Path, scratch: Path) -> Iterator[Path]:
    """A folder with the last commit checked out, where commits can be made without touching any branch."""
    folder = scratch / "checkout"
    run(["git", "worktree", "add", "--detach", "--quiet", str(folder), "HEAD"], repository)
    try:
        yield folder
    finally:
        run(["git", "worktree", "remove", "--force", str(folder)], repository)


def commit(folder: Path, message: str) -> str:
    """The id of a new commit of everything in ``folder``."""
    run(["git", "add", "--all"], folder)
    run(["git", "commit", "--quiet", "--message", message], folder)
    return run(["git", "rev-parse", "HEAD"], folder).strip()


def beside(name: str) -> str:
    """A command of the environment that this runs in."""
    return str(Path(sys.executable).with_name(name))


def bills(version: str, dist: Path, environments: Path, made_at: int) -> None:
    """What is in the environments of the wheel that ``trying`` has made."""
    parts: dict[str, str] = {}
    for name in WHEELS:
        bill = bill_of(environments / name / "bin" / "python", Path(beside("cyclonedx-py")), made_at)
        parts |= licences(bill)
        file = dist / f"project_service-{version}.{name}.cdx.json"
        file.write_text(json.dumps(bill, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (dist / "licences.txt").write_text(table(dict(sorted(parts.items()))), "utf-8")


def release(repository: Path, text: str, dist: Path, container: str, image: str) -> None:
    """All steps; raises ``Unfit`` at the first that fails."""
    if run(["git", "status", "--porcelain"], repository).strip():
        raise Unfit("there are changes that are not committed")
    branch = run(["git", "symbolic-ref", "--short", "HEAD"], repository).strip()
    present = _VERSION.search((repository / VERSION_FILE).read_text("utf-8"))
    assert present is not None
    version = checked_version(text, present[1])
    today = datetime.now(UTC)
    made_at = int(today.replace(hour=0, minute=0, second=0, microsecond=0).timestamp())
    with tempfile.TemporaryDirectory() as name, branch_at_head(repository, Path(name)) as folder:
        scratch = Path(name)
        say(f"Writing version {version} and its changelog")
        written(folder, str(version))
        towncrier = [beside("towncrier"), "build", "--yes", "--version", str(version)]
        run([*towncrier, "--date", today.date().isoformat()], folder)
        released = commit(folder, f"Release {version}")
        say("Building twice")
        first, second = (built(repository, released, made_at, scratch / half) for half in ("one", "two"))
        if digests(first) != digests(second):
            raise Unfit(f"two builds differ: {digests(first)} and {digests(second)}")
        run([beside("twine"), "check", "--strict", *map(str, first)], scratch)
        made = scratch / "dist"
        shutil.copytree(first[0].parent, made)
        try_all(str(version), made, scratch / "environments", say)
        bills(str(version), made, scratch / "environments", made_at)
        if image != "none":
            say(f"The same in a container of {image}")
            mounts = [f"--volume={made}:/dist:ro", f"--volume={folder}:/src:ro"]
            trying = ["python3", "-m", "releasing.trying", str(version), "/dist"]
            run([*shlex.split(container), *mounts, "--workdir=/src", image, *trying], scratch)
        (made / "built-with.txt").write_text(builders(), "utf-8")
        sums = "".join(f"{digest}  {name}\n" for name, digest in digests(sorted(made.iterdir())).items())
        (made / "SHA256SUMS").write_text(sums, "utf-8")
        written(folder, version_after(version))
        last = commit(folder, f"The version after {version}")
        run(["git", "merge", "--ff-only", "--quiet", last], repository)
        run(
            ["git", "tag", "--annotate", "--message", f"Release {version}", f"v{version}", released],
            repository,
        )
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(made, dist)
    say(f"Release {version} is in {dist}, as the tag v{version}")
    say(f"To publish it: git push origin {branch} v{version} && twine upload {dist}/*.whl {dist}/*.tar.gz")


def main() -> int:
    reader = argparse.ArgumentParser(prog="python -m releasing", description=(__doc__ or "").split(":", 1)[1])
    reader.add_argument("version", help="for instance 0.2.0")
    reader.add_argument("--container", required=True, help="what runs a command in a new container")
    reader.add_argument(
        "--image", required=True, help='of that: with Python and pip; "none" for no container'
    )
    asked = reader.parse_args()
    try:
        release(Path.cwd(), asked.version, Path.cwd() / "dist", asked.container, asked.image)
    except Unfit as fault:
        print(f"No release: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
