"""``docs/operations.rst`` and the systemd unit agree with the program: metrics, commands, settings and timeouts."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import click
from twisted.trial.unittest import TestCase

from project_service.cli import main
from project_service.http.metrics import Metrics
from project_service.settings.model import Settings
from project_service.settings.reading import Source
from project_service.workers.supervisor import STOP_MARGIN_SECONDS

UNIT = Path(__file__).parents[3] / "etc" / "project-service.service"
DOCUMENT = (Path(__file__).parents[3] / "docs" / "operations.rst").read_text("utf-8")


class Documented(TestCase):
    def test_every_metric_is_documented_and_no_other(self) -> None:
        shown = set(re.findall(r"^# TYPE (\S+) ", Metrics().exposition().decode(), re.MULTILINE))
        # When a counter began is the library's own addition, and says nothing of the service.
        shown = {name for name in shown if not name.endswith("_created")}
        self.assertGreater(len(shown), 4)
        self.assertEqual(set(re.findall(r"^``(project_service_\w+)``", DOCUMENT, re.MULTILINE)), shown)

    def test_every_command_that_is_named_exists(self) -> None:
        named = set(re.findall(r"project-service (storage|keys|jwt-keys|user|bucket) ([a-z]+)", DOCUMENT))
        self.assertGreater(len(named), 3)
        for noun, verb in named:
            assert isinstance(main, click.Group)
            group = main.get_command(click.Context(main), noun)
            assert isinstance(group, click.Group)
            self.assertIn(verb, group.commands)

    def test_the_configuration_that_is_shown_is_valid(self) -> None:
        """The secrets come from the environment variables that the page shows."""
        shown = re.search(r"\.\. code-block:: toml\n   :name: configuration\n\n((?:   .*\n|\n)+)", DOCUMENT)
        secrets = dict(re.findall(r"^    (PROJECT_SERVICE__\w+)='(.*)'$", DOCUMENT, re.MULTILINE))
        assert shown is not None
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = Path(folder.name) / "project-service.toml"
        config.write_text(dedent(shown[1]))
        settings = Source(config).read({name: value.replace("…", "x") for name, value in secrets.items()})
        self.assertEqual(set(settings.stages), {"prod"})
        self.assertEqual(settings.server.public_url, "https://project.example.com")

    def test_every_setting_that_is_named_exists(self) -> None:
        settings = Settings()
        named = re.findall(r"``(server|database|store|auth|storage)\.(\w+)``", DOCUMENT)
        self.assertGreater(len(named), 5)
        for section, name in named:
            self.assertTrue(hasattr(getattr(settings, section), name), f"{section}.{name}")


class UnitFile(TestCase):
    def setUp(self) -> None:
        # systemd allows a key twice; only the last is of interest here.
        self.unit = ConfigParser(strict=False, interpolation=None)
        self.unit.optionxform = str  # type: ignore[assignment, method-assign]  # configparser's documented way
        self.unit.read(UNIT)

    def test_the_stop_timeout_covers_the_services_own(self) -> None:
        # A worker that does not leave is killed by its parent, which then ends what it embeds.
        longest = Settings().server.shutdown_seconds + STOP_MARGIN_SECONDS
        self.assertGreater(float(self.unit["Service"]["TimeoutStopSec"]), longest)
        self.assertEqual(self.unit["Service"]["KillSignal"], "SIGTERM")

    def test_it_runs_in_the_foreground_and_reloads_by_hup(self) -> None:
        service = self.unit["Service"]
        self.assertIn("twistd --nodaemon --pidfile= project-service --config", service["ExecStart"])
        self.assertEqual(service["Type"], "exec")
        self.assertIn("-HUP", service["ExecReload"])
        self.assertEqual(service["ProtectSystem"], "strict")
        self.assertEqual(service["StateDirectory"], "project-service")

    def test_a_reload_that_comes_too_early_leads_to_a_restart(self) -> None:
        # systemd takes an end by SIGHUP for a clean one.
        self.assertEqual(self.unit["Service"]["RestartForceExitStatus"], "SIGHUP")

    def test_the_runtime_directory_is_that_of_the_documented_socket(self) -> None:
        page = (UNIT.parents[1] / "docs" / "operations.rst").read_text("utf-8")
        self.assertIn(f"unix:/run/{self.unit['Service']['RuntimeDirectory']}/", page)

    def test_a_worker_killed_for_memory_does_not_end_the_service(self) -> None:
        # systemd's own default is "stop".
        self.assertEqual(self.unit["Service"]["OOMPolicy"], "continue")
