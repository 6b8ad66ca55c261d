"""A wheel built from this tree is complete and works in a new environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
import requests
from packaging.requirements import Requirement

from tests.live.daemon import ROOT, Daemon, children_on
from tests.live.service.documented import OF_ANY_PORT

# These files are copied and built there, so that no build/ or egg-info is left in the tree.
SOURCES = ("setup.py", "pyproject.toml", "README.rst", "LICENSE", "etc", "project_service", "twisted")


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


def test_the_source_distribution_has_what_the_readme_links_to(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".*", "var", "tests", "benchmarks*", "*.egg-info")
    )
    _run([sys.executable, "-m", "build", "--sdist", "."], copy)
    (built,) = (copy / "dist").glob("*.tar.gz")
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    named = set(
        re.findall(r"``([A-Za-z_./-]+\.(?:rst|toml|service))``", (ROOT / "README.rst").read_text("utf-8"))
    )
    assert {"docs/operations.rst", "etc/project-service.toml"} <= named
    assert named - held == set()


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a new environment with the wheel, and of what is installed here with what it asks for alone."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(home)
    python = str(home / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python]
    _run([*pip, "install", "--quiet", "--no-deps", "--no-compile", str(wheel)], home)
    (packages,) = home.glob("lib/python*/site-packages")
    (ours,) = (one for one in distributions(path=[str(packages)]) if one.name == "project-service")
    for theirs in _asked_for(ours, "embedded"):
        _link(theirs, packages)
    return python


def _asked_for(ours: Distribution, extra: str) -> list[Distribution]:
    """The distributions that pip would install too, as they are installed here. Fails if one is not of the version
    asked for."""
    found: dict[tuple[str, str], Distribution] = {}
    waiting = [(ours, extra)]
    while waiting:
        asking, extra = waiting.pop()
        for one in map(Requirement, asking.requires or ()):
            if one.marker is not None and not one.marker.evaluate({"extra": extra}):
                continue
            theirs = distribution(one.name)
            assert one.specifier.contains(theirs.version, prereleases=True), (asking.name, str(one))
            for name in ("", *one.extras):
                if (theirs.name, name) not in found:
                    found[theirs.name, name] = theirs
                    waiting.append((theirs, name))
    return list(found.values())


def _link(theirs: Distribution, packages: Path) -> None:
    """Links all files except scripts, which would start the Python that they were made for."""
    for file in theirs.files or ():
        source = Path(str(theirs.locate_file(file))).resolve()
        if file.parent.as_posix() == "../../../bin" and source.read_bytes()[:2] != b"#!":
            (packages / file).symlink_to(source)
    for top in {file.parts[0] for file in theirs.files or ()} - {".."}:
        _link_tree(Path(str(theirs.locate_file(top))), packages / top)


def _link_tree(source: Path, target: Path) -> None:
    """Links a folder as a whole, or file by file if several distributions share it."""
    shared = source.is_dir() and not source.suffix and not (source / "__init__.py").exists()
    if not (shared or target.exists()):
        target.symlink_to(source)
    elif source.is_dir() and not target.is_symlink():
        target.mkdir(exist_ok=True)
        for one in source.iterdir():
            _link_tree(one, target / one.name)


def _run(argv: list[str], where: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(argv, cwd=where, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_complete_and_not_editable(python: str, tmp_path: Path) -> None:
    where = _run([python, "-c", "import project_service; print(project_service.__file__)"], tmp_path).strip()
    assert "site-packages" in where
    installed = Path(where).parent
    ours = {path.relative_to(ROOT / "project_service") for path in _files(ROOT / "project_service")}
    theirs = {path.relative_to(installed) for path in _files(installed)}
    samples = {path.relative_to(ROOT) for path in _files(ROOT / "etc")}
    assert theirs == ours | samples


def test_the_wheel_prints_the_settings_and_a_unit_for_where_it_is_installed(
    python: str, tmp_path: Path
) -> None:
    script = str(Path(python).with_name("project-service"))
    assert _run([script, "config"], tmp_path) == (ROOT / "etc" / "project-service.toml").read_text("utf-8")
    unit = _run([script, "unit", "--config", "my.toml"], tmp_path)
    starts = f"ExecStart={Path(python).with_name('twistd')} --nodaemon --pidfile= project-service"
    assert f"\n{starts} --config {tmp_path}/my.toml\n" in unit
    assert "/opt/project-service" not in unit


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_a_signup_works_with_the_installed_wheel(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OF_ANY_PORT.items():
        monkeypatch.setenv(name, value)
    data = tmp_path / "var"
    with Daemon(data, python=python, pythonpath="") as daemon:
        url = daemon.wait_until_ready()
        account = {"email": "wheel@example.test", "password": "correct horse 7"}
        answer = requests.post(f"{url}/auth/signup", json=account, timeout=60)
        assert answer.status_code == 201, answer.text
        script = str(Path(python).with_name("project-service"))
        checked = json.loads(_run([script, "check", "--json", "--data-dir", str(data)], tmp_path))
        assert checked["ok"] is True
        assert daemon.stop() == 0, daemon.text
    assert children_on(data) == []
