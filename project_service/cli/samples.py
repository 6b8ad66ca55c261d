"""``project-service config``, ``unit``, ``dashboard`` and ``alerts``: what operators begin with."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from project_service.cli.invocation import Invocation, common_options
from project_service.settings.reading import Source

# A wheel has a copy of etc in the package (setup.py); a checkout has the folder itself.
PACKAGE = Path(__file__).parents[1]
SAMPLES = PACKAGE / "etc" if (PACKAGE / "etc").is_dir() else PACKAGE.parent / "etc"

# The paths that the sample of the unit has.
CONFIG = Path("/etc/project-service/project-service.toml")
_PROGRAMS = "/opt/project-service/bin/"
# What ProtectHome=yes hides from a service.
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))


@click.command()
@common_options
def config(invocation: Invocation) -> None:
    """Print every setting with its default and what it does, to begin a configuration with."""
    _show(invocation, (SAMPLES / "project-service.toml").read_text("utf-8"))


@click.command()
@common_options
def unit(invocation: Invocation) -> None:
    """Print a systemd unit that starts this installation, with --config and --data-dir if they are given."""
    source = invocation.source()
    if source == Source.named({}, None, None):
        source = Source(CONFIG)
    sample = (SAMPLES / "project-service.service").read_text("utf-8")
    _show(invocation, unit_of(sample, Path(sys.executable).parent, source))


@click.command()
@common_options
def dashboard(invocation: Invocation) -> None:
    """Print a dashboard for Grafana, to be imported there."""
    _show(invocation, (SAMPLES / "grafana-dashboard.json").read_text("utf-8"))


@click.command()
@common_options
def alerts(invocation: Invocation) -> None:
    """Print alerts for Prometheus, a file for its rule_files."""
    _show(invocation, (SAMPLES / "alerts.yaml").read_text("utf-8"))


def unit_of(sample: str, programs: Path, source: Source) -> str:
    """The unit ``sample`` with the folder of ``twistd``, and the configuration and data directory of ``source``."""
    named = {"--config": source.config, "--data-dir": source.data_dir}
    given = {option: path for option, path in named.items() if path is not None}
    arguments: list[Path | str] = [programs / "twistd", "--nodaemon", "--pidfile=", "project-service"]
    arguments += [one for pair in given.items() for one in pair]
    in_homes = any(one.is_relative_to(home) for one in (programs, *given.values()) for home in _HOMES)
    lines = []
    for line in sample.splitlines():
        if line.startswith("ExecStart="):
            lines.append("ExecStart=" + " ".join(map(_quoted, arguments)))
        elif line.startswith("ProtectSystem=") and source.data_dir is not None:
            lines += [line, f"ReadWritePaths={_quoted(source.data_dir)}"]
        elif line == "ProtectHome=yes" and in_homes:
            lines.append("ProtectHome=read-only")
        elif _PROGRAMS not in line and not line.startswith("Documentation="):
            lines.append(line)
    return "\n".join(lines)


def _quoted(argument: object) -> str:
    """As an argument in a unit (systemd.service(5), "Command lines")."""
    text = str(argument).replace("%", "%%").replace("$", "$$")
    if not any(one in text for one in " \t\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _show(invocation: Invocation, text: str) -> None:
    invocation.show(text, *text.splitlines())
