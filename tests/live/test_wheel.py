"""A wheel built from this tree, installed into a new environment, does the same job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import requests

from tests.live.daemon import ROOT, Daemon, children_on

# What belongs to the sources; a build in a copy leaves no build/ or egg-info in the tree.
SOURCES = ("setup.py", "pyproject.toml", "README.rst", "LICENSE", "project_service", "twisted")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "dropin.cache"))
        else:
            shutil.copy(source, copy / name)
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", "dist", "."], copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a new environment with the wheel and everything it asks pip for."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(home)
    python = str(home / "bin" / "python")
    # What is used of it is compiled when it is used.
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    _run([*install, f"{wheel}[embedded]"], home)
    return python


def _run(argv: list[str], where: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(argv, cwd=where, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_complete_and_not_editable(python: str, tmp_path: Path) -> None:
    where = _run([python, "-c", "import project_service; print(project_service.__file__)"], tmp_path).strip()
    assert "site-packages" in where
    installed = Path(where).parent
    ours = {path.relative_to(ROOT / "project_service") for path in _files(ROOT / "project_service")}
    theirs = {path.relative_to(installed) for path in _files(installed)}
    assert theirs == ours


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_a_signup_against_it(python: str, tmp_path: Path) -> None:
    data = tmp_path / "var"
    with Daemon(data, python=python, pythonpath="") as daemon:
        url = daemon.wait_until_ready()
        account = {"email": "wheel@example.test", "password": "correct horse 7"}
        answer = requests.post(f"{url}/auth/signup", json=account, timeout=10)
        assert answer.status_code == 201, answer.text
        script = str(Path(python).with_name("project-service"))
        checked = json.loads(_run([script, "check", "--json", "--data-dir", str(data)], tmp_path))
        assert checked["ok"] is True
        assert daemon.stop() == 0, daemon.text
    assert children_on(data) == []
